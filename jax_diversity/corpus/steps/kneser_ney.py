"""A language model of n-grams: interpolated, modified Kneser-Ney smoothing (Chen and Goodman 1999, section 3.2).

An n-gram is known by its prefix (one number) and its last token: what is looked up is exact. The n-grams of an order
lie sorted by a hash that is a permutation of the 64-bit numbers, so that the hash's first bits say where in the table
one is, and all n-grams of a text are found together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64, UInt64

BEGIN, END = 0, 1
"""The tokens before and behind every text."""
_DISCOUNTS = (0.5, 1.0, 1.5)
"""Where a text is too short to estimate them; KenLM has the same."""


@dataclass(frozen=True)
class _Table:
    """The n-grams of one order, of two tokens or more.

    Attributes:
        hashes: sorted; of prefix and last token.
        starts: of every value of the hash's first bits, the first n-gram with these.
        log_probability: of the last token after the others.
        log_back_off: as a context: what the probability after the shorter context is multiplied by, for tokens that
            have not come after this one.
    """

    hashes: UInt64[np.ndarray, " ngram"]
    starts: Int32[np.ndarray, " start"]
    log_probability: Float32[np.ndarray, " ngram"]
    log_back_off: Float32[np.ndarray, " ngram"]

    def find(self, hashes: UInt64[np.ndarray, " place"]) -> Int64[np.ndarray, " place"]:
        """The places of n-grams in the table; -1 for those that it does not hold."""
        shift = np.uint64(65 - len(self.starts).bit_length())
        places = self.starts[hashes >> shift].astype(np.int64)
        found = np.full(len(hashes), -1, np.int64)
        waiting = np.arange(len(hashes))
        while len(waiting):
            at = places[waiting]
            inside = at < len(self.hashes)
            waiting, at = waiting[inside], at[inside]
            there, wanted = self.hashes[at], hashes[waiting]
            equal = there == wanted
            found[waiting[equal]] = at[equal]
            waiting = waiting[there < wanted]
            places[waiting] += 1
        return found


@dataclass(frozen=True)
class NgramModel:
    """A trained model.

    Attributes:
        log_unigram: log-probability of every token.
        log_back_off: of every token as a context.
        tables: n-grams of two tokens, three ...
    """

    log_unigram: Float32[np.ndarray, " token"]
    log_back_off: Float32[np.ndarray, " token"]
    tables: tuple[_Table, ...]

    def log_probabilities(self, tokens: Int64[np.ndarray, " token"]) -> Float64[np.ndarray, " following"]:
        """Of every token after the first, which is `BEGIN`: its log-probability (natural) after those before it."""
        result = self.log_unigram[tokens[1:]].astype(np.float64)
        ngrams, back_off = tokens, self.log_back_off
        for table in self.tables:
            contexts = ngrams[:-1]
            places = np.flatnonzero(contexts >= 0)
            contexts = contexts[places]
            found = table.find(_hashed(contexts, tokens[places + 1], len(self.log_unigram)))
            known = found >= 0
            result[places[known]] = table.log_probability[found[known]]
            result[places[~known]] += back_off[contexts[~known]]
            ngrams = np.full(len(tokens), -1, np.int64)
            ngrams[places + 1] = found
            back_off = table.log_back_off
        return result

    def save(self, folder: Path, name: str) -> None:
        """Write the model's arrays, in files whose names begin with `name`."""
        for part, array in self._arrays().items():
            np.save(folder / f"{name}_{part}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, name: str) -> NgramModel:
        """A model as it was saved; processes that load it share its memory."""

        def array(part: str) -> Any:
            return np.asarray(np.load(folder / f"{name}_{part}.npy", mmap_mode="r", allow_pickle=False))

        tables = []
        while (folder / f"{name}_hashes_{len(tables)}.npy").is_file():
            tables.append(_Table(**{part: array(f"{part}_{len(tables)}") for part in _Table.__dataclass_fields__}))
        return cls(array("log_unigram"), array("log_back_off"), tuple(tables))

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"log_unigram": self.log_unigram, "log_back_off": self.log_back_off}
        for index, table in enumerate(self.tables):
            arrays |= {f"{name}_{index}": getattr(table, name) for name in _Table.__dataclass_fields__}
        return arrays


def _hashed(
    prefixes: Int64[np.ndarray, " ngram"], tokens: Int64[np.ndarray, " ngram"], num_tokens: int
) -> UInt64[np.ndarray, " ngram"]:
    """A number for each pair of a prefix and a token, all different, spread over the 64-bit numbers."""
    values = (prefixes * num_tokens + tokens).astype(np.uint64)
    # The finaliser of MurmurHash3; a shift and an odd factor can both be undone.
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))


def train(texts: Sequence[Int64[np.ndarray, "_"]], num_tokens: int, order: int) -> NgramModel:
    """Train a model.

    Args:
        texts: each begins with `BEGIN`, ends with `END`, and holds neither between them.
        num_tokens: how many tokens there are; those that never come have a probability too.
        order: n.

    Returns:
        The model. After any context the probabilities of all tokens but `BEGIN` sum up to 1.
    """
    orders = _count(texts, num_tokens, order)
    # Of all but the longest n-grams what counts is the number of different tokens that come before one, which tells how
    # likely it is in a new context; before those that begin a text there is none.
    for ngrams, longer in pairwise(orders):
        contexts = np.bincount(longer.suffixes, minlength=len(ngrams.counts))
        ngrams.counts = np.where(ngrams.begins, ngrams.counts, contexts)
    orders[0].counts[BEGIN] = 0  # it is never predicted
    probability = np.where(np.arange(num_tokens) == BEGIN, 0, 1 / (num_tokens - 1))
    probabilities, back_offs = [], []
    for index, ngrams in enumerate(orders):
        num_contexts = len(orders[index - 1].counts) if index else 1
        discounted, left = _discounted(ngrams.counts, ngrams.prefixes, num_contexts)
        probability = discounted + left[ngrams.prefixes] * probability[ngrams.suffixes]
        probabilities.append(probability)
        back_offs.append(left)
    back_offs.append(np.ones(len(orders[-1].counts)))
    with np.errstate(divide="ignore"):
        log_probabilities = [np.log(values).astype(np.float32) for values in probabilities]
        # The first is what the empty context leaves to tokens that never came.
        log_back_offs = [np.log(values).astype(np.float32) for values in back_offs[1:]]
    tables = [
        _Table(ngrams.hashes, _starts(ngrams.hashes), *logs)
        for ngrams, *logs in zip(orders[1:], log_probabilities[1:], log_back_offs[1:], strict=True)
    ]
    return NgramModel(log_probabilities[0], log_back_offs[0], tuple(tables))


@dataclass
class _Ngrams:
    """The different n-grams of one order: where their prefixes and suffixes are among the shorter ones, and counts."""

    hashes: UInt64[np.ndarray, " ngram"]
    prefixes: Int64[np.ndarray, " ngram"]
    suffixes: Int64[np.ndarray, " ngram"]
    begins: Bool[np.ndarray, " ngram"]
    counts: Int64[np.ndarray, " ngram"]


def _count(texts: Sequence[Int64[np.ndarray, "_"]], num_tokens: int, order: int) -> list[_Ngrams]:
    """The n-grams of every order from 1 on, and how often each comes."""
    tokens = np.concatenate(texts)
    lengths = np.array([len(text) for text in texts])
    # How many tokens of its text come before: no n-gram reaches into another text.
    before = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    every = np.arange(num_tokens)
    counts = np.bincount(tokens, minlength=num_tokens)
    found = [_Ngrams(_hashed(every, every, 1), np.zeros(num_tokens, np.int64), every, every == BEGIN, counts)]
    shorter = tokens  # the n-gram of the order before that ends at each place
    for n in range(2, order + 1):
        places = np.flatnonzero(before >= n - 1)
        hashes, first, ngrams, counts = np.unique(
            _hashed(shorter[places - 1], tokens[places], num_tokens),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        first = places[first]
        found.append(_Ngrams(hashes, shorter[first - 1], shorter[first], before[first] == n - 1, counts))
        shorter = np.full(len(tokens), -1, np.int64)
        shorter[places] = ngrams
    return found


def _discounted(
    counts: Int64[np.ndarray, " ngram"], contexts: Int64[np.ndarray, " ngram"], num_contexts: int
) -> tuple[Float64[np.ndarray, " ngram"], Float64[np.ndarray, " context"]]:
    """Of every n-gram its share of its context after the discount; of every context the share that this leaves."""
    # Discounts of n-grams that come once, twice, more often (Chen and Goodman 1999, equation 17).
    numbers = [int((counts == number).sum()) for number in range(1, 5)]
    if all(numbers):
        factor = numbers[0] / (numbers[0] + 2 * numbers[1])
        estimates = [k - (k + 1) * factor * numbers[k] / numbers[k - 1] for k in (1, 2, 3)]
    else:
        estimates = [-1.0]
    if not all(0 <= estimate <= k for k, estimate in enumerate(estimates, start=1)):
        estimates = _DISCOUNTS
    discounts = np.array([0.0, *estimates])[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, num_contexts)
    left = np.bincount(contexts, discounts, num_contexts)
    shares = np.maximum(totals, 1)
    return (counts - discounts) / shares[contexts], np.where(totals > 0, left / shares, 1)


def _starts(hashes: UInt64[np.ndarray, " ngram"]) -> Int32[np.ndarray, " start"]:
    """Of each value of the first bits, as many as number the n-grams, the first hash that is not below it."""
    bits = len(hashes).bit_length()
    return np.searchsorted(hashes, np.arange(2**bits, dtype=np.uint64) << np.uint64(64 - bits)).astype(np.int32)

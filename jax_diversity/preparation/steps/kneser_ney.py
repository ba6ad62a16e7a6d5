"""A language model of n-grams: interpolated, modified Kneser-Ney smoothing (Chen and Goodman 1999, section 3.2).

An n-gram is a row of n tokens; n is its order. It is identified by its prefix (the number of the first n - 1 tokens)
and its last token, so that look-ups are exact. The n-grams of one order are sorted by a hash. The hash is a permutation
of the 64-bit numbers: different n-grams have different hashes. The first bits of a hash give the place in the table,
and all n-grams of a text are found together. Other libraries do not fit: KenLM trains such models only with a C++
program, not with its Python package. NLTK stores n-grams as Python objects and has no modified smoothing.
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
"""The tokens before and after every text."""
_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts that are used if the texts are too short to estimate them, as in KenLM."""


@dataclass(frozen=True)
class _Table:
    """The n-grams of one order, with at least two tokens each.

    Attributes:
        hashes: sorted hashes of prefix and last token.
        starts: for every value of the first bits of a hash, the index of the first n-gram with these bits.
        log_probability: log-probability of the last token after the other tokens.
        log_back_off: logarithm of the n-gram's factor as a context. If a token was never seen after the n-gram, the
            probability after the shorter context is multiplied by this factor.
    """

    hashes: UInt64[np.ndarray, " ngram"]
    starts: Int32[np.ndarray, " start"]
    log_probability: Float32[np.ndarray, " ngram"]
    log_back_off: Float32[np.ndarray, " ngram"]

    def find(self, hashes: UInt64[np.ndarray, " place"]) -> Int64[np.ndarray, " place"]:
        """Find the indices of n-grams in the table by their hashes; -1 for unknown n-grams."""
        shift = np.uint64(65 - len(self.starts).bit_length())
        places = self.starts[hashes >> shift].astype(np.int64)
        rows = np.full(len(hashes), -1, np.int64)
        waiting = np.arange(len(hashes))
        while len(waiting):
            at = places[waiting]
            inside = at < len(self.hashes)
            waiting, at = waiting[inside], at[inside]
            there, wanted_hashes = self.hashes[at], hashes[waiting]
            equal = there == wanted_hashes
            rows[waiting[equal]] = at[equal]
            waiting = waiting[there < wanted_hashes]
            places[waiting] += 1
        return rows


@dataclass(frozen=True)
class NgramModel:
    """A trained language model.

    Attributes:
        log_unigram: log-probability of every token.
        log_back_off: logarithm of the back-off factor of every token as a context.
        tables: the n-grams of two tokens, the n-grams of three tokens, and so on.
    """

    log_unigram: Float32[np.ndarray, " token"]
    log_back_off: Float32[np.ndarray, " token"]
    tables: tuple[_Table, ...]

    def log_probabilities(self, tokens: Int64[np.ndarray, " token"]) -> Float64[np.ndarray, " following"]:
        """The natural log-probability of every token given the tokens before it; the first token, `BEGIN`, has none."""
        result = self.log_unigram[tokens[1:]].astype(np.float64)
        ngrams, back_off = tokens, self.log_back_off
        for table in self.tables:
            contexts = ngrams[:-1]
            places = np.flatnonzero(contexts >= 0)
            contexts = contexts[places]
            entries = table.find(_hashed(contexts, tokens[places + 1], len(self.log_unigram)))
            is_known = entries >= 0
            result[places[is_known]] = table.log_probability[entries[is_known]]
            result[places[~is_known]] += back_off[contexts[~is_known]]
            ngrams = np.full(len(tokens), -1, np.int64)
            ngrams[places + 1] = entries
            back_off = table.log_back_off
        return result

    def save(self, folder: Path, name: str) -> None:
        """Write the model's arrays to files whose names begin with `name`."""
        for part, array in self._arrays().items():
            np.save(folder / f"{name}_{part}.npy", array, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path, name: str) -> NgramModel:
        """Read a saved model; processes that load it share its memory."""

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
    """Return the hashes of n-grams: different pairs of prefix and token get different 64-bit numbers."""
    values = (prefixes * num_tokens + tokens).astype(np.uint64)
    # The last steps of MurmurHash3: the xor with a shifted value and the product with an odd factor are invertible.
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))


def train(texts: Sequence[Int64[np.ndarray, "_"]], num_tokens: int, order: int) -> NgramModel:
    """Train a model.

    Args:
        texts: tokens; each text begins with `BEGIN`, ends with `END`, and does not contain them elsewhere.
        num_tokens: number of tokens; tokens that never occur also have a probability.
        order: the largest n of the n-grams.

    Returns:
        The model. After any context, the probabilities of all tokens except `BEGIN` add up to 1.
    """
    orders = _count(texts, num_tokens, order)
    # All n-grams except the longest ones get another count: the number of different tokens that occur before them. This
    # number measures how likely an n-gram is in a new context. N-grams at the beginning of a text keep their count.
    for ngrams, longer in pairwise(orders):
        contexts = np.bincount(longer.suffixes, minlength=len(ngrams.counts))
        ngrams.counts = np.where(ngrams.begins, ngrams.counts, contexts)
    orders[0].counts[BEGIN] = 0  # the model never predicts it
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
        # The first value is left out: it is the share that the empty context leaves to unseen tokens.
        log_back_offs = [np.log(values).astype(np.float32) for values in back_offs[1:]]
    tables = [
        _Table(ngrams.hashes, _starts(ngrams.hashes), *logs)
        for ngrams, *logs in zip(orders[1:], log_probabilities[1:], log_back_offs[1:], strict=True)
    ]
    return NgramModel(log_probabilities[0], log_back_offs[0], tuple(tables))


@dataclass
class _Ngrams:
    """The different n-grams of one order, with counts; prefixes and suffixes are indices of shorter n-grams."""

    hashes: UInt64[np.ndarray, " ngram"]
    prefixes: Int64[np.ndarray, " ngram"]
    suffixes: Int64[np.ndarray, " ngram"]
    begins: Bool[np.ndarray, " ngram"]
    counts: Int64[np.ndarray, " ngram"]


def _count(texts: Sequence[Int64[np.ndarray, "_"]], num_tokens: int, order: int) -> list[_Ngrams]:
    """The n-grams of every order from 1 on, with their counts."""
    tokens = np.concatenate(texts)
    lengths = np.array([len(text) for text in texts])
    # Number of tokens before each token in the same text: no n-gram contains tokens of two texts.
    before = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    every = np.arange(num_tokens)
    counts = np.bincount(tokens, minlength=num_tokens)
    orders = [_Ngrams(_hashed(every, every, 1), np.zeros(num_tokens, np.int64), every, every == BEGIN, counts)]
    shorter = tokens  # the n-gram of the previous order that ends at each place
    for n in range(2, order + 1):
        places = np.flatnonzero(before >= n - 1)
        hashes, first, ngrams, counts = np.unique(
            _hashed(shorter[places - 1], tokens[places], num_tokens),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        first = places[first]
        orders.append(_Ngrams(hashes, shorter[first - 1], shorter[first], before[first] == n - 1, counts))
        shorter = np.full(len(tokens), -1, np.int64)
        shorter[places] = ngrams
    return orders


def _discounted(
    counts: Int64[np.ndarray, " ngram"], contexts: Int64[np.ndarray, " ngram"], num_contexts: int
) -> tuple[Float64[np.ndarray, " ngram"], Float64[np.ndarray, " context"]]:
    """Return every n-gram's share in its context after the discount, and the share that each context has left."""
    # Discounts of n-grams with one, two, and three or more occurrences (Chen and Goodman 1999, equation 17).
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
    """For each value of the first bits: the index of the first hash that is not below it."""
    bits = len(hashes).bit_length()
    return np.searchsorted(hashes, np.arange(2**bits, dtype=np.uint64) << np.uint64(64 - bits)).astype(np.int32)

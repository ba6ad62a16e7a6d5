"""Documents that share most of their runs of words, found by MinHash and locality-sensitive hashing.

Broder 1997, *On the resemblance and containment of documents*; Leskovec, Rajaraman and Ullman, *Mining of massive
datasets*, chapter 3. A document is the set of its runs of n words. Each of many hash functions keeps the least value
over the set; two documents have the same least value with a probability of their Jaccard similarity s. The values
are cut into bands of r values; documents that agree in a whole band of b are taken for duplicates, which
happens with a probability of 1 - (1 - s^r)^b.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import xxhash
from jaxtyping import Int64, UInt32, UInt64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from jax_diversity.foundation.checks import whole_number
from jax_diversity.preparation.base import Candidate, Step
from jax_diversity.preparation.duplicates import without_duplicates

# A number is one word whatever its digits: pages that differ in their dates and prices are near duplicates.
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W_]+")
_BLOCK = 1024
"""Runs of words that are hashed together: their values of all hash functions fit into a processor's cache."""


def minhash(
    *,
    bands: int = 14,
    rows: int = 8,
    run: int = 5,
    seed: int = 0,
    mark: bool = False,
    scratch: Path | None = None,
) -> Step:
    """Keeps the first of the documents that share most of their runs of `run` words.

    `bands` times `rows` hash functions: with 14 times 8, half of the pairs of similarity .68 are found, 92 % of
    those of .8, .1 % of those of .3. Case, accents, punctuation and digits do not count; groups are joined
    by any pair. Documents of fewer than `run` words have no duplicates. `mark` removes none and gives those of a group
    the field `minhash_group`.
    """
    for name, value in (("bands", bands), ("rows", rows), ("run", run)):
        whole_number(name, value, 1, 10_000)
    functions = _Functions(bands, rows, run, seed)

    def step(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        return without_duplicates(candidates, functions.sign, functions.join, mark=mark, scratch=scratch)

    return step


class _Functions:
    """The hash functions, and the signatures that they make: 64 bits a band."""

    def __init__(self, bands: int, rows: int, run: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._bands, self._rows, self._run = bands, rows, run
        # Odd factors and summands modulo 2^32 (Dietzfelbinger et al. 1997): permutations of the 32-bit numbers, whose
        # upper bits, which decide the least, depend on all bits. Processors multiply eight of these at once.
        shape = (bands * rows, 1)
        self._factors = rng.integers(0, 2**31, shape, np.uint32) * np.uint32(2) + np.uint32(1)
        self._summands = rng.integers(0, 2**32, shape, np.uint32)
        self._run_factors = rng.integers(0, 2**63, run, np.uint64) * np.uint64(2) + np.uint64(1)
        self._row_factors = rng.integers(0, 2**63, rows, np.uint64) * np.uint64(2) + np.uint64(1)

    def sign(self, candidate: Candidate) -> bytes | None:
        runs = _runs(candidate.text, self._run_factors)
        if runs is None:
            return None
        least = np.full(len(self._factors), 2**32 - 1, np.uint32)
        for start in range(0, len(runs), _BLOCK):
            values = runs[None, start : start + _BLOCK] * self._factors
            values += self._summands
            np.minimum(least, values.min(axis=1), out=least)
        # Each band as one number, of a polynomial in odd factors; the last multiplication spreads it over 64 bits.
        return _mixed(
            (least.reshape(self._bands, self._rows).astype(np.uint64) * self._row_factors).sum(axis=1)
        ).tobytes()

    def join(self, signatures: bytearray) -> Int64[np.ndarray, " signed"]:
        bands = np.frombuffer(bytes(signatures), np.uint64).reshape(-1, self._bands)
        number = len(bands)
        if not number:
            return np.empty(0, np.int64)
        one, other = [], []
        for band in bands.T:
            order = np.argsort(band, kind="stable")
            equal = np.flatnonzero(band[order][1:] == band[order][:-1])
            one.append(order[equal])
            other.append(order[equal + 1])
        pairs = (np.concatenate(one), np.concatenate(other))
        graph = coo_array((np.ones(len(pairs[0]), bool), pairs), (number, number))
        _, groups = connected_components(graph, directed=False)
        _, firsts = np.unique(groups, return_index=True)
        return firsts[groups]


def _runs(text: str, factors: UInt64[np.ndarray, " run"]) -> UInt32[np.ndarray, " place"] | None:
    """A hash of each run of words; None for a text of fewer words than a run has."""
    text = text.lower()
    if not text.isascii():  # accents become characters of their own, which are no letters
        text = unicodedata.normalize("NFD", text)
        text = "".join(character for character in text if unicodedata.category(character) != "Mn")
    words = _WORD.findall(text)
    num_runs = len(words) - len(factors) + 1
    if num_runs < 1:
        return None
    hashes = {word: xxhash.xxh3_64_intdigest(b"0" if word[0].isdigit() else word.encode()) for word in set(words)}
    values = np.fromiter(map(hashes.__getitem__, words), np.uint64, len(words))
    runs = np.zeros(num_runs, np.uint64)
    for offset, factor in enumerate(factors):
        runs += values[offset : offset + num_runs] * factor
    return (_mixed(runs) >> np.uint64(32)).astype(np.uint32)


def _mixed(values: UInt64[np.ndarray, " value"]) -> UInt64[np.ndarray, " value"]:
    """The finaliser of MurmurHash3: every bit depends on all."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))

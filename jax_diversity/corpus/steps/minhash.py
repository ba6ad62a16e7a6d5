"""Documents that share most of their runs of words, found by MinHash and locality-sensitive hashing.

Broder 1997, *On the resemblance and containment of documents*; Leskovec, Rajaraman and Ullman, *Mining of massive
datasets*, chapter 3. A document is the set of its runs of n words. Each of many hash functions keeps the least value
over the set; two documents have the same least value with a probability of their Jaccard similarity s. The values
are cut into bands of r values; documents that agree in a whole band of b are taken for duplicates, which
happens with a probability of 1 - (1 - s^r)^b.
"""

from __future__ import annotations

import sys
import unicodedata
from functools import cache

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt32, UInt64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from jax_diversity.corpus.steps.base import Candidate, Survey
from jax_diversity.corpus.steps.duplicates import Duplicates
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError

_LETTER, _DIGIT, _POINT, _ACCENT = 1, 2, 3, 4
"""Kinds of characters: a point or comma between digits is a part of a number."""
_BLOCK = 1024
"""Runs of words that are hashed together: their values of all hash functions fit into a processor's cache."""
_NEIGHBOURS = 16
"""Documents of a bucket with which each of them is compared, where similarity is looked at."""
_PAIRS = 100_000
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))


def minhash(
    *,
    bands: int = 14,
    rows: int = 8,
    run: int = 5,
    similarity: float = 0.0,
    seed: int = 0,
    mark: bool = False,
    precedence: str = "",
) -> Survey:
    """Keeps one of the documents that share most of their runs of `run` words.

    `bands` times `rows` hash functions: with 14 times 8, half of the pairs of similarity .68 are found, 92 % of
    those of .8, .1 % of those of .3. With `similarity`, pairs that are found must agree in such a share of all
    functions: more bands of fewer rows then find more pairs, and no others. Case, accents, punctuation and digits do
    not count; groups are joined by any pair. Documents of fewer than `run` words have no duplicates. The first one
    read is kept, or one of the sources named first in `precedence`. `mark` removes none and gives those of a group
    the field `minhash_group`.
    """
    for name, value in (("bands", bands), ("rows", rows), ("run", run)):
        whole_number(name, value, 1, 10_000)
    if not 0 <= similarity <= 1:
        raise UserError(f"Expected similarity of 0 to 1, found {similarity}.")
    functions = _Functions(bands, rows, run, similarity, seed)
    return Duplicates(functions.sign, functions.join, mark=mark, precedence=precedence)


class _Functions:
    """The hash functions, and the signatures that they make: 64 bits a band, or where similarity is looked at, all."""

    def __init__(self, bands: int, rows: int, run: int, similarity: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._bands, self._rows, self._similarity = bands, rows, similarity
        # Odd factors and summands modulo 2^32 (Dietzfelbinger et al. 1997): permutations of the 32-bit numbers, whose
        # upper bits, which decide the least, depend on all bits. Processors multiply eight of these at once.
        shape = (bands * rows, 1)
        self._factors = rng.integers(0, 2**31, shape, np.uint32) * np.uint32(2) + np.uint32(1)
        self._summands = rng.integers(0, 2**32, shape, np.uint32)
        self._run_factors = rng.integers(0, 2**63, run, np.uint64) * np.uint64(2) + np.uint64(1)
        self._row_factors = rng.integers(0, 2**63, rows, np.uint64) * np.uint64(2) + np.uint64(1)

    def sign(self, candidate: Candidate) -> bytes:
        runs = _runs(candidate.text, self._run_factors)
        if runs is None:
            return b""
        least = np.full(len(self._factors), 2**32 - 1, np.uint32)
        for start in range(0, len(runs), _BLOCK):
            values = runs[None, start : start + _BLOCK] * self._factors
            values += self._summands
            np.minimum(least, values.min(axis=1), out=least)
        return least.tobytes() if self._similarity else self._banded(least[None]).tobytes()

    def _banded(self, least: UInt32[np.ndarray, "document function"]) -> UInt64[np.ndarray, "document band"]:
        """Each band as one number, of a polynomial in odd factors; the last multiplication spreads it over 64 bits."""
        values = least.reshape(len(least), self._bands, self._rows).astype(np.uint64)
        return _mixed((values * self._row_factors).sum(axis=2))

    def join(self, signatures: UInt8[np.ndarray, "document byte"]) -> Int64[np.ndarray, " document"]:
        number = len(signatures)
        pairs = [np.empty((2, 0), np.int64)]
        least = np.ascontiguousarray(signatures).view(np.uint32 if self._similarity else np.uint64)
        for index in range(self._bands):
            if self._similarity:
                of_band = least[:, index * self._rows : (index + 1) * self._rows].astype(np.uint64)
                band = _mixed((of_band * self._row_factors).sum(axis=1))
            else:
                band = least[:, index]
            order = np.argsort(band, kind="stable")
            band = band[order]
            for distance in range(1, min(_NEIGHBOURS if self._similarity else 1, number - 1) + 1):
                equal = np.flatnonzero(band[distance:] == band[:-distance])
                if not len(equal):
                    break
                found = np.stack([order[equal], order[equal + distance]])
                pairs.append(found[:, self._are_similar(least, found)] if self._similarity else found)
        one, other = np.concatenate(pairs, axis=1)
        graph = coo_array((np.ones(len(one), bool), (one, other)), (number, number))
        return connected_components(graph, directed=False)[1].astype(np.int64)

    def _are_similar(
        self, least: UInt32[np.ndarray, "document function"], pairs: Int64[np.ndarray, "2 pair"]
    ) -> Bool[np.ndarray, " pair"]:
        """Whether pairs agree in enough functions: their share estimates the Jaccard similarity."""
        shares = [
            (least[pairs[0, start : start + _PAIRS]] == least[pairs[1, start : start + _PAIRS]]).mean(axis=1)
            for start in range(0, pairs.shape[1], _PAIRS)
        ]
        return np.concatenate(shares) >= self._similarity


def _runs(text: str, factors: UInt64[np.ndarray, " run"]) -> UInt32[np.ndarray, " place"] | None:
    """A hash of each run of words; None for a text of fewer words than a run has."""
    text = text.lower()
    if text.isascii():
        codes = np.frombuffer(text.encode(), np.uint8)
        kinds = _kinds()[codes]
    else:
        # Accents become characters of their own, which are taken out.
        text = unicodedata.normalize("NFD", text)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds = _kinds()[codes]
        is_accent = kinds == _ACCENT
        if is_accent.any():
            codes, kinds = codes[~is_accent], kinds[~is_accent]
    is_letter, is_digit = kinds == _LETTER, kinds == _DIGIT
    inside = is_letter | is_digit
    inside[1:-1] |= (kinds[1:-1] == _POINT) & is_digit[:-2] & is_digit[2:]
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    starts, stops = edges[::2], edges[1::2]
    num_runs = len(starts) - len(factors) + 1
    if num_runs < 1:
        return None
    # A word is a polynomial of its letters, the difference of two prefix sums. To begin at the power 0, whatever its
    # place, it is divided by the power at which it begins, which is a multiplication modulo 2^64.
    powers, inverses = _powers(len(codes))
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(powers[: len(codes)] * (codes + np.uint64(1)), out=sums[1:])
    words = (sums[stops] - sums[starts]) * inverses[starts]
    # A number is one word whatever its digits: pages that differ in their dates and prices are near duplicates.
    num_letters = np.zeros(len(codes) + 1, np.int32)
    np.cumsum(is_letter, out=num_letters[1:])
    words[num_letters[stops] == num_letters[starts]] = 0
    words = _mixed(words)
    runs = np.zeros(num_runs, np.uint64)
    for offset, factor in enumerate(factors):
        runs += words[offset : offset + num_runs] * factor
    return (_mixed(runs) >> np.uint64(32)).astype(np.uint32)


def _mixed(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """The finaliser of MurmurHash3: every bit depends on all."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))


def _powers(number: int) -> tuple[UInt64[np.ndarray, " power"], UInt64[np.ndarray, " power"]]:
    """At least so many powers of the base and of its inverse."""
    return _made_powers(max(1 << (number - 1).bit_length(), 1 << 16))


@cache
def _made_powers(number: int) -> tuple[UInt64[np.ndarray, " power"], UInt64[np.ndarray, " power"]]:
    powers = []
    for base in (_BASE, _INVERSE):
        factors = np.full(number, base)
        factors[0] = 1
        powers.append(np.cumprod(factors))
    return powers[0], powers[1]


@cache
def _kinds() -> UInt8[np.ndarray, " code"]:
    """What every character is to words; others are 0."""
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if character.isalnum():
            kinds[code] = _DIGIT if character.isdecimal() else _LETTER
        elif unicodedata.category(character) == "Mn":
            kinds[code] = _ACCENT
    kinds[[ord("."), ord(",")]] = _POINT
    return kinds

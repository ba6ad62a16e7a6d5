"""Find near duplicates, which share most of their runs of words, with MinHash and locality-sensitive hashing.

Broder 1997, *On the resemblance and containment of documents*; Leskovec, Rajaraman and Ullman, *Mining of massive
datasets*, chapter 3. A document is the set of its runs of n words. The signature holds one value for each of many hash
functions: the smallest hash of the set's members. For one hash function, the minima of two documents are equal with
probability s, the Jaccard similarity of the documents. The values are divided into b bands of r values. Documents that
agree in a whole band count as duplicates: the probability of this is 1 - (1 - s^r)^b.
"""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt32, UInt64
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from jax_diversity.foundation.checks import as_whole_number, check_one_of, share
from jax_diversity.foundation.text.normal_forms import normal_form
from jax_diversity.foundation.text.scripts import UNSPACED, UNSPACED_MARKS, ranges
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.preparation.steps.duplicates import SignedGroups
from jax_diversity.preparation.steps.signatures import signature_files

_LETTER, _DIGIT, _POINT, _ACCENT, _SINGLE = 1, 2, 3, 4, 5
"""Kinds of characters. A point or comma between digits belongs to the number. A single character is a word."""
_BLOCK = 1024
"""Number of runs of words hashed at a time: the values of all hash functions fit into a processor's cache."""
_NEIGHBOURS = 16
"""If `similarity` is given, each document is compared with this number of documents of its bucket."""
_PAIRS = 100_000
_NUMBERS_FROM = {"auto": 0.3, "count": 0.0, "ignore": 2.0}
"""The option `digits` -> the share of numbers among the words from which numbers are compared."""
_SEED = 0
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(int(_BASE), -1, 2**64))


@dataclass
class Minhash(SignedGroups):
    """Keeps one of the documents that share most of their word n-grams; `run` is n.

    There are `bands` times `rows` hash functions. 14 times 8 functions find half of the pairs with similarity .68, 92 %
    of the pairs with .8, and .1 % of the pairs with .3 (1 - (1 - s^8)^14). If 5 % of the words of a text were edited,
    the similarity is about .63: 14 times 8 functions find 37 % of such copies, and `bands: 28, rows: 4, similarity:
    0.5` finds 96 %. With `similarity`, the documents of a pair must also agree in this share of all functions. Then you
    can use more bands with fewer rows: they find more pairs, and false pairs are removed. Case, accents and punctuation
    are ignored. Numbers are ignored too, except in documents of which at least .3 of the words are numbers, such as
    tables: otherwise tables with the same words would be copies. `digits: count` compares numbers in all documents, and
    no longer finds pages that differ in dates and counters; `digits: ignore` in none. In scripts without spaces, each
    character is a word. Groups are the connected components of all pairs. Documents with fewer than `run` words have no
    duplicates. The kept document is from the source that comes first in `precedence`; otherwise it is the document that
    was read first. `mark` keeps all documents and sets the field `minhash_group`. `keep_signatures` stores the
    signatures; `against` names datasets with signatures of the same form. Near copies of their documents are removed,
    too. Exact and near copies of a million documents (2.8 GB) took 190 s on two cores and .7 GB of memory, with reading
    and storing.
    """

    bands: int = 14
    rows: int = 8
    run: int = 5
    similarity: float = 0.0
    digits: Literal["auto", "count", "ignore"] = "auto"
    mark: bool = False
    precedence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    keep_signatures: bool = False

    def __post_init__(self) -> None:
        for name in ("bands", "rows", "run"):
            as_whole_number(name, getattr(self, name), 1, 10_000)
        share("similarity", self.similarity)
        check_one_of("digits", self.digits, tuple(_NUMBERS_FROM))
        rng = np.random.default_rng(_SEED)
        # Multiplying by an odd factor and adding a summand modulo 2^32 permutes the 32-bit numbers (Dietzfelbinger et
        # al. 1997). The upper bits of the result decide the minimum, and depend on all bits of the input. Processors
        # multiply eight of these numbers at once.
        shape = (self.bands * self.rows, 1)
        self._factors = rng.integers(0, 2**31, shape, np.uint32) * np.uint32(2) + np.uint32(1)
        self._summands = rng.integers(0, 2**32, shape, np.uint32)
        self._run_factors = rng.integers(0, 2**63, self.run, np.uint64) * np.uint64(2) + np.uint64(1)
        self._row_factors = rng.integers(0, 2**63, self.rows, np.uint64) * np.uint64(2) + np.uint64(1)
        signature_files(self.against, self.form)  # checks the names

    @property
    def form(self) -> dict[str, Any]:
        """The step and the options that decide the signatures."""
        kind = "values" if self.similarity else "bands"
        return {
            "step": "minhash",
            "bands": self.bands,
            "rows": self.rows,
            "run": self.run,
            "digits": self.digits,
            "stored": kind,
        }

    def sign(self, candidate: Candidate) -> bytes:
        """Compute the signature: 64 bits for each band; with `similarity`, the values of all functions."""
        runs = _runs(candidate.text, self._run_factors, _NUMBERS_FROM[self.digits])
        if runs is None:
            return b""
        least = np.full(len(self._factors), 2**32 - 1, np.uint32)
        for start in range(0, len(runs), _BLOCK):
            values = runs[None, start : start + _BLOCK] * self._factors
            values += self._summands
            np.minimum(least, values.min(axis=1), out=least)
        if self.similarity:
            return least.tobytes()
        return self._band(least.reshape(self.bands, self.rows)).tobytes()

    def _band(self, values: UInt32[np.ndarray, "*place row"]) -> UInt64[np.ndarray, "*place"]:
        """Compute a 64-bit hash of each band: the sum of its values times odd factors, with all bits mixed."""
        return _mixed((values.astype(np.uint64) * self._row_factors).sum(axis=-1))

    def join(self, signatures: UInt8[np.ndarray, "document byte"]) -> Int64[np.ndarray, " document"]:
        """Return the connected components of the pairs that agree in a band."""
        number = len(signatures)
        pairs = [np.empty((2, 0), np.int64)]
        least = np.ascontiguousarray(signatures).view(np.uint32 if self.similarity else np.uint64)
        for index in range(self.bands):
            rows_of_band = slice(index * self.rows, (index + 1) * self.rows)
            band = self._band(least[:, rows_of_band]) if self.similarity else least[:, index]
            order = np.argsort(band, kind="stable")
            band = band[order]
            for distance in range(1, min(_NEIGHBOURS if self.similarity else 1, number - 1) + 1):
                equal = np.flatnonzero(band[distance:] == band[:-distance])
                if not len(equal):
                    break
                neighbours = np.stack([order[equal], order[equal + distance]])
                pairs.append(neighbours[:, self._are_similar(least, neighbours)] if self.similarity else neighbours)
        one, other = np.concatenate(pairs, axis=1)
        graph = coo_array((np.ones(len(one), bool), (one, other)), (number, number))
        return connected_components(graph, directed=False)[1].astype(np.int64)

    def _are_similar(
        self, least: UInt32[np.ndarray, "document function"], pairs: Int64[np.ndarray, "2 pair"]
    ) -> Bool[np.ndarray, " pair"]:
        """Return whether pairs agree in enough functions.

        The share of functions in which a pair agrees estimates the Jaccard similarity of the pair.
        """
        shares = [
            (least[pairs[0, start : start + _PAIRS]] == least[pairs[1, start : start + _PAIRS]]).mean(axis=1)
            for start in range(0, pairs.shape[1], _PAIRS)
        ]
        return np.concatenate(shares) >= self.similarity


def _runs(
    text: str, factors: UInt64[np.ndarray, " run"], numbers_from: float = 0.3
) -> UInt32[np.ndarray, " place"] | None:
    """Compute a hash of each word n-gram; None for a text with fewer than n words.

    Args:
        text: the text.
        factors: n odd factors.
        numbers_from: the share of numbers among the words from which numbers are compared.
    """
    text = text.lower()
    if text.isascii():
        codes = np.frombuffer(text.encode(), np.uint8)
        kinds = _kinds()[codes]
    else:
        # Accents become separate characters, which are removed.
        text = normal_form("NFD", text)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds = _kinds()[codes]
        is_accent = kinds == _ACCENT
        if is_accent.any():
            codes, kinds = codes[~is_accent], kinds[~is_accent]
    is_single = kinds == _SINGLE
    is_letter, is_digit = (kinds == _LETTER) | is_single, kinds == _DIGIT
    inside = is_letter | is_digit
    inside[1:-1] |= (kinds[1:-1] == _POINT) & is_digit[:-2] & is_digit[2:]
    is_edge = np.diff(inside, prepend=False, append=False)
    if is_single.any():
        between = inside[1:] & inside[:-1] & (is_single[1:] | is_single[:-1])
        starts = np.flatnonzero(is_edge[:-1] & inside | np.append(False, between))
        stops = np.flatnonzero(is_edge[1:] & inside | np.append(between, False)) + 1
    else:
        edges = np.flatnonzero(is_edge)
        starts, stops = edges[::2], edges[1::2]
    num_runs = len(starts) - len(factors) + 1
    if num_runs < 1:
        return None
    # A word's hash is a polynomial of its letters, computed as the difference of two prefix sums. Division by the power
    # at the word's first letter makes the hash independent of the word's place. Modulo 2^64, this division is a
    # multiplication by the inverse of the power.
    powers, inverses = _powers(len(codes))
    sums = np.zeros(len(codes) + 1, np.uint64)
    np.cumsum(powers[: len(codes)] * (codes + np.uint64(1)), out=sums[1:])
    words = (sums[stops] - sums[starts]) * inverses[starts]
    # All numbers have the same hash: pages that differ only in dates and prices are near duplicates. Tables are not.
    num_letters = np.zeros(len(codes) + 1, np.int32)
    np.cumsum(is_letter, out=num_letters[1:])
    is_number = num_letters[stops] == num_letters[starts]
    if np.count_nonzero(is_number) < numbers_from * len(words):
        words[is_number] = 0
    words = _mixed(words)
    runs = np.zeros(num_runs, np.uint64)
    for offset, factor in enumerate(factors):
        runs += words[offset : offset + num_runs] * factor
    return (_mixed(runs) >> np.uint64(32)).astype(np.uint32)


def _mixed(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """Apply the finaliser of MurmurHash3: every bit of the result depends on all bits."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(factor)
    return values ^ (values >> np.uint64(33))


def _powers(number: int) -> tuple[UInt64[np.ndarray, " power"], UInt64[np.ndarray, " power"]]:
    """Return at least `number` powers of the base and of its inverse."""
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
    """Return the kind of every character code; 0 for characters of other kinds."""
    kinds = np.zeros(sys.maxunicode + 1, np.uint8)
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if character.isalnum():
            kinds[code] = _DIGIT if character.isdecimal() else _LETTER
        elif unicodedata.category(character) == "Mn":
            kinds[code] = _ACCENT
        elif unicodedata.category(character) == "Mc":  # vowels of Indic scripts
            kinds[code] = _LETTER
    for low, high in ranges(UNSPACED):
        of_script = kinds[low : high + 1]
        of_script[of_script == _LETTER] = _SINGLE
    for low, high in ranges(UNSPACED_MARKS):
        kinds[low : high + 1] = _ACCENT
    kinds[[ord("."), ord(",")]] = _POINT
    return kinds

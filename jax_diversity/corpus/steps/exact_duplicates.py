"""Documents of one text."""

from __future__ import annotations

import unicodedata

import numpy as np
import xxhash
from jaxtyping import Int64, UInt8

from jax_diversity.corpus.steps.base import Candidate, Survey
from jax_diversity.corpus.steps.duplicates import Duplicates

_SPACES = b"\t\n\v\f\r "
_LOWER = bytes(range(256)).lower()


def exact_duplicates(*, mark: bool = False, precedence: str = "") -> Survey:
    """Keeps one of the documents whose texts are equal but for case, spaces and forms of Unicode characters.

    It is the first one read, or one of the sources named first in `precedence`, such as `wikipedia web`. `mark`
    removes none and gives those of a group the field `exact_duplicates_group`. Texts are compared by hashes of 128
    bits.
    """
    return Duplicates(_sign, _join, mark=mark, precedence=precedence)


def _sign(candidate: Candidate) -> bytes:
    text = candidate.text
    if not text.isascii():
        # Most texts are in this form: finding that out takes a third of the time.
        if not unicodedata.is_normalized("NFKC", text):
            text = unicodedata.normalize("NFKC", text)
        text = text.casefold()
    # One pass over the bytes lowers ASCII letters and takes spaces out.
    return xxhash.xxh3_128_digest(text.encode(errors="surrogatepass").translate(_LOWER, _SPACES))


def _join(signatures: UInt8[np.ndarray, "signed 16"]) -> Int64[np.ndarray, " signed"]:
    halves = np.ascontiguousarray(signatures).view(np.uint64)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    is_new = np.diff(halves[order], axis=0, prepend=~halves[order[:1]]).any(axis=1)
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(is_new)
    return groups

"""Find documents with equal texts."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
import xxhash
from jaxtyping import Int64, UInt8

from jax_diversity.corpus.steps.base import Candidate
from jax_diversity.corpus.steps.duplicates import SignedGroups
from jax_diversity.text.normal_forms import normal_form

_SPACES = b"\t\n\v\f\r "
_LOWER = bytes(range(256)).lower()


@dataclass
class ExactDuplicates(SignedGroups):
    """Keeps one of the documents whose texts are equal except for case, spaces and forms of Unicode characters.

    The kept document is from the source that comes first in `precedence`, such as `[wikipedia, web]`; otherwise it is
    the document that was read first. `mark` removes no document and sets the field `exact_duplicates_group`. Texts are
    compared by hashes of 128 bits.
    """

    mark: bool = False
    precedence: tuple[str, ...] = ()

    def sign(self, candidate: Candidate) -> bytes:
        """Compute a hash of the text without case and spaces."""
        text = candidate.text
        if not text.isascii():
            # Most texts already have this form. The check takes a third of the time of normalising.
            if not unicodedata.is_normalized("NFKC", text):
                text = normal_form("NFKC", text)
            text = text.casefold()
        # One pass over the bytes converts ASCII letters to lower case and removes spaces.
        return xxhash.xxh3_128_digest(text.encode(errors="surrogatepass").translate(_LOWER, _SPACES))

    def join(self, signatures: UInt8[np.ndarray, "signed 16"]) -> Int64[np.ndarray, " signed"]:
        """Return equal numbers for equal signatures."""
        halves = np.ascontiguousarray(signatures).view(np.uint64)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        is_new = np.diff(halves[order], axis=0, prepend=~halves[order[:1]]).any(axis=1)
        groups = np.empty(len(order), np.int64)
        groups[order] = np.cumsum(is_new)
        return groups

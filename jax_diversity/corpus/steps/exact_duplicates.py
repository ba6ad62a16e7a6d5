"""Find documents with equal texts."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Int64, UInt8

from jax_diversity.corpus.steps.base import Candidate
from jax_diversity.corpus.steps.duplicates import SignedGroups
from jax_diversity.corpus.steps.signatures import signature_files
from jax_diversity.text.normal_forms import normal_form

_SPACES = b"\t\n\v\f\r "
_LOWER = bytes(range(256)).lower()


@dataclass
class ExactDuplicates(SignedGroups):
    """Keeps one of the documents whose texts are equal except for case, spaces and forms of Unicode characters.

    The kept document is from the source that comes first in `precedence`, such as `[wikipedia, web]`; otherwise it is
    the document that was read first. `mark` removes no document and sets the field `exact_duplicates_group`. Texts are
    compared by hashes of 128 bits. `keep_signatures` stores these hashes; `against` names datasets with such hashes, of
    which copies are removed, too.
    """

    mark: bool = False
    precedence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    keep_signatures: bool = False

    def __post_init__(self) -> None:
        signature_files(self.against, self.form)  # checks the names

    @property
    def form(self) -> dict[str, Any]:
        """The step; it has no options that decide the hashes."""
        return {"step": "exact_duplicates"}

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
        return equal_signatures(signatures)


def equal_signatures(signatures: UInt8[np.ndarray, "signed 16"]) -> Int64[np.ndarray, " signed"]:
    """Return a number for every signature of 16 bytes; equal signatures have equal numbers."""
    halves = np.ascontiguousarray(signatures).view(np.uint64)
    order = np.lexsort((halves[:, 1], halves[:, 0]))
    is_new = np.diff(halves[order], axis=0, prepend=~halves[order[:1]]).any(axis=1)
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(is_new)
    return groups

"""Find documents with equal texts."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import ClassVar

import xxhash

from jax_diversity.corpus.steps.base import Candidate
from jax_diversity.corpus.steps.duplicates import HashedGroups
from jax_diversity.text.normal_forms import normal_form

_SPACES = b"\t\n\v\f\r "
_LOWER = bytes(range(256)).lower()


@dataclass
class ExactDuplicates(HashedGroups):
    """Keeps one of the documents whose texts are equal except for case, spaces and forms of Unicode characters.

    The kept document is from the source that comes first in `precedence`, such as `[wikipedia, web]`; otherwise it is
    the document that was read first. `mark` removes no document and sets the field `exact_duplicates_group`. Texts are
    compared by hashes of 128 bits. `keep_signatures` stores the hashes of the kept documents in
    `preparation/learned/STEP/signatures.parquet`; `against` names datasets with such hashes, and copies of their
    documents are removed, too.
    """

    STEP: ClassVar[str] = "exact_duplicates"
    mark: bool = False
    precedence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    keep_signatures: bool = False

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

"""Find documents with equal texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.foundation.text.normal_forms import text_hash
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.preparation.steps.duplicates import HashedGroups


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
        return text_hash(candidate.text)

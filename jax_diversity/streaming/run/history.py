"""What happened to a document before training: why preparation removed or edited it, and its copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jax_diversity.foundation.wording import counted
from jax_diversity.schema.prepared import Decision, DocumentArtifacts, find_decision
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.run.inspection import find_document, ids_of

_MOST_COPIES = 5


@dataclass(frozen=True)
class DocumentHistory:
    """What a dataset knows of a document besides its uses.

    Attributes:
        decision: the decision of preparation; None if the dataset was built without steps, or never read the document.
        num_copies: the number of other stored documents with equal text, or that a step marked as copies.
        copies: the ids of the first of them.
        is_stored: whether the dataset has the document.
    """

    decision: Decision | None
    num_copies: int
    copies: tuple[str, ...]
    is_stored: bool

    @property
    def sentences(self) -> list[str]:
        """The history in sentences; empty if there is nothing to say."""
        decision, sentences = self.decision, []
        if decision is not None and not decision.kept:
            sentences.append(decision.sentence)
        if decision is not None and decision.edited_by:
            sentences.append(f"The steps that edited its text are {', '.join(decision.edited_by)}.")
        if self.num_copies:
            more = " and others" if self.num_copies > len(self.copies) else ""
            sentences.append(
                f"It has {counted(self.num_copies, 'copy')} in the dataset: {', '.join(self.copies)}{more}."
            )
        return sentences


def document_history(dataset: Dataset, document: str) -> DocumentHistory:
    """Look up what happened to the document with an id before training.

    Example:
        >>> document_history(open_dataset("dataset"), "web-17").sentences
        ['The step gopher removed it by the rule least_words (too few words): 31, against a threshold of 50.']
    """
    decision, number = find_decision(dataset.stored, document), find_document(dataset, document)
    copies = np.zeros(0, np.int64)
    if number is not None and DocumentArtifacts.duplicate_groups.is_stored(dataset.stored):
        groups = dataset.duplicate_groups
        copies = np.setdiff1d(np.flatnonzero(groups == groups[number]), [number])
    names = ids_of(dataset, copies[:_MOST_COPIES])
    return DocumentHistory(decision, len(copies), names, number is not None)

"""Distances between copies, which are sequences or documents that the corpus contains more than once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.measures.balance import AnyOrder, as_order
from jax_diversity.schema import Segments
from jax_diversity.schema.orderings import as_integers


@dataclass(frozen=True)
class DuplicateGaps:
    """Distances in positions between consecutive copies: 0 within one sequence, 1 between neighbours.

    Attributes:
        gaps: a gap for every copy except the first of a group; sorted by group, then in the order of training.
    """

    gaps: Int64[np.ndarray, " gap"]

    @property
    def minimum(self) -> int | None:
        """The smallest gap; None if there are no copies."""
        return int(self.gaps.min()) if len(self.gaps) else None

    def summary(self) -> dict[str, Any]:
        """Return the values of a table, as plain numbers; without copies, all except `num_gaps` are None."""
        has_gaps = len(self.gaps) > 0
        median, mean = (float(np.median(self.gaps)), float(self.gaps.mean())) if has_gaps else (None, None)
        return {"num_gaps": len(self.gaps), "minimum": self.minimum, "median": median, "mean": mean}


def duplicate_gaps(
    ordering: AnyOrder, groups: Integer[np.ndarray, " member"], segments: Segments | None = None
) -> DuplicateGaps:
    """Measure the distances in positions between consecutive copies of each duplicate group.

    Args:
        ordering: the order of training; an array must be a bijection.
        groups: the duplicate group of every sequence, or of every document if `segments` are given; negative for a
            sequence or document without copies.
        segments: which sequences contain which documents. Every sequence that contains a part of a copy is a position
            of this copy. Gaps are measured between different documents of a group: the parts of one document, and its
            repetition in a later epoch, are not copies. Without segments, a repeated sequence is a copy.

    Raises:
        ValueError: without segments, the number of groups is not the number of sequences; with segments, there are
            fewer groups than documents, or the segments have another number of sequences.

    Example:
        >>> duplicate_gaps(np.array([2, 0, 1, 3]), np.array([7, -1, 7, -1])).gaps
        array([1])
    """
    ordering, groups = as_order(ordering), as_integers("groups", groups, least=-(2**63))
    check_type("segments", segments, Segments | None, "a jd.Segments")
    indices, num_sequences = ordering.indices, ordering.num_sequences
    if segments is None:
        if len(groups) != num_sequences:
            raise UserError(
                f"Expected the duplicate groups of {num_sequences} sequences, found {len(groups)}; "
                "give one group per sequence, negative without copies."
            )
        # Each position is a separate member: if a run repeats a sequence, the repetition is a copy.
        position = np.flatnonzero(groups[indices] >= 0)
        return _gaps(groups[indices[position]], position, position)
    if segments.num_sequences != num_sequences:
        raise UserError(
            f"Expected segments of {num_sequences} sequences, as in the ordering, found "
            f"{segments.num_sequences}; it was made for another dataset."
        )
    num_documents = int(segments.document_index.max(initial=-1)) + 1
    if len(groups) < num_documents:
        raise UserError(
            f"Expected the duplicate groups of {num_documents} documents, as in the segments, found "
            f"{len(groups)}; give one group per document, negative without copies."
        )
    copies = np.flatnonzero(groups[segments.document_index] >= 0)
    sequence, document = segments.sequence_index[copies], segments.document_index[copies]
    # Every position contains the members of its sequence: `source` has the indices of these members, position after
    # position.
    by_sequence = np.argsort(sequence, kind="stable")
    starts = np.searchsorted(sequence[by_sequence], np.arange(num_sequences + 1))
    widths = np.diff(starts)[indices]
    position = np.repeat(np.arange(len(indices)), widths)
    source = np.arange(len(position)) + np.repeat(starts[indices] - np.cumsum(widths) + widths, widths)
    document = document[by_sequence[source]]
    return _gaps(groups[document], position, document)


def _gaps(groups: np.ndarray, position: np.ndarray, member: np.ndarray) -> DuplicateGaps:
    """Compute the differences of neighbouring positions of a group that belong to different members."""
    # We sort by group, then by position. The parts of one document at one position are neighbours and make no gap.
    order = np.lexsort((member, position, groups))
    groups, position, member = groups[order], position[order], member[order]
    copies = (groups[1:] == groups[:-1]) & (member[1:] != member[:-1])
    return DuplicateGaps(np.diff(position)[copies].astype(np.int64))

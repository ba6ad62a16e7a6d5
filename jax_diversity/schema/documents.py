"""Documents, and the segments of them that packing makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int64


@dataclass(frozen=True, slots=True)
class Document:
    """One text and its metadata; `metadata` keeps every field of the source."""

    id: str
    text: str
    source: str
    language: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Segments:
    """The result of packing: the runs of documents' tokens in every sequence, as columns of one table.

    Rows are sorted by (`sequence_index`, `position`). Places that no segment takes are padding, which
    belongs to no document.

    Attributes:
        sequence_index: the sequence that holds the segment.
        position: where in the sequence the segment begins, in tokens.
        document_index: the document's index in the stored order of the corpus.
        document_offset: where in the document the segment begins, in tokens.
        length: number of tokens, with the end token if the segment reaches it.
        ends_with_eos: whether the segment's last token is an end token: its document's own, or, where the segment
            does not reach its document's end, one that packing inserted after the segment's other tokens.
        num_sequences: number of sequences, empty ones included.
        sequence_length: tokens a sequence can hold.
        overlap: how many tokens a sequence shares with the next one (Megatron's samples: 1), so that training sees
            `sequence_length - overlap` positions; 0 for all other methods.
    """

    sequence_index: Int64[np.ndarray, " segment"]
    position: Int64[np.ndarray, " segment"]
    document_index: Int64[np.ndarray, " segment"]
    document_offset: Int64[np.ndarray, " segment"]
    length: Int64[np.ndarray, " segment"]
    ends_with_eos: Bool[np.ndarray, " segment"]
    num_sequences: int
    sequence_length: int
    overlap: int = 0

    COLUMNS: ClassVar = ("sequence_index", "position", "document_index", "document_offset", "length", "ends_with_eos")

    def __len__(self) -> int:
        return len(self.sequence_index)

    @property
    def has_gaps(self) -> bool:
        """Whether a sequence has padding before its last segment."""
        begins = np.diff(self.sequence_index, prepend=-1) != 0
        before = np.concatenate([[0], self.position + self.length])[:-1]
        return bool((self.position != np.where(begins, 0, before)).any())

    def inserted_ends(self, document_lengths: Int64[np.ndarray, " document"]) -> Bool[np.ndarray, " segment"]:
        """Which segments end with an end token that packing inserted and the document does not have there.

        Args:
            document_lengths: tokens of every document of the corpus, its end token included.
        """
        # An end token where the document ends is the document's own; before that, packing inserted it.
        stop = self.document_offset + self.length
        return self.ends_with_eos & (stop < document_lengths[self.document_index])

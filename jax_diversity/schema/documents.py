"""Documents, and the segments into which packing divides them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64

TURN_SPANS = "turn_spans"
"""The metadata field of a stored chat: the places of contents in its text, as pairs of start and stop in characters.

The text between these places is from the template.
"""
LOSS_SPANS = "loss_spans"
"""The metadata field of a stored chat: the places of the answers with their endings, as pairs of the same kind."""
TURN_STARTS = "turn_starts"
"""The metadata field of a stored chat: where each turn begins in its text, with the template's text before the content.

It is empty if the turns of an edited text are not certain.
"""
TURN_FIELDS = (TURN_SPANS, LOSS_SPANS, TURN_STARTS, "roles")
"""The metadata fields with a value for each turn of a stored chat."""
ROLES = ("system", "user", "assistant", "tool")
"""The roles of turns. A turn of a stored chat has the number of its role in this tuple."""
ANSWERS = "assistant"
"""The role whose turns count towards the loss."""


class ChatSpans(NamedTuple):
    """The parts of a stored chat, in characters.

    Attributes:
        contents: start and stop of the contents of turns. The text between them is from the template.
        answers: start and stop of the answers with their endings.
        starts: where each turn begins.
        roles: the role of each turn.
    """

    contents: Sequence[Sequence[int]]
    answers: Sequence[Sequence[int]]
    starts: Sequence[int]
    roles: Sequence[str]


@dataclass(frozen=True, slots=True)
class Document:
    """One text and its metadata. `metadata` contains every field of the source."""

    id: str
    text: str
    source: str
    language: str | None = None
    title: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenDocument(Document):
    """A document of token ids. Its text is empty if the corpus does not contain the text."""

    tokens: Int32[np.ndarray, " token"] = field(default_factory=lambda: np.zeros(0, np.int32), compare=False)


@dataclass(frozen=True)
class Segments:
    """The result of packing, as columns of one table. A segment is a run of one document's tokens in one sequence.

    Rows are sorted by (`sequence_index`, `position`). Places without a segment are padding, which belongs to no
    document.

    Attributes:
        sequence_index: the sequence that contains the segment.
        position: where in the sequence the segment begins, in tokens.
        document_index: the document's index in the stored order of the corpus.
        document_offset: where in the document the segment begins, in tokens.
        length: number of tokens, including the end token if the segment reaches it.
        ends_with_eos: whether the segment's last token is an end token. If the segment reaches the end of its document,
            this is the document's own end token. If not, packing inserted it after the segment's other tokens.
        num_sequences: number of sequences, including empty sequences.
        sequence_length: the largest number of tokens in a sequence.
        overlap: number of tokens that a sequence shares with the next sequence (1 for Megatron's samples). Training
            then uses `sequence_length - overlap` positions. It is 0 if sequences do not overlap.
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

    def take(self, sequences: Int64[np.ndarray, " row"]) -> Segments:
        """Return the segments of some sequences, which get the numbers 0, 1 ... in the given order.

        Example:
            >>> segments.take(np.array([5, 2])).num_sequences
            2
        """
        first = np.searchsorted(self.sequence_index, sequences)
        number = np.searchsorted(self.sequence_index, sequences, side="right") - first
        rows = np.repeat(first - np.cumsum(number) + number, number) + np.arange(number.sum())
        return replace(
            self,
            num_sequences=len(sequences),
            **{name: getattr(self, name)[rows] for name in self.COLUMNS[1:]},
            sequence_index=np.repeat(np.arange(len(sequences)), number),
        )

    def inserted_ends(self, document_lengths: Int64[np.ndarray, " document"]) -> Bool[np.ndarray, " segment"]:
        """Return which segments end with an end token that packing inserted.

        Args:
            document_lengths: number of tokens of every document of the corpus, including its end token.
        """
        # An end token at the end of the document is the document's own. Before the end, packing inserted it.
        stop = self.document_offset + self.length
        return self.ends_with_eos & (stop < document_lengths[self.document_index])

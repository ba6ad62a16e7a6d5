"""Sequences as arrays that a model reads: from a dataset's segments, from single texts, or from one stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int32, Int64, Integer

from jax_diversity.counts import Characteristics
from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.counts import sequence_documents
from jax_diversity.sequences.packing.base import pack
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.token_store.megatron import run_positions

if TYPE_CHECKING:
    from jax_diversity.streaming.dataset import Dataset

Rows = Int32[np.ndarray, "row token"]
Attention = Literal["document", "sequence"]


@dataclass(frozen=True)
class Sequences:
    """Token ids of sequences, and the document of every token.

    Attributes:
        inputs: token ids.
        targets: the token after each token.
        segmentation: number of the part of the sequence that a token attends to, from 1; 0 for padding.
        position: position within that part.
        is_target: 1 if the target counts towards the loss, otherwise 0.
        documents: the document of every token; -1 for padding.
    """

    inputs: Rows
    targets: Rows
    segmentation: Rows
    position: Rows
    is_target: Rows
    documents: Rows

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, rows: Int64[np.ndarray, " row"]) -> dict[str, Rows]:
        """Return some sequences in the form of the loader's batches."""
        return {
            "inputs": self.inputs[rows],
            "targets": self.targets[rows],
            "inputs_segmentation": self.segmentation[rows],
            "targets_segmentation": self.segmentation[rows] * self.is_target[rows],
            "inputs_position": self.position[rows],
        }

    def padded(self, multiple: int) -> Sequences:
        """Add empty sequences at the end, up to a multiple of a number, so that all batches have one shape."""
        missing = -len(self) % multiple
        return Sequences(
            **{
                name: np.pad(
                    getattr(self, name), ((0, missing), (0, 0)), constant_values=-1 if name == "documents" else 0
                )
                for name in self.__dataclass_fields__
            }
        )


@dataclass(frozen=True)
class PackedTokens:
    """Documents packed into sequences: their segments, their tokens, and the token counts of the groups."""

    segments: Segments
    sequences: Sequences
    characteristics: Characteristics


def pack_documents(dataset: Dataset, packing: PackingConfig | None, attention: Attention, seed: int) -> PackedTokens:
    """Return a dataset's own sequences, or its training documents in another packing.

    Args:
        dataset: a built dataset.
        packing: method, length and options; None means the dataset's own sequences.
        attention: the tokens that a token attends to: earlier tokens of its document, or all earlier tokens of the
            sequence.
        seed: seed of the documents' order and of the packing method.
    """
    if packing is None:
        segments, characteristics = dataset.segments, dataset.characteristics
        return PackedTokens(segments, training_sequences(dataset, segments, attention), characteristics)
    documents = np.unique(dataset.segments.document_index)
    if packing.document_order == "shuffle":
        documents = documents[np.random.default_rng(seed).permutation(len(documents))]
    options: dict[str, Any] = dict(packing.options)
    segments = pack(
        dataset.tokens.document_lengths,
        packing.sequence_length,
        method=packing.method,
        document_order=documents,
        clusters=dataset.assignments(),
        seed=seed,
        **options,
    ).segments
    characteristics = Characteristics.from_counts(
        {family: dataset.count_segments(segments, family) for family in dataset.families},
        weights=dataset.characteristics.weights,
        sequence_length=packing.sequence_length,
        documents=sequence_documents(segments),
    )
    return PackedTokens(segments, training_sequences(dataset, segments, attention), characteristics)


def training_sequences(dataset: Dataset, segments: Segments, attention: Attention = "document") -> Sequences:
    """The sequences of a packing of a dataset's documents."""
    shape = (segments.num_sequences, segments.sequence_length)
    lengths = segments.length
    start = segments.sequence_index * shape[1] + segments.position
    runs = np.array(dataset.tokens.gather(segments.document_index, segments.document_offset, lengths), np.int32)
    # Where packing inserted an end token, the document's next token was gathered; it begins the next segment.
    runs[(np.cumsum(lengths) - 1)[segments.inserted_ends(dataset.tokens.document_lengths)]] = dataset.end_id
    row = run_positions(start, lengths)
    tokens = np.zeros(shape[0] * shape[1], np.int32)
    tokens[row] = runs
    of_segment = np.repeat(np.arange(len(lengths)), lengths)
    segment, documents = np.zeros(len(tokens), np.int32), np.full(len(tokens), -1, np.int32)
    first = np.flatnonzero(np.diff(segments.sequence_index, prepend=-1) != 0)
    number = np.arange(len(lengths)) - np.repeat(first, np.diff(first, append=len(lengths))) + 1
    segment[row], documents[row] = number[of_segment], segments.document_index[of_segment]
    position = np.zeros(len(tokens), np.int32)
    position[row] = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    tokens, segment, documents, position = (array.reshape(shape) for array in (tokens, segment, documents, position))
    if attention == "sequence":
        segment = np.minimum(segment, 1)
        position = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape) * segment
    targets = np.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    follows = np.pad(segment[:, 1:], ((0, 0), (0, 1))) == segment
    is_target = (follows & (segment > 0)).astype(np.int32)
    is_target[:, -1] = 0  # the token after the last token belongs to another sequence
    return Sequences(tokens, targets, segment, position, is_target, documents)


def sequences_of_texts(
    texts: list[Integer[np.ndarray, " _"]], sequence_length: int, stride: int | None = None
) -> Sequences:
    """Cut each document into its own sequences; with a stride, sequences overlap and every target counts once.

    With a stride s, every sequence begins s tokens after the sequence before it. All targets of a document's first
    sequence count; of the other sequences only the last s targets count, so that each has a context of at least
    `sequence_length - s` tokens.
    """
    step = sequence_length if stride is None else stride
    rows = []
    for document, tokens in enumerate(texts):
        for start in range(0, max(len(tokens) - 1, 1), step):
            taken = tokens[start : start + sequence_length + 1]
            # Earlier targets count in the sequence before.
            fresh = 0 if start == 0 else sequence_length - step
            rows.append((document, taken, fresh))
            if start + sequence_length + 1 > len(tokens):
                break
    shape = (len(rows), sequence_length)
    inputs, targets, is_target = (np.zeros(shape, np.int32) for _ in range(3))
    segmentation, documents = np.zeros(shape, np.int32), np.full(shape, -1, np.int32)
    for row, (document, taken, fresh) in enumerate(rows):
        length = min(len(taken), sequence_length)
        num_targets = len(taken) - 1
        inputs[row, :length], targets[row, :num_targets] = taken[:length], taken[1:]
        is_target[row, fresh:num_targets] = 1
        segmentation[row, :length], documents[row, :length] = 1, document
    position = np.broadcast_to(np.arange(sequence_length, dtype=np.int32), shape) * segmentation
    return Sequences(inputs, targets, segmentation, position, is_target, documents)


def rotated_rows(
    stream: Integer[np.ndarray, " token"], num_rows: int, offsets: Int64[np.ndarray, " row"]
) -> Integer[np.ndarray, "row column"]:
    """Cut a stream into rows of one length, and rotate each row by its offset; the remaining tokens are dropped.

    See Press 2019, "Partially shuffling the training data to improve language models"; an offset of 0 does not rotate.
    """
    length = len(stream) // num_rows
    rows = stream[: num_rows * length].reshape(num_rows, length)
    return rows[np.arange(num_rows)[:, None], (np.arange(length) + offsets[:, None]) % length]

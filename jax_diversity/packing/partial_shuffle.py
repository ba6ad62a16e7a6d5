"""Partial shuffle: a stream's rows rotated by random offsets, for models that carry a state from batch to batch.

Press, "Partially shuffling the training data to improve language models", 2019 (https://arxiv.org/abs/1903.04167).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.packing.pieces import cut_stream, end_to_end, fill, num_filled, reorder_sequences, whole_documents
from jax_diversity.schema import Segments


def partial_shuffle(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    num_rows: int = 16,
    num_epochs: int = 1,
    last_sequence: Literal["drop", "pad"] = "drop",
    seed: int = 0,
) -> Segments:
    """Lay the documents' stream out in rows, rotate each by a random offset every epoch, cut them every L tokens.

    Sequence `(epoch * num_columns + column) * num_rows + row` is followed, `num_rows` sequences later, by the one
    that goes on where it ends: batches of `num_rows` sequences, read as packed, are contiguous. All rows have as
    many tokens as they can be given equally; the fewer than `num_rows` that are left over are dropped. A row's last
    sequence, where it is padded, makes a gap in its stream.

    Args:
        num_rows: rows, which is the batch size of training.
        num_epochs: passes over the stream, each with offsets of its own.
        last_sequence: what becomes of a row's last sequence where it is not full.

    Raises:
        UserError: fewer than one row or epoch, or more rows than tokens.

    Example:
        >>> segments = partial_shuffle(np.array([12]), np.array([0]), 3, num_rows=2)
        >>> segments.num_sequences, segments.document_offset[:2].tolist()   # row 0 starts at token 5 and goes on at 0
        (4, [5, 0])
    """
    num_rows = whole_number("num_rows", num_rows, least=1)
    num_epochs = whole_number("num_epochs", num_epochs, least=1)
    documents = whole_documents(document_lengths, document_order)
    total = int(documents.length.sum())
    if num_rows > total > 0:
        raise UserError(
            f"Expected num_rows to be at most the number of tokens, {total}, so that every row holds some, found "
            f"{num_rows}; choose the batch size of training."
        )
    row_length = total // num_rows
    num_columns = num_filled(row_length, sequence_length, last_sequence)
    if not num_columns:
        num_rows = 0  # without tokens any number of rows is allowed: no arrays of that size
    row_start = np.tile(np.arange(num_rows), num_epochs) * row_length
    offset = np.random.default_rng(seed).integers(max(row_length, 1), size=len(row_start))
    # A row is two runs of the stream: from its offset to its end, then from its beginning to its offset.
    row_places = num_columns * sequence_length
    kept = min(row_length, row_places)
    head = np.minimum(row_length - offset, kept)
    run_start = np.stack([row_start + offset, row_start], axis=1).reshape(-1)
    run_length = np.stack([head, kept - head], axis=1).reshape(-1)
    run_place = np.stack([np.zeros_like(head), head], axis=1) + np.arange(len(head))[:, None] * row_places
    used = np.flatnonzero(run_length)
    pieces, run = cut_stream(documents, run_start[used], run_length[used])
    # Where in its run a piece begins: after the run's pieces before it.
    within = end_to_end(pieces.length) - end_to_end(run_length[used])[run]
    start = run_place.reshape(-1)[used][run] + within
    segments = fill(pieces, start, len(head) * num_columns, sequence_length)
    # `fill` numbers a row's sequences one after another; training reads a column of all rows at a time.
    by_row = np.arange(segments.num_sequences).reshape(num_epochs, num_rows, num_columns)
    return reorder_sequences(segments, by_row.swapaxes(1, 2).reshape(-1))

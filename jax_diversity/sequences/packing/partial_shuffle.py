"""Partial shuffle: rows of a stream, rotated by random offsets, for models that keep a state from batch to batch.

Press, "Partially shuffling the training data to improve language models", 2019 (https://arxiv.org/abs/1903.04167).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.pieces import cut_stream, end_to_end, joined_segments, num_filled, whole_documents


def partial_shuffle(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    num_rows: int = 16,
    num_epochs: int = 1,
    last_sequence: Literal["drop", "pad"] = "pad",
    seed: int = 0,
) -> Iterable[Segments]:
    """Divide the stream of all documents into rows; in every epoch, rotate the rows by random offsets and cut them.

    Rows are cut every L tokens. The continuation of sequence `(epoch * num_columns + column) * num_rows + row` is
    `num_rows` sequences later: batches of `num_rows` sequences in packed order are contiguous. A sequence has L + 1
    tokens, and its last token is also the first token of its continuation. So every token except the first of a rotated
    row is a target, as in the article. All rows have equally many tokens; the remaining tokens, fewer than `num_rows`,
    are dropped. A padded last sequence of a row makes a gap in the stream of the row.

    Args:
        num_rows: the number of rows, which must be the batch size of training. A build with a batch size uses it.
        num_epochs: the number of passes over the stream; each pass has different offsets.
        last_sequence: whether the last sequence of a row is dropped or padded if it is not full. The article keeps it.

    Raises:
        UserError: fewer than one row or epoch, or more rows than tokens.

    Example:
        >>> (segments,) = partial_shuffle(np.array([12]), np.array([0]), 2, num_rows=2)
        >>> segments.num_sequences, segments.sequence_length   # 6 tokens, 5 targets per row: 2, 2 and 1
        (6, 3)
        >>> segments.document_offset[:2].tolist()   # row 0 starts at token 5 and continues at 0
        [5, 0]
    """
    num_rows = as_whole_number("num_rows", num_rows, least=1)
    num_epochs = as_whole_number("num_epochs", num_epochs, least=1)
    documents = whole_documents(document_lengths, document_order)
    total = int(documents.length.sum())
    if num_rows > total > 0:
        raise UserError(
            f"Expected num_rows to be at most the number of tokens, {total}, so that every row has one, found "
            f"{num_rows}; choose the batch size of training."
        )
    row_length = total // num_rows
    # The first token of a row is not a target, so we do not count it.
    num_columns = num_filled(max(row_length - 1, 0), sequence_length, last_sequence)
    if not num_columns:
        num_rows = 0  # without tokens any number of rows is allowed: make no arrays of that size
    # Arrays (epoch, column, row), the order of training.
    offset = np.random.default_rng(seed).integers(max(row_length, 1), size=(num_epochs, 1, num_rows))
    begin = np.arange(num_columns)[:, None] * sequence_length  # in the rotated row
    length = np.broadcast_to(np.minimum(sequence_length + 1, row_length - begin), (num_epochs, num_columns, num_rows))
    # A rotated row is two runs of the stream: from the offset to the end of the row, then from its beginning to the
    # offset.
    row_start, turn = np.arange(num_rows) * row_length, row_length - offset
    head = np.clip(turn - begin, 0, length)
    run_start = np.stack([row_start + offset + begin, row_start + np.maximum(begin - turn, 0)], axis=-1).reshape(-1)
    run_length = np.stack([head, length - head], axis=-1).reshape(-1)
    used = np.flatnonzero(run_length)
    pieces, run = cut_stream(documents, run_start[used], run_length[used])
    sequence = used[run] // 2
    position = end_to_end(pieces.length) - end_to_end(length.reshape(-1))[sequence]
    return [joined_segments([[sequence, position, *pieces]], length.size, sequence_length + 1, overlap=1)]

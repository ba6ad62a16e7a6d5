"""The arrays that training takes, made of a batch of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.records.buffers import BufferPool
from jax_diversity.records.codec import Bodies

FIELDS = (
    "inputs",
    "targets",
    "inputs_segmentation",
    "targets_segmentation",
    "inputs_position",
    "targets_position",
)
"""What `decode` can make of a batch of records, all of it by default."""

_PIECE_TOKENS = 2**17  # decoded at a time, so that intermediate arrays stay in the processor's cache


def decode(
    bodies: Bodies,
    *,
    fields: Sequence[str] = FIELDS,
    merge_segments: bool = False,
    pool: BufferPool | None = None,
) -> dict[str, Int32[np.ndarray, "row token"]]:
    """Turn records into a batch, many rows at a time.

    Args:
        bodies: the records.
        fields: which of `FIELDS` to make.
        merge_segments: make one segment of all of a sequence's, so that documents see those before them.
        pool: gives the memory; None takes fresh memory.

    Returns:
        int32 arrays (row, L). `inputs`: tokens, padding 0. `inputs_segmentation`: 1, 2 ... for the segments of a
        sequence, 0 on padding. `inputs_position`: place within the segment, 0 on padding. `targets`: the
        next token of the same segment; where there is none, 0 and `targets_segmentation` 0, which masks it.

    Raises:
        ValueError: a field that is none of `FIELDS`.
    """
    if unknown := [field for field in fields if field not in FIELDS]:
        raise ValueError(f"Expected fields among {', '.join(FIELDS)}, found {', '.join(map(repr, unknown))}.")
    pool = pool or BufferPool()
    num_rows, sequence_length = bodies.tokens.shape
    batch = {field: pool.empty((num_rows, sequence_length)) for field in fields}
    num_piece_rows = max(1, _PIECE_TOKENS // sequence_length)
    for first in range(0, num_rows, num_piece_rows):
        rows = slice(first, first + num_piece_rows)
        piece = Bodies(*(values[rows] for values in bodies))
        runs = None if batch.keys() == {"inputs"} else _runs(piece, merge_segments=merge_segments)
        _fill({field: array[rows] for field, array in batch.items()}, piece.tokens, runs)
    return batch


class _Runs(NamedTuple):
    """The rows of a batch end to end, cut into their segments and paddings."""

    start: Int64[np.ndarray, " run"]
    length: Int64[np.ndarray, " run"]
    number: Int64[np.ndarray, " run"]  # 1, 2 ... in its sequence; 0: padding


def _runs(bodies: Bodies, *, merge_segments: bool) -> _Runs:
    num_rows, length = bodies.tokens.shape
    row_bytes = bodies.starts.shape[1]
    # Most bytes are zero: only the others are unpacked. A bit's place in the row is 8 times its byte's, plus its own.
    byte = np.flatnonzero(bodies.starts != 0)
    bit = np.flatnonzero(np.unpackbits(bodies.starts.reshape(-1)[byte], bitorder="little").view(np.bool_))
    row, column = np.divmod(8 * byte[bit >> 3] + (bit & 7), 8 * row_bytes)
    if merge_segments:  # only the starts at the beginning of a row remain
        row, column = row[column == 0], column[column == 0]
    num_segments = np.bincount(row, minlength=num_rows)
    number = np.arange(1, len(row) + 1) - (np.cumsum(num_segments) - num_segments)[row]
    start = row * length + column
    padded = np.flatnonzero(bodies.num_tokens < length)
    if len(padded):  # padding is one more run
        start = np.concatenate([start, padded * length + bodies.num_tokens[padded]])
        by_start = np.argsort(start, kind="stable")
        start, number = start[by_start], np.concatenate([number, np.zeros(len(padded), np.int64)])[by_start]
    return _Runs(start, np.diff(start, append=num_rows * length), number)


def _fill(batch: Mapping[str, np.ndarray], tokens: np.ndarray, runs: _Runs | None) -> None:
    if "inputs" in batch:
        batch["inputs"][:] = tokens
    if runs is None:
        return
    if "targets" in batch:
        batch["targets"][:, :-1] = tokens[:, 1:]
    length = tokens.shape[1]
    narrow = np.min_scalar_type(length)  # uint8 or uint16: less memory traffic than int32, widened last
    if segmentation := [array for field, array in batch.items() if field.endswith("_segmentation")]:
        number = np.repeat(runs.number.astype(narrow), runs.length).reshape(tokens.shape)
        for array in segmentation:
            array[:] = number
    if position := [array for field, array in batch.items() if field.endswith("_position")]:
        place = np.repeat((runs.start % length).astype(narrow), runs.length).reshape(tokens.shape)
        np.subtract(np.arange(length, dtype=narrow), place, out=place)
        if not runs.number.all():  # there is padding
            place *= np.repeat(runs.number > 0, runs.length).reshape(tokens.shape)
        for array in position:
            array[:] = place
    # A segment's last token has no next one. A row's last column of `targets` is set here, too: fresh memory holds
    # anything, and a run ends with every row.
    last = runs.start + runs.length - 1
    for field in batch.keys() & {"targets", "targets_segmentation"}:
        batch[field].reshape(-1)[last] = 0

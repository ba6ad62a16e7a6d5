"""The arrays that training takes, made of a batch of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.records.buffers import BufferPool
from jax_diversity.records.codec import Bodies, CorruptRecordError, form

FIELDS = (
    "inputs",
    "targets",
    "inputs_segmentation",
    "targets_segmentation",
    "inputs_position",
    "targets_position",
)
"""What `decode` can make of a batch of records, all of it by default."""

_PIECE_TOKENS = 2**17  # decoded at a time: what is made of them stays in the processor's cache


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
        CorruptRecordError: a record's segments are not what they should be.
        ValueError: a field that is none of `FIELDS`.
    """
    if unknown := [field for field in fields if field not in FIELDS]:
        raise ValueError(f"Expected fields among {', '.join(FIELDS)}, found {', '.join(map(repr, unknown))}.")
    pool = pool or BufferPool()
    num_rows, sequence_length = bodies.tokens.shape
    batch = {field: pool.empty((num_rows, sequence_length)) for field in fields}
    piece = max(1, _PIECE_TOKENS // sequence_length)
    for first in range(0, num_rows, piece):
        rows = slice(first, first + piece)
        part = {field: array[rows] for field, array in batch.items()}
        try:
            runs = None
            if batch.keys() != {"inputs"}:
                runs = _runs(bodies.bits[rows], bodies.header[rows], sequence_length)
            runs = _merged(runs, sequence_length) if merge_segments and runs is not None else runs
        except CorruptRecordError as error:
            raise CorruptRecordError(first + error.row, error.reason) from None
        _fill(part, bodies.tokens[rows], runs)
    return batch


def segment_lengths(record: bytes) -> Int64[np.ndarray, " segment"]:
    """The tokens of a record's segments, in the segments' order."""
    dtype, length, _ = form(record)
    bodies = Bodies([record], length, dtype)
    runs = _runs(bodies.bits, bodies.header, length)
    return runs.length[runs.number > 0]


def _fill(batch: Mapping[str, np.ndarray], tokens: np.ndarray, runs: _Runs | None) -> None:
    if "inputs" in batch:
        batch["inputs"][:] = tokens
    if runs is None:
        return
    if "targets" in batch:
        batch["targets"][:, :-1] = tokens[:, 1:]
    length = tokens.shape[1]
    narrow = np.min_scalar_type(length)  # a quarter or half of the bytes of what becomes of them
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
    if masked := batch.keys() & {"targets", "targets_segmentation"}:
        last = runs.start + runs.length - 1
        for field in masked:
            batch[field].reshape(-1)[last] = 0  # a segment's last token has no next one


class _Runs(NamedTuple):
    """The flattened batch cut into its segments and paddings."""

    start: Int64[np.ndarray, " run"]
    length: Int64[np.ndarray, " run"]
    number: Int32[np.ndarray, " run"]  # 1, 2 ... in its sequence; 0: padding


def _merged(runs: _Runs, sequence_length: int) -> _Runs:
    """The runs with one segment a sequence."""
    first = (runs.start % sequence_length == 0) | (runs.number == 0)
    start = runs.start[first]
    end = runs.start[-1:] + runs.length[-1:]
    number = np.minimum(runs.number[first], 1)
    return _Runs(start, np.diff(start, append=end), number)


def _runs(packed_bits: np.ndarray, header: np.ndarray, sequence_length: int) -> _Runs:
    num_rows, row_bytes = packed_bits.shape
    num_tokens = header["num_tokens"].astype(np.int64)
    # Most bytes are zero: only the others are unpacked.
    byte = np.flatnonzero(packed_bits != 0)
    bit = np.flatnonzero(np.unpackbits(packed_bits.reshape(-1)[byte], bitorder="little").view(np.bool_))
    row, column = np.divmod(8 * byte[bit >> 3] + (bit & 7), 8 * row_bytes)
    num_stored = np.bincount(row, minlength=num_rows)
    wrong = num_stored != header["num_segments"]
    wrong[row[column >= num_tokens[row]]] = True
    starts_at_zero = np.zeros(num_rows, np.bool_)
    starts_at_zero[row[column == 0]] = True
    wrong |= ~starts_at_zero & (num_tokens > 0)
    if wrong.any():
        raise CorruptRecordError(int(np.argmax(wrong)), "its segment starts do not fit its header")
    number = np.arange(1, len(row) + 1) - (np.cumsum(num_stored) - num_stored)[row]
    start = row * sequence_length + column
    padded = np.flatnonzero(num_tokens < sequence_length)
    if len(padded):  # padding is one more run
        start = np.concatenate([start, padded * sequence_length + num_tokens[padded]])
        by_start = np.argsort(start, kind="stable")
        start, number = start[by_start], np.concatenate([number, np.zeros(len(padded), np.int64)])[by_start]
    return _Runs(start, np.diff(start, append=num_rows * sequence_length), number.astype(np.int32))

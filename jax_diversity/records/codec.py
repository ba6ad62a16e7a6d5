"""How one sequence becomes bytes and a batch of them becomes arrays.

A record, little-endian, for L tokens of 2 (uint16) or 4 (int32) bytes each:

| bytes | content |
|---|---|
| 4 | `JD`, format version, bytes a token |
| 12 | number of tokens, number of segments, L, each uint32 |
| 8 | the sequence's index, int64: a record in the wrong place is found when it is read |
| 8 | identity, uint64: which build's sequences these are, so that a later build's are not taken for them |
| L x 2 or 4 | tokens, padding 0 |
| ceil(L / 8) | one bit a token, lowest first: where a segment starts |
| 8 a segment | the segments' document indices, int64 |

All but the last part has one size, so rows decode as one matrix, without a Python loop over tokens or segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.records.buffers import BufferPool

FIELDS = (
    "inputs",
    "targets",
    "inputs_segmentation",
    "targets_segmentation",
    "inputs_position",
    "targets_position",
)
"""What `decode` can make of a batch of records, all of it by default."""

_HEADER = np.dtype(
    [
        ("mark", "<u4"),  # `JD`, format version, bytes a token
        ("num_tokens", "<u4"),
        ("num_segments", "<u4"),
        ("sequence_length", "<u4"),
        ("sequence_index", "<i8"),
        ("identity", "<u8"),
    ]
)
HEADER_BYTES = _HEADER.itemsize
"""Where in a record the tokens begin."""
_VERSION = 2
_PIECE_TOKENS = 2**17  # decoded at a time: what is made of them stays in the processor's cache


class CorruptRecordError(ValueError):
    """A record that is not what it should be; `row` is its place among those being decoded."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


class OtherBuildError(CorruptRecordError):
    """A record that is whole, but of another build than the one asked for."""


def identity_number(identity: str) -> int:
    """What a record keeps of a fingerprint: its first 16 hexadecimal digits, as a number; 0 for none."""
    return int(identity[:16] or "0", 16)


def checked_dtype(dtype: np.dtype | str) -> np.dtype:
    """The type of a stored token: uint16 or int32, little-endian."""
    dtype = np.dtype(dtype)
    if dtype not in (np.dtype("<u2"), np.dtype("<i4")):
        raise ValueError(f"Records hold uint16 or int32 tokens, found {dtype}.")
    return dtype


def _mark(dtype: np.dtype) -> int:
    return int.from_bytes(b"JD" + bytes([_VERSION, dtype.itemsize]), "little")


def encode(
    *,
    sequence_indices: Int64[np.ndarray, " sequence"],
    num_segments: Int64[np.ndarray, " sequence"],
    position: Int64[np.ndarray, " segment"],
    length: Int64[np.ndarray, " segment"],
    document_index: Int64[np.ndarray, " segment"],
    tokens: np.ndarray,
    sequence_length: int,
    identity: str = "",
) -> list[bytes]:
    """The records of some sequences.

    Args:
        sequence_indices: which sequences.
        num_segments: how many of the segments are each sequence's, in turn.
        position: where in its sequence each segment begins, in tokens.
        length: tokens of each segment.
        document_index: each segment's document.
        tokens: all segments' tokens end to end, uint16 or int32.
        sequence_length: L.
        identity: fingerprint of the build, hexadecimal.

    Raises:
        ValueError: empty segments, or segments that are not one after another from the sequence's start on.
    """
    num_rows = len(sequence_indices)
    row = np.repeat(np.arange(num_rows), num_segments)
    ends = np.cumsum(length)
    num_tokens = np.bincount(row, weights=length, minlength=num_rows).astype(np.int64)
    row_offset = np.cumsum(num_tokens) - num_tokens
    if (length < 1).any() or not np.array_equal(ends - length - row_offset[row], position):
        raise ValueError("Segments must be non-empty and follow one another from their sequence's start.")
    if (num_tokens > sequence_length).any() or len(tokens) != num_tokens.sum():
        raise ValueError(f"Segments of one sequence must hold at most {sequence_length} tokens, all of them given.")

    fixed = np.zeros((num_rows, _fixed_bytes(sequence_length, tokens.dtype)), np.uint8)
    header = np.zeros(num_rows, _HEADER)
    header["mark"] = _mark(tokens.dtype)
    header["num_tokens"], header["num_segments"] = num_tokens, num_segments
    header["sequence_length"], header["sequence_index"] = sequence_length, sequence_indices
    header["identity"] = identity_number(identity)
    fixed[:, :HEADER_BYTES] = header.view(np.uint8).reshape(num_rows, -1)
    stored, starts = _fixed_parts(fixed, sequence_length, tokens.dtype)
    stored[np.arange(sequence_length) < num_tokens[:, None]] = tokens
    bits = np.zeros((num_rows, sequence_length), np.bool_)
    bits[row, position] = True
    starts[:] = np.packbits(bits, axis=1, bitorder="little")
    tails = document_index.astype("<i8").tobytes()
    tail_ends = np.cumsum(num_segments).tolist()
    tail_starts = [0, *tail_ends[:-1]]
    return [
        fixed[index].tobytes() + tails[8 * start : 8 * end]
        for index, (start, end) in enumerate(zip(tail_starts, tail_ends, strict=True))
    ]


def _fixed_bytes(sequence_length: int, dtype: np.dtype) -> int:
    return HEADER_BYTES + sequence_length * dtype.itemsize + -(-sequence_length // 8)


def _fixed_parts(fixed: np.ndarray, sequence_length: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Views of the tokens and of the bits of segment starts in a matrix of records without their tails."""
    tokens_end = HEADER_BYTES + sequence_length * dtype.itemsize
    return fixed[:, HEADER_BYTES:tokens_end].view(dtype), fixed[:, tokens_end:]


def decode(
    records: Sequence[bytes],
    sequence_length: int,
    dtype: np.dtype | str,
    *,
    expected: Int64[np.ndarray, " row"] | None = None,
    identity: str | None = None,
    fields: Sequence[str] = FIELDS,
    merge_segments: bool = False,
    pool: BufferPool | None = None,
) -> dict[str, Int32[np.ndarray, "row token"]]:
    """Turn records into a batch, many rows at a time.

    Args:
        records: one sequence each.
        sequence_length: L, tokens that a record has place for.
        dtype: the stored type of a token.
        expected: the sequence index that each record must carry; None checks nothing.
        identity: fingerprint of the build that the records must be of; None checks nothing.
        fields: which of `FIELDS` to make.
        merge_segments: make one segment of all of a sequence's, so that documents see those before them.
        pool: gives the memory; None takes fresh memory.

    Returns:
        int32 arrays (row, L). `inputs`: tokens, padding 0. `inputs_segmentation`: 1, 2 ... for the segments of a
        sequence, 0 on padding. `inputs_position`: place within the segment, 0 on padding. `targets`: the
        next token of the same segment; where there is none, 0 and `targets_segmentation` 0, which masks it.

    Raises:
        CorruptRecordError: a record is not what it should be; `OtherBuildError` where it is another build's.
    """
    dtype, pool = checked_dtype(dtype), pool or BufferPool()
    num_rows, fixed_bytes = len(records), _fixed_bytes(sequence_length, dtype)
    # Slices of `bytes` would be copies, each in memory of its own.
    joined = b"".join([memoryview(record)[:fixed_bytes] for record in records])
    sizes = np.fromiter(map(len, records), np.int64, num_rows)
    if len(joined) != num_rows * fixed_bytes:
        row = int(np.argmax(sizes < fixed_bytes))
        raise CorruptRecordError(row, f"at least {fixed_bytes} bytes expected, {sizes[row]} found")
    fixed = np.frombuffer(joined, np.uint8).reshape(num_rows, fixed_bytes)
    header = np.ascontiguousarray(fixed[:, :HEADER_BYTES]).view(_HEADER)[:, 0]
    _check_headers(header, sizes - fixed_bytes, sequence_length, dtype)
    _check_origin(header, expected, identity)
    tokens, bits = _fixed_parts(fixed, sequence_length, dtype)
    batch = {field: pool.empty((num_rows, sequence_length)) for field in fields}
    piece = max(1, _PIECE_TOKENS // sequence_length)
    for first in range(0, num_rows, piece):
        rows = slice(first, first + piece)
        part = {field: array[rows] for field, array in batch.items()}
        try:
            runs = _runs(bits[rows], header[rows], sequence_length) if batch.keys() != {"inputs"} else None
            runs = _merged(runs, sequence_length) if merge_segments and runs is not None else runs
        except CorruptRecordError as error:
            raise CorruptRecordError(first + error.row, error.reason) from None
        _fill(part, tokens[rows], runs)
    return batch


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


def record_identity(record: bytes) -> int | None:
    """The identity that a record carries; None where the bytes are no record of this format."""
    if len(record) < HEADER_BYTES or record[:3] != b"JD" + bytes([_VERSION]):
        return None
    return int(np.frombuffer(record, _HEADER, 1)["identity"][0])


def document_indices(record: bytes) -> Int64[np.ndarray, " segment"]:
    """The documents whose segments a record holds, in the segments' order."""
    header = np.frombuffer(record, _HEADER, 1)[0]
    dtype = np.dtype("<u2" if header["mark"] == _mark(np.dtype("<u2")) else "<i4")
    return np.frombuffer(record[_fixed_bytes(int(header["sequence_length"]), dtype) :], "<i8").astype(np.int64)


def segment_lengths(record: bytes) -> Int64[np.ndarray, " segment"]:
    """The tokens of a record's segments, in the segments' order."""
    header = np.frombuffer(record, _HEADER, 1)
    dtype = np.dtype("<u2" if header["mark"][0] == _mark(np.dtype("<u2")) else "<i4")
    length = int(header["sequence_length"][0])
    fixed = np.frombuffer(record, np.uint8, _fixed_bytes(length, dtype)).reshape(1, -1)
    runs = _runs(_fixed_parts(fixed, length, dtype)[1], header, length)
    return runs.length[runs.number > 0]


def _check_headers(
    header: np.ndarray,
    tail_bytes: Int64[np.ndarray, " row"],
    sequence_length: int,
    dtype: np.dtype,
) -> None:
    good = header["mark"] == _mark(dtype)
    good &= header["sequence_length"] == sequence_length
    good &= header["num_tokens"] <= sequence_length
    good &= header["num_segments"] * np.int64(8) == tail_bytes
    if good.all():
        return
    row = int(np.argmin(good))
    found = header[row]
    if found["mark"] != _mark(dtype):
        reason = f"no record of format {_VERSION} with {dtype.itemsize} bytes a token"
    elif found["sequence_length"] != sequence_length:
        reason = f"sequence length {sequence_length} expected, {found['sequence_length']} found"
    elif found["num_tokens"] > sequence_length:
        reason = f"at most {sequence_length} tokens expected, {found['num_tokens']} found"
    else:
        reason = f"{found['num_segments']} segments do not fit its size"
    raise CorruptRecordError(row, reason)


def _check_origin(header: np.ndarray, expected: Int64[np.ndarray, " row"] | None, identity: str | None) -> None:
    """Whether whole records are those of the build, and of the sequences, that were asked for."""
    if identity is not None and (other := header["identity"] != (wanted := identity_number(identity))).any():
        row = int(np.argmax(other))
        raise OtherBuildError(row, f"build {wanted:016x} expected, {header['identity'][row]:016x} found")
    if expected is not None and (other := header["sequence_index"] != expected).any():
        row = int(np.argmax(other))
        raise CorruptRecordError(row, f"sequence {expected[row]} expected, {header['sequence_index'][row]} found")


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

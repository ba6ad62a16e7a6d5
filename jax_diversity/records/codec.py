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
| 8 | XXH3 (64 bits) of all of the above; not in format 2 |
| 8 a segment | the segments' document indices, int64 |

All but the last part, the *body*, has one size, so that bodies decode as one matrix, without a Python loop over
tokens or segments. A body proves itself: it can be read without ArrayRecord, whose sums are of whole records.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt8, UInt64
from xxhash import xxh3_64_intdigest

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
_VERSION = 3
_OLD_VERSION = 2  # without a sum
BODY_START = b"JD" + bytes([_VERSION])
"""The first bytes of every record of today's format."""
_OLD_START = b"JD" + bytes([_OLD_VERSION])
_SUM_BYTES = 8


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


def _mark(dtype: np.dtype, version: int = _VERSION) -> int:
    return int.from_bytes(b"JD" + bytes([version, dtype.itemsize]), "little")


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

    bodies = np.zeros((num_rows, body_bytes(sequence_length, tokens.dtype)), np.uint8)
    header = np.zeros(num_rows, _HEADER)
    header["mark"] = _mark(tokens.dtype)
    header["num_tokens"], header["num_segments"] = num_tokens, num_segments
    header["sequence_length"], header["sequence_index"] = sequence_length, sequence_indices
    header["identity"] = identity_number(identity)
    bodies[:, :HEADER_BYTES] = header.view(np.uint8).reshape(num_rows, -1)
    stored, starts = _tokens_and_starts(bodies, sequence_length, tokens.dtype)
    stored[np.arange(sequence_length) < num_tokens[:, None]] = tokens
    bits = np.zeros((num_rows, sequence_length), np.bool_)
    bits[row, position] = True
    starts[:] = np.packbits(bits, axis=1, bitorder="little")
    bodies[:, -_SUM_BYTES:] = _sums(bodies).astype("<u8").view(np.uint8).reshape(num_rows, _SUM_BYTES)
    tails = document_index.astype("<i8").tobytes()
    tail_ends = np.cumsum(num_segments).tolist()
    tail_starts = [0, *tail_ends[:-1]]
    return [
        bodies[index].tobytes() + tails[8 * start : 8 * end]
        for index, (start, end) in enumerate(zip(tail_starts, tail_ends, strict=True))
    ]


def body_bytes(sequence_length: int, dtype: np.dtype | str, version: int = _VERSION) -> int:
    """Bytes of a record without its tail."""
    unsummed = HEADER_BYTES + sequence_length * np.dtype(dtype).itemsize + -(-sequence_length // 8)
    return unsummed + (_SUM_BYTES if version > _OLD_VERSION else 0)


def _tokens_and_starts(bodies: np.ndarray, sequence_length: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Views of the tokens and of the bits of segment starts in a matrix of bodies."""
    tokens_end = HEADER_BYTES + sequence_length * dtype.itemsize
    bits_end = tokens_end + -(-sequence_length // 8)
    return bodies[:, HEADER_BYTES:tokens_end].view(dtype), bodies[:, tokens_end:bits_end]


def _sums(bodies: UInt8[np.ndarray, "row byte"]) -> UInt64[np.ndarray, " row"]:
    """What each body's last bytes should be."""
    return np.fromiter(map(xxh3_64_intdigest, bodies[:, :-_SUM_BYTES]), np.uint64, len(bodies))


class Bodies:
    """Records without their tails, checked: each is whole, and the one that it should be.

    Args:
        records: one sequence each; or their bodies alone, as rows of a matrix.
        sequence_length: L, tokens that a record has place for.
        dtype: the stored type of a token.
        expected: the sequence index that each record must carry; None checks nothing.
        identity: fingerprint of the build that the records must be of; None checks nothing.

    Attributes:
        header: the records' headers.
        tokens: (row, L) as stored, padding 0.
        bits: where segments start, packed.

    Raises:
        CorruptRecordError: a record is not what it should be; `OtherBuildError` where it is another build's.
    """

    def __init__(
        self,
        records: Sequence[bytes] | UInt8[np.ndarray, "row byte"],
        sequence_length: int,
        dtype: np.dtype | str,
        *,
        expected: Int64[np.ndarray, " row"] | None = None,
        identity: str | None = None,
    ) -> None:
        dtype = checked_dtype(dtype)
        bodies, tail_bytes, version = _matrix(records, sequence_length, dtype)
        self.header = np.ascontiguousarray(bodies[:, :HEADER_BYTES]).view(_HEADER)[:, 0]
        self.tokens, self.bits = _tokens_and_starts(bodies, sequence_length, dtype)
        _check_headers(self.header, tail_bytes, sequence_length, _mark(dtype, version))
        if version > _OLD_VERSION:
            stored = np.ascontiguousarray(bodies[:, -_SUM_BYTES:]).view("<u8")[:, 0]
            if (other := stored != _sums(bodies)).any():
                raise CorruptRecordError(int(np.argmax(other)), "its sum does not fit its content")
        _check_origin(self.header, expected, identity)


def _matrix(
    records: Sequence[bytes] | np.ndarray, sequence_length: int, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray | None, int]:
    """The records' bodies as a matrix, the bytes that each record has besides, where known, and the format."""
    if isinstance(records, np.ndarray):
        return records, None, _VERSION
    version = _OLD_VERSION if records and records[0].startswith(_OLD_START) else _VERSION
    num_rows, num_bytes = len(records), body_bytes(sequence_length, dtype, version)
    # Slices of `bytes` would be copies, each in memory of its own.
    joined = b"".join([memoryview(record)[:num_bytes] for record in records])
    sizes = np.fromiter(map(len, records), np.int64, num_rows)
    if len(joined) != num_rows * num_bytes:
        row = int(np.argmax(sizes < num_bytes))
        raise CorruptRecordError(row, f"at least {num_bytes} bytes expected, {sizes[row]} found")
    return np.frombuffer(joined, np.uint8).reshape(num_rows, num_bytes), sizes - num_bytes, version


def record_identity(record: bytes) -> int | None:
    """The identity that a record carries; None where the bytes are no record of today's format."""
    if len(record) < HEADER_BYTES or not record.startswith(BODY_START):
        return None
    return int(np.frombuffer(record, _HEADER, 1)["identity"][0])


def document_indices(record: bytes) -> Int64[np.ndarray, " segment"]:
    """The documents whose segments a record holds, in the segments' order."""
    dtype, length, version = form(record)
    return np.frombuffer(record[body_bytes(length, dtype, version) :], "<i8").astype(np.int64)


def form(record: bytes) -> tuple[np.dtype, int, int]:
    """The type of a record's tokens, how many it has place for, and its format."""
    header = np.frombuffer(record, _HEADER, 1)[0]
    return np.dtype("<u2" if record[3] == 2 else "<i4"), int(header["sequence_length"]), record[2]


def _check_headers(
    header: np.ndarray,
    tail_bytes: Int64[np.ndarray, " row"] | None,
    sequence_length: int,
    mark: int,
) -> None:
    good = header["mark"] == mark
    good &= header["sequence_length"] == sequence_length
    good &= header["num_tokens"] <= sequence_length
    if tail_bytes is not None:
        good &= header["num_segments"] * np.int64(8) == tail_bytes
    if good.all():
        return
    row = int(np.argmin(good))
    found = header[row]
    if found["mark"] != mark:
        _, _, version, token_bytes = mark.to_bytes(4, "little")
        reason = f"no record of format {version} with {token_bytes} bytes a token"
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

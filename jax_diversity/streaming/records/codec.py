"""The bytes of a record: how a sequence is encoded and how records are checked.

A record has L tokens of 2 (uint16) or 4 (int32) bytes each. All numbers are little-endian:

| bytes | content |
|---|---|
| 4 | `JD`, format version, bytes per token, plus 16 with a loss mask, plus 32 if the last token is only a target |
| 12 | number of tokens, number of segments, L, each uint32 |
| 8 | the sequence's index, int64. With it, a reader finds a record that is in the wrong place |
| 8 | identity, uint64: the build of these sequences. With it, a reader refuses records of a later build |
| L x 2 or 4 | tokens. In a run of padding the first place has -1 (65,535 in two bytes), the others 0 |
| ceil(L / 8) | one bit per place, lowest bit first: whether a segment or a run of padding starts there |
| ceil(L / 8) | only with a loss mask: one bit per place, whether its token counts towards the loss |
| 8 | XXH3 (64 bits) of all bytes above |

All records have the same size. So the place of a record gives its range of bytes in the file, and a batch of records is
a matrix, which is checked and decoded without a Python loop over tokens or segments. A record has its own checksum,
because it is read from a memory map: only ArrayRecord's reader compares ArrayRecord's checksums.

Training does not need the documents of the segments. They are in a .npy file beside each record file, with int64
numbers. For N sequences it has N + 1 numbers, then the document indices of all segments, one sequence after another,
and then the XXH3 (64 bits) of all bytes above. The segments of sequence i have the indices from number i up to number
i + 1.

Padding may be between segments and at the end. No token has the value at the first place of padding, so this value
distinguishes padding from a segment. It needs no additional byte, and records without padding are not searched for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt8
from xxhash import xxh3_64_intdigest

from jax_diversity.foundation.artifacts import NO_ARRAY, write_array

_HEADER = np.dtype(
    [
        ("mark", "<u4"),  # `JD`, format version, bytes per token
        ("num_tokens", "<u4"),
        ("num_segments", "<u4"),
        ("sequence_length", "<u4"),
        ("sequence_index", "<i8"),
        ("identity", "<u8"),
    ]
)
HEADER_BYTES = _HEADER.itemsize  # where in a record the tokens begin
VERSION = 6
"""The version of the format of a record."""
_CHECKSUM_BYTES = 8
_HAS_LOSS_MASK, _HAS_OVERLAP = 16, 32


class CorruptRecordError(ValueError):
    """A damaged or wrong record. `row` is its place among the decoded records."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class OtherBuildError(CorruptRecordError):
    """An undamaged record of another build."""


class Bodies(NamedTuple):
    """Bodies that passed the checks, as views of their matrix."""

    num_tokens: Int64[np.ndarray, " row"]
    tokens: Integer[np.ndarray, "row token"]
    starts: UInt8[np.ndarray, "row byte"]  # one bit per place, lowest bit first: whether a segment or padding starts
    loss_mask: UInt8[np.ndarray, "row byte"] | None = None  # same bits: whether a token counts; None: all tokens count

    def of_rows(self, rows: slice) -> Bodies:
        """Return the bodies of some rows."""
        loss_mask = None if self.loss_mask is None else self.loss_mask[rows]
        return Bodies(self.num_tokens[rows], self.tokens[rows], self.starts[rows], loss_mask)

    def is_padding(self, places: Int64[np.ndarray, " run"]) -> Bool[np.ndarray, " run"]:
        """Return whether the runs that start at some places are padding. Places are counted over all rows."""
        row, column = np.divmod(places, self.tokens.shape[1])
        return self.tokens[row, column] == padding_mark(self.tokens.dtype)

    def plain_tokens(self) -> Integer[np.ndarray, "row token"]:
        """Set padding to 0 in place and return the tokens."""
        padded = np.flatnonzero(self.num_tokens < self.tokens.shape[1])
        if len(padded):
            rows = self.tokens[padded]
            rows[rows == padding_mark(rows.dtype)] = 0
            self.tokens[padded] = rows
        return self.tokens


def identity_number(identity: str) -> int:
    """Return the part of a fingerprint that a record has: its first 16 hexadecimal digits, as a number; 0 if empty."""
    return int(identity[:16] or "0", 16)


def as_dtype(dtype: np.dtype | str) -> np.dtype:
    """Check the type of stored tokens, which must be uint16 or int32 (little-endian), and return it."""
    dtype = np.dtype(dtype)
    if dtype not in (np.dtype("<u2"), np.dtype("<i4")):
        raise ValueError(f"Records contain uint16 or int32 tokens, found {dtype}.")
    return dtype


def body_bytes(sequence_length: int, dtype: np.dtype, has_loss_mask: bool = False) -> int:
    """Return the number of bytes of a body, with the bits of a loss mask if `has_loss_mask`."""
    bits = -(-sequence_length // 8) * (2 if has_loss_mask else 1)
    return HEADER_BYTES + sequence_length * dtype.itemsize + bits + _CHECKSUM_BYTES


def encode(
    *,
    sequence_indices: Int64[np.ndarray, " sequence"],
    num_segments: Int64[np.ndarray, " sequence"],
    position: Int64[np.ndarray, " segment"],
    length: Int64[np.ndarray, " segment"],
    tokens: np.ndarray,
    sequence_length: int,
    identity: str = "",
    loss_mask: Bool[np.ndarray, " token"] | None = None,
    overlap: int = 0,
) -> UInt8[np.ndarray, "sequence byte"]:
    """Make the records of some sequences, as rows of a matrix.

    `tokens` has the tokens of all segments, one segment after another.
    `loss_mask` says which tokens count towards the loss; without it all tokens count. Padding never counts.
    `overlap` is 1 if the last token of a sequence is only a target.

    Raises a ValueError for empty segments, for segments that overlap within their sequence, and for tokens with the
    value that marks padding.
    """
    num_rows = len(sequence_indices)
    row = np.repeat(np.arange(num_rows), num_segments)
    # bincount adds in float64. This is exact, because a row has far fewer than 2^53 tokens.
    num_tokens = np.bincount(row, weights=length, minlength=num_rows).astype(np.int64)
    # Places are counted over all rows. A segment must be within its row, after the previous segment.
    first = row * sequence_length
    start, end = first + position, first + position + length
    free = np.maximum(first, np.concatenate([[0], end])[:-1])
    if (length < 1).any() or (start < free).any() or (end > first + sequence_length).any():
        raise ValueError(f"Segments must be non-empty, in order, within {sequence_length} places.")
    if len(tokens) != num_tokens.sum() or (tokens == padding_mark(tokens.dtype)).any():
        raise ValueError("Expected the tokens of all segments, none of them the value that marks padding.")

    has_loss_mask = loss_mask is not None
    bodies = np.zeros((num_rows, body_bytes(sequence_length, tokens.dtype, has_loss_mask)), np.uint8)
    header = bodies[:, :HEADER_BYTES].view(_HEADER)[:, 0]
    header["mark"] = _mark(tokens.dtype, has_loss_mask, overlap)
    header["num_tokens"], header["num_segments"] = num_tokens, num_segments
    header["sequence_length"], header["sequence_index"] = sequence_length, sequence_indices
    header["identity"] = identity_number(identity)
    stored, starts, loss_mask_bits = _parts(bodies, sequence_length, tokens.dtype, has_loss_mask)
    # `edges` is 1 where a segment starts and -1 after its end. Its running sum is 1 in segments and 0 in padding.
    edges = np.zeros(num_rows * sequence_length + 1, np.int8)
    edges[start] += 1
    edges[end] -= 1
    has_token = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_).reshape(num_rows, sequence_length)
    stored[has_token] = tokens  # NumPy fills the true places of a mask row by row; this is the order of the tokens
    bits = ~has_token
    bits[:, 1:] &= has_token[:, :-1]
    stored[bits] = padding_mark(tokens.dtype)
    bits.reshape(-1)[start] = True
    starts[:] = np.packbits(bits, axis=1, bitorder="little")
    if loss_mask is not None and loss_mask_bits is not None:
        bits = np.zeros_like(has_token)
        bits[has_token] = loss_mask
        loss_mask_bits[:] = np.packbits(bits, axis=1, bitorder="little")
    bodies[:, -_CHECKSUM_BYTES:].view("<u8")[:, 0] = _checksums(bodies)
    return bodies


def documents_path(path: Path) -> Path:
    """Return the path of the documents of a record file."""
    return path.with_suffix(".documents.npy")


def write_documents(
    path: Path, num_segments: Int64[np.ndarray, " sequence"], document_index: Int64[np.ndarray, " segment"]
) -> None:
    """Write the documents of the segments of all sequences in a file."""
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_segments)])
    numbers = np.concatenate([bounds, document_index]).astype("<i8")
    write_array(path, np.append(numbers, _checksum(numbers)))


def read_documents(
    path: Path, num_sequences: int, rows: Int64[np.ndarray, " row"]
) -> list[Int64[np.ndarray, " segment"]]:
    """Return the documents of the segments of some sequences of a file.

    Raises a ValueError if the file is absent, damaged or the file of other records.
    """
    try:
        numbers = np.array(np.lib.format.open_memmap(path, mode="r"))
    except NO_ARRAY as error:
        raise ValueError(str(error)) from None
    is_list = numbers.dtype == np.dtype("<i8") and numbers.ndim == 1 and len(numbers) > 0
    if not is_list or numbers[-1] != _checksum(numbers[:-1]):
        raise ValueError("its checksum does not match its content")
    bounds, documents = numbers[: num_sequences + 1], numbers[num_sequences + 1 : -1]
    if len(bounds) <= num_sequences or bounds[0] or bounds[-1] != len(documents) or (np.diff(bounds) < 0).any():
        raise ValueError(f"it does not have the documents of {num_sequences} sequences")
    # Copies: a view of a few documents would keep the whole file in memory.
    return [documents[bounds[row] : bounds[row + 1]].copy() for row in rows.tolist()]


def check_bodies(
    bodies: UInt8[np.ndarray, "row byte"],
    sequence_length: int,
    dtype: np.dtype,
    *,
    expected: Int64[np.ndarray, " row"] | None = None,
    identity: str | None = None,
    has_loss_mask: bool = False,
    overlap: int = 0,
) -> Bodies:
    """Check that bodies are undamaged, and that they belong to the build and to the expected sequences.

    A body with a right checksum is as `encode` made it. Therefore we compare only the values that differ between
    undamaged records. Bodies of another length or token type have their checksum at another place. If `expected` (the
    sequences' indices) or `identity` is None, it is not checked.
    """
    header = np.ascontiguousarray(bodies[:, :HEADER_BYTES]).view(_HEADER)[:, 0]
    checksum = np.ascontiguousarray(bodies[:, -_CHECKSUM_BYTES:]).view("<u8")[:, 0]
    # We compare the checksum first: if it is wrong, the numbers of the header may be wrong too.
    _refuse(checksum != _checksums(bodies), CorruptRecordError, "its checksum does not match its content")
    mark = _mark(dtype, has_loss_mask, overlap)
    _refuse(header["mark"] != mark, CorruptRecordError, "its format is not version {}, {} tokens", VERSION, dtype)
    if identity is not None:
        own_identity, stored_number = identity_number(identity), header["identity"]
        _refuse(
            stored_number != own_identity,
            OtherBuildError,
            "build {:016x} expected, {:016x} found",
            own_identity,
            stored_number,
        )
    if expected is not None:
        stored_number = header["sequence_index"]
        _refuse(
            stored_number != expected, CorruptRecordError, "sequence {} expected, {} found", expected, stored_number
        )
    return Bodies(header["num_tokens"].astype(np.int64), *_parts(bodies, sequence_length, dtype, has_loss_mask))


def check_record(record: bytes) -> tuple[Bodies, int]:
    """Check one record that says itself what it has, and return its body and its overlap."""
    body = np.frombuffer(record, np.uint8)[None]
    if body.shape[1] < HEADER_BYTES or record[:2] != b"JD":
        raise CorruptRecordError(0, "it does not begin as a record of `jax-diversity write`")
    if record[2] != VERSION:
        raise CorruptRecordError(0, f"its format is version {record[2]}, not {VERSION}")
    header = body[:, :HEADER_BYTES].view(_HEADER)[0, 0]
    has_loss_mask, overlap = bool(record[3] & _HAS_LOSS_MASK), int(bool(record[3] & _HAS_OVERLAP))
    dtype = np.dtype("<u2" if record[3] & ~(_HAS_LOSS_MASK | _HAS_OVERLAP) == 2 else "<i4")
    length = int(header["sequence_length"])
    if body.shape[1] != body_bytes(length, dtype, has_loss_mask):
        raise CorruptRecordError(0, f"it has {body.shape[1]} bytes")
    return check_bodies(body, length, dtype, has_loss_mask=has_loss_mask, overlap=overlap), overlap


def segment_lengths(bodies: Bodies) -> list[Int64[np.ndarray, " segment"]]:
    """Return the number of tokens of every segment, for each row."""
    num_rows, length = bodies.tokens.shape
    row, column = np.nonzero(np.unpackbits(bodies.starts, axis=1, count=length, bitorder="little"))
    start = row * length + column
    is_segment = ~bodies.is_padding(start)
    lengths = np.diff(start, append=num_rows * length)[is_segment]
    return np.split(lengths, np.searchsorted(row[is_segment], np.arange(1, num_rows)))[:num_rows]


def padding_mark(dtype: np.dtype) -> np.ndarray:
    """Return the value at the start of padding.

    No token has this value: ids are >= 0, and uint16 is only used for vocabularies below 65,500.
    """
    return np.array(-1).astype(dtype)


def _mark(dtype: np.dtype, has_loss_mask: bool, overlap: int) -> int:
    kind = dtype.itemsize | _HAS_LOSS_MASK * has_loss_mask | _HAS_OVERLAP * overlap
    return int.from_bytes(b"JD" + bytes([VERSION, kind]), "little")


def _parts(
    bodies: np.ndarray, sequence_length: int, dtype: np.dtype, has_loss_mask: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return views of a matrix of bodies: the tokens, the bits of segment starts, and the loss mask."""
    tokens_end = HEADER_BYTES + sequence_length * dtype.itemsize
    starts_end = tokens_end - (-sequence_length // 8)
    loss_mask = bodies[:, starts_end:-_CHECKSUM_BYTES] if has_loss_mask else None
    return bodies[:, HEADER_BYTES:tokens_end].view(dtype), bodies[:, tokens_end:starts_end], loss_mask


def _checksums(bodies: UInt8[np.ndarray, "row byte"]) -> np.ndarray:
    """Compute the checksum of each body, as little-endian uint64."""
    return np.fromiter(map(xxh3_64_intdigest, bodies[:, :-_CHECKSUM_BYTES]), "<u8", len(bodies))


def _checksum(numbers: np.ndarray) -> np.int64:
    return np.uint64(xxh3_64_intdigest(numbers.tobytes())).astype(np.int64)


def _refuse(wrong: np.ndarray, kind: type[CorruptRecordError], reason: str, *values: object) -> None:
    """Raise an error for the first wrong row. Values are inserted into the reason; of an array, the row's value."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise kind(row, reason.format(*(value[row] if isinstance(value, np.ndarray) else value for value in values)))

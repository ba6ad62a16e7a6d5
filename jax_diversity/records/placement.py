"""Where the records of an ArrayRecord file lie.

An ArrayRecord file is a Riegeli file: chunks end to end, interrupted by a block header of 24 bytes at every 64 KiB.
In files written one record a chunk and uncompressed, a chunk holds its record's bytes as they are: 40 bytes of
header, a zero (not compressed), the length of the length, the length, the record. A footer near the file's end says
where each chunk begins, and the last block where the footer does. This is all that is read here; files of any other
make are left to ArrayRecord's own reader, and so is the finding of what is wrong with a damaged one.

What is said about the formats: github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md and
github.com/google/array_record/blob/main/cpp/layout.proto.
"""

from __future__ import annotations

import os
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

BLOCK = 2**16
BLOCK_HEADER = 24
BLOCK_ROOM = BLOCK - BLOCK_HEADER
_CHUNK_HEADER = 40
_SIMPLE_CHUNK = ord("r")
_POSTSCRIPT_MARK = 0x71930E704FDAE05E
_SIZE_KEY, _NUM_RECORDS_KEY = 0x10, 0x18  # in a footer's entry, behind the chunk's begin
_MAX_SIZE_BYTES = 5  # 32 GiB a record


class OtherMakeError(ValueError):
    """A file that is not laid out as described above, or is damaged."""


class _Chunk(NamedTuple):
    """A chunk of uncompressed records: their sizes, and all their bytes."""

    sizes: Int64[np.ndarray, " record"]
    values: UInt8[np.ndarray, " byte"]


def record_places(file: BinaryIO) -> tuple[Int64[np.ndarray, " record"], Int64[np.ndarray, " record"]]:
    """Start in the file and size of every record; little more than the footer is read.

    Sizes decide where chunks begin that lie end to end: the footer's begins are read for the first and last alone.

    Raises:
        OtherMakeError: chunks that do not lie end to end, hold other than one record, or are not plain bytes.
    """
    num_bytes = os.fstat(file.fileno()).st_size
    if num_bytes % BLOCK or num_bytes < 2 * BLOCK:
        raise OtherMakeError
    postscript = _chunk(file, num_bytes - BLOCK)
    keys_and_values = _varints(postscript.values[: postscript.sizes[0]]).tolist()
    if keys_and_values[0::2] != [0x08, 0x10] or keys_and_values[3:] != [_POSTSCRIPT_MARK]:
        raise OtherMakeError
    footer = _chunk(file, keys_and_values[1])
    ends = np.cumsum(footer.sizes)  # the first entry is about the file
    sizes = _record_sizes(footer.values, ends[1:])
    if not len(sizes):
        return sizes, sizes
    first, last = (int(_varints(footer.values[begin:end])[1]) for begin, end in (ends[:2], ends[-2:]))
    num_sizes = sum((sizes >> shift > 0).astype(np.int64) for shift in range(0, 63, 7))
    before = _CHUNK_HEADER + 2 + num_sizes  # the length of the length is a single byte
    begins = _streamed(first) + np.concatenate([[0], np.cumsum(before + sizes)])
    if begins[-2] != _streamed(last) or begins[-1] > _streamed(keys_and_values[1]):
        raise OtherMakeError
    starts = begins[:-1] + before
    return starts // BLOCK_ROOM * BLOCK + BLOCK_HEADER + starts % BLOCK_ROOM, sizes


def _record_sizes(
    entries: UInt8[np.ndarray, " byte"], ends: Int64[np.ndarray, " record"]
) -> Int64[np.ndarray, " record"]:
    """What a footer's entries say of their chunks' sizes, read from each entry's end: key, size, key, 1."""
    at = ends - 3
    sizes = entries[at].astype(np.int64)  # the highest seven bits of the size
    at -= 1
    good = (entries[ends - 1] == 1) & (entries[ends - 2] == _NUM_RECORDS_KEY) & (sizes < 0x80)
    for _ in range(_MAX_SIZE_BYTES - 1):
        more = entries[at] >= 0x80
        if not more.any():
            break
        sizes[more] = (sizes[more] << 7) | (entries[at[more]] & 0x7F)
        at -= more
    if not (good & (entries[at] == _SIZE_KEY) & (sizes > 0)).all():
        raise OtherMakeError
    return sizes


def _streamed(position: int) -> int:
    """A place in the file as one among the bytes that are not block headers."""
    return position // BLOCK * BLOCK_ROOM + max(position % BLOCK - BLOCK_HEADER, 0)


def _chunk(file: BinaryIO, begin: int) -> _Chunk:
    header = _read(file, begin, _CHUNK_HEADER).view("<u8")
    size, kind, num_records = int(header[1]), int(header[3]) & 0xFF, int(header[3]) >> 8
    data = _read(file, begin, _CHUNK_HEADER + size)[_CHUNK_HEADER:]
    if kind != _SIMPLE_CHUNK or len(data) < 2 or data[0] != 0:
        raise OtherMakeError
    end_of_first = 1 + int(np.argmax(data[1:11] < 0x80)) + 1
    size_of_sizes = int(_varints(data[1:end_of_first])[0])
    sizes = _varints(data[end_of_first:][:size_of_sizes])
    values = data[end_of_first + size_of_sizes :]
    if not num_records or len(sizes) != num_records or sizes.min() < 6 or sizes.sum() != len(values):
        raise OtherMakeError
    return _Chunk(sizes, values)


def _read(file: BinaryIO, begin: int, size: int) -> UInt8[np.ndarray, " byte"]:
    """`size` bytes from a place on, without block headers."""
    begin += BLOCK_HEADER if begin % BLOCK == 0 else 0
    last = _streamed(begin) + size - 1
    end = last // BLOCK_ROOM * BLOCK + BLOCK_HEADER + last % BLOCK_ROOM + 1
    if end > os.fstat(file.fileno()).st_size:
        raise OtherMakeError
    file.seek(begin)
    if len(found := file.read(end - begin)) < end - begin:  # cut meanwhile
        raise OtherMakeError
    content = np.frombuffer(found, np.uint8)
    headers = np.arange(BLOCK - begin % BLOCK, len(content), BLOCK)  # where in it they stand
    pieces = zip([0, *(headers + BLOCK_HEADER).tolist()], [*headers.tolist(), len(content)], strict=True)
    return np.concatenate([content[start:stop] for start, stop in pieces])


def _varints(content: UInt8[np.ndarray, " byte"]) -> Int64[np.ndarray, " number"]:
    """Numbers of seven bits a byte, lowest first, whose last byte has its highest bit unset."""
    ends = np.flatnonzero(content < 0x80)
    if not len(ends) or ends[-1] != len(content) - 1:
        raise OtherMakeError
    if len(ends) == len(content):
        return content.astype(np.int64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > 9:  # beyond 2^63
        raise OtherMakeError
    numbers = np.zeros(len(ends), np.int64)
    for place in range(int(lengths.max())):
        here = np.flatnonzero(lengths > place)
        numbers[here] |= (content[starts[here] + place] & 0x7F).astype(np.int64) << (7 * place)
    return numbers

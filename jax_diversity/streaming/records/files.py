"""One ArrayRecord file of `write_records`: the places of its records, and their bytes from a memory map.

An ArrayRecord file is a Riegeli file. Chunks follow one another, interrupted by a block header of 24 bytes at every 64
KiB. `write_records` puts one uncompressed record into each chunk. The chunk has 40 bytes of header, a zero (not
compressed), the length of the length (one byte), the length, and the record. A footer near the file's end gives the
size of every record, and the last block has the footer's place. We read nothing else. Every record has a checksum
(`records.codec`), so this module only ensures that we read no byte outside the file.

Sources: github.com/google/riegeli/blob/master/doc/riegeli_records_file_format.md,
github.com/google/array_record/blob/main/cpp/layout.proto.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.protobuf import packed_integers

REPAIR = "find what changed with `jax-diversity verify`, then restore the file or run `jax-diversity write` again"

_BLOCK = 2**16
_BLOCK_HEADER = 24
_BLOCK_ROOM = _BLOCK - _BLOCK_HEADER
_CHUNK_HEADER = 40
_SIMPLE_CHUNK = ord("r")
_OFFSET_KEY, _SIZE_KEY, _NUM_RECORDS_KEY = 0x08, 0x10, 0x18  # protobuf fields 1, 2 and 3 of a footer's entry
_POSTSCRIPT_MARK = 0x71930E704FDAE05E

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class RecordFile:
    """An open record file. We continue to read the same file, even if another file gets its name.

    A UserError is raised if the file is missing, cannot be opened or mapped, is damaged, has another number of records
    or shorter records, or was not written by `write_records`.

    A memory map is the fastest way to read. But if another program truncates the file between `is_whole` and the read,
    or if the disk fails, the process ends (SIGBUS). Without `memory_map`, records are read by system calls, and such a
    failure is a UserError.
    """

    def __init__(
        self, path: Path, count: int, body_bytes: int, *, in_sequence: bool = False, memory_map: bool = True
    ) -> None:
        self._bytes = self._descriptor = None
        try:
            with path.open("rb") as file:
                state = os.fstat(file.fileno())
                starts, sizes = _record_starts(file.fileno(), state.st_size)
                if memory_map:
                    self._bytes = np.asarray(_Mapping(file.fileno(), state.st_size, in_sequence=in_sequence))
                else:
                    self._descriptor = os.dup(file.fileno())
                    weakref.finalize(self, os.close, self._descriptor).atexit = False  # threads may still read then
            if len(starts) != count:
                raise ValueError(f"{count} records expected, {len(starts)} found")
            if count and sizes.min() < body_bytes:
                raise ValueError(f"records of at least {body_bytes} bytes expected, a record of {sizes.min()} found")
        except OSError as error:
            raise _unreadable(path, error) from None
        except (ValueError, IndexError) as error:  # damaged numbers lead to an IndexError
            raise UserError(
                f"Expected the record file {path} as `jax-diversity write` made it, found it damaged, cut short, "
                f"replaced or written by another program ({error}); {REPAIR}."
            ) from None
        self._path, self._file, self._num_bytes = path.absolute(), (state.st_dev, state.st_ino), state.st_size
        self._starts = starts.astype(np.uint32 if state.st_size < 2**32 else np.int64)  # there may be many
        self._body_bytes = body_bytes

    def __len__(self) -> int:
        return len(self._starts)

    def is_whole(self) -> bool:
        """Return whether the file is at least as long as when it was opened.

        A read of the map beyond the file's end kills the process (SIGBUS), so call this method before every read. For a
        removed or replaced file the result is True, because the map keeps the file.
        """
        try:
            state = os.stat(self._path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return (state.st_dev, state.st_ino) != self._file or state.st_size >= self._num_bytes

    def bodies(self, places: Int64[np.ndarray, " row"]) -> UInt8[np.ndarray, "row byte"]:
        """Read the bodies of the records at some places, as rows of a new array."""
        if self._bytes is None:
            rows = np.empty((len(places), self._body_bytes), np.uint8)
            for row, place in zip(rows, places.tolist(), strict=True):
                self.copy_body(place, row)
            return rows
        return gather_records(self._bytes, self._starts[places].astype(np.int64), self._body_bytes)

    def copy_body(self, place: int, row: UInt8[np.ndarray, " byte"]) -> None:
        """Copy one record's body into an array. This is faster than `bodies` if a batch has few rows in this file."""
        for part, start in _parts(row, int(self._starts[place])):
            if self._bytes is not None:
                part[:] = self._bytes[start : start + len(part)]
            else:
                self._read_into(part, start)

    def _read_into(self, part: UInt8[np.ndarray, " byte"], start: int) -> None:
        assert self._descriptor is not None
        try:
            num_bytes = os.preadv(self._descriptor, [part.data], start)
        except OSError as error:
            raise _unreadable(self._path, error) from None
        if num_bytes < len(part):
            raise UserError(f"Expected {self._path} as it was opened, found it cut short; {REPAIR}.")


def record_range(
    places: Int64[np.ndarray, " record"], num_bytes: int
) -> tuple[Int64[np.ndarray, " record"], Int64[np.ndarray, " record"]]:
    """Return where records of `num_bytes` begin in their file, and where they end, without reading the file.

    All records before them have the same size.
    """
    length_bytes = -(-num_bytes.bit_length() // 7)  # a varint: seven bits in each byte
    chunk = _CHUNK_HEADER + 2 + length_bytes + num_bytes
    # The file begins with a chunk that has only a header.
    ends = _CHUNK_HEADER + (places + 1) * chunk
    starts, last = ends - num_bytes, ends - 1
    return _with_headers(starts), _with_headers(last) + 1


def gather_records(
    content: UInt8[np.ndarray, " size"], starts: Int64[np.ndarray, " row"], num_bytes: int, origin: int = 0
) -> UInt8[np.ndarray, "row byte"]:
    """Copy the records that begin at some places of a file. `content` has the bytes of the file from `origin` on."""
    # We make a view of the file in which row i has the bytes from byte i on. Gathering rows of this view copies each
    # record once. NumPy acquires the interpreter's lock only once per batch, so other threads continue while pages are
    # read from the disk.
    shape = len(content) - num_bytes + 1, num_bytes
    rows = np.ndarray(shape, np.uint8, content.data, strides=(1, 1))[starts - origin]
    # Rows that cross the end of a block contain block headers. They are copied again, without the headers.
    for row in np.flatnonzero(starts % _BLOCK + num_bytes > _BLOCK).tolist():
        for part, start in _parts(rows[row], int(starts[row])):
            part[:] = content[start - origin : start - origin + len(part)]
    return rows


def _parts(row: UInt8[np.ndarray, " byte"], start: int) -> Iterator[tuple[np.ndarray, int]]:
    """Divide a record at the file's block headers. Yields its parts in `row`, and where they begin in the file."""
    done, end = 0, _BLOCK - start % _BLOCK
    while done < len(row):
        end = min(end, len(row))
        yield row[done:end], start
        start += end - done + _BLOCK_HEADER
        done, end = end, end + _BLOCK_ROOM


class _Mapping:
    """A file's bytes in memory, as an array interface. They are unmapped when the last array that uses them is freed.

    Python's own `mmap` keeps a descriptor of every file open, and a process may have only about a thousand descriptors.
    """

    def __init__(self, descriptor: int, num_bytes: int, *, in_sequence: bool) -> None:
        # We use a private map, because some network file systems do not support shared maps. Private and shared maps
        # read the same pages of the system's cache.
        address = _system.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
        if address == _FAILED:
            raise OSError(number := ctypes.get_errno(), os.strerror(number))
        weakref.finalize(self, _system.munmap, address, num_bytes).atexit = False  # threads may still read then
        if in_sequence:
            _system.madvise(address, num_bytes, mmap.MADV_SEQUENTIAL)
        self.__array_interface__ = {"version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (address, True)}


def _record_starts(
    descriptor: int, num_bytes: int
) -> tuple[Int64[np.ndarray, " record"], Int64[np.ndarray, " record"]]:
    """Return the start and the size of every record in the file.

    Chunks follow one another without gaps, so the sizes give all starts. The footer also has every chunk's offset, but
    to read two numbers per entry takes twice as long. We compare only the last offset. It differs if records are
    compressed.
    """
    if num_bytes % _BLOCK or num_bytes < 2 * _BLOCK:
        raise ValueError("not a whole number of blocks")
    # We read from the descriptor, not from the map: for each page that is read from a map, the system counts up to
    # 2 MiB around it as used memory.
    sizes, postscript = _read_chunk(descriptor, num_bytes - _BLOCK, num_bytes)
    offset_key, footer, mark_key, mark = packed_integers(postscript[: sizes[0]].data).tolist()
    if (offset_key, mark_key, mark) != (_OFFSET_KEY, _SIZE_KEY, _POSTSCRIPT_MARK):
        raise ValueError("no ArrayRecord postscript")
    entry_sizes, entries = _read_chunk(descriptor, footer, num_bytes)
    ends = np.cumsum(entry_sizes)  # the first entry describes the file, each other entry describes a chunk
    if len(ends) == 1:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    sizes = _record_sizes(entries, ends[1:])
    first, last = (int(packed_integers(entries[begin:end].data)[1]) for begin, end in (ends[:2], ends[-2:]))
    # A record's length is stored as a varint: one byte for each seven bits. A chunk consists of its header, the zero,
    # the length of this varint, the varint and the record.
    length_bytes = sum((sizes >> shift > 0).astype(np.int64) for shift in range(0, 63, 7))
    before = _CHUNK_HEADER + 2 + length_bytes
    begins = _without_headers(first) + np.concatenate([[0], np.cumsum(before + sizes)])
    if begins[-2] != _without_headers(last) or begins[-1] > _without_headers(footer):
        raise ValueError("its chunks are not one uncompressed record each")
    return _with_headers(begins[:-1] + before), sizes


def _record_sizes(
    entries: UInt8[np.ndarray, " byte"], ends: Int64[np.ndarray, " record"]
) -> Int64[np.ndarray, " record"]:
    """Return the sizes in a footer's entries.

    An entry ends with: the key of the size, the size, the key of the number of records, 1. We read it backwards.
    """
    at = ends - 3
    sizes = entries[at].astype(np.int64)  # the highest seven bits, because a varint begins with its lowest bits
    good = (entries[ends - 1] == 1) & (entries[ends - 2] == _NUM_RECORDS_KEY) & (sizes < 0x80)
    at -= 1
    # We process all entries at once. Each step goes back one byte; an entry that has reached its size key stays there.
    for _ in range(4):  # up to 35 bits
        more = entries[at] >= 0x80
        if not more.any():
            break
        sizes[more] = (sizes[more] << 7) | (entries[at[more]] & 0x7F)
        at -= more
    if not (good & (entries[at] == _SIZE_KEY) & (sizes > 0)).all():
        raise ValueError("its chunks are not one record each")
    return sizes


def _read_chunk(descriptor: int, begin: int, file_bytes: int) -> tuple[Int64[np.ndarray, " record"], np.ndarray]:
    """Return the sizes of a chunk's uncompressed records, and the bytes of the records, one after another."""
    # The header has five numbers. The second is the size of the data; the lowest byte of the fourth is the type.
    header = _read(descriptor, begin, _CHUNK_HEADER, file_bytes).view("<u8")
    data = _read(descriptor, begin, _CHUNK_HEADER + int(header[1]), file_bytes)[_CHUNK_HEADER:]
    if int(header[3]) & 0xFF != _SIMPLE_CHUNK or data[0] != 0:
        raise ValueError("its footer is not a chunk of plain records")
    end = 2 + int(np.argmax(data[1:] < 0x80))
    sizes_end = end + int(packed_integers(data[1:end].data)[0])
    sizes, records = packed_integers(data[end:sizes_end].data), data[sizes_end:]
    if not len(sizes) or sizes.min() < 6 or sizes.sum() != len(records):
        raise ValueError("its footer is damaged")
    return sizes, records


def _read(descriptor: int, begin: int, size: int, file_bytes: int) -> UInt8[np.ndarray, " byte"]:
    """Read `size` bytes of the file from a place on, without block headers."""
    begin += _BLOCK_HEADER if begin % _BLOCK == 0 else 0
    end = _with_headers(_without_headers(begin) + size - 1) + 1
    if not 0 <= begin < end <= file_bytes or len(block := os.pread(descriptor, end - begin, begin)) < end - begin:
        raise ValueError("its index refers to bytes outside the file")
    content = np.frombuffer(block, np.uint8)
    headers = range(_BLOCK - begin % _BLOCK, len(content), _BLOCK)
    starts, ends = [0, *(header + _BLOCK_HEADER for header in headers)], [*headers, len(content)]
    return np.concatenate([content[start:end] for start, end in zip(starts, ends, strict=True)])


def _with_headers(place: Any) -> Any:
    """Convert a number of bytes without block headers, or an array of them, to a place in the file."""
    return place // _BLOCK_ROOM * _BLOCK + _BLOCK_HEADER + place % _BLOCK_ROOM


def _without_headers(position: int) -> int:
    """Convert a place in the file to the number of bytes before it, without the bytes of block headers."""
    return position // _BLOCK * _BLOCK_ROOM + max(position % _BLOCK - _BLOCK_HEADER, 0)


def _unreadable(path: Path, error: OSError) -> UserError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return UserError(f"Expected the record file {path}, found none; {REPAIR}.")
    remedy = "make it readable, or copy it to a disk that supports memory maps, then read again"
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        remedy = (
            "raise the limit (`ulimit -n` for open files, `vm.max_map_count` for maps), or write fewer, larger files "
            "(`records.sequences_per_file`)"
        )
    return UserError(f"Expected to read {path}, but the system refused ({error.strerror}); {remedy}.")

"""The bytes of an ArrayRecord file's records straight from a memory map."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.records.placement import BLOCK, BLOCK_HEADER, BLOCK_ROOM, OtherMakeError, record_places

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_system.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """What an array of a file's bytes in memory refers to; the bytes go when this does.

    Python's own `mmap` keeps a descriptor of every file open, of which a process has few.
    """

    def __init__(self, file: BinaryIO, num_bytes: int, *, in_sequence: bool) -> None:
        address = _system.mmap(None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if address == _FAILED:  # some file systems have no maps, and a process not any number of them
            raise OtherMakeError(os.strerror(ctypes.get_errno()))
        weakref.finalize(self, _system.munmap, address, num_bytes).atexit = False
        if in_sequence:
            _system.madvise(address, num_bytes, mmap.MADV_SEQUENTIAL)
        self.__array_interface__ = {"version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (address, True)}


class MappedFile:
    """One open file of uncompressed records, one a chunk.

    The map stays that of the file that was opened, whatever comes to stand under its name.

    Args:
        file: the file, open for reading; it may be closed afterwards.
        in_sequence: the records will be read as they lie.

    Attributes:
        smallest: bytes of the smallest record; 0 without records.
        first_bytes: the first four of the first record; none without records.

    Raises:
        OtherMakeError: a file of another make than `records.placement` says, or damaged.
    """

    def __init__(self, file: BinaryIO, *, in_sequence: bool = False) -> None:
        starts, sizes = record_places(file)
        state = os.fstat(file.fileno())
        self._path = str(Path(file.name).absolute())
        self._file = state.st_dev, state.st_ino
        self._bytes = np.asarray(_Mapping(file, state.st_size, in_sequence=in_sequence))
        if len(starts) and starts[-1] + sizes[-1] > len(self._bytes):  # cut meanwhile
            raise OtherMakeError
        self._starts = starts.astype(np.uint32 if len(self._bytes) < 2**32 else np.int64)  # it is one a record
        self.smallest = int(sizes.min()) if len(sizes) else 0
        # Read, not looked at in the map: where a page is touched, up to 2 MiB around it count as memory in use.
        self.first_bytes = os.pread(file.fileno(), 4, int(starts[0])) if len(starts) else b""

    @classmethod
    def open(cls, path: Path, *, in_sequence: bool = False) -> MappedFile | None:
        """Map a file; None where it is of another make or damaged, or where the system maps no file.

        Raises:
            OSError: it is not there or cannot be read, which may pass.
        """
        try:
            with path.open("rb") as file:
                return cls(file, in_sequence=in_sequence)
        except OtherMakeError:
            return None

    def __len__(self) -> int:
        return len(self._starts)

    def beginnings(self, places: Int64[np.ndarray, " row"], num_bytes: int) -> UInt8[np.ndarray, "row byte"] | None:
        """The first bytes of some records, which are at least that long, as rows of a new array.

        None where the file has been cut since it was opened: what is mapped behind its end must not be touched.
        What is cut while it is being copied can end the process (SIGBUS).
        """
        if not self.is_whole():
            return None
        starts = self._starts[places].astype(np.int64)
        # Row i of `windows` are the bytes from i on. Gathering rows is one copy of each and lets go of the
        # interpreter, so that other threads run on while pages come from the disk.
        shape = len(self._bytes) - num_bytes + 1, num_bytes
        windows = np.ndarray(shape, np.uint8, self._bytes.data, strides=(1, 1))
        rows = windows[starts]
        room = BLOCK - starts % BLOCK
        for row in np.flatnonzero(room < num_bytes).tolist():  # block headers stand in their midst
            self._copy(int(starts[row]), rows[row])
        return rows

    def copy_beginning(self, place: int, row: UInt8[np.ndarray, " byte"]) -> None:
        """Fill an array with the first bytes of one record; the file must have been whole right before."""
        self._copy(int(self._starts[place]), row)

    def is_whole(self) -> bool:
        """Whether the file is as long as when it was opened; one that is removed or replaced stays as it was."""
        try:
            state = os.stat(self._path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return (state.st_dev, state.st_ino) != self._file or state.st_size >= len(self._bytes)

    def _copy(self, start: int, row: UInt8[np.ndarray, " byte"]) -> None:
        """The bytes from a place on, without block headers."""
        done, end = 0, BLOCK - start % BLOCK
        while done < len(row):
            end = min(end, len(row))
            row[done:end] = self._bytes[start : start + end - done]
            start += end - done + BLOCK_HEADER
            done, end = end, end + BLOCK_ROOM

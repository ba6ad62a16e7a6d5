"""Which sequence comes at every position: an ordering, a schedule, or another ordering every epoch."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, Integer

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Ordering, Schedule

_CHUNK = 2**20


@runtime_checkable
class Order(Protocol):
    """What the loader follows."""

    def __len__(self) -> int:
        """N, positions of an epoch."""
        ...

    def fingerprint_at(self, position: int) -> str:
        """Hash of what decides the sequences from a position on, up to its epoch's end."""
        ...

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at positions that count on from epoch to epoch."""
        ...


class OrderIndex:
    """An ordering's permutation; pickles as the name of its file where it has one, and is then read again."""

    def __init__(self, ordering: Ordering, path: Path | None = None) -> None:
        self.fingerprint = ordering.fingerprint
        self._length = len(ordering)
        self._path = path
        self.indices = ordering.indices

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("inverse",) if self._path is None else ("indices", "inverse")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def fingerprint_at(self, position: int) -> str:
        """The ordering's, in every epoch."""
        return self.fingerprint

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, the same in every epoch."""
        return self.indices[positions % self._length]

    @cached_property
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequence at every position.

        Raises:
            UserError: the file no longer holds the ordering that it held.
        """
        try:
            ordering = Ordering.load(str(self._path))
        except ValueError as error:
            raise UserError(str(error)) from None
        if ordering.fingerprint != self.fingerprint:
            raise UserError(
                f"Expected the ordering of fingerprint {self.fingerprint[:16]} at {self._path}, found "
                f"{ordering.fingerprint[:16]}: it was made anew after the loader was; make the loader again."
            )
        return ordering.indices

    @cached_property
    def inverse(self) -> Integer[np.ndarray, " sequence"]:
        """The position of every sequence, in the smallest of int32 and int64 that holds it."""
        inverse = np.empty(len(self), np.int32 if len(self) < 2**31 else np.int64)
        for start in range(0, len(self), _CHUNK):
            stop = min(start + _CHUNK, len(self))
            inverse[self.indices[start:stop]] = np.arange(start, stop)
        return inverse


class OrderFile(OrderIndex):
    """A saved ordering that is read where it lies: memory-mapped, and pickled as the name of its file.

    That the file holds the ordering it should is told by its hash alone, which is that of the ordering that was
    checked when it was saved: reading ten million numbers once takes 0.05 s and no memory, to prove that they are
    a permutation takes 0.3 s and 240 MB. After that the map is of the very file that was hashed, whatever comes
    to stand under its name; a file that is written to in place is refused from then on.

    Args:
        path: the .npy file, int64.
        fingerprint: of the ordering.
        num_sequences: its length.

    Raises:
        UserError: the file is absent or holds something else.
    """

    def __init__(self, path: Path, fingerprint: str, num_sequences: int) -> None:
        self._path, self.fingerprint, self._length = path, fingerprint, num_sequences
        _ = self.indices

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "fingerprint": self.fingerprint, "_length": self._length}

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, the same in every epoch.

        Raises:
            UserError: the file was written to since it was opened.
        """
        indices, file, state = self._mapped
        if _state(file) != state:
            raise UserError(
                f"Expected {self._path} as it was when the loader was made, found it written to since; make the "
                "loader again."
            )
        return indices[positions % self._length]

    @cached_property
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequence at every position.

        Raises:
            UserError: the file no longer holds the ordering that it held.
        """
        return self._mapped[0]

    @cached_property
    def _mapped(self) -> tuple[Int64[np.ndarray, " position"], Any, tuple[int, int]]:
        """The indices, the file that they are mapped from, and what tells whether that was written to."""
        found = "no ordering"
        try:
            file = self._path.open("rb")
            state = _state(file)
            shape, dtype = _read_header(file)
            start = file.tell()
            if shape == (self._length,) and dtype == np.dtype("<i8"):
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise UserError(f"Expected an ordering at {self._path}, found no such file.") from None
        except ValueError as error:
            raise UserError(f"Expected an ordering (.npy) at {self._path}: {error}") from None
        if found != self.fingerprint:
            raise UserError(
                f"Expected the ordering of fingerprint {self.fingerprint[:16]} at {self._path}, found "
                f"{found[:16]}: it was changed, or made anew after the loader was or the dataset was opened; open "
                "it again."
            )
        if not self._length:
            return np.zeros(0, np.int64), file, state
        return np.memmap(file, np.int64, "r", start, shape).view(np.ndarray), file, state


def _read_header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of the array in a .npy file; the file stands at its first value afterwards."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _state(file: Any) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


class ScheduleIndex(OrderIndex):
    """A schedule in an ordering's place: what comes at every position, without the way back."""

    def __init__(self, schedule: Schedule) -> None:
        self.fingerprint = schedule.fingerprint
        self._length = len(schedule)
        self._path = None
        self.indices = schedule.indices


class EpochOrders:
    """Another ordering every epoch, made when its epoch is reached; the last two are kept.

    Args:
        make: epoch, counted from 0, -> its ordering; must give the same one each time it is asked.
        num_sequences: N, which every epoch's ordering has.
    """

    def __init__(self, make: Callable[[int], Ordering], num_sequences: int) -> None:
        self._make = make
        self._length = num_sequences
        self._made: dict[int, Ordering] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_length": self._length}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_make"], state["_length"])

    def fingerprint_at(self, position: int) -> str:
        """The fingerprint of the epoch's ordering."""
        return self._ordering(position // self._length).fingerprint

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, each in its own epoch's ordering."""
        epochs, places = np.divmod(positions, self._length)
        sequences = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            sequences[rows] = self._ordering(epoch).indices[places[rows]]
        return sequences

    def _ordering(self, epoch: int) -> Ordering:
        with self._lock:  # threads that make batches ahead would each make it
            if epoch not in self._made:
                ordering: Any = self._make(epoch)
                if not isinstance(ordering, Ordering) or len(ordering) != self._length:
                    raise UserError(
                        f"Expected an ordering of the dataset's {self._length} sequences for epoch {epoch}, found "
                        f"{ordering!r}."
                    )
                self._made = {kept: made for kept, made in self._made.items() if kept >= epoch - 1} | {epoch: ordering}
            return self._made[epoch]

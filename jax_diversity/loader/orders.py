"""Which sequence comes at every position: an ordering, a schedule, or another ordering in every epoch."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.dataset.dataset import Dataset
from jax_diversity.dataset.orderings import OrderingFile, is_file_name, load_ordering
from jax_diversity.foundation.errors import UserError
from jax_diversity.schedule.stored import RunSchedule
from jax_diversity.schema import Ordering, Schedule


class Order(ABC):
    """What the loader follows. Positions count on from epoch to epoch."""

    is_bijection = True
    """Whether every sequence comes exactly once in an epoch."""

    @abstractmethod
    def __len__(self) -> int:
        """N, positions of an epoch."""

    @abstractmethod
    def fingerprint_at(self, position: int) -> str:
        """Hash of what decides the sequences from a position to the end of its epoch."""

    @abstractmethod
    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions."""

    def continues(self, position: int, end: int, fingerprint: str) -> bool:
        """Whether a run that has saved a fingerprint at a position may go on here, in a run that ends at `end`.

        Between two epochs, a run that ends there has saved the ordering of the first, and a run of more epochs that
        of the second. Each may continue as the other.
        """
        last = max(end - 1, 0)  # at the end there is no next epoch to make an ordering for
        if self.fingerprint_at(min(position, last)) == fingerprint:
            return True
        if not position or position % len(self):
            return False
        if self.fingerprint_at(position - 1) == fingerprint:
            return True
        with suppress(Exception):  # a user's function may know no more epochs than this loader has
            return self.fingerprint_at(position) == fingerprint
        return False


class OrderIndex(Order):
    """An ordering or a schedule in memory; a pickle of one that came from a file carries the file's name instead."""

    def __init__(self, ordering: Ordering | Schedule, path: Path | None = None) -> None:
        self.fingerprint = ordering.fingerprint
        self.is_bijection = isinstance(ordering, Ordering)
        self.indices = ordering.indices
        self._length = len(ordering)
        self._path = path

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> str | tuple[Any, ...]:
        return super().__reduce__() if self._path is None else (_load_again, (self._path, self.fingerprint))

    def fingerprint_at(self, position: int) -> str:
        """The ordering's fingerprint, the same in every epoch."""
        return self.fingerprint

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, the same in every epoch."""
        return self.indices[positions % self._length]


def _load_again(path: Path, fingerprint: str) -> OrderIndex:
    return OrderIndex(load_ordering(path, expected=fingerprint), path)


class OrderFile(OrderIndex):
    """A saved ordering that is memory-mapped; a pickle carries the name of its file."""

    def __init__(self, path: Path, fingerprint: str, num_sequences: int) -> None:
        self._path, self.fingerprint, self._length = path, fingerprint, num_sequences
        self._file = OrderingFile(path, fingerprint, num_sequences)
        self.indices = self._file.indices

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderFile, (self._path, self.fingerprint, self._length)

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions; refused when the file was written to since it was opened."""
        return self._file.at(positions % self._length)


class ScheduleOrder(Order):
    """One version of a stored schedule."""

    is_bijection = False

    def __init__(self, schedule: RunSchedule) -> None:
        self.schedule = schedule
        self._fingerprint = schedule.fingerprint

    def __len__(self) -> int:
        return len(self.schedule)

    def fingerprint_at(self, position: int) -> str:
        """The version's fingerprint."""
        return self._fingerprint

    def continues(self, position: int, end: int, fingerprint: str) -> bool:
        """Whether all positions before one are those of the version of a fingerprint."""
        return fingerprint == self._fingerprint or self.schedule.continues(position, fingerprint)

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, over all datasets; after its end the schedule begins again."""
        return self.schedule.at(positions % len(self.schedule))


class EpochOrders(Order):
    """Another ordering in every epoch, made when the epoch begins by `make`, which must give the same one each time."""

    def __init__(self, make: Callable[[int], Any], num_sequences: int) -> None:
        self._make = make
        self._length = num_sequences
        self._made: dict[int, Ordering] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[Any, ...]:
        return EpochOrders, (self._make, self._length)

    def fingerprint_at(self, position: int) -> str:
        """The fingerprint of the ordering of the position's epoch."""
        return self._ordering(position // self._length).fingerprint

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, each in the ordering of its epoch."""
        epochs, places = np.divmod(positions, self._length)
        sequences = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            sequences[rows] = self._ordering(epoch).indices[places[rows]]
        return sequences

    def _ordering(self, epoch: int) -> Ordering:
        with self._lock:  # otherwise each thread that makes batches would make the ordering
            if epoch not in self._made:
                ordering = self._make(epoch)
                if not isinstance(ordering, Ordering) or len(ordering) != self._length:
                    raise UserError(
                        f"Expected an ordering of the dataset's {self._length} sequences for epoch {epoch}, found "
                        f"{ordering!r}."
                    )
                # Two epochs are kept because the batches made ahead are in the next one already.
                self._made = {kept: made for kept, made in self._made.items() if kept >= epoch - 1} | {epoch: ordering}
            return self._made[epoch]


def resolve_order(ordering: Any, num_sequences: int, dataset: Dataset | None = None) -> Order:
    """The order that `ordering` means, see `make_loader`; names are known only to a dataset."""
    if isinstance(ordering, Schedule):
        if ordering.num_sequences != num_sequences:
            raise UserError(
                f"Expected a schedule over the dataset's {num_sequences} sequences, found one over "
                f"{ordering.num_sequences}; it was made for another dataset."
            )
        if dataset is not None:
            dataset.check_origin(ordering)
        return OrderIndex(ordering)
    if callable(ordering):
        return EpochOrders(ordering, num_sequences)
    path = None
    if is_file_name(ordering):
        path = Path(ordering).absolute()
        ordering = load_ordering(path)
    elif isinstance(ordering, str) and dataset is not None:
        return named_order(dataset, ordering)
    elif not isinstance(ordering, Ordering):
        ordering = _from_numbers(ordering)
    if len(ordering) != num_sequences:
        raise UserError(
            f"Expected an ordering of the dataset's {num_sequences} sequences, found {len(ordering)}; "
            "make a new one with `jax-diversity order`."
        )
    if dataset is not None:
        dataset.check_origin(ordering, path)
    return OrderIndex(ordering, path)


def named_order(dataset: Dataset, name: str) -> OrderFile:
    """One of a dataset's orderings, left on disk."""
    path, fingerprint = dataset.ordering_file(name)
    return OrderFile(path.absolute(), str(fingerprint), dataset.num_sequences)


def layout_fingerprint(dataset: Dataset) -> str | None:
    """The fingerprint of the ordering in which the records lie, whose file is checked; None: as packed."""
    name = dataset.layout_ordering
    return None if name is None else named_order(dataset, name).fingerprint


def _from_numbers(ordering: Any) -> Ordering:
    try:
        indices = np.asarray(ordering)
        if indices.dtype.kind not in "iu":
            found = f"{indices.dtype} of shape {indices.shape}" if indices.dtype != object else repr(ordering)
            raise UserError(f"Expected an ordering of whole numbers, found {found}.")
        return Ordering(indices.astype(np.int64))
    except ValueError as error:
        raise UserError(str(error)) from None

"""Which sequence comes at every position: an ordering, or a schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.dataset.dataset import Dataset
from jax_diversity.dataset.orderings import OrderingFile, changed_ordering, is_file_name, load_plan
from jax_diversity.foundation.errors import UserError
from jax_diversity.schedule.stored import RunSchedule
from jax_diversity.schema import Ordering, Schedule


class Order(ABC):
    """What the loader follows. Positions count on from epoch to epoch."""

    is_bijection = True
    """Whether every sequence comes exactly once in an epoch."""
    fingerprint: str
    """Hash of what decides the sequences at all positions."""
    lengths: tuple[tuple[int, int], ...] = ()
    """Where sequences of another length begin in an epoch: (first position, L); empty where all have one length."""

    @abstractmethod
    def __len__(self) -> int:
        """N, positions of an epoch."""

    @abstractmethod
    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions."""

    def continues(self, position: int, fingerprint: str) -> bool:
        """Whether a run that has followed the order of a fingerprint up to a position may go on in this one."""
        return fingerprint == self.fingerprint


class OrderIndex(Order):
    """An ordering or a schedule in memory; a pickle of one that came from a file carries the file's name instead."""

    def __init__(self, ordering: Ordering | Schedule, path: Path | None = None) -> None:
        self.fingerprint = ordering.fingerprint
        self.is_bijection = isinstance(ordering, Ordering)
        self.indices, self._num_sequences = ordering.indices, ordering.num_sequences
        self._length = len(ordering)
        self._path = path

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._path is None:
            return super().__reduce__()
        return _load_again, (self._path, self.fingerprint, self._num_sequences)

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, the same in every epoch."""
        return self.indices[positions % self._length]


def _load_again(path: Path, fingerprint: str, num_sequences: int) -> OrderIndex:
    plan = load_plan(path, num_sequences)
    if plan.fingerprint != fingerprint:
        raise changed_ordering(path, fingerprint, plan.fingerprint)
    return OrderIndex(plan, path)


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
        self.schedule, self.fingerprint, self.lengths = schedule, schedule.fingerprint, schedule.lengths

    def __len__(self) -> int:
        return len(self.schedule)

    def continues(self, position: int, fingerprint: str) -> bool:
        """Whether all positions before one are those of the version of a fingerprint."""
        return fingerprint == self.fingerprint or self.schedule.continues(position, fingerprint)

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, over all datasets; after its end the schedule begins again."""
        return self.schedule.at(positions % len(self.schedule))


def resolve_order(ordering: Any, num_sequences: int, dataset: Dataset | None = None) -> Order:
    """The order that `ordering` means, see `make_loader`; names are known only to a dataset."""
    path = None
    if is_file_name(ordering):
        path = Path(ordering).absolute()
        ordering = load_plan(path, num_sequences)
    if isinstance(ordering, Schedule):
        if ordering.num_sequences != num_sequences:
            raise UserError(
                f"Expected a schedule over the dataset's {num_sequences} sequences, found one over "
                f"{ordering.num_sequences}; it was made for another dataset."
            )
        if dataset is not None:
            dataset.check_origin(ordering, path)
        return OrderIndex(ordering, path)
    if callable(ordering):
        raise UserError(
            f"Expected an ordering, found the function {ordering!r}; store the run's epochs, each in an order of its "
            "own, with create_schedule(path, dataset, num_epochs=...)."
        )
    if isinstance(ordering, str) and dataset is not None:
        return named_order(dataset, ordering)
    if not isinstance(ordering, Ordering):
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

"""A dataset's sequences, or those of a run's datasets, as rows of arrays: by index or by position in an order."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.dataset.orderings import is_file_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.orders import Order, ScheduleOrder, resolve_order
from jax_diversity.records.decoding import FIELDS, Arrays, LossOn
from jax_diversity.records.reading import Rows
from jax_diversity.schedule.stored import RunSchedule


class Sequences:
    """The training sequences of a built dataset, in any order, from any process.

    Those of a run's schedule are all of its datasets', end to end. It pickles as the dataset's or the schedule's folder
    and opens the records where it arrives, also after a fork.

    Args:
        out: the dataset's folder or address, or the dataset itself, or the schedule of a run.
        fingerprint: that the dataset must have; None takes any.

    Raises:
        UserError: no dataset there, one without records, or another one than the fingerprint's; a schedule over
            sequences of several lengths.

    Example:
        >>> Sequences("out").read(np.array([7, 3]))["inputs"].shape
        (2, 512)
    """

    def __init__(self, out: str | Path | Dataset | RunSchedule, fingerprint: str | None = None) -> None:
        if isinstance(out, RunSchedule):
            self.run, self.datasets, self.fingerprint = out, out.datasets, out.content.id
            lengths = sorted({member.sequence_length for member in out.members})
            if len(lengths) > 1:
                raise UserError(
                    f"Expected a schedule with sequences of one length to export, found lengths {lengths}; export a "
                    "version that knows those of one length, or read it with make_loader."
                )
        else:
            self.run, self.datasets = None, (out if isinstance(out, Dataset) else open_dataset(out),)
            self.fingerprint = self.datasets[0].fingerprint
        self._process = os.getpid()
        self._starts = np.cumsum([0, *(dataset.num_sequences for dataset in self.datasets)], dtype=np.int64)
        if fingerprint not in (None, self.fingerprint):
            raise UserError(
                f"Expected the dataset of fingerprint {str(fingerprint)[:16]} at {self.datasets[0].root}, found "
                f"{self.fingerprint[:16]}: it was built again meanwhile; open it again."
            )

    def __len__(self) -> int:
        return self.num_sequences

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._elsewhere, self.fingerprint)

    @property
    def num_sequences(self) -> int:
        """Number of sequences of all datasets."""
        return int(self._starts[-1])

    @property
    def _elsewhere(self) -> Path | Dataset | RunSchedule:
        """What finds the sequences in a process with another working folder."""
        if self.run is not None:
            return self.run
        (dataset,) = self.datasets
        return dataset.root.absolute() if dataset.remote is None else dataset

    @property
    def sequence_length(self) -> int:
        """L, the tokens of a row."""
        return self.datasets[0].sequence_length

    @property
    def marks_learned(self) -> bool:
        """Whether any of the datasets was made of chats, so that a loss may be counted on their answers alone."""
        return any(dataset.records.marks_learned for dataset in self.datasets)

    def read(
        self,
        sequences: Rows,
        fields: Sequence[str] = FIELDS,
        merge_segments: bool = False,
        loss_on: LossOn = "all",
    ) -> Arrays:
        """Some sequences, in the order asked for: the arrays and errors of `RecordReader.read_sequences`."""
        options: dict[str, Any] = {"fields": fields, "merge_segments": merge_segments, "loss_on": loss_on}
        if self._process != os.getpid():
            # This process was forked off: another thread of the parent may have held a lock of the opened datasets.
            self.datasets, self._process = pickle.loads(pickle.dumps(self.datasets)), os.getpid()
        if len(self.datasets) == 1:
            return self.datasets[0].records.read_sequences(sequences, **options)
        if len(sequences) and (sequences.min() < 0 or sequences.max() >= self.num_sequences):
            found = f"{sequences.min()} .. {sequences.max()}"
            raise IndexError(f"Expected sequences in 0 .. {self.num_sequences - 1}, found {found}.")
        of_dataset = np.searchsorted(self._starts, sequences, side="right") - 1
        rows = {field: np.empty((len(sequences), self.sequence_length), np.int32) for field in fields}
        for index in np.unique(of_dataset).tolist():
            own, records = of_dataset == index, self.datasets[index].records
            within = sequences[own] - self._starts[index]
            for field, values in records.read_sequences(within, **options).items():
                rows[field][own] = values
        return rows


class OrderedSequences(Sequences):
    """The training sequences in an ordering's order, or in that of a run's schedule.

    A dataset's own ordering is mapped from its file, not held in memory, and refused when the file was written to.

    Args:
        out: the dataset's folder or address, or the dataset itself, or the schedule of a run.
        ordering: the name of one of the dataset's orderings, or a .npy file of sequence indices; None takes `balance`.
            None with a schedule, which is its own order.
        ordering_fingerprint: that the ordering must have; None takes any.
        fingerprint: that the dataset must have; None takes any.

    Raises:
        UserError: no such ordering, one of another dataset, or another one than the fingerprint's; an ordering and a
            schedule.

    Example:
        >>> OrderedSequences("out", "balance").read_positions(np.arange(64))["inputs"].shape
        (64, 512)
        >>> OrderedSequences(open_schedule("run")).read_positions(np.arange(64))["inputs"].shape
        (64, 512)
    """

    def __init__(
        self,
        out: str | Path | Dataset | RunSchedule,
        ordering: str | Path | None = None,
        ordering_fingerprint: str | None = None,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(out, fingerprint)
        self.ordering_name = ordering
        self.order = self._order_of(ordering)
        self.ordering_fingerprint = found = self.order.fingerprint
        if ordering_fingerprint not in (None, found):
            raise UserError(
                f"Expected the ordering {str(self.ordering_name)!r} of fingerprint {str(ordering_fingerprint)[:16]}, "
                f"found {found[:16]}: it was made again meanwhile; restart what was following the earlier one."
            )

    def _order_of(self, ordering: str | Path | None) -> Order:
        if self.run is not None:
            if ordering is not None:
                raise UserError(
                    f"Expected no ordering with a run's schedule, which is one, found {ordering!r}; leave it out."
                )
            return ScheduleOrder(self.run)
        ordering = "balance" if ordering is None else ordering
        # A pickle may be read in another working folder.
        self.ordering_name = Path(ordering).absolute() if is_file_name(ordering) else ordering
        return resolve_order(self.ordering_name, self.num_sequences, self.datasets[0])

    def __len__(self) -> int:
        return len(self.order)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._elsewhere, self.ordering_name, self.ordering_fingerprint, self.fingerprint)

    def at(self, positions: Rows) -> Rows:
        """The sequences at some positions; IndexError: no such position."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(
                f"Expected positions in 0 .. {len(self) - 1}, found {positions.min()} .. {positions.max()}."
            )
        return self.order.at(positions)

    def read_positions(
        self,
        positions: Rows,
        fields: Sequence[str] = FIELDS,
        merge_segments: bool = False,
        loss_on: LossOn = "all",
    ) -> Arrays:
        """The sequences at some positions, as `read` gives them."""
        return self.read(self.at(positions), fields, merge_segments, loss_on)

    def stream(
        self, start: int, stop: int, num_rows: int, fields: Sequence[str] = FIELDS, merge_segments: bool = False
    ) -> Iterator[Arrays]:
        """The positions from start to stop, so many rows at a time."""
        for first in range(start, stop, num_rows):
            yield self.read_positions(np.arange(first, min(first + num_rows, stop)), fields, merge_segments)

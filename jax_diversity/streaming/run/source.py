"""Read the sequences of a run by number, from the records of its datasets."""

from __future__ import annotations

import os
import pickle
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jax_diversity.foundation.checks import as_whole_number, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.dataset.dataset import Dataset
from jax_diversity.streaming.dataset.orderings import OrderingFile
from jax_diversity.streaming.records.decoding import FIELDS, as_fields, as_loss
from jax_diversity.streaming.records.reading import RecordReader, Rows
from jax_diversity.streaming.run.run import Datasets, Run, identity_of, open_datasets

ORIGIN_FIELDS = ("dataset_index", "sequence_index")
"""The fields with the origin of each row of a batch of several datasets."""


class SequenceSource:
    """A run's stored sequences, each a dict of arrays (L,): a `RandomAccessDataSource` for `grain.DataLoader`.

    Index i is the i-th record of the files, as in Grain's own source. In the packed layout this is sequence i, in the
    ordered layout the i-th sequence of that ordering. The records of several datasets are numbered end to end. A row is
    read with one range read, whose time does not depend on the size of the file. Any number of threads may read rows. A
    pickle contains only names. A forked process opens the files again. It cannot fetch files by obstore if its parent
    has: this is a `UserError`.

    With several datasets, and with stored runs, rows also have `dataset_index` (int32) and `sequence_index` (int64),
    the number of the sequence within its dataset.

    Args:
        run: a run; or a built dataset, its folder or address, or several.
        fields: the arrays in a row, see `records.decoding.decode`.
        merge_segments: merge all segments of a sequence into one, see `make_loader`.
        loss_mask: selects the tokens that are targets, see `make_loader`.
        decode: with `device`, rows are as stored, see `records.decoding.stored_rows`; a loader makes the arrays.

    Attributes:
        identity: hash of the contents of the sequences.
        width: L, tokens of a row, at position 0; `Run.lengths` lists the positions where it changes.
        fields: the arrays in a row.

    Raises:
        UserError: a dataset or field does not exist; an index is not a whole number.

    Example:
        >>> source = SequenceSource("out/")
        >>> source[3]["inputs"].shape
        (512,)
    """

    def __init__(
        self,
        run: Run | Datasets,
        fields: Sequence[str] = FIELDS,
        *,
        merge_segments: bool = False,
        loss_mask: str = "all",
        decode: Literal["host", "device"] = "host",
    ) -> None:
        check_type("merge_segments", merge_segments, bool | np.bool_, "True or False")
        datasets = run.datasets if isinstance(run, Run) else open_datasets(run)
        if not datasets:
            raise UserError("Expected at least one dataset to read sequences from, found none.")
        self.fields = as_fields(fields)
        self.identity = run.identity if isinstance(run, Run) else identity_of(datasets)
        self.readers = [dataset.records for dataset in datasets]
        self.width = self.readers[0].width
        # If the run has the order of the records, the operating system may read ahead in the files, which is faster.
        layout = open_layout(datasets[0])
        if isinstance(run, Run) and len(datasets) == 1 and layout and layout.fingerprint == run.fingerprint:
            self.readers = [self.readers[0].forward()]
        self.has_origins = run.has_origins if isinstance(run, Run) else len(datasets) > 1
        self._options: dict[str, Any] = {
            "fields": self.fields,
            "merge_segments": bool(merge_segments),
            "loss_mask": as_loss(loss_mask, any(reader.has_loss_mask for reader in self.readers)),
        }
        # Rows as stored have one form for all datasets, so that a batch may have rows of several.
        self._stored: dict[str, Any] | None = None
        if decode == "device":
            has_loss_mask = loss_mask == "answers" and any(reader.has_loss_mask for reader in self.readers)
            dtype = np.result_type(*(np.dtype(reader.dtype) for reader in self.readers))
            self._stored = {"dtype": dtype, "has_loss_mask": has_loss_mask}
        self._starts = np.cumsum([0, *map(len, self.readers)], dtype=np.int64)
        self._bounds = self._starts.tolist()
        self._process = os.getpid()

    @property
    def origins(self) -> Mapping[str, type]:
        """The fields with the origin of a row (one number per row), and their types."""
        return dict(zip(ORIGIN_FIELDS, (np.int32, np.int64), strict=True)) if self.has_origins else {}

    def __len__(self) -> int:
        return self._bounds[-1]

    def __getitem__(self, index: Any) -> dict[str, np.ndarray]:
        place = as_index(index, len(self))
        number = bisect_right(self._bounds, int(place[0])) - 1
        start = self._bounds[number]
        sequence = self.readers[number].sequences_at(place - start) + start
        # Other libraries warn about read-only arrays, and rows are small.
        return {field: row[0] if row.flags.writeable else row[0].copy() for field, row in self.read(sequence).items()}

    def __repr__(self) -> str:  # Grain's checkpoints compare it
        return f"SequenceSource({self.identity[:16]})"

    def read(self, sequences: Rows, positions: Rows | None = None) -> Mapping[str, np.ndarray]:
        """The arrays of some sequences of one length, one row per sequence, in the given order.

        Args:
            sequences: their numbers, at least one.
            positions: their positions in the run, for sources that fetch files in advance.

        Raises:
            UserError: records that are damaged or missing.
        """
        if self._process != os.getpid():
            # At the fork, another thread of the parent may have held a lock of the readers: they are opened again.
            self.readers, self._process = pickle.loads(pickle.dumps(self.readers)), os.getpid()
        # "right": an empty dataset has the same offset as the next dataset, and the rows belong to the next one.
        ends = (sequences.min(), sequences.max()) if len(self._bounds) > 2 else (0, 0)
        first, last = (bisect_right(self._bounds, int(end)) - 1 for end in ends)
        if first == last:  # all rows are of one dataset
            within = sequences - self._bounds[first]
            rows = self._rows(self.readers[first], within)
            if not self.has_origins:
                return rows
            return {**rows, "dataset_index": np.full(len(within), first, np.int32), "sequence_index": within}
        dataset = np.searchsorted(self._starts, sequences, side="right") - 1
        within = sequences - self._starts[dataset]
        batch: dict[str, np.ndarray] = {}
        for index in np.unique(dataset).tolist():
            rows = np.flatnonzero(dataset == index)
            for field, part in self._rows(self.readers[index], within[rows]).items():
                if field not in batch:
                    batch[field] = np.empty((len(sequences), part.shape[1]), part.dtype)
                batch[field][rows] = part
        return batch | {"dataset_index": dataset.astype(np.int32), "sequence_index": within}

    def no_rows(self, length: int) -> Mapping[str, np.ndarray]:
        """Return the arrays of a batch without rows, for sequences of L = `length` tokens."""
        rows = {field: np.zeros((0, length), np.int32) for field in self.fields}
        if self._stored is not None:
            rows = {"tokens": np.zeros((0, length + 1), self._stored["dtype"])}
            bits = np.zeros((0, -(-(length + 1) // 8)), np.uint8)
            rows |= {"starts": bits} | ({"loss_mask": bits} if self._stored["has_loss_mask"] else {})
        return rows | {field: np.zeros(0, dtype) for field, dtype in self.origins.items()}

    def _rows(self, reader: RecordReader, sequences: Rows, places: Rows | None = None) -> Mapping[str, np.ndarray]:
        """Return the arrays of some sequences of one dataset, whose places in the files may be known."""
        places = reader.places_of(sequences) if places is None else places
        if self._stored is not None:
            return reader.read_stored(places, expected=sequences, **self._stored)
        return reader.read_batch(places, expected=sequences, **self._options)

    def for_iterator(self, step: int, end: int) -> SequenceSource:
        """Return the source for one iterator, which closes it. Batches begin every `step` positions, before `end`."""
        return self

    def close(self) -> None:
        """Release the files of this source."""


def open_layout(dataset: Dataset) -> OrderingFile | None:
    """Return the ordering of the records; None for the packed layout."""
    name = dataset.layout_ordering
    return None if name is None else dataset.open_ordering(name)


def as_index(index: Any, length: int) -> Rows:
    """An index as an array with one element; outside the range an IndexError, which also ends a `for` loop."""
    whole = as_whole_number("a sequence's index", index, least=-(2**63))
    if not 0 <= whole < length:
        raise IndexError(f"Expected an index in 0 .. {length - 1}, found {whole}.")
    return np.array([whole], np.int64)

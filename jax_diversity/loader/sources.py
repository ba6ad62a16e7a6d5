"""Where sequences are read from: the records of one dataset or those of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.dataset.dataset import Dataset, open_dataset
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.orders import Order, OrderIndex, layout_fingerprint
from jax_diversity.loader.settings import ORIGIN_FIELDS, LoaderSettings
from jax_diversity.records.reading import RecordReader, Rows


class SequenceSource(ABC):
    """Reads sequences as the rows of a batch."""

    fingerprint: str
    """Hash of what decides the sequences."""
    datasets: tuple[str, ...]
    """The fingerprints of the datasets that are read."""
    width: int
    """L, tokens of a row, unless the order says where it changes (`Order.lengths`)."""
    marks_learned: bool = False
    """Whether any of the datasets says which tokens are learnt."""
    origins: Mapping[str, type] = {}
    """The fields with one number a row, which say where it comes from, and their types."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of sequences."""

    @abstractmethod
    def read(self, positions: Rows, sequences: Rows, settings: LoaderSettings) -> Mapping[str, np.ndarray]:
        """The arrays of some sequences, a row each, in the order given; damaged records are refused.

        There is at least one sequence, and all have one length. `positions` say where they come in the order, for
        sources that fetch files ahead of a position.
        """

    def for_iterator(self) -> SequenceSource:
        """The source of one iterator, which the iterator closes."""
        return self

    def close(self) -> None:  # noqa: B027 - most sources hold nothing
        """Give back what the source of one iterator holds."""


class RecordSource(SequenceSource):
    """The records of one dataset.

    Args:
        records: the records, in any layout.
        fingerprint: of the dataset.
    """

    def __init__(self, records: RecordReader, fingerprint: str) -> None:
        self.records, self.fingerprint, self.width = records, fingerprint, records.width
        self.datasets, self.marks_learned = (fingerprint,), records.marks_learned

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return repr(self.records)

    def read(self, positions: Rows, sequences: Rows, settings: LoaderSettings) -> Mapping[str, np.ndarray]:
        """The arrays of some sequences; sequences that are neighbours in the layout are one read."""
        return self.records.read_sequences(sequences, **settings.of_arrays)


class ConcatenatedSource(SequenceSource):
    """The sequences of several datasets: sequence `offset + i` is sequence i of the dataset at that offset.

    Batches also say where their rows come from: `dataset_index` and the `sequence_index` in it, int32 and int64.
    """

    origins: Mapping[str, type] = dict(zip(ORIGIN_FIELDS, (np.int32, np.int64), strict=True))

    def __init__(self, sources: Sequence[RecordSource], identity: str | None = None) -> None:
        self.sources: tuple[RecordSource, ...] = tuple(sources)
        self.datasets = tuple(source.fingerprint for source in self.sources)
        self.marks_learned = any(source.marks_learned for source in self.sources)
        # A schedule's own identity: it stays the same when datasets are added.
        self.fingerprint = identity or fingerprint(list(self.datasets))
        self.width = self.sources[0].width
        self._starts = np.cumsum([0, *map(len, self.sources)], dtype=np.int64)
        self._bounds = self._starts.tolist()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"ConcatenatedSource({', '.join(map(repr, self.sources))})"

    def read(self, positions: Rows, sequences: Rows, settings: LoaderSettings) -> Mapping[str, np.ndarray]:
        """The arrays of some sequences and where they come from, one read for each dataset that has any of them."""
        # "right": datasets without sequences begin where the next one does, and none of these rows is theirs.
        ends = (sequences.min(), sequences.max()) if len(self._bounds) > 2 else (0, 0)
        first, last = (bisect_right(self._bounds, int(end)) - 1 for end in ends)
        if first == last:  # nothing to put together
            within = sequences - self._bounds[first]
            origins = {"dataset_index": np.full(len(within), first, np.int32), "sequence_index": within}
            return {**self.sources[first].read(positions, within, settings), **origins}
        dataset = np.searchsorted(self._starts, sequences, side="right") - 1
        within = sequences - self._starts[dataset]
        shape = (len(sequences), self.sources[first].width)
        batch: dict[str, np.ndarray] = {field: np.empty(shape, np.int32) for field in settings.fields}
        for index in np.unique(dataset).tolist():
            rows = np.flatnonzero(dataset == index)
            part = self.sources[index].read(positions[rows], within[rows], settings)
            for field in settings.fields:
                batch[field][rows] = part[field]
        return batch | {"dataset_index": dataset.astype(np.int32), "sequence_index": within}


def opened(dataset: Any, cache_folder: str | Path | None = None) -> Dataset:
    """A dataset that is open already, or that lies in a folder or at an address."""
    if not isinstance(dataset, str | Path | Dataset):
        raise UserError(f"Expected a dataset, or its folder or address, found {dataset!r}.")
    if not isinstance(cache_folder, str | Path | None):
        raise UserError(f"Expected cache_folder to be a folder's path, found {cache_folder!r}.")
    return dataset if isinstance(dataset, Dataset) else open_dataset(dataset, cache_folder=cache_folder)


def record_source(dataset: Dataset, order: Order | None = None) -> RecordSource:
    """The sequences of a dataset in any layout; `order` is the one in which they will be read, where it is known."""
    layout, records = layout_fingerprint(dataset), dataset.records
    # Records that are read in the order in which they lie come faster when the system reads ahead in the files.
    if layout is not None and isinstance(order, OrderIndex) and order.fingerprint == layout:
        records = records.forward()
    return RecordSource(records, dataset.fingerprint)

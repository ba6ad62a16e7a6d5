"""Where sequences are read from: one dataset's records, whatever their layout, or several datasets' end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.loader.orders import OrderIndex
from jax_diversity.records.reading import RecordReader

ORIGIN = ("dataset_index", "sequence_index")
"""What a batch of several datasets tells of every row besides its tokens."""


@runtime_checkable
class SequenceSource(Protocol):
    """Gives sequences as rows of a batch."""

    @property
    def fingerprint(self) -> str:
        """Hash of what decides the sequences."""
        ...

    @property
    def width(self) -> int:
        """L, tokens of a row."""
        ...

    def __len__(self) -> int:
        """Number of sequences."""
        ...

    def read(
        self, sequences: Int64[np.ndarray, " row"], fields: Sequence[str], merge_segments: bool
    ) -> dict[str, np.ndarray]:
        """Some sequences' arrays, a row each, in the order asked for."""
        ...


class RecordSource:
    """One dataset's records.

    Args:
        records: the records, in the order of their layout.
        layout: the ordering that they lie in; None: as packed.
        fingerprint: of the dataset.
    """

    def __init__(self, records: RecordReader, layout: OrderIndex | None, fingerprint: str) -> None:
        self.records, self.layout = records, layout
        self.fingerprint = fingerprint

    @property
    def width(self) -> int:
        """L, tokens of a row."""
        return self.records.width

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return repr(self.records)

    def read(
        self, sequences: Int64[np.ndarray, " row"], fields: Sequence[str], merge_segments: bool
    ) -> dict[str, np.ndarray]:
        """Some sequences' arrays; neighbours in the layout are one read.

        Raises:
            UserError: damaged records, or records that hold other sequences than they should.
        """
        places = sequences if self.layout is None else self.layout.inverse[sequences].astype(np.int64, copy=False)
        return dict(self.records.read_batch(places, expected=sequences, fields=fields, merge_segments=merge_segments))


class ConcatenatedSource:
    """Several datasets' sequences end to end: sequence `offset + i` is sequence i of the dataset at that offset.

    Batches also tell where their rows come from: `dataset_index` and `sequence_index` within it, int32 and int64.

    Args:
        sources: the datasets', all of the same width.
    """

    def __init__(self, sources: Sequence[RecordSource]) -> None:
        self.sources = tuple(sources)
        self._ends = np.cumsum([len(source) for source in self.sources])

    @property
    def fingerprint(self) -> str:
        """Hash of all datasets, in their order."""
        return fingerprint([source.fingerprint for source in self.sources])

    @property
    def width(self) -> int:
        """L, tokens of a row."""
        return self.sources[0].width

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return f"ConcatenatedSource({', '.join(map(repr, self.sources))})"

    def read(
        self, sequences: Int64[np.ndarray, " row"], fields: Sequence[str], merge_segments: bool
    ) -> dict[str, np.ndarray]:
        """Some sequences' arrays and their origins, one read a dataset that has any of them."""
        dataset = np.searchsorted(self._ends, sequences, side="right")
        within = sequences - (self._ends[dataset] - np.array([len(source) for source in self.sources])[dataset])
        batch: dict[str, np.ndarray] = {field: np.empty((len(sequences), self.width), np.int32) for field in fields}
        for index in np.unique(dataset).tolist():
            rows = np.flatnonzero(dataset == index)
            part = self.sources[index].read(within[rows], fields, merge_segments)
            for field in fields:
                batch[field][rows] = part[field]
        return batch | {"dataset_index": dataset.astype(np.int32), "sequence_index": within}

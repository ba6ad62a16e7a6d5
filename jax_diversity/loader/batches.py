"""Whole batches by number: the root of the flow, and the ordering that it follows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import grain
import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.errors import UserError
from jax_diversity.loader.windows import Windows
from jax_diversity.records import FIELDS, RecordReader
from jax_diversity.schema import Ordering

Batch = dict[str, Int32[np.ndarray, "row token"]]
"""Arrays by field name."""


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
    def inverse(self) -> Int64[np.ndarray, " sequence"]:
        """The position of every sequence."""
        inverse = np.empty(len(self), np.int64)
        inverse[self.indices] = np.arange(len(self))
        return inverse


class OrderedBatches(grain.MapDataset[Batch]):
    """The root of the flow: element k is a whole batch, the k-th from the start position on.

    Reading whole batches keeps the work a record to one range read; a batch whose records are neighbours (records
    laid out in this very ordering) is a single read.
    """

    def __init__(
        self,
        records: RecordReader,
        order: OrderIndex,
        windows: Windows,
        layout: OrderIndex | None,
        dataset_fingerprint: str,
        fields: Sequence[str] = FIELDS,
        merge_segments: bool = False,
    ) -> None:
        super().__init__()
        self.records = records
        self.order = order
        self.windows = windows
        self.layout = layout
        self.dataset_fingerprint = dataset_fingerprint
        self.fields = tuple(fields)
        self.merge_segments = merge_segments

    def __len__(self) -> int:
        return self.windows.num_batches(self.windows.position(0))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self.read(self.windows.position(int(index) % len(self)))

    def __str__(self) -> str:
        return f"OrderedBatches({self.windows.global_batch_size} of {self.records})"

    def read(self, position: int) -> Batch:
        """This host's rows of the global batch at a position.

        Raises:
            UserError: damaged records, or records that hold other sequences than the ordering's.
        """
        places = self.windows.positions(position) % self.windows.num_sequences
        sequences = self.order.indices[places]
        if self.layout is None:
            places = sequences
        elif self.layout is not self.order:
            places = self.layout.inverse[sequences]
        missing = self.windows.rows - len(places)
        if not len(places):
            shape = (self.windows.rows, self.records.width)
            return {field: np.zeros(shape, np.int32) for field in self.fields}
        batch = self.records.read_batch(
            places, expected=sequences, fields=self.fields, merge_segments=self.merge_segments
        )
        if missing:
            batch = {field: np.pad(rows, ((0, missing), (0, 0))) for field, rows in batch.items()}
        return batch

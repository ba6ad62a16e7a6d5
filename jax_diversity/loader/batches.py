"""Whole batches by number: the root of the flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grain
import numpy as np

from jax_diversity.loader.orders import Order
from jax_diversity.loader.sources import SequenceSource
from jax_diversity.loader.windows import Windows
from jax_diversity.records.decoding import FIELDS

Batch = dict[str, Any]
"""Arrays by field name: NumPy's, or global JAX arrays."""


class OrderedBatches(grain.MapDataset[Batch]):
    """The root of the flow: element k is a whole batch, the k-th from the start position on.

    Reading whole batches keeps the work a record to one range read; a batch whose records are neighbours (records
    laid out in this very ordering) is a single read.
    """

    def __init__(
        self,
        source: SequenceSource,
        order: Order,
        windows: Windows,
        fields: Sequence[str] = FIELDS,
        *,
        merge_segments: bool = False,
        names: Mapping[str, str] | None = None,
        dtype: str = "int32",
    ) -> None:
        super().__init__()
        self.source, self.order, self.windows = source, order, windows
        self.fields = tuple(fields)
        self.merge_segments = merge_segments
        self.names = dict(names or {})
        self.dtype = np.dtype(dtype)

    def __len__(self) -> int:
        return self.windows.num_batches(self.windows.position(0))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self.read(self.windows.position(int(index) % len(self)))

    def __str__(self) -> str:
        return f"OrderedBatches({self.windows.global_batch_size} of {self.source})"

    def read(self, position: int) -> Batch:
        """The rows of the global batch at a position that are read here.

        Raises:
            UserError: damaged records, or records that hold other sequences than the ordering's.
        """
        sequences = self.order.at(self.windows.positions(position))
        batch = self.source.read(sequences, self.fields, self.merge_segments)
        if missing := self.windows.rows - len(sequences):
            batch = {field: _padded(rows, missing) for field, rows in batch.items()}
        return {self.names.get(field, field): self._typed(rows) for field, rows in batch.items()}

    def _typed(self, rows: np.ndarray) -> np.ndarray:
        return rows.astype(self.dtype, copy=False) if rows.ndim == 2 else rows


def _padded(rows: np.ndarray, missing: int) -> np.ndarray:
    """Rows of padding below; of no dataset and no sequence where rows are numbers of these."""
    if rows.ndim == 1:
        return np.pad(rows, (0, missing), constant_values=-1)
    return np.pad(rows, ((0, missing), (0, 0)))

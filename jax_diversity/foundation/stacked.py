"""The rows of several arrays as one array, such as memory maps of files: rows are read when they are indexed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped


class StackedRows:
    """Arrays of equal width, one after another; indexed by a slice or by row numbers, it gives an array.

    Attributes:
        shape: number of rows of all arrays, and their width.
        dtype: type of the values.
        ndim: 2, as of the arrays.

    Example:
        >>> rows = StackedRows([np.zeros((2, 3)), np.ones((1, 3))])
        >>> rows.shape, rows[np.array([2, 0])][:, 0].tolist()
        ((3, 3), [1.0, 0.0])
    """

    ndim = 2

    def __init__(self, arrays: Sequence[Shaped[np.ndarray, "_rows feature"]]) -> None:
        self._arrays = arrays
        self._starts: Int64[np.ndarray, " array_and_end"] = np.cumsum([0, *map(len, arrays)])
        self.shape, self.dtype = (int(self._starts[-1]), arrays[0].shape[1]), arrays[0].dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, places: slice | np.ndarray) -> np.ndarray:
        if isinstance(places, slice):
            start, stop, step = places.indices(len(self))
            first = int(np.searchsorted(self._starts, start, "right")) - 1
            if step == 1 and first < len(self._arrays) and stop <= self._starts[first + 1]:
                return self._arrays[first][start - self._starts[first] : stop - self._starts[first]]
            places = np.arange(start, stop, step)
        values = np.empty((len(places), self.shape[1]), self.dtype)
        owners = np.searchsorted(self._starts, places, "right") - 1
        for number in np.unique(owners):
            rows = np.flatnonzero(owners == number)
            values[rows] = self._arrays[number][places[rows] - self._starts[number]]
        return values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self._arrays).astype(dtype or self.dtype, copy=False)


Rows = np.ndarray | StackedRows
"""Rows in memory, or in several files."""

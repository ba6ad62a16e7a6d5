"""Cells: rows divided into parts of near ones, so that neighbours need not be looked for everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int16, Int64

from jax_diversity.packing.units import products, round_units

_PARTS = 64  # that a cell is divided into, at most
_ROWS_PER_PART = 128  # that the parts' centers are found by
_PASSES = 4
_ROWS = 8192  # rows assigned together


class Cells(NamedTuple):
    """Rows, cell after cell.

    Attributes:
        rows: ascending within a cell.
        first: where each cell begins, and the number of rows.
    """

    rows: Int64[np.ndarray, " row"]
    first: Int64[np.ndarray, " cell_and_end"]

    def __len__(self) -> int:
        return len(self.first) - 1

    def cell(self, index: int) -> Int64[np.ndarray, " row_of_cell"]:
        """A cell's rows."""
        return self.rows[self.first[index] : self.first[index + 1]]


def divide(units: Int16[np.ndarray, "row feature"], size: int) -> Cells:
    """Cells of about `size` rows, never more than twice as many.

    Cells that are too large are divided around centers that a few passes of k-means find. A part that keeps most of
    its cell, as copies of one text do, is cut by the rows' numbers.

    Args:
        units: from `rounded_units`.
        size: rows of a cell, at least 1.
    """
    done: list[np.ndarray] = []
    large = [np.arange(len(units))]
    while large:
        rows = large.pop()
        if len(rows) <= 2 * size:
            done.append(rows)
            continue
        part = _assign(units, rows, _centers(units, rows, min(-(-len(rows) // size), _PARTS)))
        by_part = np.argsort(part, kind="stable")
        for begin, end in _runs(part[by_part]):
            one = rows[by_part[begin:end]]
            if 4 * len(one) > 3 * len(rows):
                done += np.array_split(one, -(-len(one) // size))
            else:
                large.append(one)
    return Cells(np.concatenate(done), np.cumsum([0, *map(len, done)]))


def near_cells(units: Int16[np.ndarray, "row feature"], cells: Cells, num_rows: int) -> Iterator[np.ndarray]:
    """For every cell the rows of the nearest cells, its own among them: at least `num_rows`, ascending, or all."""
    centers = round_units(np.add.reduceat(units[cells.rows], cells.first[:-1], axis=0, dtype=np.float64))
    sizes = np.diff(cells.first)
    for index in range(len(cells)):
        nearness = products(centers[index : index + 1], centers)[0]
        nearness[index] = np.inf
        near = np.argsort(-nearness, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[near]), num_rows)) + 1
        yield np.sort(np.concatenate([cells.cell(cell) for cell in near[:enough].tolist()]))


def _centers(
    units: Int16[np.ndarray, "row feature"], rows: Int64[np.ndarray, " some"], num: int
) -> Int16[np.ndarray, "part feature"]:
    """Centers of at most `num` parts, from rows spaced evenly over a cell's."""
    some = rows[:: max(len(rows) // (num * _ROWS_PER_PART), 1)]
    centers = units[some[np.arange(num) * len(some) // num]]
    for _ in range(_PASSES):
        part = _assign(units, some, centers)
        by_part = np.argsort(part, kind="stable")
        first = np.flatnonzero(np.diff(part[by_part], prepend=-1))
        centers = round_units(np.add.reduceat(units[some[by_part]], first, axis=0, dtype=np.float64))
    return centers


def _assign(
    units: Int16[np.ndarray, "row feature"],
    rows: Int64[np.ndarray, " some"],
    centers: Int16[np.ndarray, "part feature"],
) -> Int64[np.ndarray, " some"]:
    """The nearest center of every row, the first of equals."""
    part = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _ROWS):
        block = slice(start, start + _ROWS)
        part[block] = products(units[rows[block]], centers).argmax(axis=1)
    return part


def _runs(values: Int64[np.ndarray, " row"]) -> Iterator[tuple[int, int]]:
    """Where runs of equal values begin and end."""
    begins = np.flatnonzero(np.diff(values, prepend=-1))
    yield from zip(begins.tolist(), [*begins[1:].tolist(), len(values)], strict=True)

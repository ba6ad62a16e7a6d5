"""The graph of nearest neighbours by cosine, and a path from neighbour to neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float32, Int16, Int32, Int64
from scipy.sparse import csr_array

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.packing.cells import divide, near_cells
from jax_diversity.packing.units import products

_QUERIES = 256  # rows compared together
_GROUP = 64  # columns looked at together
_CELLS_OF_CANDIDATES = 8  # that hold as many rows as are compared
_ALL = 4  # times as many rows as candidates: up to there all are compared


def nearest_rows(
    units: Int16[np.ndarray, "row feature"], num_neighbors: int, num_candidates: int, advance: Advance = ignore
) -> Any:
    """The graph that joins two rows where one is among the other's nearest.

    Neighbours have a cosine above zero; of equally near ones the first are taken.

    Args:
        units: from `rounded_units`; no row twice, or the first of its copies are the neighbours of all.
        num_neighbors: k.
        num_candidates: rows that each row is compared with, those of the nearest cells; all with all where there
            are at most four times as many rows.
        advance: told the rows whose neighbours are found.

    Returns:
        A symmetric CSR matrix (row, row) of cosines times about 2^24, columns ascending.
    """
    num = len(units)
    rows, columns, values = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)], [np.zeros(0, np.int32)]
    for queries, candidates in _comparisons(units, num_candidates):
        padding = -len(candidates) % _GROUP  # rows of zeros, which are near to none
        others = np.pad(units[candidates], ((0, padding), (0, 0)))
        own = np.searchsorted(candidates, queries)
        query, candidate, value = _largest(products(units[queries], others), own, num_neighbors)
        rows.append(queries[query].astype(np.int32))
        columns.append(candidates[candidate].astype(np.int32))
        values.append(value)
        advance(len(queries))
    entries = np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))
    graph: Any = csr_array(entries, shape=(num, num))
    graph = graph.maximum(graph.T.tocsr())
    graph.sort_indices()
    return graph


def _comparisons(
    units: Int16[np.ndarray, "row feature"], num_candidates: int
) -> Iterator[tuple[Int64[np.ndarray, " query"], Int64[np.ndarray, " candidate"]]]:
    """Which rows are compared with which, these ascending: every row once on the left."""
    if len(units) <= _ALL * num_candidates:
        everything = np.arange(len(units))
        for start in range(0, len(units), _QUERIES):
            yield everything[start : start + _QUERIES], everything
        return
    cells = divide(units, max(num_candidates // _CELLS_OF_CANDIDATES, 1))
    for index, candidates in enumerate(near_cells(units, cells, num_candidates)):
        queries = cells.cell(index)
        for start in range(0, len(queries), _QUERIES):
            yield queries[start : start + _QUERIES], candidates


def _largest(
    nearness: Float32[np.ndarray, "query width"], own: Int64[np.ndarray, " query"], num: int
) -> tuple[Int64[np.ndarray, " entry"], Int64[np.ndarray, " entry"], Int32[np.ndarray, " entry"]]:
    """Every row's `num` largest values above zero, the first of equals, its own column aside.

    Columns are looked at in groups first: where `num` groups hold a value above some bound, no smaller one counts.

    Returns:
        Rows, columns and values.
    """
    num_queries, width = nearness.shape
    nearness[np.arange(num_queries), own] = 0
    groups = nearness.reshape(num_queries, _GROUP, width // _GROUP)
    tops = groups.max(axis=1)
    bound = np.ones(num_queries, np.float32)
    if num < tops.shape[1]:
        np.maximum(bound, np.partition(tops, -num, axis=1)[:, -num], out=bound)
    row, group = np.nonzero(tops >= bound[:, None])
    values = groups[row, :, group]
    entry, member = np.nonzero(values >= bound[row, None])
    row, column, value = row[entry], member * tops.shape[1] + group[entry], values[entry, member].astype(np.int32)
    largest_first = np.lexsort((column, -value, row))
    counts = np.bincount(row, minlength=num_queries)
    rank = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = largest_first[rank < num]
    return row[kept], column[kept], value[kept]


def path_of_neighbors(graph: Any) -> Int64[np.ndarray, " row"]:
    """All rows, from each to its nearest neighbour not yet visited, the first of equals.

    The path starts at the row with the fewest neighbours, and jumps to the one with the fewest of those not yet
    visited where it can go no further.

    Args:
        graph: from `nearest_rows`.
    """
    indptr, neighbors, nearness = graph.indptr.tolist(), graph.indices, graph.data
    unvisited = np.ones(graph.shape[0], np.int32)
    path: list[int] = []
    for start in np.argsort(np.diff(graph.indptr), kind="stable").tolist():
        row = start
        while unvisited[row]:
            path.append(row)
            unvisited[row] = 0
            begin, end = indptr[row], indptr[row + 1]
            if begin == end:
                break
            near = nearness[begin:end] * unvisited[neighbors[begin:end]]
            row = int(neighbors[begin + near.argmax()])  # a visited one where none is left
    return np.array(path, np.int64)

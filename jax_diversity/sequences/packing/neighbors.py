"""The graph of nearest neighbours by cosine, and a path from neighbour to neighbour.

Vectors are compared as *units*: they are scaled to a length of about 4096 and rounded to whole numbers. All sums of
products of two such vectors are whole numbers of at most 2^24. Float32 represents these numbers exactly, so a product
of matrices is the same for any order of its sums. Therefore the graph does not depend on the number of threads or on
the size of blocks. The cost is an error of about 0.0001 in the cosine (up to √features / 4096 if all features are
rounded in the same direction).

If there are many rows, not all pairs are compared. The rows are divided into *cells* of similar rows, and each row is
compared with the rows of the nearest cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int16, Int32, Int64
from scipy.sparse import csr_array

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.sequences.packing.pieces import end_to_end, run_starts

_UNIT_LENGTH = 4096
_ROWS_ROUNDED = 4096  # rows that are rounded together
_ROWS_ASSIGNED = 8192  # rows that are assigned together to the centers of a cell's parts
_QUERIES = 256  # rows compared together
_COLUMNS_PER_GROUP = 64  # columns of products in a group; the maximum of each group is read first
_CELLS_OF_CANDIDATES = 8  # number of cells that contain about as many rows as a row has candidates
_MOST_COMPARED = 4  # up to this many times `num_candidates` rows, every row is compared with every other
_MOST_PARTS = 64  # parts into which one cell is divided
_ROWS_PER_PART = 128  # number of rows per part that the centers of the parts are computed from
_PASSES = 4  # iterations of k-means

# ---- units


def rounded_units(
    vectors: Float32[np.ndarray, "document feature"], documents: Int64[np.ndarray, " row"]
) -> Int16[np.ndarray, "row feature"]:
    """Scale the vectors of the given documents to a length of about 4096, never more, and round them to whole numbers.

    Vectors of zeros stay zeros. The vectors may be a memory map, which is read a part at a time. NaN, infinity or
    vectors without features are a `UserError`.
    """
    if not vectors.shape[1]:
        raise UserError("Expected vectors of at least one feature, found none; embed the documents first.")
    units = np.empty((len(documents), vectors.shape[1]), np.int16)
    forward = np.argsort(documents, kind="stable")  # a memory map is read from front to back
    for start in range(0, len(documents), _ROWS_ROUNDED):
        rows = forward[start : start + _ROWS_ROUNDED]
        block = vectors[documents[rows]]
        if not np.isfinite(block).all():
            wrong = documents[rows[np.argmin(np.isfinite(block).all(axis=1))]]
            raise UserError(
                f"Expected finite vectors, found NaN or infinity in document {wrong}'s; "
                "repair its embedding or leave the document out."
            )
        units[rows] = _rounded(block.astype(np.float64))
    return units


def _rounded(rows: Float64[np.ndarray, "row feature"]) -> Int16[np.ndarray, "row feature"]:
    # Rounding lengthens a vector by at most √features / 2. So vectors are scaled to a length that is shorter by this
    # amount, and no product exceeds 2^24.
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    scale = max(_UNIT_LENGTH - rows.shape[1] ** 0.5 / 2, 0) / np.where(length > 0, length, 1)
    return np.rint(rows * scale).astype(np.int16)


def mean_units(
    vectors: Float32[np.ndarray, "document feature"],
    documents: Int64[np.ndarray, " row"],
    counts: Int64[np.ndarray, " group"],
) -> Int16[np.ndarray, "group feature"]:
    """Return each group's mean vector as a unit; documents are sorted by group, and `counts` (> 0) are the sizes."""
    group = np.repeat(np.arange(len(counts)), counts)
    sums = np.zeros((len(counts), vectors.shape[1]))
    for start in range(0, len(documents), _ROWS_ROUNDED):
        rows = slice(start, start + _ROWS_ROUNDED)
        first = run_starts(group[rows])
        units = rounded_units(vectors, documents[rows])
        sums[group[rows][first]] += np.add.reduceat(units, first, axis=0, dtype=np.int64)
    return _rounded(sums)


def distinct_units(
    units: Int16[np.ndarray, "row feature"],
) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " row"]]:
    """Return the first row of every set of equal rows, ascending, and for every row the number of its set."""
    whole = np.ascontiguousarray(units).view(np.dtype((np.void, units.shape[1] * units.itemsize))).reshape(-1)
    _, first, kind = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[kind]


def products(
    rows: Int16[np.ndarray, "row feature"], others: Int16[np.ndarray, "other feature"]
) -> Float32[np.ndarray, "row other"]:
    """Return the cosine of every row with each of `others`, times about 2^24, as exact whole numbers."""
    return rows.astype(np.float32) @ others.astype(np.float32).T


# ---- cells


def divide(units: Int16[np.ndarray, "row feature"], size: int) -> list[Int64[np.ndarray, " row_of_cell"]]:
    """Divide the rows into cells of about `size` rows, never more than 2 `size`; rows ascend within a cell.

    k-means divides the rows, but it cannot divide copies of one text. If a part has more than three quarters of the
    rows of its cell, the part is cut by the row numbers instead.
    """
    cells: list[np.ndarray] = []
    large = [np.arange(len(units))]
    while large:
        rows = large.pop()
        if len(rows) <= 2 * size:
            cells.append(rows)
            continue
        part = _nearest_center(units, rows, _centers(units, rows, min(-(-len(rows) // size), _MOST_PARTS)))
        by_part = np.argsort(part, kind="stable")
        for members in np.split(rows[by_part], run_starts(part[by_part])[1:]):
            if 4 * len(members) > 3 * len(rows):
                cells += np.array_split(members, -(-len(members) // size))
            else:
                large.append(members)
    return cells


def _centers(
    units: Int16[np.ndarray, "row feature"], rows: Int64[np.ndarray, " sample"], num: int
) -> Int16[np.ndarray, "part feature"]:
    """Compute the centers of at most `num` parts of a cell from a sample of its rows, taken at equal distances."""
    sample = rows[:: max(len(rows) // (num * _ROWS_PER_PART), 1)]
    centers = units[sample[np.arange(num) * len(sample) // num]]
    for _ in range(_PASSES):
        part = _nearest_center(units, sample, centers)
        by_part = np.argsort(part, kind="stable")
        first = run_starts(part[by_part])  # a center without rows is left out
        centers = _rounded(np.add.reduceat(units[sample[by_part]], first, axis=0, dtype=np.float64))
    return centers


def _nearest_center(
    units: Int16[np.ndarray, "row feature"],
    rows: Int64[np.ndarray, " sample"],
    centers: Int16[np.ndarray, "part feature"],
) -> Int64[np.ndarray, " sample"]:
    """Return the nearest center of every row; of equally near centers, the first."""
    part = np.empty(len(rows), np.int64)
    for start in range(0, len(rows), _ROWS_ASSIGNED):
        block = slice(start, start + _ROWS_ASSIGNED)
        part[block] = products(units[rows[block]], centers).argmax(axis=1)
    return part


# ---- the graph


def nearest_rows(
    units: Int16[np.ndarray, "row feature"], num_neighbors: int, num_candidates: int, advance: Advance = ignore
) -> Any:
    """Return the graph that joins two rows if one is among the `num_neighbors` nearest rows compared with the other.

    The graph is a symmetric CSR matrix (row, row) of cosines times about 2^24, with ascending columns. Neighbours have
    a cosine above zero; of equally near rows the first rows are taken. If a row has copies, the first copies are the
    neighbours of all copies.
    """
    entries = [np.zeros((3, 0), np.int32)]  # rows, columns and values
    for queries, candidates in _comparisons(units, num_candidates):
        padding = -len(candidates) % _COLUMNS_PER_GROUP  # rows of zeros have no neighbours
        candidate_units = np.pad(units[candidates], ((0, padding), (0, 0)))
        own_columns = np.searchsorted(candidates, queries)
        query, candidate, value = _largest(products(units[queries], candidate_units), own_columns, num_neighbors)
        entries.append(np.stack([queries[query], candidates[candidate], value]).astype(np.int32))
        advance(len(queries))
    row, column, values = np.concatenate(entries, axis=1)
    graph: Any = csr_array((values, (row, column)), shape=(len(units), len(units)))
    # The products are exact, so that both directions of an edge have the same value.
    graph = graph.maximum(graph.T.tocsr())
    graph.sort_indices()
    return graph


def _comparisons(
    units: Int16[np.ndarray, "row feature"], num_candidates: int
) -> Iterator[tuple[Int64[np.ndarray, " query"], Int64[np.ndarray, " candidate"]]]:
    """Yield the rows to compare as pairs (queries, candidates); every row is a query once, and candidates ascend.

    The rows of a cell are compared with the rows of the nearest cells, including the cell itself: with at least
    `num_candidates` rows, or with all rows.
    """
    cells = [np.arange(len(units))]
    if len(units) > _MOST_COMPARED * num_candidates:
        cells = divide(units, max(num_candidates // _CELLS_OF_CANDIDATES, 1))
    centers = _rounded(np.stack([units[cell].sum(axis=0, dtype=np.float64) for cell in cells]))
    sizes = np.array([len(cell) for cell in cells])
    for index, cell in enumerate(cells):
        nearness = products(centers[index : index + 1], centers)[0]
        nearness[index] = np.inf  # the cell itself comes first
        near = np.argsort(-nearness, kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[near]), num_candidates)) + 1
        candidates = np.sort(np.concatenate([cells[other] for other in near[:enough].tolist()]))
        for start in range(0, len(cell), _QUERIES):
            yield cell[start : start + _QUERIES], candidates


def _largest(
    nearness: Float32[np.ndarray, "query width"], own_columns: Int64[np.ndarray, " query"], num: int
) -> tuple[Int64[np.ndarray, " entry"], Int64[np.ndarray, " entry"], Int32[np.ndarray, " entry"]]:
    """Return rows, columns and values of the `num` largest values above zero of every row, without the column `own`.

    Of equal values the first are taken. The largest value of every group of columns is read first. If `num` groups
    contain a value of at least some bound, no smaller value is among the `num` largest.
    """
    num_queries, width = nearness.shape
    nearness[np.arange(num_queries), own_columns] = 0
    # Group g of G contains the columns g, G + g, 2 G + g ...: the maximum is then computed along contiguous rows.
    groups = nearness.reshape(num_queries, _COLUMNS_PER_GROUP, width // _COLUMNS_PER_GROUP)
    tops = groups.max(axis=1)
    bound = np.ones(num_queries, np.float32)  # the smallest whole number above zero
    if num < tops.shape[1]:
        np.maximum(bound, np.partition(tops, -num, axis=1)[:, -num], out=bound)
    row, group = np.nonzero(tops >= bound[:, None])
    values = groups[row, :, group]
    entry, member = np.nonzero(values >= bound[row, None])
    row, column, value = row[entry], member * tops.shape[1] + group[entry], values[entry, member].astype(np.int32)
    largest_first = np.lexsort((column, -value, row))
    counts = np.bincount(row, minlength=num_queries)
    rank = np.arange(len(row)) - np.repeat(end_to_end(counts), counts)
    kept = largest_first[rank < num]
    return row[kept], column[kept], value[kept]


def path_of_neighbors(graph: Any) -> Int64[np.ndarray, " row"]:
    """Return a path through all rows of a graph: the nearest unvisited neighbour is next, of equals the first.

    The path starts at the row with the fewest neighbours. At a dead end it jumps to the unvisited row with the fewest
    neighbours.
    """
    # `.data` of an array is a memoryview, whose elements are Python numbers: the loop reads them one by one.
    starts, neighbors, nearness = graph.indptr.data, graph.indices, graph.data
    unvisited = np.ones(graph.shape[0], np.int32)
    path, num_visited = np.empty(graph.shape[0], np.int64), 0
    for row in np.argsort(np.diff(graph.indptr), kind="stable").data:
        while unvisited[row]:
            path[num_visited] = row
            num_visited += 1
            unvisited[row] = 0
            begin, end = starts[row], starts[row + 1]
            if begin == end:
                break
            near = nearness[begin:end] * unvisited[neighbors[begin:end]]
            # If no unvisited neighbour is left (all values are 0), this is a visited row, and the loop ends.
            row = int(neighbors[begin + near.argmax()])
    return path

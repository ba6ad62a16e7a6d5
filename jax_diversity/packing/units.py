"""Vectors as small whole numbers, whose products are exact.

Vectors of length one are multiplied by about 4096 and rounded. All sums of products of two such vectors are whole
numbers of at most 2^24, which float32 holds exactly, so that a product of matrices is the same whatever the order
of its sums: what is built on it depends neither on the number of threads nor on the size of blocks. The price is a
cosine that is off by about 0.0001 (by up to √features / 4096 where all features round the same way).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64, Int16, Int64

from jax_diversity.foundation.errors import UserError

_LENGTH = 4096
_ROWS = 4096  # rows rounded together


def rounded_units(
    vectors: Float32[np.ndarray, "document feature"], documents: Int64[np.ndarray, " row"]
) -> Int16[np.ndarray, "row feature"]:
    """Some documents' vectors with length about 4096, never more, in whole numbers; zeros stay zeros.

    Args:
        vectors: a memory map will do: it is read a part at a time.
        documents: the rows meant.

    Raises:
        UserError: NaN or infinity, or no features.
    """
    if not vectors.shape[1]:
        raise UserError("Expected vectors of at least one feature, found none; embed the documents first.")
    units = np.empty((len(documents), vectors.shape[1]), np.int16)
    forward = np.argsort(documents, kind="stable")  # a memory map is read from front to back
    for start in range(0, len(documents), _ROWS):
        rows = forward[start : start + _ROWS]
        block = vectors[documents[rows]]
        if not np.isfinite(block).all():
            wrong = documents[rows[np.argmin(np.isfinite(block).all(axis=1))]]
            raise UserError(
                f"Expected finite vectors, found NaN or infinity in document {wrong}'s; "
                "repair its embedding or leave the document out."
            )
        units[rows] = round_units(block.astype(np.float64))
    return units


def round_units(rows: Float64[np.ndarray, "row feature"]) -> Int16[np.ndarray, "row feature"]:
    """Rows of any length as whole numbers of length about 4096."""
    # Rounding lengthens a vector by at most half of √features.
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    scale = max(_LENGTH - rows.shape[1] ** 0.5 / 2, 0) / np.where(length > 0, length, 1)
    return np.rint(rows * scale).astype(np.int16)


def mean_units(
    vectors: Float32[np.ndarray, "document feature"],
    documents: Int64[np.ndarray, " row"],
    counts: Int64[np.ndarray, " group"],
) -> Int16[np.ndarray, "group feature"]:
    """The directions of groups' means, as `rounded_units` gives them.

    Args:
        vectors: a memory map will do.
        documents: the documents, group after group.
        counts: documents of every group, above zero.

    Raises:
        UserError: NaN or infinity.
    """
    group = np.repeat(np.arange(len(counts)), counts)
    sums = np.zeros((len(counts), vectors.shape[1]))
    for start in range(0, len(documents), _ROWS):
        rows = slice(start, start + _ROWS)
        first = np.flatnonzero(np.diff(group[rows], prepend=-1))
        units = rounded_units(vectors, documents[rows])
        sums[group[rows][first]] += np.add.reduceat(units, first, axis=0, dtype=np.int64)
    return round_units(sums)


def products(
    rows: Int16[np.ndarray, "row feature"], others: Int16[np.ndarray, "other feature"]
) -> Float32[np.ndarray, "row other"]:
    """The cosine of every row with every other, times about 2^24: whole numbers, exactly."""
    return rows.astype(np.float32) @ others.astype(np.float32).T


def distinct_units(
    units: Int16[np.ndarray, "row feature"],
) -> tuple[Int64[np.ndarray, " distinct"], Int64[np.ndarray, " row"]]:
    """The first of every kind of row, ascending, and for every row the number of its kind.

    Example:
        >>> first, kind = distinct_units(np.array([[7, 0], [0, 7], [7, 0]], np.int16))
        >>> first.tolist(), kind.tolist()
        ([0, 1], [0, 1, 0])
    """
    whole = np.ascontiguousarray(units).view(np.dtype((np.void, units.shape[1] * units.itemsize))).reshape(-1)
    _, first, kind = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(first), np.int64)
    number[order] = np.arange(len(first))
    return first[order], number[kind]

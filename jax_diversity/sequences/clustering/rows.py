"""Documents' vectors for k-means: checked, selected, moved or scaled, and read in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from jax_diversity.foundation.checks import as_whole_number, check_seed
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stacked import Rows as AnyRows

LARGEST_SQUARE = 1e30
"""Bound of a vector's squared length: sums of ten million such vectors, each minus another vector, are finite in
float32."""
_BLOCK = 8192
_MIDDLE_ROWS = 4096
"""Number of rows from which `middle` is computed; any point near the rows is good enough."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Some or all rows of a matrix, which may be a memory map."""

    vectors: Float32[AnyRows, "document feature"]
    chosen: Int64[np.ndarray, " row"] | None = None  # ascending; None means all rows
    spherical: bool = False  # rows are read with length one (rows of zeros stay zeros)
    origin: Float32[np.ndarray, " feature"] | None = None  # subtracted from rows when they are read

    def __len__(self) -> int:
        return len(self.vectors) if self.chosen is None else len(self.chosen)

    def take(self, places: np.ndarray | slice) -> Float32[np.ndarray, "row feature"]:
        """Return the rows at some indices among the chosen rows."""
        rows = np.asarray(self.vectors[places if self.chosen is None else self.chosen[places]])
        if self.spherical:
            rows = unit_rows(rows)
        if self.origin is None:
            return rows
        # A slice of all vectors is a view of the caller's array (or of the file), so we must not subtract in place.
        is_view = self.chosen is None and isinstance(places, slice)
        return np.subtract(rows, self.origin, out=None if is_view else rows)

    def part(self, places: np.ndarray) -> Rows:
        """Return the rows at some indices among the chosen rows as separate `Rows`."""
        return replace(self, chosen=places if self.chosen is None else self.chosen[places])

    def blocks(self, block_rows: int) -> Iterator[tuple[Float32[np.ndarray, "row feature"], int]]:
        """Yield rows in blocks of one shape, each with its number of real rows; the last is padded with zeros."""
        for start in range(0, len(self), block_rows):
            rows = self.take(slice(start, start + block_rows))
            count = len(rows)
            # We copy a view of a memory map here, because the devices would read the file page by page.
            if count < block_rows or rows.base is not None:
                padded = np.zeros((block_rows, rows.shape[1]), np.float32)
                padded[:count] = rows
                rows = padded
            yield rows, count

    def moved_back(self, centroids: Float32[np.ndarray, "cluster feature"]) -> Float32[np.ndarray, "cluster feature"]:
        """Add `origin` to centroids of the moved rows, which gives the centroids of the vectors."""
        return centroids if self.origin is None else centroids + self.origin


def unit_rows(rows: Float32[np.ndarray, "row feature"]) -> Float32[np.ndarray, "row feature"]:
    """Divide rows by their length; rows of zeros stay zeros."""
    # First we divide by the largest value, because squares of very small numbers would be zero.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = np.divide(rows, largest, out=np.zeros(rows.shape, np.float32), where=largest > 0)
    lengths = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return scaled / np.where(lengths > 0, lengths, 1)


def middle(vectors: Float32[AnyRows, "row feature"]) -> Float32[np.ndarray, " feature"]:
    """Return the median of every feature over a few thousand rows at equal distances, a point near the rows.

    Distances are computed from products of rows and centroids, and the rounding errors of products grow with the square
    of the lengths. So lengths are measured from this point. Unlike a mean, it stays near the rows even if one row is
    very far away.
    """
    rows = np.array(vectors[:: max(-(-len(vectors) // _MIDDLE_ROWS), 1)])
    return np.median(rows, axis=0, overwrite_input=True) if len(rows) else np.zeros(rows.shape[1], np.float32)


def training_rows(vectors: AnyRows, num_clusters: int, train_documents: int, seed: int, spherical: bool) -> Rows:
    """Return the training rows: all rows, or `train_documents` random rows."""
    check_vectors(vectors)
    check_seed("cluster", seed)
    if num_clusters > len(vectors):
        raise UserError(
            f"Expected at least as many documents as clusters, found {len(vectors)} documents for {num_clusters} "
            f"clusters; set cluster.num_clusters to {len(vectors)} or fewer, or add documents."
        )
    if num_clusters > train_documents:
        raise UserError(
            f"Expected cluster.train_documents >= cluster.num_clusters, found {train_documents} for "
            f"{num_clusters} clusters; set cluster.train_documents to {num_clusters} or more."
        )
    chosen = None
    if len(vectors) > train_documents:  # sorted: a memory map is read from front to back
        chosen = np.sort(np.random.default_rng(seed).choice(len(vectors), train_documents, replace=False))
    # We use the middle of all vectors, not of the chosen rows, so that it does not depend on the seed.
    return Rows(vectors, chosen, spherical, None if spherical else middle(vectors))


def check_numbers(num_clusters: int, max_iterations: int = 1, coarse_clusters: int = 0) -> None:
    """Check the numbers of clusters and passes."""
    as_whole_number("cluster.num_clusters", num_clusters, 1)
    as_whole_number("cluster.options.max_iterations", max_iterations, 1)
    if not 0 <= coarse_clusters < max(num_clusters, 2):
        raise UserError(
            f"Expected cluster.options.coarse_clusters from 0 to below the {num_clusters} clusters, found "
            f"{coarse_clusters}; about the square root of the number of clusters is usual."
        )


def check_vectors(vectors: Any) -> None:
    """Check that vectors are a matrix of finite float32 rows, not too long; a memory map is read block by block."""
    if not isinstance(vectors, AnyRows) or vectors.ndim != 2 or vectors.shape[1] == 0:
        raise UserError(
            f"Expected vectors of the shape (document, feature >= 1), found {np.shape(vectors)}; "
            "pass one row per document."
        )
    if vectors.dtype != np.float32:
        raise UserError(f"Expected float32 vectors, found {vectors.dtype}; convert them with .astype(np.float32).")
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        # One comparison finds NaN, infinity and rows that are too long: NaN compares as False.
        with np.errstate(over="ignore", invalid="ignore"):
            usable = np.einsum("rf,rf->r", block, block) < LARGEST_SQUARE
        if not usable.all():
            row = int(np.argmin(usable))
            expected, content, advice = "finite vectors", "NaN or infinity", "repair or drop that document's embedding"
            if np.isfinite(block[row]).all():
                expected, content, advice = "vectors of a length below 1e15", "a longer one", "scale the embeddings"
            raise UserError(f"Expected {expected}, found {content} in row {start + row}; {advice}.")

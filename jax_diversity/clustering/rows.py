"""Documents' vectors as k-means reads them: checked, chosen, centred or of length one, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from jax_diversity.foundation.errors import UserError

LARGEST_SQUARE = 1e30
"""A vector's squared length; sums of ten million of them, moved by another vector, are finite in float32."""
_BLOCK = 8192
_MIDDLE_ROWS = 4096
"""Rows that say where the middle of all lies; any point among them will do."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Some or all rows of a matrix that may be a memory map.

    Attributes:
        vectors: one row a document.
        chosen: the rows meant, ascending; None for all.
        spherical: rows are read with length one (rows of zeros stay zeros).
        origin: what is subtracted from rows when they are read; None for nothing.
    """

    vectors: Float32[np.ndarray, "document feature"]
    chosen: Int64[np.ndarray, " row"] | None = None
    spherical: bool = False
    origin: Float32[np.ndarray, " feature"] | None = None

    def __len__(self) -> int:
        return len(self.vectors) if self.chosen is None else len(self.chosen)

    @property
    def width(self) -> int:
        """Features of a row."""
        return self.vectors.shape[1]

    def take(self, places: np.ndarray | slice) -> Float32[np.ndarray, "row feature"]:
        """The rows at some places among the chosen ones."""
        rows = np.asarray(self.vectors[places if self.chosen is None else self.chosen[places]])
        if self.spherical:
            rows = unit_rows(rows)
        if self.origin is None:
            return rows
        is_view = self.chosen is None and isinstance(places, slice)
        return np.subtract(rows, self.origin, out=None if is_view else rows)

    def part(self, places: np.ndarray) -> Rows:
        """The rows at some places, as rows of their own."""
        return replace(self, chosen=places if self.chosen is None else self.chosen[places])

    def blocks(self, block_rows: int) -> Iterator[tuple[Float32[np.ndarray, "row feature"], int]]:
        """All rows in blocks of one shape, zeros below the last, each with its number of real rows.

        One shape means one compilation, whatever the number of documents.
        """
        for start in range(0, len(self), block_rows):
            rows = self.take(slice(start, start + block_rows))
            count = len(rows)
            if count < block_rows or rows.base is not None:  # a view of a map is read when it is asked for
                padded = np.zeros((block_rows, self.width), np.float32)
                padded[:count] = rows
                rows = padded
            yield rows, count


def unit_rows(rows: Float32[np.ndarray, "row feature"]) -> Float32[np.ndarray, "row feature"]:
    """Rows divided by their length; rows of zeros stay zeros."""
    # Divided by their largest value first: squares of small numbers would vanish.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scaled = np.divide(rows, largest, out=np.zeros(rows.shape, np.float32), where=largest > 0)
    lengths = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return scaled / np.where(lengths > 0, lengths, 1)


def middle(vectors: Float32[np.ndarray, "row feature"]) -> Float32[np.ndarray, " feature"]:
    """A point among the rows: every feature's median over some thousands of them, evenly spaced.

    Distances come from products of rows and centroids, whose rounding grows with the square of their lengths.
    Lengths are measured from here, so that it matters not where the rows lie. The mean would do as well, but for
    a single row that is very far away.
    """
    rows = np.array(vectors[:: max(-(-len(vectors) // _MIDDLE_ROWS), 1)])
    return np.median(rows, axis=0, overwrite_input=True) if len(rows) else np.zeros(rows.shape[1], np.float32)


def training_rows(vectors: np.ndarray, train_documents: int, seed: int, spherical: bool) -> Rows:
    """The rows that centroids are computed from: all, or as many as allowed, drawn with equal odds."""
    origin = None if spherical else middle(vectors)
    if len(vectors) <= train_documents:
        return Rows(vectors, None, spherical, origin)
    chosen = np.random.default_rng(seed).choice(len(vectors), train_documents, replace=False)
    return Rows(vectors, np.sort(chosen), spherical, origin)  # sorted: a memory map is read from front to back


def check_vectors(vectors: Any) -> None:
    """Whether something is a matrix of float32 rows that k-means can work with; reads it block by block.

    Raises:
        UserError: it is not; names the shape and type, or the first row that is not finite or too large.
    """
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.shape[1] == 0:
        raise UserError(
            f"Expected vectors of the shape (document, feature >= 1), found {np.shape(vectors)}; "
            "pass one row a document."
        )
    if vectors.dtype != np.float32:
        raise UserError(f"Expected float32 vectors, found {vectors.dtype}; convert them with .astype(np.float32).")
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK]
        with np.errstate(over="ignore", invalid="ignore"):
            usable = np.einsum("rf,rf->r", block, block) < LARGEST_SQUARE
        if not usable.all():
            row = int(np.argmin(usable))
            if np.isfinite(block[row]).all():
                raise UserError(
                    f"Expected vectors of a length below 1e15, found a longer one in row {start + row}; "
                    "scale the embeddings."
                )
            raise UserError(
                f"Expected finite vectors, found NaN or infinity in row {start + row}; "
                "repair or drop that document's embedding."
            )


def check_width(vectors: np.ndarray, centroids: np.ndarray) -> None:
    """Whether rows and centroids have the same features.

    Raises:
        UserError: they do not.
    """
    if vectors.shape[1] != centroids.shape[1]:
        raise UserError(
            f"Expected vectors as wide as the centroids, {centroids.shape[1]} features, found "
            f"{vectors.shape[1]}; embed the documents with the settings that the centroids came from."
        )

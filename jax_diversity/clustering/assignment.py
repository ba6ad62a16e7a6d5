"""Every document's nearest centroid, and every centroid's nearest documents."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from jax_diversity.clustering.lloyd import Passes, assign_rows, row_mesh
from jax_diversity.clustering.rows import Rows, check_vectors, middle
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore


def assign(
    vectors: Float32[np.ndarray, "document feature"],
    centroids: Float32[np.ndarray, "cluster feature"],
    advance: Advance = ignore,
    *,
    spherical: bool = False,
    mesh: Any = None,
    block_rows: int | None = None,
) -> tuple[Int32[np.ndarray, " document"], Float32[np.ndarray, " document"]]:
    """The nearest centroid of every row, ties to the lowest number; it also assigns new documents to old clusters.

    Args:
        vectors: one row per document; may be a memory map.
        centroids: a clustering's, as in its file `centroids.npy`.
        advance: called with the number of rows done.
        spherical: as in the clustering.
        mesh: as in `cluster`.
        block_rows: as in `cluster`.

    Returns:
        Every row's cluster and its squared distance to the centroid (spherical: of the row at length one).

    Raises:
        UserError: NaN or infinite vectors, or rows of another width than the centroids.

    Example:
        >>> clusters, distances = assign(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32))
        >>> clusters.tolist(), distances.tolist()
        ([0, 1], [0.0, 0.0])
    """
    check_vectors(vectors)
    check_vectors(centroids)
    if vectors.shape[1] != centroids.shape[1]:
        raise UserError(
            f"Expected vectors as wide as the centroids, {centroids.shape[1]} features, found "
            f"{vectors.shape[1]}; embed the documents with the settings that the centroids were made with."
        )
    passes = Passes(row_mesh(mesh), block_rows, advance)
    if spherical or not len(centroids):
        return assign_rows(Rows(vectors, None, spherical), centroids, passes)
    # The middle of the centroids, not of the rows: a row's cluster must not depend on the other rows.
    origin = middle(centroids)
    return assign_rows(Rows(vectors, None, False, origin), centroids - origin, passes)


def nearest_documents(
    assignments: Int32[np.ndarray, " document"],
    distances: Float32[np.ndarray, " document"],
    num_clusters: int,
    num_nearest: int,
) -> Int64[np.ndarray, "cluster num_nearest"]:
    """The documents nearest to every cluster's centroid, nearest first, ties to the lowest index.

    Returns:
        Document indices; -1 if a cluster has fewer documents.
    """
    # `lexsort` is stable: of equal distances the lowest index is first.
    order = np.lexsort((distances, assignments))
    sorted_clusters = assignments[order]
    first = np.searchsorted(sorted_clusters, np.arange(num_clusters))
    rank = np.arange(len(order)) - first[sorted_clusters]
    near = rank < num_nearest
    nearest = np.full((num_clusters, num_nearest), -1, np.int64)
    nearest[sorted_clusters[near], rank[near]] = order[near]
    return nearest

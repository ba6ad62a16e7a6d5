"""Find the nearest centroid of every document, and the nearest documents of every centroid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float32, Int32, Int64

from jax_diversity.foundation.artifacts import read_array, write_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.jobs import Opened, opened, work
from jax_diversity.foundation.progress import Advance, ignore, tell
from jax_diversity.sequences.clustering.lloyd import Passes, assign_rows, row_mesh
from jax_diversity.sequences.clustering.rows import Rows, check_vectors, middle


def assign(
    vectors: Float32[np.ndarray, "document feature"],
    centroids: Float32[np.ndarray, "cluster feature"],
    advance: Advance = ignore,
    *,
    spherical: bool = False,
    mesh: Any = None,
    block_rows: int | None = None,
) -> tuple[Int32[np.ndarray, " document"], Float32[np.ndarray, " document"]]:
    """Find the nearest centroid of every row, of equally near ones the first; the rows may be new documents.

    Args:
        vectors: one row per document; may be a memory map.
        centroids: the centroids of a clustering, as in its file `centroids.npy`.
        advance: called with the number of rows done.
        spherical: the same value as for the clustering.
        mesh: see `cluster`.
        block_rows: see `cluster`.

    Returns:
        The cluster of every row, and the squared distance of the row to this centroid (spherical: of the row scaled to
        length one).

    Raises:
        UserError: a vector contains NaN or infinity, or rows and centroids have different numbers of features.

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
    # We use the middle of the centroids, not of the rows, because the cluster of a row must not depend on the other
    # rows.
    origin = middle(centroids)
    return assign_rows(Rows(vectors, None, False, origin), centroids - origin, passes)


@work("assigning documents", alone=True)
def assign_file(name: Path, dataset: Opened, number: int, centroids: str, spherical: bool) -> int:
    """Store the clusters of the documents of a file, and the squared distances, beside `name`; a job.

    Args:
        name: the path that the names of both files begin with.
        dataset: the dataset of the vectors.
        number: the number of the file of documents.
        centroids: the file of the centroids.
        spherical: see `assign`.

    Returns:
        The number of documents.
    """
    vectors = opened(dataset).file_of_documents(number).embeddings
    assigned = assign(vectors, read_array(Path(centroids), "cluster"), tell, spherical=spherical, mesh=local_mesh())
    for kind, values in zip(("clusters", "distances"), assigned, strict=True):
        write_array(Path(f"{name}.{kind}.npy"), values)
    return len(vectors)


def local_mesh() -> Mesh:
    """Return all devices of this process."""
    return Mesh(np.array(jax.local_devices()), ("rows",))


def nearest_documents(
    assignments: Int32[np.ndarray, " document"],
    distances: Float32[np.ndarray, " document"],
    num_clusters: int,
    num_nearest: int,
) -> Int64[np.ndarray, "cluster num_nearest"]:
    """Find the documents nearest to every centroid, the nearest first; of equals, the lowest index first.

    Returns:
        Document indices; -1 if a cluster has fewer documents.
    """
    # `lexsort` is stable: if distances are equal, the lowest index is first.
    order = np.lexsort((distances, assignments))
    sorted_clusters = assignments[order]
    first = np.searchsorted(sorted_clusters, np.arange(num_clusters))
    rank = np.arange(len(order)) - first[sorted_clusters]
    near = rank < num_nearest
    nearest = np.full((num_clusters, num_nearest), -1, np.int64)
    nearest[sorted_clusters[near], rank[near]] = order[near]
    return nearest

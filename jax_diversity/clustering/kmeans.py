"""Vectors -> topic clusters: k-means in one level or two, on some documents, and the assignment of all.

Distances are Euclidean. The rows that documents' embeddings give have length one (or zero), so the nearest
centroid is the one with the largest `x · c - ‖c‖² / 2`: cosine similarity, less a little for tight clusters. Rows
and centroids are both moved by one vector first, the middle of the rows, for that product rounds off more the
farther they lie from the origin. Centroids are plain means, not normalised again; a loose cluster's centroid is
short and says so. `spherical` k-means looks at cosines alone: rows and centroids have length one, and nothing is
moved. All zero rows (documents without a known term) are one point and share one cluster in either case.

Memory beyond the vectors is one block's distances, (block, cluster), and the training rows' copy on the devices.
The same vectors, settings, devices and versions give the same bits. On one processor the number of rows in a block
changes neither centroids nor assignments; on accelerators and over several devices sums are added in another order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from jax_diversity.clustering.lloyd import Passes, assign_rows, lloyd
from jax_diversity.clustering.mesh import row_mesh
from jax_diversity.clustering.rows import Rows, check_vectors, check_width, middle, training_rows, unit_rows
from jax_diversity.clustering.settings import ClusterConfig
from jax_diversity.clustering.starts import draw_start
from jax_diversity.clustering.two_level import train_two_levels
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore

TWO_LEVELS_FROM = 10_000
"""Clusters from which on there are two levels, where the settings leave it open."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """Centroids and every document's cluster.

    Attributes:
        centroids: the clusters' means (of the documents that they were computed from).
        assignments: the nearest centroid of every document, ties to the lowest number.
        inertia: sum over all documents of the squared distance to their centroid.
        num_iterations: passes over the training documents until the centroids stood (two levels: the most of any).
    """

    centroids: Float32[np.ndarray, "cluster feature"]
    assignments: Int32[np.ndarray, " document"]
    inertia: float
    num_iterations: int


def kmeans(
    vectors: Float32[np.ndarray, "document feature"],
    config: ClusterConfig,
    advance: Advance = ignore,
    *,
    mesh: Any = None,
    block_rows: int | None = None,
) -> Clustering:
    """Cluster documents' vectors: `train_centroids` on a part of them, then `assign` all.

    Args:
        vectors: one row a document; may be a memory map, which is read block by block.
        config: number of clusters, backend, start, limits, seed; `also` and `label_field` are not looked at.
        advance: told the rows done, `num_rows_passed` in all.
        mesh: devices that share the work; None takes one. Several processes bring the same vectors.
        block_rows: rows of a device's block, rounded up to a multiple of 64; None takes what suits it.

    Raises:
        UserError: fewer documents (or training documents) than clusters; vectors that are no matrix of finite
            float32 rows.

    Example:
        >>> rows = np.array([[0, 1], [0, 1.1], [5, 0]], np.float32)
        >>> kmeans(rows, ClusterConfig(num_clusters=2)).assignments.tolist() in ([0, 0, 1], [1, 1, 0])
        True
    """
    centroids, num_iterations = train_centroids(vectors, config, advance, mesh=mesh, block_rows=block_rows)
    passes = Passes(row_mesh(mesh), block_rows, advance)
    assignments, distances = _assign(vectors, centroids, config.spherical, passes)
    return Clustering(centroids, assignments, float(distances.sum(dtype=np.float64)), num_iterations)


def train_centroids(
    vectors: Float32[np.ndarray, "document feature"],
    config: ClusterConfig,
    advance: Advance = ignore,
    *,
    mesh: Any = None,
    block_rows: int | None = None,
) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
    """Centroids of at most `config.train_documents` documents, drawn by `config.seed`, and the passes made.

    Backend `jax` draws starting centroids from a part of the rows and runs Lloyd's algorithm. A cluster that
    empties takes the training row that is farthest from its centroid. With more clusters than distinct rows some
    clusters stay empty; they keep the centroid they had. In two levels (`config.coarse_clusters`) coarse clusters
    are divided one by one, into numbers of fine clusters that go by their size and spread. Backend `sklearn` runs
    MiniBatchKMeans, always in one level.

    Args and errors are those of `kmeans`, which see.
    """
    check_vectors(vectors)
    _check_config(len(vectors), config)
    rows = training_rows(vectors, config.train_documents, config.seed, config.spherical)
    if config.backend == "sklearn":
        centroids, num_iterations = _train_minibatch(rows, config)
        advance(config.max_iterations * len(rows))
    else:
        centroids, num_iterations = _train_lloyd(rows, config, Passes(row_mesh(mesh), block_rows, advance))
    return centroids if rows.origin is None else centroids + rows.origin, num_iterations


def _train_lloyd(rows: Rows, config: ClusterConfig, passes: Passes) -> tuple[np.ndarray, int]:
    """Lloyd's algorithm in one level or two; centroids are those of the rows as they are read."""
    num_coarse = num_coarse_clusters(config)

    def train(part: Rows, num_clusters: int) -> tuple[np.ndarray, int]:
        start = draw_start(part, num_clusters, config.start, config.seed)
        return lloyd(part, start, config.max_iterations, replace(passes, few_sizes=num_coarse > 1))

    if num_coarse == 1:
        return train(rows, config.num_clusters)
    unwatched = replace(passes, advance=ignore)
    return train_two_levels(
        rows, config.num_clusters, num_coarse, train, lambda part, coarse: assign_rows(part, coarse, unwatched)
    )


def num_coarse_clusters(config: ClusterConfig) -> int:
    """Clusters of the coarse level; 1 where there is one level only."""
    if config.backend == "sklearn":
        return 1
    if config.coarse_clusters:
        return config.coarse_clusters
    return 1 if config.num_clusters < TWO_LEVELS_FROM else math.isqrt(config.num_clusters)


def num_rows_passed(num_documents: int, config: ClusterConfig) -> int:
    """What `kmeans` tells `advance` in all: rows of every allowed training pass and of the assignment.

    Passes that an early stop saves are reported at once when it happens.
    """
    num_levels = 1 if num_coarse_clusters(config) == 1 else 2
    return num_levels * min(num_documents, config.train_documents) * config.max_iterations + num_documents


def assign(
    vectors: Float32[np.ndarray, "document feature"],
    centroids: Float32[np.ndarray, "cluster feature"],
    advance: Advance = ignore,
    *,
    spherical: bool = False,
    mesh: Any = None,
    block_rows: int | None = None,
) -> Int32[np.ndarray, " document"]:
    """The nearest of all centroids for every row, ties to the lowest number: new documents in old clusters.

    Args:
        vectors: one row a document; may be a memory map.
        centroids: of a clustering, as its file `centroids.npy` holds them.
        advance: told the rows done.
        spherical: as the clustering was made.
        mesh: as in `kmeans`.
        block_rows: as in `kmeans`.

    Raises:
        UserError: NaN or infinite vectors, or rows of another width than the centroids.
    """
    return assign_with_distances(vectors, centroids, advance, spherical=spherical, mesh=mesh, block_rows=block_rows)[0]


def assign_with_distances(
    vectors: Float32[np.ndarray, "document feature"],
    centroids: Float32[np.ndarray, "cluster feature"],
    advance: Advance = ignore,
    *,
    spherical: bool = False,
    mesh: Any = None,
    block_rows: int | None = None,
) -> tuple[Int32[np.ndarray, " document"], Float32[np.ndarray, " document"]]:
    """`assign`, and the squared distance of every row to its centroid (spherical: of the row at length one)."""
    check_vectors(vectors)
    check_vectors(centroids)
    check_width(vectors, centroids)
    return _assign(vectors, centroids, spherical, Passes(row_mesh(mesh), block_rows, advance))


def _assign(
    vectors: np.ndarray, centroids: np.ndarray, spherical: bool, passes: Passes
) -> tuple[np.ndarray, np.ndarray]:
    if spherical or not len(centroids):
        return assign_rows(Rows(vectors, None, spherical), centroids, passes)
    origin = middle(centroids)  # of the centroids: what they are given decides alone, not the other rows
    return assign_rows(Rows(vectors, None, False, origin), centroids - origin, passes)


def nearest_documents(
    assignments: Int32[np.ndarray, " document"],
    distances: Float32[np.ndarray, " document"],
    num_clusters: int,
    num_nearest: int,
) -> Int64[np.ndarray, "cluster num_nearest"]:
    """Every cluster's documents that are nearest to its centroid, nearest first, ties to the lowest index.

    Returns:
        Document indices; -1 where a cluster has fewer documents.
    """
    order = np.lexsort((distances, assignments))
    sorted_clusters = assignments[order]
    first = np.searchsorted(sorted_clusters, np.arange(num_clusters))
    rank = np.arange(len(order)) - first[sorted_clusters]
    near = rank < num_nearest
    nearest = np.full((num_clusters, num_nearest), -1, np.int64)
    nearest[sorted_clusters[near], rank[near]] = order[near]
    return nearest


def _check_config(num_documents: int, config: ClusterConfig) -> None:
    num_clusters = config.num_clusters
    if not 0 <= config.seed < 2**32:
        raise UserError(f"Expected cluster.seed from 0 to 2^32 - 1, found {config.seed}.")
    if num_clusters < 1:
        raise UserError(f"Expected cluster.num_clusters >= 1, found {num_clusters}.")
    if num_clusters > num_documents:
        raise UserError(
            f"Expected at least as many documents as clusters, found {num_documents} documents for {num_clusters} "
            f"clusters; set cluster.num_clusters to {num_documents} or fewer, or bring more documents."
        )
    if num_clusters > config.train_documents:
        raise UserError(
            f"Expected cluster.train_documents >= cluster.num_clusters, found {config.train_documents} for "
            f"{num_clusters} clusters; set cluster.train_documents to {num_clusters} or more."
        )
    if not 0 <= config.coarse_clusters < max(num_clusters, 2):
        raise UserError(
            f"Expected cluster.coarse_clusters from 0 to below the {num_clusters} clusters, found "
            f"{config.coarse_clusters}; about the square root of their number is usual."
        )


def _train_minibatch(rows: Rows, config: ClusterConfig) -> tuple[np.ndarray, int]:
    from sklearn.cluster import MiniBatchKMeans

    model: Any = MiniBatchKMeans(
        config.num_clusters,
        init="random" if config.start == "random" else "k-means++",
        batch_size=max(1024, 2 * config.num_clusters),
        max_iter=config.max_iterations,
        n_init="auto",  # one start
        random_state=config.seed,
    )
    model.fit(rows.take(slice(None)))
    centroids = model.cluster_centers_.astype(np.float32)
    return unit_rows(centroids) if config.spherical else centroids, int(model.n_iter_)

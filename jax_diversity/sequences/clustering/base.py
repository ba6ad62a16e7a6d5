"""The contract of clustering methods. A method computes centroids from a part of the documents.

Then every document is assigned to the nearest centroid; this second step is the same for all methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Int32

from jax_diversity.foundation.methods import Methods
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.stacked import Rows as AnyRows

TWO_LEVELS_FROM = 10_000
"""Smallest number of clusters that are trained on two levels, unless the settings choose the number of levels."""


@runtime_checkable
class Method(Protocol):
    """A method computes centroids from vectors; the same arguments give the same result.

    A method may also take these keyword arguments: `advance`, which the method calls with the number of rows processed,
    in all `max_iterations` times the training rows (twice as many on two levels); `mesh` and `block_rows`, for work on
    devices.
    All other keyword parameters, each with a default, are its options. Every method has the options `max_iterations`
    and `spherical`.
    """

    def __call__(
        self, vectors: Float32[AnyRows, "document feature"], num_clusters: int, *, train_documents: int, seed: int
    ) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
        """Return centroids of at most `train_documents` documents, drawn with the seed, and the number of passes."""
        ...


METHODS = Methods(
    "clustering method",
    "jax_diversity.sequences.clustering",
    {"kmeans": "kmeans", "minibatch_kmeans": "minibatch_kmeans"},
    contract=frozenset({"vectors", "num_clusters", "train_documents", "seed", "advance", "mesh", "block_rows"}),
)
"""Maps the name of each method to its module in this package."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """Centroids, and the cluster of every document.

    Attributes:
        centroids: the clusters' means (over the training documents).
        assignments: the nearest centroid of every document; of equally near centroids, the lowest number.
        inertia: the sum of the squared distances of all documents to their centroids.
        num_iterations: passes over the training documents until the centroids settled. With two levels, this is the
            largest number of passes among all the clusterings.
    """

    centroids: Float32[np.ndarray, "cluster feature"]
    assignments: Int32[np.ndarray, " document"]
    inertia: float
    num_iterations: int


def cluster(
    vectors: Float32[np.ndarray, "document feature"],
    num_clusters: int,
    *,
    method: str = "kmeans",
    train_documents: int = 200_000,
    seed: int = 0,
    advance: Advance = ignore,
    mesh: Any = None,
    block_rows: int | None = None,
    **options: Any,
) -> Clustering:
    """Cluster documents' vectors: train centroids on a part of the documents, then assign all documents.

    Args:
        vectors: one row per document; may be a memory map, which is read block by block.
        num_clusters: k, the number of clusters.
        method: a name of `METHODS`.
        train_documents: the largest number of documents that the centroids are computed from.
        seed: the seed of the starting centroids and of the choice of training documents; from 0 to 2^32 - 1.
        advance: called with the number of rows done, `num_rows_passed` in all.
        mesh: devices that share the work; None uses one device. If there are several processes, all pass the same
            vectors.
        block_rows: number of rows that one device computes at a time, rounded up to a multiple of 64; None means a
            suitable number.
        options: the options of the method, such as `spherical`.

    Raises:
        UserError: unknown method or option; fewer documents (or training documents) than clusters; vectors that are
            not a matrix of finite float32 rows.

    Example:
        >>> rows = np.array([[0, 1], [0, 1.1], [5, 0]], np.float32)
        >>> cluster(rows, 2).assignments.tolist() in ([0, 0, 1], [1, 1, 0])
        True
    """
    from jax_diversity.sequences.clustering.assignment import assign

    work: dict[str, Any] = {"advance": advance, "mesh": mesh, "block_rows": block_rows}
    centroids, num_iterations = train_centroids(
        vectors, num_clusters, method=method, train_documents=train_documents, seed=seed, **work, **options
    )
    assignments, distances = assign(vectors, centroids, spherical=options.get("spherical", False), **work)
    return Clustering(centroids, assignments, float(distances.sum(dtype=np.float64)), num_iterations)


def train_centroids(
    vectors: Float32[AnyRows, "document feature"], num_clusters: int, *, method: str = "kmeans", **options: Any
) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
    """Return centroids and the number of passes; see `cluster` for the other arguments and the errors."""
    chosen = METHODS.find(method)
    METHODS.check_options(method, options.keys() - METHODS.contract)
    # A method does not need to have the parameters `advance`, `mesh` and `block_rows`; we pass the arguments that it
    # has.
    return chosen(
        vectors, num_clusters, **{name: value for name, value in options.items() if METHODS.takes(method, name)}
    )


def num_coarse_clusters(num_clusters: int, coarse_clusters: int) -> int:
    """Return the number of coarse clusters; 1 means one level. If `coarse_clusters` is 0, `num_clusters` decides."""
    return coarse_clusters or (1 if num_clusters < TWO_LEVELS_FROM else math.isqrt(num_clusters))


def num_rows_passed(
    num_documents: int, num_clusters: int, *, method: str = "kmeans", train_documents: int = 200_000, **options: Any
) -> int:
    """Count the rows that `cluster` reports to `advance`: rows of all allowed training passes and of the assignment."""
    settings = METHODS.options(method) | options
    num_levels = 1 if num_coarse_clusters(num_clusters, settings.get("coarse_clusters", 1)) == 1 else 2
    return num_levels * min(num_documents, train_documents) * settings["max_iterations"] + num_documents

"""K-means by scikit-learn's MiniBatchKMeans (Sculley 2010), which reads a few rows at a time and runs on CPUs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.stacked import Rows as AnyRows
from jax_diversity.sequences.clustering.rows import check_numbers, training_rows, unit_rows


def minibatch_kmeans(
    vectors: Float32[AnyRows, "document feature"],
    num_clusters: int,
    *,
    train_documents: int = 200_000,
    seed: int = 0,
    start: Literal["k-means++", "random"] = "k-means++",
    spherical: bool = False,
    max_iterations: int = 25,
    advance: Advance = ignore,
) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
    """Run scikit-learn's MiniBatchKMeans on one level.

    See `jax_diversity.sequences.clustering.base.cluster` for the other arguments and the errors.

    Args:
        start: how the first centroids are drawn.
        spherical: scale vectors and centroids to length one, so that only cosines are compared.
        max_iterations: the largest number of passes over the training rows.

    Returns:
        Centroids and the number of passes.
    """
    from sklearn.cluster import MiniBatchKMeans

    check_numbers(num_clusters, max_iterations)
    rows = training_rows(vectors, num_clusters, train_documents, seed, spherical)
    model: Any = MiniBatchKMeans(
        num_clusters,
        init=start,
        # A batch needs several rows per cluster: smaller batches would move most centroids only by chance.
        batch_size=max(1024, 2 * num_clusters),
        max_iter=max_iterations,
        n_init="auto",  # one start
        random_state=seed,
    )
    model.fit(rows.take(slice(None)))
    advance(max_iterations * len(rows))
    centroids = model.cluster_centers_.astype(np.float32)
    return rows.moved_back(unit_rows(centroids) if spherical else centroids), int(model.n_iter_)

"""K-means in one level or two: Lloyd's algorithm, compiled by JAX, over a mesh of devices.

Distances are Euclidean. The rows that documents' embeddings give have length one (or zero), so the nearest
centroid is the one with the largest `x · c - ‖c‖² / 2`: cosine similarity, less a little for tight clusters. Rows
and centroids are both moved by one vector first, the middle of the rows, because that product rounds off more the
farther they lie from the origin. Centroids are plain means, not normalised again, so a loose cluster's centroid is
short. `spherical` k-means uses cosines alone: rows and centroids have length one, and nothing is moved. All rows of
zeros (documents without a known term) are one point and share one cluster in either case.

Memory beyond the vectors is one block's distances, (block, cluster), and the training rows' copy on the devices.
The same vectors, settings, devices and versions give the same bits. On one processor the number of rows in a block
changes neither centroids nor assignments; on accelerators and over several devices sums are added in another order.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Float64, Int64

from jax_diversity.clustering.base import num_coarse_clusters
from jax_diversity.clustering.lloyd import Passes, assign_rows, lloyd, row_mesh
from jax_diversity.clustering.rows import Rows, check_numbers, training_rows
from jax_diversity.clustering.starts import draw_start
from jax_diversity.foundation.progress import Advance, ignore


def kmeans(
    vectors: Float32[np.ndarray, "document feature"],
    num_clusters: int,
    *,
    train_documents: int = 200_000,
    seed: int = 0,
    start: Literal["k-means++", "k-means||", "random"] = "k-means++",
    spherical: bool = False,
    coarse_clusters: int = 0,
    max_iterations: int = 25,
    advance: Advance = ignore,
    mesh: Any = None,
    block_rows: int | None = None,
) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
    """Lloyd's algorithm from starting centroids that are rows, on as many devices as there are.

    A cluster that empties takes the training row that is farthest from its centroid. With more clusters than
    distinct rows some clusters stay empty; they keep the centroid they had. Other arguments, and errors, are those
    of `cluster`.

    Args:
        start: how the first centroids are drawn, see `draw_start`; `k-means||` suits thousands of clusters.
        spherical: bring vectors and centroids to length one: clusters by cosine alone.
        coarse_clusters: train so many clusters first and divide each of them. 0 takes one level below 10,000
            clusters, and about the square root of their number from there on; 1 takes one level in any case.
        max_iterations: most passes of Lloyd's algorithm over the training rows.

    Returns:
        Centroids and the passes made, in two levels the most of any clustering.
    """
    check_numbers(num_clusters, max_iterations, coarse_clusters)
    rows = training_rows(vectors, num_clusters, train_documents, seed, spherical)
    num_coarse = num_coarse_clusters(num_clusters, coarse_clusters)
    # Two levels run one clustering for each coarse cluster: with few different sizes, few are compiled.
    passes = Passes(row_mesh(mesh), block_rows, advance, few_sizes=num_coarse > 1)

    def train(part: Rows, count: int) -> tuple[np.ndarray, int]:
        return lloyd(part, draw_start(part, count, start, seed), max_iterations, passes)

    if num_coarse == 1:
        centroids, num_passes = train(rows, num_clusters)
        return rows.moved_back(centroids), num_passes
    coarse, num_passes = train(rows, num_coarse)
    group, distances = assign_rows(rows, coarse, replace(passes, advance=ignore))
    sizes = np.bincount(group, minlength=num_coarse)
    spread = np.bincount(group, distances.astype(np.float64), minlength=num_coarse)
    # A pass costs rows times clusters. With about √k coarse clusters, and as many in each of them, both levels
    # together cost rows times 2 √k.
    order = np.argsort(group, kind="stable")
    parts = []
    for members, count in zip(
        np.split(order, np.cumsum(sizes)[:-1]), share_out(num_clusters, spread, sizes).tolist(), strict=True
    ):
        if count:
            centroids, passes_made = train(rows.part(members), count)
            parts.append(centroids)
            num_passes = max(num_passes, passes_made)
    return rows.moved_back(np.concatenate(parts)), num_passes


def share_out(
    total: int, weights: Float64[np.ndarray, " group"], most: Int64[np.ndarray, " group"]
) -> Int64[np.ndarray, " group"]:
    """Whole shares of `total` in proportion to weights (Sainte-Laguë): at least one, at most `most` each.

    The weight of a coarse cluster is its rows' summed squared distance from its centroid, size times spread: in
    many dimensions, where dividing a cluster reduces distances only slowly, that is where clusters help most (the
    high-rate quantisation law n^(d/(d+2)) σ^(2d/(d+2)) for d to infinity). `total` is at most the sum of `most`.
    """
    shares = np.minimum(most, 1).astype(np.int64)
    # A weight of zero becomes a tiny one: such a group takes what no other group may have any more.
    weights = np.maximum(weights, max(float(weights.max(initial=0)), 1.0) * 1e-12)
    queue = [(-weights[group] / 3, group) for group in np.flatnonzero(most > shares).tolist()]
    heapq.heapify(queue)
    for _ in range(total - int(shares.sum())):
        _, group = heapq.heappop(queue)
        shares[group] += 1
        if shares[group] < most[group]:
            heapq.heappush(queue, (-weights[group] / (2 * shares[group] + 1), group))
    return shares

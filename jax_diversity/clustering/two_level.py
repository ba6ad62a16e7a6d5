"""Two levels of k-means for very many clusters: coarse clusters first, each then divided by itself.

A pass of Lloyd's algorithm costs rows times clusters. With about the square root of the clusters at the coarse
level and as many in each of them, it costs rows times twice that root.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Float64, Int64

from jax_diversity.clustering.rows import Rows

Train = Callable[[Rows, int], tuple[Float32[np.ndarray, "cluster feature"], int]]
Assign = Callable[
    [Rows, Float32[np.ndarray, "cluster feature"]],
    tuple[np.ndarray, np.ndarray],
]


def train_two_levels(
    rows: Rows, num_clusters: int, num_coarse: int, train: Train, assign: Assign
) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
    """Fine centroids, those of one coarse cluster beside each other, and the most passes a level took.

    Args:
        rows: training rows, at least as many as clusters.
        num_clusters: fine clusters in all.
        num_coarse: coarse clusters, fewer.
        train: one level of k-means: centroids of some rows and the passes made.
        assign: nearest centroids and squared distances.
    """
    coarse, most_passes = train(rows, num_coarse)
    group, distances = assign(rows, coarse)
    sizes = np.bincount(group, minlength=num_coarse)
    spread = np.bincount(group, distances.astype(np.float64), minlength=num_coarse)
    fine_counts = share_out(num_clusters, spread, sizes)
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(sizes) - sizes
    parts = []
    for start, size, count in zip(starts.tolist(), sizes.tolist(), fine_counts.tolist(), strict=True):
        if count:
            centroids, num_passes = train(rows.part(order[start : start + size]), count)
            parts.append(centroids)
            most_passes = max(most_passes, num_passes)
    return np.concatenate(parts), most_passes


def share_out(
    total: int, weights: Float64[np.ndarray, " group"], most: Int64[np.ndarray, " group"]
) -> Int64[np.ndarray, " group"]:
    """Whole shares of `total` in proportion to weights (Sainte-Laguë): at least one, at most `most` each.

    The weight of a coarse cluster is its rows' summed squared distance from its centroid, size times spread: in
    many dimensions, where dividing a cluster shrinks distances but slowly, that is where clusters help most (the
    high-rate quantisation law n^(d/(d+2)) σ^(2d/(d+2)) for d to infinity).

    Args:
        total: at most the sum of `most`, at least the number of groups that may have any.
        weights: any non-negative numbers.
        most: the most of each group; a group of 0 gets none.

    Example:
        >>> share_out(10, np.array([6.0, 3.0, 1.0]), np.array([50, 2, 50])).tolist()
        [7, 2, 1]
    """
    shares = np.minimum(most, 1).astype(np.int64)
    # A weight of nothing still takes what no other group may have any more.
    least = max(float(weights.max(initial=0)), 1.0) * 1e-12
    weights = np.maximum(weights, least)
    queue = [
        (-weights[group] / (2 * shares[group] + 1), group) for group in range(len(most)) if most[group] > shares[group]
    ]
    heapq.heapify(queue)
    for _ in range(total - int(shares.sum())):
        _, group = heapq.heappop(queue)
        shares[group] += 1
        if shares[group] < most[group]:
            heapq.heappush(queue, (-weights[group] / (2 * shares[group] + 1), group))
    return shares

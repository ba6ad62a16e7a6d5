"""K-means on one level or two: Lloyd's algorithm, compiled by JAX, over a mesh of devices.

Distances are Euclidean. Rows of embeddings have length one (or zero), so the nearest centroid has the largest
`x · c - ‖c‖² / 2`. This is the cosine similarity, slightly reduced for tight clusters. The rounding error of the
product grows with the distance of rows and centroids from the origin. Therefore one vector, the median of each feature,
is first subtracted from rows and centroids. Centroids are plain means, not normalised again, so the centroid of a loose
cluster is short. `spherical` k-means uses only cosines: rows and centroids have length one, and nothing is subtracted.
In both cases all rows of zeros (documents without a known term) are one point and are in one cluster.

Besides the vectors, memory contains the distances of one block (block, cluster) and a copy of the training rows on the
devices. The same vectors, settings, devices and versions give the same bits. On one processor, the number of rows in a
block does not change centroids or assignments. On accelerators and over several devices, it changes the order of the
sums.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Float64, Int64, PRNGKeyArray

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.stacked import Rows as AnyRows
from jax_diversity.sequences.clustering.base import num_coarse_clusters
from jax_diversity.sequences.clustering.lloyd import Passes, assign_rows, lloyd, padded_count, row_mesh
from jax_diversity.sequences.clustering.rows import Rows, check_numbers, training_rows

ROWS_PER_CLUSTER = 16
"""The starting centroids are drawn from about this many rows per cluster, if these are at least `LEAST_ROWS` rows."""
LEAST_ROWS = 16_384
"""Smallest number of rows from which the starting centroids are drawn; if there are fewer rows, all rows are used."""
ROUNDS = 5
"""Number of rounds of k-means||; each round draws half as many candidates as there are clusters."""
_ROUNDING = 1e-6
"""A squared distance from a matrix product that is relatively smaller than this is only a rounding error."""
_BLOCK_ROWS = 2048


def kmeans(
    vectors: Float32[AnyRows, "document feature"],
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
    """Run Lloyd's algorithm on one or several devices; the starting centroids are rows.

    If a cluster is empty, its centroid moves to the training row that is farthest from the centroid of its present
    cluster. If there are more clusters than distinct rows, some clusters stay empty and keep their last centroids. See
    `jax_diversity.sequences.clustering.base.cluster` for the other arguments and the errors.

    Args:
        start: how the first centroids are drawn, see `draw_start`; `k-means||` is suitable for thousands of clusters.
        spherical: scale vectors and centroids to length one, so that only cosines are compared.
        coarse_clusters: train this many clusters first, then divide each of them. With 0: one level for fewer than
            10,000 clusters, otherwise about √num_clusters coarse clusters. With 1: always one level.
        max_iterations: the largest number of passes of Lloyd's algorithm over the training rows.

    Returns:
        Centroids and the number of passes. With two levels, this is the largest number of passes among all the
        clusterings.
    """
    check_numbers(num_clusters, max_iterations, coarse_clusters)
    rows = training_rows(vectors, num_clusters, train_documents, seed, spherical)
    num_coarse = num_coarse_clusters(num_clusters, coarse_clusters)
    # Two levels run one clustering for each coarse cluster. Few different sizes mean few compilations.
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
    # A pass costs rows times clusters. With about √k coarse clusters and about √k fine clusters in each, both levels
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
    """Divide `total` into integers in proportion to `weights` (Sainte-Laguë), each from 1 to its entry in `most`.

    The weight of a coarse cluster is the sum of the squared distances of its rows from its centroid. In other words, it
    is the number of rows times the mean squared distance. In many dimensions, dividing a cluster reduces distances only
    slowly. So more clusters help most in coarse clusters with a large sum (the high-rate quantisation law n^(d/(d+2))
    σ^(2d/(d+2)) for d to infinity). `total` is at most the sum of `most`. A group whose entry in `most` is 0 gets 0.
    """
    shares = np.minimum(most, 1).astype(np.int64)
    # A weight of zero becomes a tiny weight: such a group gets the shares that other groups cannot take.
    weights = np.maximum(weights, max(float(weights.max(initial=0)), 1.0) * 1e-12)
    queue = [(-weights[group] / 3, group) for group in np.flatnonzero(most > shares).tolist()]
    heapq.heapify(queue)
    for _ in range(total - int(shares.sum())):
        _, group = heapq.heappop(queue)
        shares[group] += 1
        if shares[group] < most[group]:
            heapq.heappush(queue, (-weights[group] / (2 * shares[group] + 1), group))
    return shares


def draw_start(rows: Rows, num_clusters: int, start: str, seed: int) -> Float32[np.ndarray, "cluster feature"]:
    """Draw starting centroids from the rows; if there are too few distinct rows, copies may be drawn.

    - `k-means++`: every next centroid is the best of a few rows, drawn with probability proportional to their squared
      distance (Arthur & Vassilvitskii 2007; the greedy choice is from section 5.1 of the first author's thesis).
    - `k-means||`: a few rounds draw many candidates at once with these probabilities. Then k-means++ chooses from the
      candidates, whose weights are the numbers of rows nearest to them (Bahmani et al. 2012, with rounds of a fixed
      size). The number of passes over the rows does not grow with the number of clusters, so this start is suitable for
      ten thousand clusters on one level.
    - `random`: every row has the same probability.
    """
    check_one_of("start", start, ("k-means++", "k-means||", "random"))
    num_drawn = num_clusters if start == "random" else max(ROWS_PER_CLUSTER * num_clusters, LEAST_ROWS)
    part = slice(None)
    if start == "random" or num_drawn < len(rows):
        part = np.sort(np.random.default_rng([seed, 1]).choice(len(rows), num_drawn, replace=False))
    drawn, key = rows.take(part), jax.random.key(seed)
    if start == "random":
        return drawn
    if start == "k-means||":
        return _draw_in_rounds(drawn, num_clusters, key)
    return _thin_out(drawn, np.ones(len(drawn), np.float32), num_clusters, key)


def _draw_in_rounds(
    rows: Float32[np.ndarray, "row feature"], num_clusters: int, key: PRNGKeyArray
) -> Float32[np.ndarray, "cluster feature"]:
    first_key, thin_key, *round_keys = jax.random.split(key, 2 + ROUNDS)
    first = int(jax.random.randint(first_key, (), 0, len(rows)))
    candidates = rows[first : first + 1]
    owners, distances = _nearest_rows(rows, candidates)
    for round_key in round_keys:
        drawn = np.asarray(_draw_distinct(jnp.asarray(distances), round_key, (num_clusters + 1) // 2))
        drawn = drawn[distances[drawn] > 0]
        if not len(drawn):
            break
        nearest, nearer = _nearest_rows(rows, rows[drawn])
        # We use < and not <=: if two candidates are equally near, the row stays with the candidate that was drawn
        # first.
        closer = nearer < distances
        owners[closer] = len(candidates) + nearest[closer]
        distances[closer] = nearer[closer]
        candidates = np.concatenate([candidates, rows[drawn]])
    weights = np.bincount(owners, minlength=len(candidates)).astype(np.float32)
    return _thin_out(candidates, weights, num_clusters, thin_key)


@partial(jax.jit, static_argnames="num_drawn")
def _draw_distinct(distances: Float32[Array, " row"], key: PRNGKeyArray, num_drawn: int) -> Array:
    """Return the indices of different rows, drawn with probability proportional to their distances."""
    # The rows with the largest sums of logarithm and Gumbel noise are a draw without replacement (Gumbel-top-k, Kool et
    # al. 2019).
    perturbed = jnp.log(distances) + jax.random.gumbel(key, distances.shape)
    return lax.top_k(perturbed, num_drawn)[1]


def _nearest_rows(rows: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest candidate of every row and the squared distance to it; a mere rounding error becomes zero."""
    # The candidates are padded to one of a few sizes, because each size is compiled. The padding consists of copies of
    # the first candidate with higher numbers. Of equally near candidates the lowest number is taken, so no row is
    # assigned to a copy.
    padded = np.concatenate([candidates, np.repeat(candidates[:1], padded_count(len(candidates)) - len(candidates), 0)])
    owners, distances = assign_rows(Rows(rows), padded, Passes(row_mesh(None), _BLOCK_ROWS))
    lengths = np.square(rows).sum(axis=1)
    return owners, np.where(distances > _ROUNDING**2 * lengths, distances, np.float32(0))


def _thin_out(
    rows: np.ndarray, weights: np.ndarray, num_clusters: int, key: PRNGKeyArray
) -> Float32[np.ndarray, "cluster feature"]:
    """Run `draw_centroids` on padded arrays of few different sizes, so that little is compiled."""
    # The rows of the padding have no weight and are never drawn; centroids beyond `num_clusters` are cut off.
    num_rows, num_drawn = padded_count(len(rows)), padded_count(num_clusters)
    padded = np.zeros((num_rows, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    trials = 2 + int(np.log(num_drawn))
    drawn = draw_centroids(padded, np.pad(weights, (0, num_rows - len(rows))), key, num_drawn, trials)
    return np.asarray(drawn)[:num_clusters]


@partial(jax.jit, static_argnames=("num_clusters", "num_trials"))
def draw_centroids(
    rows: Float32[Array, "row feature"],
    weights: Float32[Array, " row"],
    key: PRNGKeyArray,
    num_clusters: int,
    num_trials: int,
) -> Float32[Array, "cluster feature"]:
    """Draw centroids by greedy k-means++ from weighted rows."""
    norms = jnp.sum(rows * rows, axis=1)

    def draw(cluster: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        centroids, distances = state
        cumulated = jnp.cumsum(weights * distances)
        # Several rows are tried for each centroid; the row that leaves the smallest sum of distances is taken.
        drawn = cumulated[-1] * jax.random.uniform(jax.random.fold_in(key, cluster), (num_trials,))
        tried = jnp.searchsorted(cumulated, drawn, side="right")
        # Rounding may give an index after the last row with weight. If all distances are zero, we draw any row with
        # weight, which is a copy of a centroid.
        tried = jnp.minimum(tried, jnp.searchsorted(cumulated, cumulated[-1], side="left"))
        tried = jnp.where(cumulated[-1] > 0, tried, jnp.argmax(weights))
        products = jnp.matmul(rows[tried], rows.T, precision=lax.Precision.HIGHEST)
        sums = norms[tried][:, None] + norms
        apart = sums - 2 * products
        left = jnp.minimum(distances, jnp.where(apart > _ROUNDING * sums, apart, 0.0))
        best = jnp.argmin(jnp.sum(weights * left, axis=1))
        return centroids.at[cluster].set(rows[tried[best]]), left[best]

    # The first row is drawn only by the weights: all rows get the same distance, which is larger than all true
    # distances and has a finite sum.
    everywhere = jnp.full(len(rows), 4 * jnp.max(norms) + 1)
    return lax.fori_loop(0, num_clusters, draw, (jnp.zeros((num_clusters, rows.shape[1])), everywhere))[0]

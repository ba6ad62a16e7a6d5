"""Where k-means starts: greedy k-means++, k-means|| or random rows, drawn from a part of the training rows."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, PRNGKeyArray

from jax_diversity.clustering.lloyd import Passes, assign_rows, padded_count, row_mesh
from jax_diversity.clustering.rows import Rows
from jax_diversity.foundation.checks import one_of

ROWS_PER_CLUSTER = 16
"""The starting centroids are drawn from about this many rows a cluster ..."""
LEAST_ROWS = 16_384
"""... and never from fewer rows than this, where there are as many."""
ROUNDS = 5
"""Rounds of k-means||; each draws half as many candidates as there are clusters."""
_ROUNDING = 1e-6
"""Relative size below which a squared distance from a matrix product is rounding alone."""
_BLOCK_ROWS = 2048


def draw_start(rows: Rows, num_clusters: int, start: str, seed: int) -> Float32[np.ndarray, "cluster feature"]:
    """Starting centroids, each of them one of the rows; copies of rows may be drawn where rows run out.

    - `k-means++`: every next centroid is the best of a few rows drawn with the odds of their squared distance
      (Arthur & Vassilvitskii 2007; the greedy choice is from section 5.1 of the first author's thesis).
    - `k-means||`: a few rounds draw many candidates at once with those odds; the candidates, weighted by the rows
      nearest to them, are then thinned out by k-means++ (Bahmani et al. 2012, with rounds of a fixed size). Its
      steps do not grow with the number of clusters times rows, so it suits ten thousand clusters in one level.
    - `random`: rows with equal odds.
    """
    one_of("start", start, ("k-means++", "k-means||", "random"))
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
        found, nearer = _nearest_rows(rows, rows[drawn])
        closer = nearer < distances
        owners[closer] = len(candidates) + found[closer]
        distances[closer] = nearer[closer]
        candidates = np.concatenate([candidates, rows[drawn]])
    weights = np.bincount(owners, minlength=len(candidates)).astype(np.float32)
    return _thin_out(candidates, weights, num_clusters, thin_key)


@partial(jax.jit, static_argnames="num_drawn")
def _draw_distinct(distances: Float32[Array, " row"], key: PRNGKeyArray, num_drawn: int) -> Array:
    """Places of different rows, drawn with the odds of their distances."""
    # The largest logarithms with Gumbel noise are a draw without replacement (Gumbel-top-k, Kool et al. 2019).
    perturbed = jnp.log(distances) + jax.random.gumbel(key, distances.shape)
    return lax.top_k(perturbed, num_drawn)[1]


def _nearest_rows(rows: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every row's nearest candidate and the squared distance to it; what is only rounding becomes zero."""
    # Padded to one of few sizes, because each size is compiled. The padding, copies of the first candidate, comes
    # behind it, and of equals the lowest number is taken: no row gets a copy.
    padded = np.concatenate([candidates, np.repeat(candidates[:1], padded_count(len(candidates)) - len(candidates), 0)])
    owners, distances = assign_rows(Rows(rows), padded, Passes(row_mesh(None), _BLOCK_ROWS))
    lengths = np.square(rows).sum(axis=1)
    return owners, np.where(distances > _ROUNDING**2 * lengths, distances, np.float32(0))


def _thin_out(
    rows: np.ndarray, weights: np.ndarray, num_clusters: int, key: PRNGKeyArray
) -> Float32[np.ndarray, "cluster feature"]:
    """`draw_centroids` at one of few sizes: rows without weight are never drawn, surplus centroids are cut off."""
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
    """Greedy k-means++ over weighted rows."""
    norms = jnp.sum(rows * rows, axis=1)

    def draw(cluster: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        centroids, distances = state
        cumulated = jnp.cumsum(weights * distances)
        drawn = cumulated[-1] * jax.random.uniform(jax.random.fold_in(key, cluster), (num_trials,))
        tried = jnp.searchsorted(cumulated, drawn, side="right")
        # Rounding may give a place behind the last row with weight. Where all distances are zero, any row with
        # weight is drawn: a copy of a centroid.
        tried = jnp.minimum(tried, jnp.searchsorted(cumulated, cumulated[-1], side="left"))
        tried = jnp.where(cumulated[-1] > 0, tried, jnp.argmax(weights))
        products = jnp.matmul(rows[tried], rows.T, precision=lax.Precision.HIGHEST)
        both = norms[tried][:, None] + norms
        apart = both - 2 * products
        left = jnp.minimum(distances, jnp.where(apart > _ROUNDING * both, apart, 0.0))
        best = jnp.argmin(jnp.sum(weights * left, axis=1))
        return centroids.at[cluster].set(rows[tried[best]]), left[best]

    # The first row is drawn by the weights alone: all rows have the same distance, any above all true ones whose
    # sum stays finite.
    everywhere = jnp.full(len(rows), 4 * jnp.max(norms) + 1)
    return lax.fori_loop(0, num_clusters, draw, (jnp.zeros((num_clusters, rows.shape[1])), everywhere))[0]

"""Vectors -> topic clusters: k-means by Lloyd's algorithm, compiled with JAX, in blocks of rows.

Distances are Euclidean. The rows that documents' embeddings give have length one (or zero), so the nearest
centroid is the one with the largest `x · c - ‖c‖² / 2`: cosine similarity, less a little for tight clusters.
Centroids are plain means, not normalised again; a loose cluster's centroid is short and says so. All zero rows
(documents without a known term) are one point and share one cluster.

Memory beyond the vectors is one block's distances, (block, cluster), and the training rows' copy on the device.
The same vectors, settings, machine and versions give the same bits. On a CPU the number of rows in a block changes
neither centroids nor assignments; on an accelerator sums are added in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32, Int64, PRNGKeyArray

from jax_diversity.config import ClusterConfig
from jax_diversity.errors import UserError
from jax_diversity.progress import Advance, ignore

START_ROWS_PER_CLUSTER = 16
"""The starting centroids are drawn from about this many rows a cluster ..."""
LEAST_START_ROWS = 16_384
"""... and never from fewer rows than this, where there are as many."""
SETTLED_SHARE = 10_000
"""Lloyd stops when at most one training row in this many changes its cluster."""
_ROW_MULTIPLE = 64
"""Rows of a block: from here on, a matrix product's sums are the same for any multiple."""
_ROUNDING = 1e-6
"""Relative size below which a squared distance from a matrix product is nothing but rounding."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """Centroids and every document's cluster.

    Attributes:
        centroids: the clusters' means (of the documents that they were computed from).
        assignments: the nearest centroid of every document, ties to the lowest number.
        inertia: sum over all documents of the squared distance to their centroid.
        num_iterations: passes over the training documents until the centroids stood.
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
    block_rows: int | None = None,
) -> Clustering:
    """Cluster documents' vectors.

    Backend `jax` starts from greedy k-means++ centroids (Arthur & Vassilvitskii 2007, section 5.1 of the first
    author's thesis for the greedy choice) of a part of the rows and runs Lloyd's algorithm. A cluster that
    empties takes the training row that is farthest from its centroid. With more clusters than distinct rows
    some clusters stay empty; they keep the centroid they had. Backend `sklearn` runs MiniBatchKMeans. Both train
    on at most `config.train_documents` rows, drawn by `config.seed`, and then assign all documents alike.

    Args:
        vectors: one row a document; may be a memory map, which is read block by block.
        config: number of clusters, backend, limits, seed.
        advance: told the rows done, `num_rows_passed` in all.
        block_rows: rows in a block, rounded up to a multiple of 64; None takes what suits the device.

    Raises:
        UserError: fewer documents (or training documents) than clusters; NaN or infinite vectors; wrong shape.

    Example:
        >>> rows = np.array([[0, 1], [0, 1.1], [5, 0]], np.float32)
        >>> kmeans(rows, ClusterConfig(num_clusters=2)).assignments.tolist() in ([0, 0, 1], [1, 1, 0])
        True
    """
    check_vectors(vectors)
    _check_counts(len(vectors), config)
    chosen = _training_rows(len(vectors), config)
    if config.backend == "jax":
        centroids, num_iterations = _train_lloyd(vectors, chosen, config, advance, block_rows)
    else:
        centroids, num_iterations = _train_minibatch(vectors, chosen, config)
        advance(config.max_iterations * len(chosen))
    assignments, distances = _assign(vectors, centroids, advance, block_rows)
    return Clustering(centroids, assignments, float(distances.sum(dtype=np.float64)), num_iterations)


def num_rows_passed(num_documents: int, config: ClusterConfig) -> int:
    """What `kmeans` tells `advance` in all: rows of every allowed training pass and of the assignment.

    Passes that an early stop saves are reported at once when it happens.
    """
    return min(num_documents, config.train_documents) * config.max_iterations + num_documents


def assign(
    vectors: Float32[np.ndarray, "document feature"],
    centroids: Float32[np.ndarray, "cluster feature"],
    *,
    block_rows: int | None = None,
) -> Int32[np.ndarray, " document"]:
    """The nearest centroid of every row, ties to the lowest number.

    Raises:
        UserError: NaN or infinite vectors, or rows of another width than the centroids.
    """
    check_vectors(vectors)
    if vectors.shape[1] != centroids.shape[1]:
        raise UserError(
            f"Expected vectors as wide as the centroids, {centroids.shape[1]} features, found "
            f"{vectors.shape[1]}; embed the documents with the settings that the centroids came from."
        )
    return _assign(vectors, centroids, ignore, block_rows)[0]


def nearest_documents(
    vectors: Float32[np.ndarray, "document feature"], clustering: Clustering, num_nearest: int
) -> Int64[np.ndarray, "cluster num_nearest"]:
    """Every cluster's documents that are nearest to its centroid, nearest first, ties to the lowest index.

    Returns:
        Document indices; -1 where a cluster has fewer documents.
    """
    clusters = clustering.assignments
    distances = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), 8192):
        block = slice(start, start + 8192)
        distances[block] = np.square(vectors[block] - clustering.centroids[clusters[block]]).sum(axis=1)
    order = np.lexsort((distances, clusters))
    sorted_clusters = clusters[order]
    num_clusters = len(clustering.centroids)
    first = np.searchsorted(sorted_clusters, np.arange(num_clusters))
    rank = np.arange(len(order)) - first[sorted_clusters]
    near = rank < num_nearest
    nearest = np.full((num_clusters, num_nearest), -1, np.int64)
    nearest[sorted_clusters[near], rank[near]] = order[near]
    return nearest


def check_vectors(vectors: Any) -> None:
    """Whether something is a matrix of finite float32 rows; reads it block by block.

    Raises:
        UserError: it is not; names the shape and type, or the first row that is not finite.
    """
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.shape[1] == 0:
        raise UserError(
            f"Expected vectors of the shape (document, feature >= 1), found {np.shape(vectors)}; "
            "pass one row a document."
        )
    if vectors.dtype != np.float32:
        raise UserError(f"Expected float32 vectors, found {vectors.dtype}; convert them with .astype(np.float32).")
    for start in range(0, len(vectors), 8192):
        finite = np.isfinite(vectors[start : start + 8192]).all(axis=1)
        if not finite.all():
            row = start + int(np.argmin(finite))
            raise UserError(
                f"Expected finite vectors, found NaN or infinity in row {row}; "
                "repair or drop that document's embedding."
            )


def _check_counts(num_documents: int, config: ClusterConfig) -> None:
    num_clusters = config.num_clusters
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


def _training_rows(num_documents: int, config: ClusterConfig) -> Int64[np.ndarray, " row"]:
    if num_documents <= config.train_documents:
        return np.arange(num_documents)
    chosen = np.random.default_rng(config.seed).choice(num_documents, config.train_documents, replace=False)
    return np.sort(chosen)  # sorted, so that a memory map is read from front to back


def _train_minibatch(vectors: np.ndarray, chosen: np.ndarray, config: ClusterConfig) -> tuple[np.ndarray, int]:
    from sklearn.cluster import MiniBatchKMeans

    batch_size = max(1024, 2 * config.num_clusters)
    model: Any = MiniBatchKMeans(
        config.num_clusters,
        batch_size=batch_size,
        max_iter=config.max_iterations,
        n_init="auto",  # one start, by k-means++
        random_state=config.seed,
    )
    model.fit(vectors if len(chosen) == len(vectors) else vectors[chosen])
    return model.cluster_centers_.astype(np.float32), int(model.n_iter_)


def _train_lloyd(
    vectors: np.ndarray,
    chosen: np.ndarray,
    config: ClusterConfig,
    advance: Advance,
    block_rows: int | None,
) -> tuple[np.ndarray, int]:
    key = jax.random.key(config.seed)
    centroids = _start(vectors, chosen, config.num_clusters, key)
    blocks = [(jnp.asarray(rows), count) for rows, count in _padded_blocks(vectors, chosen, block_rows)]
    clusters = [jnp.full(len(rows), -1, jnp.int32) for rows, _ in blocks]
    distances = [jnp.zeros(len(rows)) for rows, _ in blocks]
    num_iterations = 0
    for _ in range(config.max_iterations):
        num_iterations += 1
        moments = _Moments.zeros(centroids.shape)
        for block, (rows, count) in enumerate(blocks):
            moments, clusters[block], distances[block] = _accumulate(
                moments, rows, count, clusters[block], centroids
            )
            advance(count)
        centroids = _move(centroids, moments)
        empty = np.flatnonzero(np.asarray(moments.counts) == 0)
        rows_far = _farthest(distances, chosen, len(empty), vectors) if len(empty) else chosen[:0]
        if len(rows_far):
            centroids = centroids.at[empty[: len(rows_far)]].set(vectors[rows_far])
        elif int(moments.num_changed) <= len(chosen) // SETTLED_SHARE:
            break
    advance((config.max_iterations - num_iterations) * len(chosen))
    return np.array(centroids), num_iterations


@partial(jax.tree_util.register_dataclass, data_fields=["residuals", "counts", "num_changed"], meta_fields=[])
@dataclass(frozen=True)
class _Moments:
    """What a pass sums up: rows less their centroids, rows, and rows that changed their cluster."""

    residuals: Any
    counts: Any
    num_changed: Any

    @staticmethod
    def zeros(shape: tuple[int, ...]) -> _Moments:
        return _Moments(jnp.zeros(shape), jnp.zeros(shape[0], jnp.int32), jnp.zeros((), jnp.int32))


@partial(jax.jit, donate_argnums=0)
def _accumulate(
    moments: _Moments,
    rows: Float32[Array, "row feature"],
    num_rows: Int32[Array, ""] | int,
    former: Int32[Array, " row"],
    centroids: Float32[Array, "cluster feature"],
) -> tuple[_Moments, Int32[Array, " row"], Float32[Array, " row"]]:
    """One block's share of a Lloyd pass; rows from `num_rows` on are padding and count nowhere.

    Residuals are summed instead of rows: they are small, so the sum loses less to rounding, and a cluster of
    identical rows stands still exactly.
    """
    clusters, residuals, distances = _nearest(rows, centroids)
    is_row = jnp.arange(len(rows)) < num_rows
    clusters = jnp.where(is_row, clusters, len(centroids))  # out of range: dropped from the sums
    moments = _Moments(
        # Accelerators add scattered rows in any order, slowly; a product with one-hot rows is exact and quick.
        jax.lax.platform_dependent(
            moments.residuals, clusters, residuals, cpu=_add_scattered, default=_add_multiplied
        ),
        moments.counts.at[clusters].add(1, mode="drop"),
        moments.num_changed + jnp.sum(is_row & (clusters != former), dtype=jnp.int32),
    )
    return moments, clusters, jnp.where(is_row, distances, 0.0)


def _add_scattered(sums: Array, clusters: Array, residuals: Array) -> Array:
    return sums.at[clusters].add(residuals, mode="drop")


def _add_multiplied(sums: Array, clusters: Array, residuals: Array) -> Array:
    one_hot = jax.nn.one_hot(clusters, len(sums), dtype=residuals.dtype)
    return sums + jnp.matmul(one_hot.T, residuals, precision=jax.lax.Precision.HIGHEST)


@jax.jit
def _nearest(
    rows: Float32[Array, "row feature"], centroids: Float32[Array, "cluster feature"]
) -> tuple[Int32[Array, " row"], Float32[Array, "row feature"], Float32[Array, " row"]]:
    """Nearest centroid, row less that centroid, and its squared length."""
    half_norms = 0.5 * jnp.sum(centroids * centroids, axis=1)
    products = jnp.matmul(centroids, rows.T, precision=jax.lax.Precision.HIGHEST)
    scores = half_norms[:, None] - products
    # XLA's CPU argmin is a scalar loop; a minimum and a search for it are both vectorised.
    least = jnp.min(scores, axis=0)
    numbers = jnp.arange(len(centroids), dtype=jnp.int32)[:, None]
    clusters = jnp.min(jnp.where(scores <= least, numbers, len(centroids) - 1), axis=0)
    residuals = rows - centroids[clusters]
    return clusters, residuals, jnp.sum(residuals * residuals, axis=1)


@jax.jit
def _move(centroids: Float32[Array, "cluster feature"], moments: _Moments) -> Float32[Array, "cluster feature"]:
    return centroids + moments.residuals / jnp.maximum(moments.counts, 1)[:, None]


def _farthest(
    distances: list[Any], chosen: np.ndarray, num_rows: int, vectors: np.ndarray
) -> Int64[np.ndarray, " far"]:
    """Up to `num_rows` rows of `vectors` that lie farthest from their centroids, at different distances.

    Copies of a row are equally far, so they count once. Rows that their centroid stands on are no help.
    """
    all_distances = np.concatenate([np.asarray(part) for part in distances])[: len(chosen)]
    values, first = np.unique(-all_distances, return_index=True)
    far = chosen[first[:num_rows]]
    lengths = np.square(vectors[far]).sum(axis=1)
    return far[-values[:num_rows] > _ROUNDING**2 * lengths]


def _start(
    vectors: np.ndarray, chosen: np.ndarray, num_clusters: int, key: PRNGKeyArray
) -> Float32[Array, "cluster feature"]:
    num_rows = min(len(chosen), max(START_ROWS_PER_CLUSTER * num_clusters, LEAST_START_ROWS))
    key, choice_key = jax.random.split(key)
    if num_rows < len(chosen):
        places = jax.random.permutation(choice_key, len(chosen))[:num_rows]
        chosen = chosen[np.sort(np.asarray(places))]
    return _draw_centroids(jnp.asarray(vectors[chosen]), key, num_clusters)


@partial(jax.jit, static_argnames="num_clusters")
def _draw_centroids(
    rows: Float32[Array, "row feature"], key: PRNGKeyArray, num_clusters: int
) -> Float32[Array, "cluster feature"]:
    """Greedy k-means++: each next centroid is the best of a few rows drawn with the odds of their distance."""
    num_trials = 2 + int(np.log(num_clusters))
    norms = jnp.sum(rows * rows, axis=1)

    def draw(cluster: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        centroids, distances = state
        cumulated = jnp.cumsum(distances)
        drawn = cumulated[-1] * jax.random.uniform(jax.random.fold_in(key, cluster), (num_trials,))
        tried = jnp.minimum(jnp.searchsorted(cumulated, drawn, side="right"), len(rows) - 1)
        products = jnp.matmul(rows[tried], rows.T, precision=jax.lax.Precision.HIGHEST)
        both = norms[tried][:, None] + norms
        apart = both - 2 * products
        left = jnp.minimum(distances, jnp.where(apart > _ROUNDING * both, apart, 0.0))
        best = jnp.argmin(jnp.sum(left, axis=1))
        return centroids.at[cluster].set(rows[tried[best]]), left[best]

    # The first row is drawn with equal odds; any distance above all others will do, if sums of it stay finite.
    everywhere = jnp.full(len(rows), 4 * jnp.max(norms) + 1)
    return jax.lax.fori_loop(0, num_clusters, draw, (jnp.zeros((num_clusters, rows.shape[1])), everywhere))[0]


def _assign(
    vectors: np.ndarray, centroids: np.ndarray, advance: Advance, block_rows: int | None
) -> tuple[Int32[np.ndarray, " document"], Float32[np.ndarray, " document"]]:
    """Nearest centroid of every row and the squared distance to it, streamed."""
    clusters = np.empty(len(vectors), np.int32)
    distances = np.empty(len(vectors), np.float32)
    on_device = jnp.asarray(centroids)
    start = 0
    for rows, count in _padded_blocks(vectors, np.arange(len(vectors)), block_rows):
        block_clusters, _, block_distances = _nearest(jnp.asarray(rows), on_device)
        clusters[start : start + count] = np.asarray(block_clusters)[:count]
        distances[start : start + count] = np.asarray(block_distances)[:count]
        start += count
        advance(count)
    return clusters, distances


def _padded_blocks(
    vectors: np.ndarray, chosen: np.ndarray, block_rows: int | None
) -> Iterator[tuple[np.ndarray, int]]:
    """Chosen rows in blocks of one shape, zeros below the last, each with its number of real rows.

    One shape means one compilation, whatever the number of documents; small corpora take the next power of two.
    """
    if block_rows is None:
        block_rows = 512 if jax.default_backend() == "cpu" else 8192
        block_rows = min(block_rows, 1 << max(len(chosen) - 1, 0).bit_length())
    block_rows = max(-(-block_rows // _ROW_MULTIPLE), 1) * _ROW_MULTIPLE
    for start in range(0, len(chosen), block_rows):
        rows = np.zeros((block_rows, vectors.shape[1]), np.float32)
        part = chosen[start : start + block_rows]
        rows[: len(part)] = vectors[part]
        yield rows, len(part)

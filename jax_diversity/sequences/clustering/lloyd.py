"""Lloyd's algorithm over blocks of rows on a mesh of devices, and the nearest centroids of a stream of rows.

Every device stores a slice of each block of rows and a copy of all centroids; a mesh may have only one device. A
device adds up the sums of its own rows. Once per pass these sums are added over the devices (`psum`), so that all
devices move their copies of the centroids in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32, Int64

from jax_diversity.foundation.devices import flat_mesh
from jax_diversity.foundation.progress import Advance, compiling, ignore
from jax_diversity.sequences.clustering.rows import Rows

AXIS = "rows"
BY_ROW: Any = PartitionSpec(AXIS)
EVERYWHERE: Any = PartitionSpec()

SETTLED_SHARE = 10_000
"""Lloyd's algorithm stops when at most one in this many training rows changes its cluster."""
_ROW_MULTIPLE = 64
"""The number of rows in a device's block is a multiple of this: then the sums of a matrix product are the same for all
block sizes."""
_ROUNDING = 1e-6
"""A row is equal to its centroid if the relative length of the difference is below this."""
_NO_DIRECTION = 1e-4
"""The mean of rows of length one has no direction if its length is below this."""


def row_mesh(mesh: Any) -> Mesh:
    """Return a mesh with the same devices on one axis; None means the first device of this process."""
    return flat_mesh(Mesh(np.array(jax.local_devices()[:1]), (AXIS,)) if mesh is None else mesh, AXIS)


def place(mesh: Mesh, values: np.ndarray, spec: Any) -> Array:
    """Put an array on the mesh; all processes pass the same values, and each keeps the part of its own devices."""
    sharding = NamedSharding(mesh, spec)
    if sharding.is_fully_addressable:
        return jax.device_put(values, sharding)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def fetch(mesh: Mesh, array: Array) -> np.ndarray:
    """Return the whole array from the mesh, in every process."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        array = jax.jit(lambda part: part, out_shardings=NamedSharding(mesh, EVERYWHERE))(array)
    return np.asarray(array)


def padded_count(count: int) -> int:
    """Round up to a power of two, or to 1.5 times a power of two (5: 6, 7: 8, 13: 16), so that there are few sizes."""
    power = 1 << max(count - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


@dataclass(frozen=True)
class Passes:
    """The settings of passes over rows."""

    mesh: Mesh
    block_rows: int | None = None  # of one device; None means a suitable number
    advance: Advance = ignore
    few_sizes: bool = False  # round up numbers of clusters: otherwise every number of clusters would be compiled

    def rows_at_once(self, num_rows: int) -> int:
        """Return the number of rows of a block on all devices together."""
        rows = self.block_rows
        if rows is None:
            # A block should stay in the cache of a processor, or fill an accelerator. For small corpora we use a power
            # of two.
            rows = 512 if self.mesh.devices.flat[0].platform == "cpu" else 8192
            rows = min(rows, 1 << max(-(-num_rows // self.mesh.size) - 1, 0).bit_length())
        return max(-(-rows // _ROW_MULTIPLE), 1) * _ROW_MULTIPLE * self.mesh.size


def lloyd(
    rows: Rows, start: Float32[np.ndarray, "cluster feature"], max_iterations: int, passes: Passes
) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
    """Move centroids to the means of their rows until they settle; return the centroids and the number of passes.

    In all, `passes.advance` gets `max_iterations` times the number of rows; after an early stop, the remaining rows are
    reported at the end.
    """
    mesh, num_clusters = passes.mesh, len(start)
    num_padding = padded_count(num_clusters) - num_clusters if passes.few_sizes else 0
    centroids = place(mesh, np.pad(start, ((0, num_padding), (0, 0))), EVERYWHERE)
    # The training rows stay on the devices over all passes: reading them costs more than a pass on an accelerator.
    blocks = [(place(mesh, block, BY_ROW), count) for block, count in rows.blocks(passes.rows_at_once(len(rows)))]
    unknown = np.full(passes.rows_at_once(len(rows)), -1, np.int32)
    clusters = [place(mesh, unknown, BY_ROW) for _ in blocks]
    distances: list[Any] = [None] * len(blocks)
    num_iterations = 0
    compiling(passes.advance)  # the first block compiles
    for _ in range(max_iterations):
        num_iterations += 1
        moments = Moments.zeros(centroids.shape, mesh)
        for number, (block, count) in enumerate(blocks):
            moments, clusters[number], distances[number] = accumulate(
                moments, block, count, clusters[number], centroids, num_clusters, mesh, rows.spherical
            )
            passes.advance(count)
        centroids, counts, num_changed = move(centroids, moments, mesh, rows.spherical)
        empty = np.flatnonzero(np.asarray(counts)[:num_clusters] == 0)
        # Distances are read from the devices only if a cluster is empty.
        far = _farthest(rows, [fetch(mesh, part) for part in distances], len(empty)) if len(empty) else empty
        if len(far):
            filled = np.array(centroids)
            filled[empty[: len(far)]] = rows.take(far)
            centroids = place(mesh, filled, EVERYWHERE)
        # We never stop right after a centroid was moved to a far row, because the cluster of this row must be computed
        # first.
        elif int(num_changed) <= len(rows) // SETTLED_SHARE:
            break
    passes.advance((max_iterations - num_iterations) * len(rows))
    return np.array(centroids)[:num_clusters], num_iterations


def _farthest(rows: Rows, distances: list[np.ndarray], num_rows: int) -> Int64[np.ndarray, " far"]:
    """Return the indices of up to `num_rows` rows that are farthest from their centroids, at different distances."""
    # Copies of a row are equally far away. `unique` keeps one of them; otherwise the copies would fill several
    # clusters.
    values, first = np.unique(-np.concatenate(distances)[: len(rows)], return_index=True)
    far = first[:num_rows]
    # A row that equals its centroid, except for rounding, would become a second centroid at the same point.
    lengths = np.square(rows.take(far)).sum(axis=1)
    return far[-values[:num_rows] > _ROUNDING**2 * lengths]


def assign_rows(
    rows: Rows, centroids: Float32[np.ndarray, "cluster feature"], passes: Passes
) -> tuple[Int32[np.ndarray, " row"], Float32[np.ndarray, " row"]]:
    """Find the nearest centroid of every row and the squared distance to it; rows are streamed and not kept."""
    mesh = passes.mesh
    clusters, distances = np.empty(len(rows), np.int32), np.empty(len(rows), np.float32)
    on_devices = place(mesh, centroids, EVERYWHERE)
    # The results of at most two blocks wait, because every waiting block keeps its rows on the devices.
    waiting: list[tuple[int, int, Any]] = []

    def take_one() -> None:
        start, count, result = waiting.pop(0)
        clusters[start : start + count] = fetch(mesh, result[0])[:count]
        distances[start : start + count] = fetch(mesh, result[1])[:count]
        passes.advance(count)

    start = 0
    compiling(passes.advance)
    for block, count in rows.blocks(passes.rows_at_once(len(rows))):
        # JAX computes in the background: the next block is read while the devices still work on this one.
        result = nearest(place(mesh, block, BY_ROW), on_devices, mesh, rows.spherical)
        waiting.append((start, count, result))
        start += count
        if len(waiting) > 2:  # `fetch` waits for the oldest result only
            take_one()
    while waiting:
        take_one()
    return clusters, distances


class Moments(NamedTuple):
    """The sums of a pass, per device: residuals (rows minus centroids), numbers of rows, rows with a new cluster."""

    residuals: Any
    counts: Any
    num_changed: Any

    @staticmethod
    def zeros(shape: tuple[int, ...], mesh: Mesh) -> Moments:
        """Return sums of no rows, for centroids of this shape."""
        return Moments(
            place(mesh, np.zeros((mesh.size, *shape), np.float32), BY_ROW),
            place(mesh, np.zeros((mesh.size, shape[0]), np.int32), BY_ROW),
            place(mesh, np.zeros(mesh.size, np.int32), BY_ROW),
        )


@partial(jax.jit, static_argnames=("mesh", "spherical"), donate_argnums=0)
def accumulate(
    moments: Moments,
    rows: Float32[Array, "row feature"],
    num_rows: Int32[Array, ""] | int,
    previous: Int32[Array, " row"],
    centroids: Float32[Array, "cluster feature"],
    num_clusters: Int32[Array, ""] | int,
    mesh: Mesh,
    spherical: bool,
) -> tuple[Moments, Int32[Array, " row"], Float32[Array, " row"]]:
    """Add one more block to the sums; also return every row's cluster and its squared distance.

    The cluster of a row of padding is out of range. We sum residuals and not rows: residuals are small, so the sum has
    smaller rounding errors, and a cluster of identical rows does not move at all. Rows from index `num_rows` on and
    centroids from index `num_clusters` on are padding. `previous` contains every row's cluster in the previous pass, at
    first -1. The memory of `moments` is reused (donated).
    """

    def part(
        moments: Moments, rows: Array, num_rows: Array, previous: Array, centroids: Array, num_clusters: Array
    ) -> Any:
        clusters, residuals, distances = _nearest_part(rows, centroids, num_clusters, spherical)
        is_row = lax.axis_index(AXIS) * len(rows) + jnp.arange(len(rows)) < num_rows
        clusters = jnp.where(is_row, clusters, len(centroids))  # out of range: dropped from the sums
        changed = moments.num_changed[0] + jnp.sum(is_row & (clusters != previous), dtype=jnp.int32)
        # Accelerators add scattered rows slowly and in any order. A product with one-hot rows multiplies exactly (by 0
        # or 1) and is fast.
        sums = lax.platform_dependent(
            moments.residuals[0], clusters, residuals, cpu=add_scattered, default=add_multiplied
        )
        summed = Moments(sums[None], moments.counts.at[0, clusters].add(1, mode="drop"), changed[None])
        return summed, clusters, jnp.where(is_row, distances, 0.0)

    specs = (BY_ROW, BY_ROW, EVERYWHERE, BY_ROW, EVERYWHERE, EVERYWHERE)
    over_mesh = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=BY_ROW, check_vma=False)
    return over_mesh(moments, rows, jnp.int32(num_rows), previous, centroids, jnp.int32(num_clusters))


@partial(jax.jit, static_argnames=("mesh", "spherical"))
def nearest(
    rows: Float32[Array, "row feature"], centroids: Float32[Array, "cluster feature"], mesh: Mesh, spherical: bool
) -> tuple[Int32[Array, " row"], Float32[Array, " row"]]:
    """Find the nearest centroid of every row, of equally near ones the first, and the squared distance to it."""

    def part(rows: Array, centroids: Array) -> Any:
        return _nearest_part(rows, centroids, jnp.int32(len(centroids)), spherical)[::2]

    over_mesh = jax.shard_map(part, mesh=mesh, in_specs=(BY_ROW, EVERYWHERE), out_specs=BY_ROW, check_vma=False)
    return over_mesh(rows, centroids)


def _nearest_part(rows: Array, centroids: Array, num_clusters: Array, spherical: bool) -> tuple[Array, Array, Array]:
    """For the rows of one device, find the nearest centroid, the row minus this centroid, and its squared length."""
    # ‖x‖² / 2 is the same for every centroid. Without it, ‖x - c‖² / 2 is ‖c‖² / 2 - x · c.
    half_norms = 0.5 * jnp.sum(centroids * centroids, axis=1)
    # Padding has an infinite norm, so that no row is assigned to it.
    numbers = jnp.arange(len(centroids), dtype=jnp.int32)
    present = jnp.where(numbers < num_clusters, half_norms, jnp.inf)
    if spherical:
        # A centroid of zeros has the score 2, above any centroid of length one: only rows of zeros may be assigned to
        # it.
        half_norms = jnp.where(half_norms > 0, 0.5, 2.0)
    half_norms = jnp.where(numbers < num_clusters, half_norms, jnp.inf)
    products = jnp.matmul(centroids, rows.T, precision=lax.Precision.HIGHEST)
    scores = half_norms[:, None] - products
    # On CPUs, XLA compiles argmin to a scalar loop. A minimum and a search for the minimum are both vectorised.
    least = jnp.min(scores, axis=0)
    nearest = jnp.min(jnp.where(scores <= least, numbers[:, None], len(centroids)), axis=0)
    # A compiler may compute the scores twice and round them differently, for example if rows have one feature, where it
    # fuses the product and the difference. Then a row may have no score that is as small as the minimum.
    clusters = lax.cond(
        jnp.any(nearest == len(centroids)), lambda: jnp.argmin(scores, axis=0).astype(jnp.int32), lambda: nearest
    )
    if spherical:
        # Every cosine with a row of zeros is 0. All such rows are assigned to the shortest centroid, so they are in one
        # cluster.
        is_blank = jnp.sum(rows * rows, axis=1) == 0
        clusters = jnp.where(is_blank, jnp.argmin(present).astype(jnp.int32), clusters)
    residuals = rows - centroids[clusters]
    return clusters, residuals, jnp.sum(residuals * residuals, axis=1)


def add_scattered(sums: Array, clusters: Array, residuals: Array) -> Array:
    """Add the residual of every row to the sum of its cluster; rows with a cluster out of range are dropped."""
    return sums.at[clusters].add(residuals, mode="drop")


def add_multiplied(sums: Array, clusters: Array, residuals: Array) -> Array:
    """Compute the same as `add_scattered` by a matrix product."""
    one_hot = jax.nn.one_hot(clusters, len(sums), dtype=residuals.dtype)
    return sums + jnp.matmul(one_hot.T, residuals, precision=lax.Precision.HIGHEST)


@partial(jax.jit, static_argnames=("mesh", "spherical"))
def move(
    centroids: Float32[Array, "cluster feature"], moments: Moments, mesh: Mesh, spherical: bool
) -> tuple[Float32[Array, "cluster feature"], Int32[Array, " cluster"], Int32[Array, ""]]:
    """Return the new means, the number of rows in each cluster, and the number of rows that changed their cluster.

    Empty clusters do not move. Spherical centroids are scaled to length one again; if the rows of a cluster cancel
    out, or are all zeros, its centroid is zero.
    """

    def part(centroids: Array, moments: Moments) -> tuple[Array, Array, Array]:
        # Every device gets the same sums, so all copies of the centroids stay bit for bit equal.
        summed: Moments = jax.tree.map(lambda sums: lax.psum(sums[0], AXIS), moments)
        means = centroids + summed.residuals / jnp.maximum(summed.counts, 1)[:, None]
        if spherical:
            lengths = jnp.sqrt(jnp.sum(means * means, axis=1, keepdims=True))
            means = jnp.where(lengths > _NO_DIRECTION, means / jnp.maximum(lengths, _NO_DIRECTION), 0.0)
        return means, summed.counts, summed.num_changed

    return jax.shard_map(part, mesh=mesh, in_specs=(EVERYWHERE, BY_ROW), out_specs=EVERYWHERE)(centroids, moments)

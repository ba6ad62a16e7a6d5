"""The compiled parts of k-means: nearest centroids of a block of rows, their sums, and where centroids move.

Everything here runs over a mesh, of one device where there is no other. A device adds up its own rows' sums; once
a pass they are added over the devices (`psum`), so that all of them move their copy of the centroids alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float32, Int32

from jax_diversity.clustering.mesh import AXIS, BY_ROW, EVERYWHERE, place

_NO_DIRECTION = 1e-4
"""Length below which the mean of rows of length one points nowhere."""


@partial(jax.tree_util.register_dataclass, data_fields=["residuals", "counts", "num_changed"], meta_fields=[])
@dataclass(frozen=True)
class Moments:
    """What a pass sums up on every device: rows less their centroids, rows, rows that changed their cluster."""

    residuals: Any
    counts: Any
    num_changed: Any

    @staticmethod
    def zeros(shape: tuple[int, int], mesh: Mesh) -> Moments:
        """Sums of nothing, for centroids of this shape."""
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
    former: Int32[Array, " row"],
    centroids: Float32[Array, "cluster feature"],
    num_clusters: Int32[Array, ""] | int,
    mesh: Mesh,
    spherical: bool,
) -> tuple[Moments, Int32[Array, " row"], Float32[Array, " row"]]:
    """One block's share of a Lloyd pass; rows from `num_rows` on are padding and count nowhere.

    Residuals are summed instead of rows: they are small, so the sum loses less to rounding, and a cluster of
    identical rows stands still exactly.

    Args:
        moments: this pass's sums so far; given away.
        rows: the block, laid over the mesh.
        num_rows: real rows of the block.
        former: every row's cluster in the pass before, -1 at first.
        centroids: the same on all devices.
        num_clusters: centroids from here on are padding, nearest to nothing.
        mesh: of one axis.
        spherical: rows have length one (or zero), and so have centroids.

    Returns:
        The sums with this block; every row's cluster (out of range for padding) and squared distance.
    """

    def part(
        moments: Moments, rows: Array, num_rows: Array, former: Array, centroids: Array, num_clusters: Array
    ) -> Any:
        clusters, residuals, distances = _nearest_part(rows, centroids, num_clusters, spherical)
        is_row = lax.axis_index(AXIS) * len(rows) + jnp.arange(len(rows)) < num_rows
        clusters = jnp.where(is_row, clusters, len(centroids))  # out of range: dropped from the sums
        changed = moments.num_changed[0] + jnp.sum(is_row & (clusters != former), dtype=jnp.int32)
        summed = Moments(
            # Accelerators add scattered rows in any order, slowly; a product with one-hot rows is exact and quick.
            lax.platform_dependent(
                moments.residuals[0], clusters, residuals, cpu=add_scattered, default=add_multiplied
            )[None],
            moments.counts.at[0, clusters].add(1, mode="drop"),
            changed[None],
        )
        return summed, clusters, jnp.where(is_row, distances, 0.0)

    specs = (BY_ROW, BY_ROW, EVERYWHERE, BY_ROW, EVERYWHERE, EVERYWHERE)
    over_mesh = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=BY_ROW, check_vma=False)
    numbers = jnp.asarray(num_rows, jnp.int32), jnp.asarray(num_clusters, jnp.int32)
    return over_mesh(moments, rows, numbers[0], former, centroids, numbers[1])


@partial(jax.jit, static_argnames=("mesh", "spherical"))
def nearest(
    rows: Float32[Array, "row feature"], centroids: Float32[Array, "cluster feature"], mesh: Mesh, spherical: bool
) -> tuple[Int32[Array, " row"], Float32[Array, " row"]]:
    """Every row's nearest centroid, ties to the lowest number, and the squared distance to it."""

    def part(rows: Array, centroids: Array) -> tuple[Array, Array]:
        clusters, _, distances = _nearest_part(rows, centroids, jnp.int32(len(centroids)), spherical)
        return clusters, distances

    return jax.shard_map(part, mesh=mesh, in_specs=(BY_ROW, EVERYWHERE), out_specs=BY_ROW, check_vma=False)(
        rows, centroids
    )


def _nearest_part(rows: Array, centroids: Array, num_clusters: Array, spherical: bool) -> tuple[Array, Array, Array]:
    """One device's rows: nearest centroid, row less that centroid, and its squared length."""
    half_norms = 0.5 * jnp.sum(centroids * centroids, axis=1)
    numbers = jnp.arange(len(centroids), dtype=jnp.int32)
    present = jnp.where(numbers < num_clusters, half_norms, jnp.inf)
    if spherical:
        # By cosine, nothing but a row of zeros is near to a centroid of zeros.
        half_norms = jnp.where(half_norms > 0, 0.5, 2.0)
    half_norms = jnp.where(numbers < num_clusters, half_norms, jnp.inf)
    products = jnp.matmul(centroids, rows.T, precision=lax.Precision.HIGHEST)
    scores = half_norms[:, None] - products
    # XLA's CPU argmin is a scalar loop; a minimum and a search for it are both vectorised.
    least = jnp.min(scores, axis=0)
    clusters = jnp.min(jnp.where(scores <= least, numbers[:, None], len(centroids) - 1), axis=0)
    if spherical:
        is_blank = jnp.sum(rows * rows, axis=1) == 0
        clusters = jnp.where(is_blank, jnp.argmin(present).astype(jnp.int32), clusters)
    residuals = rows - centroids[clusters]
    return clusters, residuals, jnp.sum(residuals * residuals, axis=1)


def add_scattered(sums: Array, clusters: Array, residuals: Array) -> Array:
    """Sums with every row's residual added to its cluster's; out of range is dropped."""
    return sums.at[clusters].add(residuals, mode="drop")


def add_multiplied(sums: Array, clusters: Array, residuals: Array) -> Array:
    """The same by a matrix product."""
    one_hot = jax.nn.one_hot(clusters, len(sums), dtype=residuals.dtype)
    return sums + jnp.matmul(one_hot.T, residuals, precision=lax.Precision.HIGHEST)


@partial(jax.jit, static_argnames=("mesh", "spherical"))
def move(
    centroids: Float32[Array, "cluster feature"], moments: Moments, mesh: Mesh, spherical: bool
) -> tuple[Float32[Array, "cluster feature"], Int32[Array, " cluster"], Int32[Array, ""]]:
    """The means of a pass's clusters, rows in each, and rows that changed theirs; empty clusters stay.

    Spherical centroids are drawn out to length one again; where rows cancel out, or all are zeros, to none.
    """

    def part(centroids: Array, moments: Moments) -> tuple[Array, Array, Array]:
        summed: Moments = jax.tree.map(lambda sums: lax.psum(sums[0], AXIS), moments)
        means = centroids + summed.residuals / jnp.maximum(summed.counts, 1)[:, None]
        if spherical:
            lengths = jnp.sqrt(jnp.sum(means * means, axis=1, keepdims=True))
            means = jnp.where(lengths > _NO_DIRECTION, means / jnp.maximum(lengths, _NO_DIRECTION), 0.0)
        return means, summed.counts, summed.num_changed

    return jax.shard_map(part, mesh=mesh, in_specs=(EVERYWHERE, BY_ROW), out_specs=EVERYWHERE)(centroids, moments)

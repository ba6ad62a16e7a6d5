"""Lloyd's algorithm over blocks of rows, and the nearest centroids of a stream of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float32, Int32, Int64

from jax_diversity.clustering.mesh import BY_ROW, EVERYWHERE, fetch, place
from jax_diversity.clustering.passes import Moments, accumulate, move, nearest
from jax_diversity.clustering.rows import Rows
from jax_diversity.clustering.starts import padded_count
from jax_diversity.foundation.progress import Advance, ignore

SETTLED_SHARE = 10_000
"""Lloyd stops when at most one training row in this many changes its cluster."""
_ROW_MULTIPLE = 64
"""Rows of a device's block: from here on, a matrix product's sums are the same for any multiple."""
_ROUNDING = 1e-6
"""Relative length below which a row stands on its centroid."""


@dataclass(frozen=True)
class Passes:
    """How passes over rows are made.

    Attributes:
        mesh: the devices, as one axis.
        block_rows: rows of a block on one device; None takes what suits it.
        advance: told the rows done.
        few_sizes: fill up numbers of clusters to one of few: for many clusterings, each number of which would be
            compiled anew.
    """

    mesh: Mesh
    block_rows: int | None = None
    advance: Advance = ignore
    few_sizes: bool = False

    def rows_at_once(self, num_rows: int) -> int:
        """Rows of a block on all devices together."""
        rows = self.block_rows
        if rows is None:
            # Blocks that stay in a processor's cache, or fill an accelerator; small corpora take a power of two.
            rows = 512 if self.mesh.devices.flat[0].platform == "cpu" else 8192
            rows = min(rows, 1 << max(-(-num_rows // self.mesh.size) - 1, 0).bit_length())
        return max(-(-rows // _ROW_MULTIPLE), 1) * _ROW_MULTIPLE * self.mesh.size


def lloyd(
    rows: Rows, start: Float32[np.ndarray, "cluster feature"], max_iterations: int, passes: Passes
) -> tuple[Float32[np.ndarray, "cluster feature"], int]:
    """Move centroids to their rows' means until they stand; the centroids, and passes made.

    A cluster that empties takes the row that is farthest from its centroid. `passes.advance` is told
    `max_iterations` times the rows in all, what an early stop saves at once.
    """
    mesh, num_clusters = passes.mesh, len(start)
    num_padding = padded_count(num_clusters) - num_clusters if passes.few_sizes else 0
    centroids = place(mesh, np.pad(start, ((0, num_padding), (0, 0))), EVERYWHERE)
    blocks = [(place(mesh, block, BY_ROW), count) for block, count in rows.blocks(passes.rows_at_once(len(rows)))]
    unknown = np.full(passes.rows_at_once(len(rows)), -1, np.int32)
    clusters = [place(mesh, unknown, BY_ROW) for _ in blocks]
    distances: list[Any] = [None] * len(blocks)
    num_iterations = 0
    for _ in range(max_iterations):
        num_iterations += 1
        moments = Moments.zeros((num_clusters + num_padding, rows.width), mesh)
        for number, (block, count) in enumerate(blocks):
            moments, clusters[number], distances[number] = accumulate(
                moments, block, count, clusters[number], centroids, num_clusters, mesh, rows.spherical
            )
            passes.advance(count)
        centroids, counts, num_changed = move(centroids, moments, mesh, rows.spherical)
        empty = np.flatnonzero(np.asarray(counts)[:num_clusters] == 0)
        far = _farthest(rows, [fetch(mesh, part) for part in distances], len(empty)) if len(empty) else empty
        if len(far):
            filled = np.array(centroids)
            filled[empty[: len(far)]] = rows.take(far)
            centroids = place(mesh, filled, EVERYWHERE)
        elif int(num_changed) <= len(rows) // SETTLED_SHARE:
            break
    passes.advance((max_iterations - num_iterations) * len(rows))
    return np.array(centroids)[:num_clusters], num_iterations


def _farthest(rows: Rows, distances: list[np.ndarray], num_rows: int) -> Int64[np.ndarray, " far"]:
    """Places of up to `num_rows` rows that lie farthest from their centroids, at different distances.

    Copies of a row are equally far, so they count once. Rows that their centroid stands on are no help.
    """
    values, first = np.unique(-np.concatenate(distances)[: len(rows)], return_index=True)
    far = first[:num_rows]
    lengths = np.square(rows.take(far)).sum(axis=1)
    return far[-values[:num_rows] > _ROUNDING**2 * lengths]


def assign_rows(
    rows: Rows, centroids: Float32[np.ndarray, "cluster feature"], passes: Passes
) -> tuple[Int32[np.ndarray, " row"], Float32[np.ndarray, " row"]]:
    """Nearest centroid of every row and the squared distance to it, streamed; nothing of the rows is kept."""
    mesh = passes.mesh
    clusters, distances = np.empty(len(rows), np.int32), np.empty(len(rows), np.float32)
    on_devices = place(mesh, centroids, EVERYWHERE)
    waiting: list[tuple[int, int, Any]] = []

    def take_one() -> None:
        start, count, found = waiting.pop(0)
        clusters[start : start + count] = fetch(mesh, found[0])[:count]
        distances[start : start + count] = fetch(mesh, found[1])[:count]
        passes.advance(count)

    start = 0
    for block, count in rows.blocks(passes.rows_at_once(len(rows))):
        # The next block is read while the devices still work on this one.
        found = nearest(place(mesh, block, BY_ROW), on_devices, mesh, rows.spherical)
        waiting.append((start, count, found))
        start += count
        if len(waiting) > 2:
            take_one()
    while waiting:
        take_one()
    return clusters, distances

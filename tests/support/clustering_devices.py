"""K-means on several devices of one process, or of several; a program of its own. Prints what it found as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jax_diversity.sequences.clustering.assignment import assign
from jax_diversity.sequences.clustering.base import cluster

NUM_DEVICES = (2, 8)


def blurred_blobs(num_blobs: int = 30, rows_each: int = 41, width: int = 12) -> np.ndarray:
    """Rows around centres, near enough to each other that passes have work to do; some zeros, some copies."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((num_blobs, width)) * 2
    rows = np.repeat(centres, rows_each, axis=0) + rng.standard_normal((num_blobs * rows_each, width))
    rows[::50] = 0
    rows[7:60:9] = rows[7]
    return rng.permutation(rows).astype(np.float32)


CONFIGS: dict[str, dict[str, Any]] = {
    "euclidean": {"num_clusters": 30},
    "spherical": {"num_clusters": 30, "spherical": True},
    "random start, empty clusters": {"num_clusters": 60, "start": "random", "train_documents": 900},
    "two levels": {"num_clusters": 40, "coarse_clusters": 5},
}


def found_on(mesh: Mesh | None, config: dict[str, Any], rows: np.ndarray) -> dict:
    """A clustering on a mesh, as JSON has it."""
    found = cluster(rows, **config, mesh=mesh, block_rows=64)
    again, _ = assign(rows, found.centroids, spherical=config.get("spherical", False), mesh=mesh, block_rows=64)
    return {
        "inertia": found.inertia,
        "num_iterations": found.num_iterations,
        "assignments": found.assignments.tolist(),
        "centroids": found.centroids.tolist(),
        "assigned again": bool((again == found.assignments).all()),
    }


def main() -> None:
    """Either on 2, 6 and 8 devices of this process, or with `process of coordinator` on those of all."""
    rows = blurred_blobs()
    if len(sys.argv) > 1:
        process, num_processes, coordinator = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, num_processes, process, initialization_timeout=240)
        meshes, cases = {"all": Mesh(np.array(jax.devices()), ("rows",))}, ["euclidean", "two levels"]
    else:
        meshes = {str(number): Mesh(np.array(jax.devices()[:number]), ("rows",)) for number in NUM_DEVICES}
        cases = list(CONFIGS)
        meshes["grid"] = Mesh(np.array(jax.devices()[:6]).reshape(2, 3)[::-1], ("data", "tensor"))
    found = {name: {case: found_on(mesh, CONFIGS[case], rows) for case in cases} for name, mesh in meshes.items()}
    print(json.dumps({"num_devices": jax.device_count(), "found": found}))


if __name__ == "__main__":
    main()

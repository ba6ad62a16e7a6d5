"""Global batches on several devices, by one or several processes: a program that tests start.

    python -m tests.loader_devices ROOT PROCESS NUM_PROCESSES COORDINATOR

prints one line of JSON: for every sharding, a hash of each global batch as the devices hold it, gathered from all
processes, and the rows that this process read. XLA_FLAGS says how many devices a process has.
"""

from __future__ import annotations

import hashlib
import json
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

import jax_diversity as jd

BATCH_SIZE = 8
SPECS = {
    "rows": ("data",),
    "rows and tokens": ("data", "model"),
    "tokens": (None, "model"),
    "replicated": (),
    "rows over both": (("data", "model"),),
}


def batch_hash(inputs: np.ndarray, targets: np.ndarray) -> str:
    """Of the values alone, whoever holds them."""
    parts = [np.ascontiguousarray(rows, np.int32).tobytes() for rows in (inputs, targets)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def main() -> None:
    """Run all shardings over all devices of all processes."""
    root, process, num_processes, coordinator = sys.argv[1:]
    if int(num_processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, int(num_processes), int(process), initialization_timeout=240)
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"))
    hashes, rows = {}, {}
    for name, spec in SPECS.items():
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        loader = jd.make_loader(root, global_batch_size=BATCH_SIZE, sharding=sharding, drop_remainder=False)
        hashes[name] = []
        for batch in loader:
            assert all(isinstance(array, jax.Array) and array.sharding == sharding for array in batch.values())
            whole = multihost_utils.process_allgather((batch["inputs"], batch["targets"]), tiled=True)
            hashes[name].append(batch_hash(*whole))
        rows[name] = loader.batches.windows.row_numbers
    print(json.dumps({"num_devices": jax.device_count(), "hashes": hashes, "rows": rows}))


if __name__ == "__main__":
    main()

"""Global batches on several devices, by one or several processes: a program that tests start.

    python -m tests.loader_devices ROOT PROCESS NUM_PROCESSES COORDINATOR

prints one line of JSON: for every sharding, a hash of each global batch as the devices hold it, gathered from all
processes, the rows that this process read, and where the rows of a blend come from. XLA_FLAGS says how many devices
a process has.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

import jax_diversity as jd
from jax_diversity.loader.loader import Loader
from jax_diversity.loader.settings import ORIGIN_FIELDS

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


def blended(root: str, **settings: Any) -> Loader:
    """A dataset blended with itself: the last batch is not full, and its rows come from nowhere."""
    ordering = jd.open_dataset(root).orderings["balance"]
    blend = jd.blend([ordering, ordering], [2, 1], 2 * BATCH_SIZE + 3).to_schedule()
    return jd.make_loader([root, root], ordering=blend, global_batch_size=BATCH_SIZE, drop_remainder=False, **settings)


def origins(root: str, sharding: NamedSharding) -> list[list[list[int]]]:
    """Every batch's dataset and sequence of every row."""
    spec, found = PartitionSpec(*tuple(sharding.spec)[:1]), []
    for batch in blended(root, sharding=sharding):
        assert all(array.sharding.spec == spec for field, array in batch.items() if field in ORIGIN_FIELDS)
        assert all(array.sharding == sharding for field, array in batch.items() if field not in ORIGIN_FIELDS)
        whole = multihost_utils.process_allgather([batch[field] for field in ORIGIN_FIELDS], tiled=True)
        found.append([rows.tolist() for rows in whole])
    return found


def main() -> None:
    """Run all shardings over all devices of all processes."""
    root, process, num_processes, coordinator = sys.argv[1:]
    if int(num_processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, int(num_processes), int(process), initialization_timeout=240)
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"))
    hashes, rows, blends = {}, {}, {}
    for name, spec in SPECS.items():
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        loader = jd.make_loader(root, global_batch_size=BATCH_SIZE, sharding=sharding, drop_remainder=False)
        hashes[name] = []
        for batch in loader:
            assert all(isinstance(array, jax.Array) and array.sharding == sharding for array in batch.values())
            whole = multihost_utils.process_allgather((batch["inputs"], batch["targets"]), tiled=True)
            hashes[name].append(batch_hash(*whole))
        rows[name] = loader.batches.windows.row_numbers
        blends[name] = origins(root, sharding)
    print(json.dumps({"num_devices": jax.device_count(), "hashes": hashes, "rows": rows, "origins": blends}))


if __name__ == "__main__":
    main()

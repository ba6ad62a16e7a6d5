"""Global batches on several devices, by one or several processes: a program that tests start.

    python -m tests.support.loader_devices ROOT RUN PROCESS NUM_PROCESSES COORDINATOR

prints one line of JSON: for every sharding, a hash of each global batch as the devices hold it, gathered from all
processes, of a dataset (decoded on the host and on the devices) and of a schedule with sequences of two lengths, the
rows that this process read, and where the rows of a mixture come from. XLA_FLAGS says how many devices a process has.
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
from jax_diversity.streaming.loader.loader import Loader
from jax_diversity.streaming.run.interleaving import interleave
from jax_diversity.streaming.run.source import ORIGIN_FIELDS
from jax_diversity.streaming.run.weights import phases_of

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


def mixed(root: str, **settings: Any) -> Loader:
    """A dataset mixed with itself; the last batch is filled up with padding."""
    ordering = jd.open_dataset(root).orderings["balance"]
    chosen = interleave(*phases_of([2, 1]), 2 * BATCH_SIZE + 3)
    numbers = [ordering[int((chosen[:at] == of).sum())] + of * len(ordering) for at, of in enumerate(chosen.tolist())]
    run = jd.make_run([root, root], positions=numbers)
    return jd.make_loader(run, global_batch_size=BATCH_SIZE, drop_remainder=False, **settings)


def hashes_on_devices(loader: Loader, sharding: NamedSharding) -> list[str]:
    """Of every batch."""
    hashes = []
    for batch in loader:
        assert all(isinstance(array, jax.Array) for array in batch.values())
        assert all(array.sharding == sharding for field, array in batch.items() if field not in ORIGIN_FIELDS)
        hashes.append(batch_hash(*multihost_utils.process_allgather((batch["inputs"], batch["targets"]), tiled=True)))
    return hashes


def origins(root: str, sharding: NamedSharding) -> list[list[list[int]]]:
    """Every batch's dataset and sequence of every row."""
    spec, found = PartitionSpec(*tuple(sharding.spec)[:1]), []
    for batch in mixed(root, sharding=sharding):
        assert all(array.sharding.spec == spec for field, array in batch.items() if field in ORIGIN_FIELDS)
        assert all(array.sharding == sharding for field, array in batch.items() if field not in ORIGIN_FIELDS)
        whole = multihost_utils.process_allgather([batch[field] for field in ORIGIN_FIELDS], tiled=True)
        found.append([rows.tolist() for rows in whole])
    return found


def main() -> None:
    """Run all shardings over all devices of all processes."""
    root, run, process, num_processes, coordinator = sys.argv[1:]
    if int(num_processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(coordinator, int(num_processes), int(process), initialization_timeout=240)
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("data", "model"))
    hashes, expanded, longer, rows, places = {}, {}, {}, {}, {}
    settings: dict[str, Any] = {"global_batch_size": BATCH_SIZE, "drop_remainder": False}
    for name, spec in SPECS.items():
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        loader = jd.make_loader(root, sharding=sharding, **settings)
        hashes[name] = hashes_on_devices(loader, sharding)
        there = jd.make_loader(root, sharding=sharding, **settings, decode="device")
        expanded[name] = hashes_on_devices(there, sharding)
        longer[name] = hashes_on_devices(jd.make_loader(jd.open_schedule(run), sharding=sharding, **settings), sharding)
        rows[name] = loader.batches.windows.row_numbers
        places[name] = origins(root, sharding)
    found = {"hashes": hashes, "expanded": expanded, "longer": longer, "rows": rows, "origins": places}
    print(json.dumps({"num_devices": jax.device_count(), **found}))


if __name__ == "__main__":
    main()

"""One process of a run over several: a program that tests start once a process.

    python -m tests.support.two_processes PROCESS NUM_PROCESSES COORDINATOR FOLDER

prints one line of JSON: every case's order, and what became of the checkpoint of a run that was cut off. XLA_FLAGS
says how many devices a process has.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

import jax

from jax_diversity import Objective, order
from jax_diversity.counts import token_counts
from jax_diversity.ordering import running
from tests.support.many_devices import Interrupted, alike_characteristics

OBJECTIVE = Objective(windows=(16, 50), window_weight=0.37)
CASES = {"greedy": {}, "greedy_pool": {"pool_size": 61}, "balance": {"pool_size": 11, "part_size": 16}}
NUM_SEQUENCES = 250
SEQUENCES_PER_CHUNK = 100
STEPS_PER_CALL = 50


def main() -> None:
    """Run all cases over all devices of all processes."""
    process, num_processes, coordinator, folder = sys.argv[1:]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, int(num_processes), int(process), initialization_timeout=240)
    mesh = jax.make_mesh((jax.device_count(),), ("sequences",))
    chars = alike_characteristics(NUM_SEQUENCES)
    running.STEPS_PER_CALL = STEPS_PER_CALL
    # Every process has a folder of its own, as hosts have disks: only the first one's is written.
    path = Path(folder) / process / "run"
    path.parent.mkdir()
    orders, kept = {}, []
    for method, options in CASES.items():
        arguments = {"objective": OBJECTIVE, "mesh": mesh, **options}
        orders[method] = order(chars, method, **arguments).indices.tolist()
        try:
            order(chars, method, advance=Interrupted(100), folder=path, **arguments)
        except KeyboardInterrupt:
            kept.append((path / "checkpoint").exists())
        told: list[int] = []
        continued = order(chars, method, advance=told.append, folder=path, **arguments)
        orders[f"{method}, continued after {told[0]}"] = continued.indices.tolist()
        kept.append((path / "checkpoint").exists())
    # In chunks, every process keeps a state of its own, and only the processes together can continue.
    token_counts.MOST_ROWS = SEQUENCES_PER_CHUNK
    arguments = {"objective": OBJECTIVE, "mesh": mesh, "folder": path, **CASES["balance"]}
    with suppress(KeyboardInterrupt):
        order(chars, "balance", **arguments | {"advance": Interrupted(150)})
    states = [each.name for each in path.iterdir()]
    chunked = order(chars, "balance", **arguments).indices.tolist()
    kept.append(any(path.iterdir()))
    values = {"orders": orders, "kept": kept, "chunked": chunked, "states": states}
    print(json.dumps({"num_devices": jax.device_count(), **values}))


if __name__ == "__main__":
    main()

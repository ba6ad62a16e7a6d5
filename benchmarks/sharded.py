"""Measure microseconds per selection on a mesh of 1, 2, 4 and 8 devices: exact greedy algorithm and refilled pool.

    python benchmarks/sharded.py [--write] [--sequences 100000] [--steps 2000]

On a machine with several accelerators, the meshes consist of these accelerators. Elsewhere they consist of emulated
devices, which share the processor's cores. Emulated devices show the time of a step's collective operation, but not the
gain of real devices. A row also says whether the same sequences are chosen as on one device without a mesh.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

NUM_DEVICES = (1, 2, 4, 8)
POOL_SIZE = 4096
NUM_FLAG = "--xla_force_host_platform_device_count="


def emulate(flags: str, num_devices: int) -> str:
    """XLA's flags with this number of emulated devices."""
    return " ".join([*(flag for flag in flags.split() if not flag.startswith(NUM_FLAG)), f"{NUM_FLAG}{num_devices}"])


def best_time(make: Callable[[], Any], num_steps: int, repeats: int) -> tuple[float, float, Any]:
    """Return seconds of the first run, microseconds per step of the best later run, and the chosen sequences."""
    import jax
    import numpy as np

    selector = make()
    start = time.perf_counter()
    selector.run(num_steps)
    chosen = np.asarray(selector.placed())
    first, best = time.perf_counter() - start, float("inf")
    for _ in range(repeats):
        selector = make()
        jax.block_until_ready(selector.state)
        start = time.perf_counter()
        selector.run(num_steps)
        jax.block_until_ready(selector.state)
        best = min(best, time.perf_counter() - start)
    return first, best / num_steps * 1e6, chosen


def measure(num_sequences: int, num_steps: int, repeats: int) -> list[dict[str, Any]]:
    """Both methods without a mesh and on meshes of this process's devices."""
    import corpora
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from jax_diversity.ordering import greedy, mesh, pool
    from jax_diversity.ordering.objective import Objective
    from jax_diversity.ordering.plan import Plan

    chars, objective = corpora.synthetic(num_sequences), Objective()
    plan = Plan.build(chars, objective)
    stream = np.random.default_rng(0).permutation(num_sequences)
    shared = [mesh.flat_mesh(Mesh(np.array(jax.devices()[:number]), ("sequences",))) for number in NUM_DEVICES]

    def exact(devices: Mesh | None) -> greedy.GreedySelector:
        return greedy.GreedySelector(plan, objective, devices)

    def pooled(devices: Mesh | None) -> pool.PoolSelector:
        return pool.PoolSelector(plan, objective, stream, pool.PoolSizes.of_whole(plan, stream, POOL_SIZE), devices)

    rows = []
    for method, make in (("greedy", exact), ("greedy_pool", pooled)):
        alone: Any = None
        for devices in (None, *(each for each in shared if each.size <= jax.device_count())):
            first, step, chosen = best_time(lambda make=make, devices=devices: make(devices), num_steps, repeats)
            alone = chosen if alone is None else alone
            rows.append(
                {
                    "method": method,
                    "num_devices": "no mesh" if devices is None else devices.size,
                    "first_run_seconds": round(first, 2),
                    "microseconds": round(step, 1),
                    "same_order": bool(np.array_equal(chosen, alone)),
                }
            )
    return [{"device": jax.devices()[0].device_kind, "platform": jax.default_backend()}, *rows]


def main() -> None:
    """Print the table; with --write, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write results/sharded.json")
    parser.add_argument("--sequences", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.sequences, arguments.steps, arguments.repeats)))
        return
    # XLA reads the number of emulated devices once, when it starts, so each number needs a new process.
    environment = {**os.environ, "XLA_FLAGS": emulate(os.environ.get("XLA_FLAGS", ""), max(NUM_DEVICES))}
    command = [sys.executable, __file__, "--measure"]
    command += [f"--{name}={getattr(arguments, name)}" for name in ("sequences", "steps", "repeats")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    about, *rows = json.loads(done.stdout.splitlines()[-1])
    print(f"{arguments.sequences:,} sequences, a pool of {POOL_SIZE}, {about['device']} ({about['platform']})\n")
    print(f"{'method':12}{'devices':>9}{'first run s':>13}{'µs a step':>11}{'same order':>12}")
    for row in rows:
        print(
            f"{row['method']:12}{row['num_devices']:>9}{row['first_run_seconds']:>13}{row['microseconds']:>11}"
            f"{'yes' if row['same_order'] else 'NO':>12}"
        )
    if arguments.write:
        import results_file

        settings = {name: getattr(arguments, name) for name in ("sequences", "steps")}
        about = {**about, **settings, "pool_size": POOL_SIZE, **results_file.environment("jax", "numpy")}
        results_file.write("sharded", {**about, "selections": rows})


if __name__ == "__main__":
    main()

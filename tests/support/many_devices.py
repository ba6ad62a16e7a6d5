"""Orders made on 2 to 8 emulated devices beside one device's own: a program that a test starts.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.support.many_devices FOLDER

prints one line of JSON: case -> whether the orders are the same, and which platforms the selectors lower for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh

from jax_diversity import Characteristics, Objective, order
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation import compilation
from jax_diversity.ordering import greedy, mesh, pool, running
from jax_diversity.ordering.plan import Plan
from tests.support.ordering_cases import random_copies
from tests.support.synthetic import synthetic_characteristics

WINDOWS = Objective(windows=(16, 50), window_weight=0.37)
TARGETS = Targets((0, 90, 200), {"half": np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]])})
NUM_DEVICES = (2, 8)


class Interrupted:
    """Interrupts a run after so many positions, as a user would."""

    def __init__(self, num_positions: int) -> None:
        self.left = num_positions

    def __call__(self, num_positions: int) -> None:
        self.left -= num_positions
        if self.left <= 0:
            raise KeyboardInterrupt


def alike_characteristics(num_sequences: int) -> Characteristics:
    """Sequences of unequal token counts, dozens of each alike, of one to twelve groups: ties at every step."""
    kinds = np.zeros((6, 12), int)
    kinds[0], kinds[1, 0], kinds[2, 1], kinds[3, :3] = 7, 80, 33, (5, 7, 11)
    kinds[4, ::4] = 27
    rows = kinds[np.random.default_rng(1).integers(0, 6, num_sequences)]
    rng = np.random.default_rng(2)
    documents = rng.integers(-1, num_sequences // 5, num_sequences)
    counts = {"topic": rows, "half": rows.reshape(-1, 2, 6).sum(axis=2)}
    copies = random_copies(num_sequences, rng)
    return Characteristics.from_counts(counts, documents=documents, copies=copies)


def devices(number: int) -> Mesh:
    """A mesh of the first devices."""
    return Mesh(np.array(jax.devices()[:number]), ("any name",))


def equal(*arguments: Any, meshes: list[Mesh], **options: Any) -> bool:
    """Whether the orders of one device and of every mesh are the same."""
    alone = order(*arguments, **options).indices
    return all(np.array_equal(order(*arguments, mesh=shared, **options).indices, alone) for shared in meshes)


def greedy_cases(folder: Path) -> Iterator[tuple[str, bool]]:
    """The exact greedy."""
    chars = alike_characteristics(300)
    moving = {"objective": WINDOWS, "targets": TARGETS, "consumed": np.arange(0, 40, 2)}
    for number in NUM_DEVICES:
        same = equal(chars, "greedy", meshes=[devices(number)], **moving)
        yield f"greedy, ties, windows, moving targets, consumed, {number} devices", same
    common = synthetic_characteristics(300, num_clusters=20, num_bins=5)
    norms = Objective.f3(0.5, form="norms")
    same = equal(chars, "greedy", meshes=[devices(8)], **{**moving, "objective": norms})
    yield "greedy, norms, ties, moving targets, consumed, 8 devices", same
    yield "greedy, norms, a common corpus, 3 devices", equal(common, "greedy", meshes=[devices(3)], objective=norms)
    yield "greedy, a common corpus, 3 devices", equal(common, "greedy", meshes=[devices(3)])
    greedy._REPACK_ABOVE, former = 250, greedy._REPACK_ABOVE
    running.STEPS_PER_CALL = 64
    yield "greedy, tables built again", equal(chars, "greedy", meshes=[devices(8)], **moving)
    greedy._REPACK_ABOVE = former
    few = alike_characteristics(5)
    yield "greedy, fewer sequences than devices", equal(few, "greedy", meshes=[devices(8)])
    yield from continued_cases("greedy", chars, moving, folder)


def num_programs() -> int:
    """How many programs JAX holds for the pool's steps."""
    return compilation._for_small_steps(pool.run, ("mesh",), True)._cache_size()


def pool_cases(folder: Path) -> Iterator[tuple[str, bool]]:
    """The refilled pool."""
    chars = alike_characteristics(300)
    moving = {"objective": WINDOWS, "targets": TARGETS, "consumed": np.arange(0, 40, 2), "pool_size": 61}
    running.STEPS_PER_CALL = 64
    order(chars, "greedy_pool", **moving)
    for number in NUM_DEVICES:
        before = num_programs()
        same = equal(chars, "greedy_pool", meshes=[devices(number)], **moving)
        yield f"pool, ties, windows, moving targets, consumed, {number} devices", same
        yield f"pool, one program for all calls, {number} devices", num_programs() == before + 1
    grid = Mesh(np.array(jax.devices()[:6]).reshape(2, 3)[::-1], ("data", "tensor"))
    same = equal(chars, "greedy_pool", meshes=[grid], pool_size=5)
    yield "pool, fewer slots than devices, a grid of devices backwards", same
    yield from continued_cases("greedy_pool", chars, moving, folder)
    wide = wide_characteristics(300)
    same = equal(wide, "balance", meshes=[devices(3)], objective=WINDOWS, pool_size=61)
    yield "balance, deferred columns, 3 devices", same
    parts = {**moving, "pool_size": 31, "part_size": 40}
    for number in (1, 3):
        yield f"balance in parts, {number} devices", equal(chars, "balance", meshes=[devices(number)], **parts)
    deferring = {"objective": WINDOWS, "pool_size": 61}
    # The programs of the case above.
    yield from continued_cases("balance", wide, deferring, folder, [(None, devices(3))])


def wide_characteristics(num_sequences: int) -> Characteristics:
    """Sequences of a hundred groups, so that a pool defers columns; every third sequence is like another one."""
    rng = np.random.default_rng(3)
    counts = rng.poisson(rng.gamma(0.7, 1.0, 250), (num_sequences, 250))
    counts[::3] = counts[1]
    return Characteristics.from_counts(
        {"word": counts, "half": counts.reshape(-1, 2, 125).sum(axis=2)},
        documents=rng.integers(-1, num_sequences // 5, num_sequences),
    )


def continued_cases(
    method: str,
    chars: Characteristics,
    options: dict[str, Any],
    folder: Path,
    changes: list[tuple[Mesh | None, Mesh | None]] | None = None,
) -> Iterator[tuple[str, bool]]:
    """Runs cut off on some devices that go on on others."""
    running.STEPS_PER_CALL = 64
    whole = order(chars, method, **options).indices
    for before, after in changes or [(None, devices(2)), (devices(2), devices(8)), (devices(8), None)]:
        path = folder / "run"
        try:
            order(chars, method, advance=Interrupted(128), folder=path, mesh=before, **options)
        except KeyboardInterrupt:
            told: list[int] = []
            rest = order(chars, method, advance=told.append, folder=path, mesh=after, **options).indices
            sizes = " to ".join(str(1 if shared is None else shared.size) for shared in (before, after))
            yield f"{method}, continued, {sizes} devices", told[0] >= 128 and np.array_equal(rest, whole)


def platforms() -> list[tuple[str, ...]]:
    """What both selectors lower for, asked for TPUs."""
    chars = synthetic_characteristics(100)
    plan = Plan.build(chars, WINDOWS)
    shared = mesh.flat_mesh(devices(8))
    exact = greedy.GreedySelector(plan, WINDOWS, shared)
    stream = np.arange(chars.num_sequences)
    pooled = pool.PoolSelector(plan, WINDOWS, stream, pool.PoolSizes.of_whole(plan, stream, 32), shared)
    steps = jnp.int32(5)
    first = mesh.replicated(shared, (exact._rule, exact._rows, exact.candidates, exact.state, steps))
    second = mesh.replicated(shared, (pooled.rule, pooled.rows, pooled.stream, pooled.state, steps))
    return [
        export.export(greedy.run, platforms=["tpu"])(*first, False, shared).platforms,
        export.export(pool.run, platforms=["tpu"])(*second, shared).platforms,
    ]


def main() -> None:
    """Run all cases."""
    folder = Path(sys.argv[1])
    cases = dict([*greedy_cases(folder), *pool_cases(folder)])
    print(json.dumps({"num_devices": jax.device_count(), "cases": cases, "platforms": platforms()}))


if __name__ == "__main__":
    main()

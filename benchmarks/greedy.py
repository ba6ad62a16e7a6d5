"""Compare a step of the exact greedy algorithm with compiled scalar code (numba) for the same arithmetic, in one run.

    python benchmarks/greedy.py [--write]

Each row has eight features in 1,100 groups, plus the norm column, as in a corpus of 1,000 clusters and 100 length bins.
Compilation is timed separately. On a machine with an accelerator, JAX runs there; numba stays on the processor.
"""

from __future__ import annotations

import argparse
import time

import jax
import numba
import numpy as np
import results_file

from jax_diversity.counts import Characteristics
from jax_diversity.ordering import greedy
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Plan

NUM_FEATURES = 8
TARGETS = {10_000: 60.0, 100_000: 450.0}  # microseconds per step


def make_characteristics(num_sequences: int) -> Characteristics:
    """Make sequences of 2,048 tokens, each with four clusters and four length bins."""
    rng = np.random.default_rng(0)
    counts = {}
    for family, num_groups in (("cluster", 1000), ("length", 100)):
        dense = np.zeros((num_sequences, num_groups), np.int32)
        for _ in range(NUM_FEATURES // 2):
            np.add.at(dense, (np.arange(num_sequences), rng.integers(0, num_groups, num_sequences)), 512)
        counts[family] = dense
    return Characteristics.from_counts(counts)


@numba.njit(fastmath=True)
def scalar_steps(columns, values, norms, own_costs, targets, weights, num_steps, tokens):
    """The same rule, one sequence at a time, with a float32 state without compensation."""
    deviation = np.zeros(len(targets), np.float32)
    costs = own_costs.copy()
    order = np.zeros(num_steps, np.int64)
    for step in range(num_steps):
        best, chosen = np.float32(np.inf), -1
        gradient = np.float32(2) * weights * deviation
        for row in range(len(costs)):
            score = costs[row] + gradient[-1] * norms[row]
            for feature in range(columns.shape[1]):
                score += gradient[columns[row, feature]] * values[row, feature]
            if score < best:
                best, chosen = score, row
        order[step] = chosen
        costs[chosen] = np.inf
        deviation[:-1] -= tokens * targets[:-1]
        deviation[-1] += norms[chosen] - targets[-1]
        for feature in range(columns.shape[1]):
            deviation[columns[chosen, feature]] += values[chosen, feature]
    return order


def padded_rows(features: Features) -> tuple[np.ndarray, np.ndarray]:
    """Make row-major tables, which are fast for scalar code."""
    widths = np.diff(features.row_starts)
    used = np.arange(widths.max()) < widths[:, None]
    columns, values = np.zeros(used.shape, np.int32), np.zeros(used.shape, np.float32)
    columns[used], values[used] = features.columns, features.values
    return columns, values


def microseconds(run, num_steps: int, repeats: int = 5) -> float:
    """Return the best time of some runs, per step."""
    best = np.inf
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best / num_steps * 1e6


def measure(num_sequences: int) -> dict[str, float]:
    """Return the microseconds per step of both."""
    chars, objective = make_characteristics(num_sequences), Objective()
    features = Features.build(chars, objective)
    num_steps = min(2000, 20_000_000 // num_sequences)
    columns, values = padded_rows(features)
    tokens = np.float32(chars.sequence_length)
    targets = features.targets.astype(np.float32)
    scalar = (columns, values, features.norms, features.own_costs, targets, features.column_weights)
    scalar_steps(*scalar, 1, tokens)

    start = time.perf_counter()
    plan = Plan.build(chars, objective)
    selector = greedy.GreedySelector(plan, objective)
    tables_seconds = time.perf_counter() - start
    start, first = time.perf_counter(), selector.state
    selector.run(0)
    compile_seconds = time.perf_counter() - start

    def ours() -> None:
        selector.state = first
        selector.run(num_steps)

    jax_step = microseconds(ours, num_steps)
    numba_step = microseconds(lambda: scalar_steps(*scalar, num_steps, tokens), num_steps, repeats=3)
    return {
        "num_sequences": num_sequences,
        "tables_seconds": round(tables_seconds, 2),
        "compile_seconds": round(compile_seconds, 2),
        "jax_microseconds": round(jax_step, 1),
        "numba_microseconds": round(numba_step, 1),
        "ratio": round(numba_step / jax_step, 2),
        "target_microseconds": TARGETS[num_sequences],
    }


def main() -> None:
    """Print the table; with --write, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/greedy.json")
    write = parser.parse_args().write
    titles = ("sequences", "tables s", "compile s", "jax µs", "numba µs", "numba/jax", "target µs")
    print("".join(f"{title:>11}" for title in titles))
    rows = []
    for num_sequences in TARGETS:
        row = measure(num_sequences)
        rows.append(row)
        print("".join(f"{value:>11,}" for value in row.values()))
    if write:
        about = results_file.environment("jax", "numba", "numpy")
        results_file.write("greedy", {"device": str(jax.devices()[0]), **about, "steps": rows})


if __name__ == "__main__":
    main()

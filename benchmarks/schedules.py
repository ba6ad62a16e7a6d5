"""Stored schedules of runs: the time to make, open and follow them, and the time without a schedule.

    python benchmarks/schedules.py --dataset OUT [--num-epochs 5] [--write]

Three ratios are measured: a schedule of epochs to its orders alone; a loader of the schedule to a loader of the plain
ordering (alternately); the plan of a mixture of many datasets to a plain loop with the same rule. Then a hundred epochs
of a million synthetic sequences are measured. One epoch is ordered by `balance`, for the time of an order. All epochs
are shuffled, stored and opened, for the time of a schedule without its orders.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corpora
import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.streaming.run import interleaving
from jax_diversity.streaming.run.interleaving import interleave
from jax_diversity.streaming.run.weights import phases_of

SCHEDULE_TARGET, LOADER_TARGET, OPEN_TARGET, MIXTURE_TARGET = 1.05, 0.95, 1.0, 10.0


def seconds(work: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def making(dataset: jd.Dataset, num_epochs: int, folder: Path, repeats: int) -> dict[str, float]:
    """Best seconds of the epochs' orders alone, and of their stored schedule, measured alternately."""
    chars = dataset.characteristics

    def orders() -> None:
        previous = None
        for epoch in range(num_epochs):
            previous = jd.order(chars, seed=epoch, previous=previous)

    orders()  # compiles
    times: dict[str, list[float]] = {"orders": [], "schedule": []}
    for turn in range(repeats):
        times["orders"].append(seconds(orders))
        path = folder / f"epochs-{turn}"
        times["schedule"].append(seconds(lambda path=path: jd.create_schedule(path, dataset, num_epochs=num_epochs)))
    best = {name: min(values) for name, values in times.items()}
    return {**best, "ratio": best["schedule"] / best["orders"]}


class Synthetic(jd.Dataset):
    """Make a dataset of token counts without texts, which can be ordered."""

    def __init__(self, root: Path, num_sequences: int) -> None:
        super().__init__(root)
        self._counts = corpora.synthetic(num_sequences)

    fingerprint = "synthetic"
    sequence_length = property(lambda self: self._counts.sequence_length)
    num_sequences = property(lambda self: self._counts.num_sequences)
    characteristics = property(lambda self: self._counts)


def large(num_sequences: int, num_epochs: int, folder: Path) -> dict[str, float]:
    """Seconds for many epochs of a large dataset: for the orders, for the rest, and to open the schedule."""
    dataset, shuffled = Synthetic(folder, num_sequences), {"method": "uniform_shuffle"}
    chars = dataset.characteristics
    jd.order(chars)  # compiles
    of_order = seconds(lambda: jd.order(chars, seed=1))
    two = seconds(lambda: jd.create_schedule(folder / "two", dataset, num_epochs=2))
    shuffles = seconds(lambda: [jd.order(chars, seed=epoch, **shuffled) for epoch in range(num_epochs)])
    stored = seconds(lambda: jd.create_schedule(folder / "many", dataset, num_epochs=num_epochs, **shuffled))
    besides = (stored - shuffles) / num_epochs

    def opened() -> None:
        run = jd.open_schedule(folder / "many")
        run.at(np.array([0, len(run) - 1]))

    return {
        "positions": num_epochs * num_sequences,
        "an order": of_order,
        "two epochs stored": two,
        "an epoch besides its order": besides,
        "ratio": 1 + besides / of_order,
        "seconds to open": seconds(opened),
    }


def following(dataset: jd.Dataset, folder: Path, repeats: int) -> dict[str, float]:
    """Best records per second of a loader of a schedule and of a loader of the same ordering, measured alternately."""
    run = jd.create_schedule(folder / "one", dataset, ordering="balance")
    rates: dict[str, list[float]] = {"ordering": [], "schedule": []}
    settings = {"global_batch_size": 256, "fields": ("inputs",), "num_epochs": 10}
    for _ in range(repeats):
        for name, given in (("ordering", dataset), ("schedule", run)):
            loader = jd.make_loader(given, **settings)
            took = seconds(lambda loader=loader: sum(1 for _ in loader))
            rates[name].append(len(loader) * 256 / took)
    best = {name: max(values) for name, values in rates.items()}
    ratios = [after / before for before, after in zip(*rates.values(), strict=True)]
    return {**best, "ratio": statistics.median(ratios)}


def mixing(num_datasets: int, num_positions: int) -> dict[str, float]:
    """Seconds to plan a mixture, with compilation, and of the plain loop, estimated from a part of it."""
    weights = np.random.default_rng(0).random(num_datasets)
    planned = seconds(lambda: interleave(*phases_of(weights), num_positions))
    part = min(num_positions, interleaving._SHORT - 1)
    loop = seconds(lambda: interleave(*phases_of(weights), part)) * num_positions / part
    return {"datasets": num_datasets, "positions": num_positions, "seconds": planned, "loop (reckoned)": loop}


def main() -> None:
    """Print the results; with --write, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="a built dataset's folder")
    parser.add_argument("--num-epochs", type=int, default=5)
    parser.add_argument("--num-sequences", type=int, default=1_000_000, help="sequences of the large synthetic dataset")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write results/schedules.json")
    arguments = parser.parse_args()
    about = results_file.environment("jax", "numpy")
    dataset = jd.open_dataset(arguments.dataset)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "making": making(dataset, arguments.num_epochs, folder, arguments.repeats),
            "following": following(dataset, folder, arguments.repeats),
            "large": large(arguments.num_sequences, 100, folder),
        }
    found["mixing"] = mixing(1_000, 10_000_000)
    for what, figures in found.items():
        print(f"{what}: " + ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()))
    verdicts = {
        f"a schedule takes at most {SCHEDULE_TARGET} times its orders": found["making"]["ratio"] <= SCHEDULE_TARGET,
        f"a loader has at least {LOADER_TARGET} of the rate": found["following"]["ratio"] >= LOADER_TARGET,
        f"a hundred epochs open in {OPEN_TARGET} s": found["large"]["seconds to open"] <= OPEN_TARGET,
        f"a hundred epochs of a million take at most {SCHEDULE_TARGET} times their orders": found["large"]["ratio"]
        <= SCHEDULE_TARGET,
        f"a mixture is planned in {MIXTURE_TARGET} s": found["mixing"]["seconds"] <= MIXTURE_TARGET,
    }
    for target, reached in verdicts.items():
        print(f"{'reached' if reached else 'NOT REACHED'}: {target}")
    if arguments.write:
        size = {"num_sequences": dataset.num_sequences, "sequence_length": dataset.sequence_length}
        results_file.write("schedules", {**about, "dataset": size, **found})


if __name__ == "__main__":
    main()

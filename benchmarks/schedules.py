"""Stored schedules of runs: the time to make, open and follow them, beside orders and loaders without a schedule.

    python benchmarks/schedules.py --dataset OUT [--num-epochs 5] [--write]

Four ratios: a schedule of epochs to the orders that it holds; a loader of the schedule to one of the plain ordering, in
turn; opening a schedule of a hundred epochs; and the plan of a mixture of many datasets to the plain loop of its rule.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.ordering.composition import interleaving
from jax_diversity.ordering.composition.blending import interleave

SCHEDULE_TARGET, LOADER_TARGET, OPEN_TARGET, MIXTURE_TARGET = 1.05, 0.95, 1.0, 10.0


def seconds(work: Callable[[], Any]) -> float:
    """Of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def making(dataset: jd.Dataset, num_epochs: int, folder: Path, repeats: int) -> dict[str, float]:
    """Seconds of the epochs' orders alone, and of the stored schedule of them, in turn, at best."""
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


def opening(dataset: jd.Dataset, folder: Path) -> dict[str, float]:
    """Seconds to open a schedule of a hundred epochs and to read its first and last positions."""
    jd.create_schedule(folder / "hundred", dataset, num_epochs=100, method="uniform_shuffle")

    def opened() -> None:
        run = jd.open_schedule(folder / "hundred")
        run.at(np.array([0, len(run) - 1]))

    return {"positions": 100 * dataset.num_sequences, "seconds": seconds(opened)}


def following(dataset: jd.Dataset, folder: Path, repeats: int) -> dict[str, float]:
    """Records a second of a loader of a schedule and of one of the same ordering, in turn, at best."""
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
    """Seconds to plan a mixture, compilation included, and of the plain loop by a part of it."""
    weights = np.random.default_rng(0).random(num_datasets)
    planned = seconds(lambda: interleave(weights, num_positions))
    part = min(num_positions, interleaving._SHORT - 1)
    loop = seconds(lambda: interleave(weights, part)) * num_positions / part
    return {"datasets": num_datasets, "positions": num_positions, "seconds": planned, "loop (reckoned)": loop}


def main() -> None:
    """Print the figures; with --write, keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="a built dataset's folder")
    parser.add_argument("--num-epochs", type=int, default=5)
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
            "opening": opening(dataset, folder),
        }
    found["mixing"] = mixing(1_000, 10_000_000)
    for what, figures in found.items():
        print(f"{what}: " + ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()))
    verdicts = {
        f"a schedule takes at most {SCHEDULE_TARGET} times its orders": found["making"]["ratio"] <= SCHEDULE_TARGET,
        f"a loader has at least {LOADER_TARGET} of the rate": found["following"]["ratio"] >= LOADER_TARGET,
        f"a hundred epochs open in {OPEN_TARGET} s": found["opening"]["seconds"] <= OPEN_TARGET,
        f"a mixture is planned in {MIXTURE_TARGET} s": found["mixing"]["seconds"] <= MIXTURE_TARGET,
    }
    for target, reached in verdicts.items():
        print(f"{'reached' if reached else 'NOT REACHED'}: {target}")
    if arguments.write:
        size = {"num_sequences": dataset.num_sequences, "sequence_length": dataset.sequence_length}
        results_file.write("schedules", {**about, "dataset": size, **found})


if __name__ == "__main__":
    main()

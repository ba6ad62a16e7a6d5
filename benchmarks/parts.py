"""Orders in parts against one part: seconds, and how balanced windows and prefixes are.

    python benchmarks/parts.py [--sequences 200000 1000000] [--datasets DATASET ...] [--seeds 1] [--write]

The synthetic corpus of `corpora.py` (1,000 clusters, 100 length bins, 2,048 tokens per sequence), and built datasets,
with their default families, without and with `tokens`. Both orders are made in the same run, after a first order that
compiles; the seconds are those of the faster of two orders. All ratios are parts to one part: means and worst windows
over all start positions, the largest prefix deviation, and the repeats in windows of 1,024.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import corpora
import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.foundation.processes import num_cores
from jax_diversity.ordering.parts import parts_of
from jax_diversity.sequences.characteristics.settings import default_families

WINDOWS = (64, 256, 1024)
LARGEST_MEASURED = 300_000
PART_SIZE = 32_768


def cases(sequences: list[int], datasets: list[str]) -> dict[str, jd.Characteristics]:
    """Name -> token counts."""
    found = {f"synthetic-{number}": corpora.synthetic(number) for number in sequences}
    for path in datasets:
        dataset = jd.open_dataset(path)
        chars = dataset.characteristics
        weights = default_families(dict.fromkeys(chars.families, 2))
        name = f"{dataset.root.name} ({chars.sequence_length} tokens)"
        found[f"{name}, without tokens"] = chars.with_weights({**weights, "tokens": 0.0})
        found[name] = chars.with_weights(weights)
    return found


def compare(chars: jd.Characteristics, seeds: int) -> dict[str, Any]:
    """Time and measure the orders of one corpus."""
    options: dict[str, dict[str, Any]] = {
        "one part": {"part_size": chars.num_sequences},
        "parts": {"part_size": PART_SIZE},
    }
    orders: dict[str, list[jd.Ordering]] = {name: [] for name in options}
    seconds: dict[str, list[float]] = {name: [] for name in options}
    for seed in range(max(seeds, 2)):
        for name, given in options.items():
            if not seed:
                jd.order(chars, seed=99, **given)  # compiles
            start = time.perf_counter()
            orders[name].append(jd.order(chars, seed=seed, **given))
            seconds[name].append(time.perf_counter() - start)
    found: dict[str, Any] = {
        "num_sequences": chars.num_sequences,
        "num_parts": parts_of(chars.num_sequences, PART_SIZE),
        "num_cores": num_cores(),
        "seconds": {name: round(min(each), 2) for name, each in seconds.items()},
        "times_as_fast": round(min(seconds["one part"]) / min(seconds["parts"]), 2),
    }
    if chars.num_sequences > LARGEST_MEASURED:
        return found
    measured = {
        name: [jd.measure(chars, each, windows=WINDOWS, every_start=True) for each in made[:seeds]]
        for name, made in orders.items()
    }

    def ratio(value: Callable[[jd.Balance], float]) -> float:
        whole, parts = (np.mean([value(each) for each in measured[name]]) for name in options)
        return round(float(parts / whole), 3)

    def of_family(family: str) -> dict[str, Any]:
        return {
            "mean": [ratio(lambda each, size=size: each.window_tv_every_start[family][size].mean) for size in WINDOWS],
            "worst": [
                ratio(lambda each, size=size: each.window_tv_every_start[family][size].worst) for size in WINDOWS
            ],
            "prefix": ratio(lambda each: each.prefix_l2[family].max()),
        }

    found |= {family: of_family(family) for family, weight in chars.weights.items() if weight > 0}
    found["repeats"] = ratio(lambda each: each.documents.repeats[max(WINDOWS)].mean() if each.documents else np.nan)
    return found


def main() -> None:
    """Run all cases, print and store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="*", default=[200_000, 1_000_000])
    parser.add_argument("--datasets", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for name, chars in cases(arguments.sequences, arguments.datasets).items():
        results[name] = compare(chars, arguments.seeds)
        print(name)
        for measure, value in results[name].items():
            print(f"  {measure}: {value}", flush=True)
    if arguments.write:
        results_file.write(
            "parts", {"environment": results_file.environment("jax", "jaxlib", "numpy"), "results": results}
        )


if __name__ == "__main__":
    main()

"""Joint orders of two datasets with the same features, compared with a mixture by position and with a shuffle.

    python benchmarks/mixtures.py --datasets FIRST SECOND [--write]

`jax-diversity build --features-from FIRST` makes the second dataset. Windows are compared with the shares of the run
itself.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import results_file

import jax_diversity as jd
from jax_diversity.streaming.run.joining import joined_characteristics

WINDOWS = (64, 256, 1024)
RUNS: dict[str, dict[str, Any]] = {
    "by size, one epoch": {},
    "half each, one epoch": {"weights": [1, 1]},
    "1 : 4, one and a half epochs": {"weights": [1, 4], "num_epochs": 1.5},
}


def figures(chars: jd.Characteristics, numbers: np.ndarray) -> dict[str, Any]:
    """Measure windows, prefixes, repeats of documents, and gaps of repeated sequences relative to an even spacing."""
    times = np.bincount(numbers, minlength=chars.num_sequences)
    shares = {family: (counts.T @ times) / (chars.tokens @ times) for family, counts in chars.counts.items()}
    balance = jd.measure(chars, jd.make_run(chars, positions=numbers), windows=WINDOWS, targets=shares)
    found: dict[str, Any] = {}
    for family in chars.families:
        windows = {size: balance.window_tv[family][size] for size in WINDOWS}
        found[family] = {
            "TV": {size: [float(values.mean()), float(values.max())] for size, values in windows.items()},
            "prefix": float(balance.prefix_l2[family].max()),
        }
    documents = chars.documents[numbers]
    found["repeats"] = {}
    for size in WINDOWS:
        windows = documents[: len(documents) // size * size].reshape(-1, size)
        known = [window[window >= 0] for window in windows]
        found["repeats"][size] = float(np.mean([len(each) - len(np.unique(each)) for each in known]))
    order = np.argsort(numbers, kind="stable")
    again = np.diff(numbers[order]) == 0
    spacing = len(numbers) / times[numbers[order]][1:]
    if again.any():
        gaps = (np.diff(order) / spacing)[again]
        found["gaps"] = {"smallest": float(gaps.min()), "1 %": float(np.quantile(gaps, 0.01))}
    return found


def main() -> None:
    """Print the results; with --write, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", type=Path, nargs=2, required=True, help="two built datasets' folders")
    parser.add_argument("--write", action="store_true", help="write results/mixtures.json")
    arguments = parser.parse_args()
    about = results_file.environment("jax", "numpy")
    datasets = [jd.open_dataset(path) for path in arguments.datasets]
    chars = joined_characteristics(datasets)
    found: dict[str, Any] = {}
    for name, settings in RUNS.items():
        found[name] = {}
        for kind in ("mixed by position", "joint"):
            seconds = []
            for _ in range(2):  # the first compiles
                with tempfile.TemporaryDirectory() as folder:
                    start = time.perf_counter()
                    run = jd.create_schedule(Path(folder) / "run", datasets, joint=kind == "joint", **settings)
                    seconds.append(time.perf_counter() - start)
                    numbers = run.at(np.arange(len(run)))
            found[name][kind] = {"seconds": seconds[1], **figures(chars, numbers)}
        found[name]["shuffle"] = figures(chars, np.random.default_rng(0).permutation(numbers))
        print(f"\n{name}: {len(numbers):,} positions")
        for kind, values in found[name].items():
            parts = [f"{kind:<18}", f"{values['seconds']:.1f} s" if "seconds" in values else ""]
            for family in ("cluster", "length", "source"):
                mean, worst = values[family]["TV"][256]
                parts.append(f"{family} {mean:.4f} / {worst:.4f}, prefix {values[family]['prefix']:.1f}")
            parts.append("repeats " + " / ".join(f"{values['repeats'][size]:.2f}" for size in WINDOWS))
            if "gaps" in values:
                parts.append(f"gaps {values['gaps']['smallest']:.2f}, {values['gaps']['1 %']:.2f}")
            print("; ".join(filter(None, parts)))
    if arguments.write:
        sizes = [dataset.num_sequences for dataset in datasets]
        results_file.write("mixtures", {**about, "sequences": sizes, **found})


if __name__ == "__main__":
    main()

"""Measure how `balance` grows with the corpus: seconds and peak memory from 50,000 sequences to a million.

    python benchmarks/scaling.py [--large] [--write]

The synthetic corpus of `corpora.py`: 1,000 clusters and 100 length bins, 2,048 tokens per sequence. Every size has
its own process and is ordered twice: `compile` is the extra time of the first run. The peak of resident memory includes
the corpus, which is also shown alone. The exponent is the slope of a straight line through the logarithms of sizes and
seconds. With --large, ten million sequences are ordered once and measured, too.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any

import corpora
import numpy as np
import results_file

import jax_diversity as jd

SIZES = (50_000, 100_000, 200_000, 400_000, 800_000)
MILLION, LARGE = 1_000_000, 10_000_000
WINDOWS = (64, 192, 256, 1024)
COLUMNS = {
    "num_sequences": "sequences",
    "seconds": "seconds",
    "compile_seconds": "compile s",
    "microseconds_each": "µs each",
    "corpus_gigabytes": "corpus GB",
    "gigabytes": "peak GB",
    "measure_seconds": "measure s",
    "measure_gigabytes": "peak GB",
}


def peak_gigabytes() -> float:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def timed(chars: jd.Characteristics) -> tuple[jd.Ordering, float]:
    """The ordering and its seconds."""
    start = time.perf_counter()
    ordering = jd.order(chars, "balance")
    return ordering, time.perf_counter() - start


def order_and_measure(num_sequences: int, repeat: bool, measure: bool) -> dict[str, float]:
    """Measure one size, after the corpus is made; without `repeat`, the seconds include compilation."""
    chars = corpora.synthetic(num_sequences)
    row = {"num_sequences": num_sequences, "corpus_gigabytes": peak_gigabytes()}
    ordering, seconds = timed(chars)
    if repeat:
        first = seconds
        ordering, seconds = timed(chars)
        row["compile_seconds"] = max(first - seconds, 0.0)
    row |= {"seconds": seconds, "gigabytes": peak_gigabytes()}
    if measure:
        start = time.perf_counter()
        jd.measure(chars, ordering, WINDOWS)
        row |= {"measure_seconds": time.perf_counter() - start, "measure_gigabytes": peak_gigabytes()}
    row["microseconds_each"] = row["seconds"] / num_sequences * 1e6
    return row


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The exponent p of the best `seconds = c * size ** p`, by least squares of the logarithms."""
    slope, _ = np.polyfit(np.log(np.asarray(sizes, float)), np.log(np.asarray(seconds, float)), 1)
    return float(slope)


def judge(rows: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """The targets whose sizes were run: growth, time and memory of a million, memory of ten million."""
    by_size = {int(row["num_sequences"]): row for row in rows}
    found: list[tuple[str, float, float]] = []
    if all(size in by_size for size in SIZES):
        exponent = growth_exponent(SIZES, [by_size[size]["seconds"] for size in SIZES])
        found.append((f"exponent from {SIZES[0]:,} to {SIZES[-1]:,}", exponent, 1.1))
    if million := by_size.get(MILLION):
        whole = million["seconds"] + million.get("compile_seconds", 0.0)
        found.append((f"seconds at {MILLION:,}, compilation included", whole, 120.0))
        found.append((f"gigabytes at {MILLION:,}", million["gigabytes"], 4.0))
    if large := by_size.get(LARGE):
        peak = max(large["gigabytes"], large.get("measure_gigabytes", 0.0))
        found.append((f"gigabytes at {LARGE:,}, ordered and measured", peak, 16.0))
    return [
        {"measure": measure, "found": value, "at_most": most, "reached": value <= most}
        for measure, value, most in found
    ]


def rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and gigabytes to three decimals."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}


def print_row(row: Mapping[str, float]) -> None:
    """One line of the table."""
    cells = ((row.get(name, math.nan), name) for name in COLUMNS)
    words = (f"{value:,}" if name == "num_sequences" else f"{value:.2f}" for value, name in cells)
    print("".join(f"{'-' if word == 'nan' else word:>12}" for word in words), flush=True)


def main() -> None:
    """Print the table; with --write, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also order and measure ten million sequences")
    parser.add_argument("--sizes", type=int, nargs="+", default=[*SIZES, MILLION], help="numbers of sequences")
    parser.add_argument("--write", action="store_true", help="write results/scaling.json")
    arguments = parser.parse_args()
    about = results_file.environment("jax", "numpy", "scipy")  # the load of the machine without this benchmark
    print("".join(f"{title:>12}" for title in COLUMNS.values()))
    rows = []
    for size in (*arguments.sizes, *((LARGE,) if arguments.large else ())):
        large = size >= LARGE
        # A new process for every size, because a peak never falls.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(order_and_measure, (size, not large, large)))
        print_row(rows[-1])
    judged = judge(rows)
    print()
    for line in judged:
        verdict = "reached" if line["reached"] else "not reached"
        print(f"{line['measure']:<52}{line['found']:>10.3f}   at most {line['at_most']:g}: {verdict}")
    if arguments.write:
        values = {
            "method": "balance",
            "sizes": [rounded(row) for row in rows],
            "targets": list(map(rounded, judged)),
        }
        results_file.write("scaling", {**about, **values})


if __name__ == "__main__":
    main()

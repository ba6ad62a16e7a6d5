"""Time and memory of measuring one order, of counts in memory and in files, and of comparing three orders.

    python benchmarks/measure.py [--write]

The synthetic corpus of `corpora.py`: 1,000 clusters and 100 length bins, 2,048 tokens per sequence. Seconds are of
processor time. `plain` computes in NumPy and SciPy only the windows' TV and the prefix deviations, with the counts of
all positions in memory; the ratios are to its time. Every size and source runs in a separate process. Its peak of
resident memory is read before and after; both values of counts in memory include the corpus. `out_of_core.py` measures
ten million sequences.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable

import corpora
import numpy as np
import results_file
from scipy import sparse

import jax_diversity as jd
from jax_diversity.counts.stored import CountFiles

SIZES = (40_000, 1_000_000)
WINDOWS = (64, 192, 256, 1024)
ROWS_AT_ONCE = 4096
REPEATED_UP_TO = 100_000  # below this, the shortest of three runs counts


def peak_gigabytes() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def seconds(run: Callable[[], object], num_runs: int) -> float:
    """Return the processor seconds of the shortest run."""
    measured = []
    for _ in range(num_runs):
        start = time.process_time()
        run()
        measured.append(time.process_time() - start)
    return min(measured)


def plain(chars: jd.Characteristics, order: np.ndarray) -> dict[str, list[np.ndarray]]:
    """Compute the windows' TV and the prefix deviations as the definitions say."""
    values = {}
    for family, counts in chars.counts.items():
        placed, target = counts[order], chars.target_share(family)
        values[family] = []
        for size in WINDOWS:
            number = len(order) // size
            window = np.repeat(np.arange(number), size)
            sums = sparse.csr_array((np.ones(len(window), np.int64), (window, np.arange(len(window)))))
            totals = sums @ placed[: len(window)]
            tokens = np.maximum(totals.sum(axis=1), 1)
            parts = []
            for first in range(0, number, 256):
                rows = slice(first, first + 256)
                parts.append(np.abs(totals[rows].toarray() / tokens[rows, None] - target).sum(axis=1) / 2)
            values[family].append(np.concatenate(parts))
        before, prefixes = np.zeros(len(target)), []
        for first in range(0, len(order), ROWS_AT_ONCE):
            rows = placed[first : first + ROWS_AT_ONCE].toarray()
            excess = before + np.cumsum(rows - rows.sum(axis=1, keepdims=True) * target, axis=0)
            prefixes.append(np.linalg.norm(excess, axis=1) / chars.sequence_length)
            before = excess[-1]
        values[family].append(np.concatenate(prefixes))
    return values


def in_memory(num_sequences: int) -> dict[str, float]:
    """Measure and compare counts in memory, and compute the plain reference."""
    chars = corpora.synthetic(num_sequences)
    corpus_gigabytes = peak_gigabytes()
    rng = np.random.default_rng(0)
    orders = {name: rng.permutation(num_sequences) for name in ("uniform_shuffle", "second", "third")}
    num_runs = 3 if num_sequences <= REPEATED_UP_TO else 1
    balance = jd.measure(chars, orders["uniform_shuffle"], WINDOWS)
    one = seconds(lambda: jd.measure(chars, orders["uniform_shuffle"], WINDOWS), num_runs)
    gigabytes = peak_gigabytes()
    reference = plain(chars, orders["uniform_shuffle"])
    for family, (*windows, prefix) in reference.items():
        for size, tv in zip(WINDOWS, windows, strict=True):
            np.testing.assert_allclose(balance.window_tv[family][size], tv, atol=1e-9)
        np.testing.assert_allclose(balance.prefix_l2[family], prefix, atol=1e-6)
    of_reference = seconds(lambda: plain(chars, orders["uniform_shuffle"]), num_runs)
    three = seconds(lambda: jd.compare(chars, orders, WINDOWS, ("0", "half", "every")), 1)
    return {
        "num_sequences": num_sequences,
        "corpus_gigabytes": round(corpus_gigabytes, 2),
        "plain_seconds": round(of_reference, 2),
        "measure_seconds": round(one, 2),
        "measure_to_plain": round(one / of_reference, 2),
        "measure_gigabytes": round(gigabytes, 2),
        "compare_seconds": round(three, 1),
        "compare_gigabytes": round(peak_gigabytes(), 2),
    }


def in_files(path: str, num_sequences: int) -> dict[str, float]:
    """Measure counts in a file."""
    counts = CountFiles.open(path)
    order = np.random.default_rng(0).permutation(num_sequences)
    num_runs = 3 if num_sequences <= REPEATED_UP_TO else 1
    measured = seconds(lambda: jd.measure(counts, order, WINDOWS), num_runs)
    return {
        "num_sequences": num_sequences,
        "stored_seconds": round(measured, 2),
        "stored_gigabytes": round(peak_gigabytes(), 2),
    }


def in_own_process(run: Callable[..., dict[str, float]], *values: object) -> dict[str, float]:
    """Run a function in a new process, because a peak never falls."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(run, values)


def store(path: str, num_sequences: int) -> dict[str, float]:
    """Write the synthetic corpus into a file."""
    corpora.synthetic(num_sequences).save(path)
    return {}


def main() -> None:
    """Print the table; with --write, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write results/measure.json")
    options = parser.parse_args()
    rows = []
    for num_sequences in SIZES:
        row = in_own_process(in_memory, num_sequences)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/counts.parquet"
            in_own_process(store, path, num_sequences)
            row |= in_own_process(in_files, path, num_sequences)
        row["stored_to_memory"] = round(row["stored_seconds"] / row["measure_seconds"], 2)
        rows.append(row)
        print(*(f"{name} {value:,}" for name, value in row.items()), sep="  ", flush=True)
    if options.write:
        about = results_file.environment("numpy", "scipy")
        results_file.write("measure", {**about, "windows": list(WINDOWS), "sizes": rows})


if __name__ == "__main__":
    main()

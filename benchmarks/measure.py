"""Time and memory of measuring one order and of comparing three orders.

    python benchmarks/measure.py [--large] [--write]

The synthetic corpus of `corpora.py`: 1,000 clusters and 100 length bins, 2,048 tokens per sequence. Every size
runs in a separate process. Its peak of resident memory is read before and after; both values include the corpus.
With --large, ten million sequences are measured, too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable

import corpora
import numpy as np
import results_file

import jax_diversity as jd

SIZES = (100_000, 1_000_000)
LARGE = 10_000_000
WINDOWS = (64, 192, 256, 1024)


def peak_gigabytes() -> float:
    """Return the largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def seconds(run: Callable[[], object]) -> float:
    """Return the seconds of one run; at these sizes one run is enough."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(num_sequences: int) -> dict[str, float]:
    """Measure seconds and gigabytes of measuring and of comparing, after making the corpus."""
    chars = corpora.synthetic(num_sequences)
    corpus_gigabytes = peak_gigabytes()
    rng = np.random.default_rng(0)
    orders = {name: rng.permutation(num_sequences) for name in ("uniform_shuffle", "second", "third")}
    one = seconds(lambda: jd.measure(chars, orders["uniform_shuffle"], WINDOWS))
    measured_gigabytes = peak_gigabytes()
    three = seconds(lambda: jd.compare(chars, orders, WINDOWS, ("0", "half", "every")))
    return {
        "num_sequences": num_sequences,
        "num_nonzeros": sum(len(counts.data) for counts in chars.counts.values()),
        "corpus_gigabytes": round(corpus_gigabytes, 2),
        "measure_seconds": round(one, 1),
        "measure_gigabytes": round(measured_gigabytes, 2),
        "compare_seconds": round(three, 1),
        "compare_gigabytes": round(peak_gigabytes(), 2),
    }


def main() -> None:
    """Print the table; with --write, store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also measure ten million sequences")
    parser.add_argument("--write", action="store_true", help="write results/measure.json")
    options = parser.parse_args()
    titles = ("sequences", "non-zeros", "corpus GB", "measure s", "GB", "compare 3 s", "GB")
    print("".join(f"{title:>13}" for title in titles))
    rows = []
    for num_sequences in (*SIZES, *((LARGE,) if options.large else ())):
        # A new process for every size, because a peak never falls.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            rows.append(pool.apply(measure, (num_sequences,)))
        print("".join(f"{value:>13,}" for value in rows[-1].values()), flush=True)
    if options.write:
        about = results_file.environment("numpy", "scipy")
        results_file.write("measure", {**about, "windows": list(WINDOWS), "sizes": rows})


if __name__ == "__main__":
    main()

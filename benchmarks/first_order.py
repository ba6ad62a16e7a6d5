"""Time the first and the second `jd.order` of a new process, with and without stored programs.

    python benchmarks/first_order.py [--sizes 2048 8192 49152] [--repeats 3] [--write]

Three processes are timed in turn: `off` stores no programs, `empty` compiles and stores them in an empty folder,
`filled` uses the programs that `empty` has stored. The corpus is synthetic. Imports and making the corpus are not
timed. The results are the medians of the repeats, in seconds of the clock and of the processor: on a busy machine the
processor's seconds are more reliable.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results_file

MODES = ("off", "empty", "filled")
CLOCKS = (time.perf_counter, time.process_time)
NAMES = ("first", "first_processor", "second", "second_processor")
TARGET_SECONDS = 3.0  # target for the first order of a later process, below 50,000 sequences


def child(num_sequences: int, method: str) -> None:
    """Order twice and print the seconds of both clocks."""
    import corpora

    import jax_diversity as jd

    chars = corpora.synthetic(num_sequences)
    seconds = []
    for _ in range(2):
        starts = [clock() for clock in CLOCKS]
        jd.order(chars, method)
        seconds += [clock() - start for clock, start in zip(CLOCKS, starts, strict=True)]
    print(json.dumps(seconds))


def in_fresh_process(num_sequences: int, method: str, folder: str) -> list[float]:
    """Measure the first and the second order of a process that stores programs in a folder, or nowhere (`""`)."""
    environment = {name: value for name, value in os.environ.items() if "COMPILATION_CACHE" not in name}
    environment |= {"JAX_ENABLE_COMPILATION_CACHE": str(bool(folder)), "XDG_CACHE_HOME": folder}
    command = [sys.executable, __file__, "--child", str(num_sequences), method]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def measure(num_sequences: int, method: str, repeats: int) -> dict[str, dict[str, float]]:
    """Median seconds of both orders, for each kind of process."""
    runs: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    for _ in range(repeats):  # alternately, so that other work on the machine affects all of them
        with tempfile.TemporaryDirectory() as folder:
            for mode in MODES:
                runs[mode].append(in_fresh_process(num_sequences, method, "" if mode == "off" else folder))
    return {
        mode: {
            name: round(statistics.median(times), 3)
            for name, times in zip(NAMES, zip(*of_mode, strict=True), strict=True)
        }
        for mode, of_mode in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 734, 2048, 8192, 49_152])
    parser.add_argument("--methods", nargs="+", default=["balance", "greedy"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(int(options.child[0]), *options.child[1:])
        return
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    titles = ("method", "sequences", "first, off", "empty", "filled", "second, off", "filled/off", "filled/second")
    titles += ("processor, off", "filled")
    print("".join(f"{title:>15}" for title in titles))
    for method in options.methods:
        for size in options.sizes:
            times = found.setdefault(method, {})[str(size)] = measure(size, method, options.repeats)
            off, empty, filled = (times[mode]["first"] for mode in MODES)
            second = times["filled"]["second"]
            shown = [off, empty, filled, times["off"]["second"], filled / off, filled / second]
            shown += [times[mode]["first_processor"] for mode in ("off", "filled")]
            print(f"{method:>15}{size:>15,}" + "".join(f"{number:>15.3f}" for number in shown))
            if filled > TARGET_SECONDS:
                print(f"{'':>15}{'':>15} above the target of {TARGET_SECONDS} s for the first order of a later process")
    if options.write:
        about = results_file.environment("jax", "jaxlib", "numpy")
        results_file.write(Path(__file__).stem, {**about, "target_seconds": TARGET_SECONDS, "seconds": found})


if __name__ == "__main__":
    main()

"""Run attacks and print their counts; see the package."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import results_file
from benchmarks.reliability import small, tally
from benchmarks.reliability.forks import import_everything

COUNTS = {
    "kills": {"quick": 2, "full": 100},
    "corruption": {"quick": 4, "full": 1000},
    "faults": {"quick": 2, "full": 20},
    "hostile": {"quick": 24, "full": 900},
    "fuzz": {"quick": 1, "full": 600},
    "elastic": {"quick": 8, "full": 140},
    "documents": {"quick": 40, "full": 20_000},
    "secrets": {"quick": 9, "full": 1800},
    "folders": {"quick": 1, "full": 400},
    "options": {"quick": 3, "full": 400},
    "rows": {"quick": 10, "full": 400},
}
"""The number of attacks for each scale; for `fuzz` the seconds per reader."""


def main() -> int:
    """Run the attacks named on the command line; return 1 after any fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *COUNTS], metavar="NAME", help=f"of {', '.join(COUNTS)}")
    parser.add_argument("--scale", choices=("quick", "full"), default="quick")
    parser.add_argument("--count", type=int, help="how many, instead of the scale's number")
    parser.add_argument("--minutes", type=float, help="of fuzzing a reader, instead of the scale's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--write", action="store_true", help="enter the counts in benchmarks/results/reliability.json")
    given = parser.parse_args()
    import_everything()
    with tempfile.TemporaryDirectory(prefix="reliability-") as folder:
        return run(given, Path(folder).resolve())


def run(given: argparse.Namespace, folder: Path) -> int:
    """Run the attacks on one small dataset."""
    results, sound = {}, small.build(folder / "sound")
    for name in given.names or COUNTS:
        attack = importlib.import_module(f"benchmarks.reliability.{name}").attack
        count = COUNTS[name][given.scale] if given.count is None else given.count
        if name == "fuzz" and given.minutes is not None:
            count = round(60 * given.minutes)
        start = time.monotonic()
        (folder / name).mkdir()
        result = attack(folder / name, count, given.seed, sound)
        results[name] = {"scale": given.scale, "seconds": round(time.monotonic() - start), **result}
        if not given.json:
            show(name, results[name])
        if given.write:
            write(results)
    if given.json:
        print(json.dumps(results))
    return int(any(map(tally.num_faults, results.values())))


def show(name: str, result: dict) -> None:
    """Print the counts of one kind of attacks; its failures were printed when they were found."""
    numbers = {what: number for what, number in result.items() if isinstance(number, int) and what != "seed"}
    counts = [f"{number} {what}" for what, number in numbers.items() if number]
    print(f"{name}: {', '.join(counts)}; {tally.num_faults(result)} faults", flush=True)


def write(results: dict) -> None:
    """Add results to those of the other kinds, which may be from an earlier run."""
    path = results_file.RESULTS / "reliability.json"
    former = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    machine = results_file.environment("jax", "numpy", "pyarrow", "grain", "orbax-checkpoint")
    entered = {name: {**result, "machine": machine} for name, result in results.items()}
    results_file.write("reliability", {**former, **entered})


if __name__ == "__main__":
    sys.exit(main())

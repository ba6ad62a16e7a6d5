"""Measure a whole build: seconds and peak memory of every stage, and how both grow with the corpus.

    python benchmarks/build.py 'texts/*.jsonl.gz' [--write]

Builds a dataset from the corpus, and a dataset from twice the corpus (every file under two names, with other ids). The
builds have 1,000 clusters, 100 length bins and sequences of 512 tokens. Each build has its own process and folder.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import results_file


def build(paths: list[str], out: Path) -> tuple[dict[str, float], float]:
    """Return the seconds of every stage, and the peak memory in MB."""
    command = [
        sys.executable,
        "-m",
        "jax_diversity",
        "build",
        "--quiet",
        "--out",
        str(out),
        "--corpus.paths",
        *paths,
    ]
    command += ["--corpus.duplicate-ids", "rename", "--cluster.num-clusters", "1000"]
    command += ["--packing.sequence-length", "512", "--characteristics.length-bins", "100"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the build of {out} failed")
    lines = [json.loads(line) for line in (out / "build.log").read_text().splitlines()]
    return {line["stage"]: line["seconds"] for line in lines}, usage.ru_maxrss / 1024


def main() -> None:
    """Print the table; with --write, store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="JSONL files or globs")
    parser.add_argument("--write", action="store_true", help="write results/build.json")
    options = parser.parse_args()
    files = sorted(name for pattern in options.paths for name in glob.glob(pattern))
    if not files:
        raise SystemExit(f"Expected files at {options.paths}, found none.")
    with tempfile.TemporaryDirectory() as folder:
        twice = []
        for copy in ("a", "b"):
            (Path(folder) / copy).mkdir()
            twice += [shutil.copy(name, Path(folder) / copy) for name in files]
        once_seconds, once_memory = build(files, Path(folder) / "once")
        twice_seconds, twice_memory = build(twice, Path(folder) / "twice")
    print(f"{'stage':<24}{'once s':>9}{'twice s':>9}{'ratio':>8}")
    for stage, seconds in once_seconds.items():
        print_row(stage, seconds, twice_seconds[stage])
    print_row("all", sum(once_seconds.values()), sum(twice_seconds.values()))
    print_row("peak memory, MB", once_memory, twice_memory)
    if options.write:
        values = {
            "once_seconds": once_seconds,
            "twice_seconds": twice_seconds,
            "once_peak_megabytes": round(once_memory),
            "twice_peak_megabytes": round(twice_memory),
        }
        about = results_file.environment("jax", "numpy", "scikit-learn", "tokenizers")
        results_file.write("build", {**about, **values})


def print_row(name: str, once: float, twice: float) -> None:
    """Format one line of the table."""
    print(f"{name:<24}{once:>9.1f}{twice:>9.1f}{twice / max(once, 1e-3):>8.2f}")


if __name__ == "__main__":
    main()

"""Measure builds with 1, 2 and 4 workers: processes and Ray; their bytes, memory, and builds whose workers die.

    python benchmarks/executors.py FILES.jsonl.gz ... [--copies 2] [--kill-every 20] [--write]
    python benchmarks/executors.py FILES.jsonl.gz ... --only processes-1 ray-2-killed     # some of the builds

The corpus has every text `--copies` times, each time with other words at its end. *efficiency*: the seconds of one
process on one core, divided by the seconds and the cores in use (workers, at most the cores of the machine). The first
column has the stages whose work is jobs, the second the whole build. *equal*: all files of the dataset have the same
SHA-256 as those of the first build. *worker GB*: the largest resident memory of a process other than the build's first.
Then builds with two workers run again. Every --kill-every seconds a worker is killed, and a command that ends with an
error is started again, as a cluster does. With --only, --write keeps the other builds of the file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import results_file

MAPPED = ("prepare", "tokenize", "embed", "cluster", "characterize", "write")
CORES = sorted(os.sched_getaffinity(0))
WORKERS = (1, 2, 4)
KINDS = ("processes", "ray")
RAY = str(Path(sys.executable).with_name("ray"))


def make_corpus(paths: Sequence[Path], copies: int, folder: Path) -> int:
    """Write every file several times; return the bytes of text."""
    size = 0
    for number in range(copies):
        for path in paths:
            with (
                gzip.open(path, "rt", encoding="utf-8") as source,
                (folder / f"{number:03d}-{path.name.removesuffix('.gz')}").open("w", encoding="utf-8") as target,
            ):
                for line, text in enumerate(json.loads(each)["text"] for each in source):
                    text = text if number == 0 else f"{text}\nCopy {number} of text {line}."
                    size += len(text.encode())
                    target.write(json.dumps({"text": text, "source": path.name.partition(".")[0]}) + "\n")
    return size


class Watch(threading.Thread):
    """Follows the processes of a build: the largest memory of each kind, and a kill every few seconds."""

    def __init__(self, kill_every: float | None) -> None:
        super().__init__(daemon=True)
        self.build: subprocess.Popen | None = None
        self.peaks = {"host": 0, "worker": 0}
        self.num_kills, self._every, self._next = 0, kill_every, time.monotonic() + (kill_every or 0)
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.5):
            workers = []
            if self.build is not None:
                with suppress(psutil.Error):
                    first = psutil.Process(self.build.pid)
                    self._measure("host", first)
                    workers += [each for each in first.children(recursive=True) if "spawn_main" in self._words(each)]
            # Ray starts its workers, which have the name of their task while they run one. Its other processes have
            # such names, too; without them Ray ends.
            workers += [each for each in psutil.process_iter() if self._words(each).startswith("ray::run_on_machine")]
            for each in workers:
                self._measure("worker", each)
            if self._every is not None and time.monotonic() > self._next and workers:
                random.choice(workers).kill()
                self.num_kills += 1
                self._next = time.monotonic() + self._every

    def _words(self, process: psutil.Process) -> str:
        try:
            return " ".join(process.cmdline())
        except psutil.Error:
            return ""

    def _measure(self, kind: str, process: psutil.Process) -> None:
        try:
            self.peaks[kind] = max(self.peaks[kind], process.memory_info().rss)
        except psutil.Error:
            return


def build(
    corpus: Path, out: Path, kind: str, workers: int, kill_every: float | None = None, verb: str = "build"
) -> dict[str, Any]:
    """Build a dataset with an executor and return its seconds by stage, memory and hashes."""
    cores = CORES[: min(workers, len(CORES))]
    command = [sys.executable, "-m", "jax_diversity", verb, "--quiet", "--out", str(out), "--corpus", str(corpus)]
    command += ["--ray"] if kind == "ray" else ["--processes", str(workers)]
    environment = dict(os.environ)
    if kind == "ray":
        subprocess.run([RAY, "start", "--head", "--num-cpus", str(workers)], check=True, stdout=subprocess.DEVNULL)
        environment["RAY_ADDRESS"] = "auto"
    watch, start, num_starts = Watch(kill_every), time.perf_counter(), 0
    watch.start()
    try:
        while watch.build is None or watch.build.wait():
            num_starts += 1
            if num_starts > 200:
                raise SystemExit(f"the build of {out} does not end; see {out}.log")
            with out.with_suffix(".log").open("ab") as log:
                watch.build = subprocess.Popen(
                    ["taskset", "--cpu-list", ",".join(map(str, cores)), *command],
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
    finally:
        watch.is_over.set()
        watch.join()
        if kind == "ray":
            subprocess.run([RAY, "stop", "--force"], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "build.log").read_text().splitlines()]
    seconds: dict[str, float] = {}
    for line in lines:  # a stage that was interrupted has several lines
        seconds[line["stage"]] = seconds.get(line["stage"], 0) + line["seconds"]
    manifest = json.loads((out / "manifest.json").read_text())
    hashes = {
        name: about["sha256"]
        for stage, entry in manifest["stages"].items()
        if stage != "report"  # it shows the date
        for name, about in entry["files"].items()
    }
    return {
        "seconds": round(time.perf_counter() - start, 1),
        "by_stage": {stage: round(value, 1) for stage, value in seconds.items()},
        "mapped_seconds": round(sum(seconds.get(stage, 0) for stage in MAPPED), 1),
        "host_gigabytes": round(watch.peaks["host"] / 1e9, 2),
        "worker_gigabytes": round(watch.peaks["worker"] / 1e9, 2),
        "kills": watch.num_kills,
        "starts": num_starts,
        "hashes": hashes,
    }


def case_name(kind: str, workers: int, kill_every: float | None) -> str:
    """Return the name of a build, such as `ray-2-killed`."""
    return f"{kind}-{workers}" + ("" if kill_every is None else "-killed")


def main() -> None:
    """Print a row for every build; with --write, store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--kill-every", type=float, default=20.0)
    parser.add_argument("--verb", default="build", help="`prepare` for one stage of a large corpus")
    parser.add_argument("--only", nargs="+", help="kinds and workers, such as processes-2 and ray-2-killed")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/executors.json")
    options = parser.parse_args()
    cases: list[tuple[str, int, float | None]] = [("processes", 1, None)]
    cases += [(kind, number, None) for kind in KINDS for number in WORKERS[1:]]
    cases += [(kind, 2, options.kill_every) for kind in KINDS]
    if options.only:
        cases = [each for each in cases if case_name(*each) in options.only]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="executors-") as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        size = make_corpus(sorted(options.paths), options.copies, folder / "corpus")
        print(f"{size / 1e6:,.0f} MB of text")
        titles = ("jobs s", "all s", "eff. jobs", "eff. all", "equal", "host GB", "worker GB")
        print(f"{'build':<28}" + "".join(f"{title:>11}" for title in titles))
        for kind, workers, every in cases:
            out = folder / case_name(kind, workers, every)
            row = {"executor": kind, "workers": workers, "kill_every": every}
            row |= build(folder / "corpus", out, kind, workers, every, options.verb)
            rows.append(row)
            first, cores = rows[0], min(workers, len(CORES))
            row["equal"] = row["hashes"] == first["hashes"]
            row["differ"] = sorted(name for name, value in row["hashes"].items() if first["hashes"].get(name) != value)
            for part in ("mapped_seconds", "seconds"):
                # The log has no seconds of a stage that was killed.
                row[f"efficiency_{part}"] = None if every else round(first[part] / (cores * row[part]), 2)
            about = f"{kind}, {workers}" + ("" if every is None else f", {row['kills']} kills, {row['starts']} starts")
            values = (
                *(row["mapped_seconds"], row["seconds"], row["efficiency_mapped_seconds"], row["efficiency_seconds"]),
                *("yes" if row["equal"] else "no", row["host_gigabytes"], row["worker_gigabytes"]),
            )
            print(f"{about:<28}" + "".join(f"{value!s:>11}" for value in values), row["by_stage"], flush=True)
            if row["differ"]:
                print("  other bytes:", ", ".join(row["differ"][:5]), flush=True)
    if options.write:
        for row in rows:
            del row["hashes"]
        about = results_file.environment("jax", "numpy", "ray", "tokenizers")
        builds = {case_name(row["executor"], row["workers"], row["kill_every"]): row for row in rows}
        kept = results_file.read("executors").get("builds", {}) if options.only else {}
        results_file.write("executors", {**about, "text_megabytes": round(size / 1e6), "builds": kept | builds})


if __name__ == "__main__":
    main()

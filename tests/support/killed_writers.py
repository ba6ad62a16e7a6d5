"""Runs of the stage `write` killed at random moments, each followed by a run that continues; run as a program.

    python -m tests.support.killed_writers DATASET FOLDER NUM_KILLS

Every try is a fork of this process, which has no threads of its own, so that a kill costs no start of Python.
Prints how many were killed with some of the files written and some not.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from array_record.python import array_record_module

from jax_diversity.foundation.artifacts import OutputFolder, remove_leftovers
from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.stage import Context
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.sequences.token_store.megatron import TokenStore
from jax_diversity.streaming.dataset import open_dataset
from jax_diversity.streaming.records import sorting, writing
from jax_diversity.streaming.records.settings import RecordsConfig
from jax_diversity.streaming.records.stage import write_sequences

PER_FILE = 7


def write_all(root: Path, folder: Path, layout: Any) -> None:
    """Run the stage."""
    gather = TokenStore.gather

    def slowly(*columns: Any) -> np.ndarray:
        time.sleep(0.001)  # some chunks a file, so that most kills hit a file that is being written
        return gather(*columns)

    TokenStore.gather = slowly  # type: ignore[method-assign]
    config = BuildConfig(records=RecordsConfig(layout=layout, sequences_per_file=PER_FILE))
    write_sequences(Context(config, OutputFolder(root), Progress(quiet=True), open_dataset, Here()), folder)


def in_fork(work: Callable[[], None], may_live: Callable[[], bool] = lambda: True) -> None:
    """Do the work, which is killed when `may_live` says no; an error of the work is one of this program."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if not may_live():
            os.kill(child, signal.SIGKILL)
        time.sleep(0.0005)
    if os.waitstatus_to_exitcode(ended[1]) not in (0, -signal.SIGKILL):
        raise SystemExit("a writer or a check failed")


def records(folder: Path) -> list[Path]:
    """The record files that have their names, and those that have not."""
    return [path for path in folder.iterdir() if ".array_record" in path.name]


def alive_until(folder: Path, num_jobs: int, seconds: float) -> Callable[[], bool]:
    """False some time after so many jobs are finished: on a busy machine the clock alone would kill too early."""
    deadline = float("inf")

    def may_live() -> bool:
        nonlocal deadline
        if deadline == float("inf") and len(list(folder.rglob("*.done.json"))) >= num_jobs:
            deadline = time.monotonic() + seconds
        return time.monotonic() < deadline

    return may_live


def check_left(folder: Path, sound: Path) -> None:
    """What has its name is whole; what has not is not opened, unless it only lacked its name."""
    for path in records(folder):
        name = path.name.partition(".array_record")[0] + ".array_record"
        opens = array_record_module.ArrayRecordReader(str(path)).num_records() > 0
        whole = path.read_bytes() == (sound / name).read_bytes()
        if (opens or name == path.name) and not whole:
            raise SystemExit(f"{path} is half-written, and {'opens' if opens else 'has its name'}")


def main() -> None:
    root, folder, num_kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    writing._CHUNK_BYTES, sorting._BUCKET_BYTES, sorting._PLACES = 2 * 2 * 16, 25 * 74, 40
    rng = np.random.default_rng(0)
    in_the_middle = 0
    for layout in ("packed", "ordered"):
        sound, cut = folder / layout, folder / "cut"
        sound.mkdir()
        in_fork(partial(write_all, root, sound, layout))
        names = sorted(path.name for path in sound.iterdir() if not path.name.endswith(".done.json"))
        for _ in range(num_kills // 2):
            cut.mkdir()
            until = alive_until(cut, rng.integers(len(names)), rng.uniform(0, 0.02))
            in_fork(partial(write_all, root, cut, layout), until)
            in_fork(partial(check_left, cut, sound))
            in_the_middle += 0 < len(list(cut.rglob("*.done.json"))) < len(names)
            for each in (cut, *(path for path in cut.rglob("*") if path.is_dir())):
                remove_leftovers(each)  # as a build does before its stage goes on
            in_fork(partial(write_all, root, cut, layout))
            if sorted(path.name for path in cut.iterdir() if not path.name.endswith(".done.json")) != names:
                raise SystemExit(f"found {sorted(path.name for path in cut.iterdir())}")
            for name in names:
                if (cut / name).read_bytes() != (sound / name).read_bytes():
                    raise SystemExit(f"{name} differs after a kill")
            shutil.rmtree(cut)
    print(in_the_middle)


if __name__ == "__main__":
    main()

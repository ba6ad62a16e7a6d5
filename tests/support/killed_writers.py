"""Writers of records killed at random moments, each followed by a run that continues; run as a program.

    python -m tests.support.killed_writers FOLDER NUM_KILLS

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

import numpy as np
from array_record.python import array_record_module

from jax_diversity.foundation.artifacts import remove_leftovers
from jax_diversity.records import writing
from jax_diversity.records.writing import record_paths, write_records
from jax_diversity.schema import Segments

NUM_SEQUENCES, L, PER_FILE = 600, 64, 50
TOKENS = np.random.default_rng(0).integers(1, 60_000, NUM_SEQUENCES * L).astype(np.uint16)
NAMES = [path.name for path in record_paths(Path(), "train", NUM_SEQUENCES // PER_FILE)]


def write_all(folder: Path, num_writers: int) -> None:
    rows = np.arange(NUM_SEQUENCES)
    zeros, lengths = np.zeros(NUM_SEQUENCES, np.int64), np.full(NUM_SEQUENCES, L)
    segments = Segments(rows, zeros, rows, zeros, lengths, np.ones(NUM_SEQUENCES, bool), NUM_SEQUENCES, L)

    def gather(document_index: np.ndarray, document_offset: np.ndarray, length: np.ndarray) -> np.ndarray:
        time.sleep(0.002)  # some chunks a file, so that most kills hit a file that is being written
        return TOKENS.reshape(-1, L)[document_index].reshape(-1)

    order = rows[::-1].copy()
    write_records(
        segments, gather, "uint16", order, folder, "train", sequences_per_file=PER_FILE, num_writers=num_writers
    )


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


def finished(folder: Path) -> int:
    return len([path for path in folder.iterdir() if path.suffix != ".tmp"])


def alive_until(folder: Path, num_files: int, seconds: float) -> Callable[[], bool]:
    """False some time after so many files are finished: on a busy machine the clock alone would kill too early."""
    deadline = float("inf")

    def may_live() -> bool:
        nonlocal deadline
        if deadline == float("inf") and finished(folder) >= num_files:
            deadline = time.monotonic() + seconds
        return time.monotonic() < deadline

    return may_live


def check_left(folder: Path, sound: Path) -> None:
    """What has its name is whole; what has not is not opened, unless it only lacked its name."""
    for path in folder.iterdir():
        name = path.name.partition(".array_record")[0] + ".array_record"
        opens = array_record_module.ArrayRecordReader(str(path)).num_records() > 0
        whole = path.read_bytes() == (sound / name).read_bytes()
        if (opens or name == path.name) and not whole:
            raise SystemExit(f"{path} is half-written, and {'opens' if opens else 'has its name'}")


def main() -> None:
    folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])
    writing._CHUNK_BYTES = 10 * 2 * L
    sound, cut = folder / "sound", folder / "cut"
    sound.mkdir()
    in_fork(partial(write_all, sound, 1))
    rng = np.random.default_rng(0)
    in_the_middle = 0
    for number in range(num_kills):
        cut.mkdir()
        until = alive_until(cut, rng.integers(len(NAMES)), rng.uniform(0, 0.02))
        in_fork(partial(write_all, cut, 1 + number % 4), until)
        in_fork(partial(check_left, cut, sound))
        in_the_middle += 0 < finished(cut) < len(NAMES)
        remove_leftovers(cut)  # as a build does before its stage goes on
        in_fork(partial(write_all, cut, 4 - number % 4))
        if sorted(path.name for path in cut.iterdir()) != NAMES:
            raise SystemExit(f"found {sorted(path.name for path in cut.iterdir())}")
        for name in NAMES:
            if (cut / name).read_bytes() != (sound / name).read_bytes():
                raise SystemExit(f"{name} differs after a kill")
        shutil.rmtree(cut)
    print(in_the_middle)


if __name__ == "__main__":
    main()

"""Writers of records killed at random moments, each followed by a run that continues; run as a program.

    python -m tests.killed_writers FOLDER NUM_KILLS

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


def in_fork(work: Callable[[], None], kill_after: float | None = None) -> bool:
    """Whether the work was done, rather than killed; anything else is an error."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return False
    if os.waitstatus_to_exitcode(status):
        raise SystemExit("a writer or a check failed")
    return True


def check_left(folder: Path, sound: Path) -> None:
    """What has its name is whole; what has not is not opened, unless it only lacked its name."""
    for path in folder.iterdir():
        name = path.name.removesuffix(".tmp")
        opens = array_record_module.ArrayRecordReader(str(path)).num_records() > 0
        whole = path.read_bytes() == (sound / name).read_bytes()
        if (opens or name == path.name) and not whole:
            raise SystemExit(f"{path} is half-written, and {'opens' if opens else 'has its name'}")


def main() -> None:
    folder, num_kills = Path(sys.argv[1]), int(sys.argv[2])
    writing._CHUNK_BYTES = 10 * 2 * L
    sound, cut = folder / "sound", folder / "cut"
    sound.mkdir()
    start = time.monotonic()
    in_fork(partial(write_all, sound, 1))
    seconds = time.monotonic() - start
    rng = np.random.default_rng(0)
    in_the_middle = 0
    for number in range(num_kills):
        cut.mkdir()
        num_writers = 1 + number % 4
        in_fork(partial(write_all, cut, num_writers), rng.uniform(0, seconds / num_writers))
        in_fork(partial(check_left, cut, sound))
        in_the_middle += 0 < len([path for path in cut.iterdir() if path.suffix != ".tmp"]) < len(NAMES)
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

"""Leave out a document that ends its worker process, by a crash or by code in C that does not return.

Only the end of its process stops code in C. A worker therefore keeps its current document and step in a small file. A
timer in C, and a handler of crashes, write the reason to this file and end the process. The next process that gets the
part begins it again. It leaves out a step of a document at which two processes ended: one end may have another cause,
such as a pause.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jax_diversity.foundation.attempts import Failure, took_too_long

_FACTOR = 2
"""Code that signals interrupt ends after the limit, all other code after this multiple of it."""
_ENDS = 2
"""The number of processes that must end at a step of a document before it is left out."""
_NOW = struct.Struct("<qq")
_SECONDS_A_TIMER = 1.0
_AT = "-at-"
_CRASH = re.compile(rb"Fatal Python error: ([A-Za-z ]+)")

Place = tuple[int, int]
"""The number of a document in its part, and of a step."""


class Tracker:
    """The documents of a part that a process is at; this one, for the calling process, remembers nothing."""

    def begin(self, place: Place) -> Failure | None:
        """Begin a step of a document, or return the reason to leave it out."""
        return None


class _FileTracker(Tracker):
    def __init__(self, file: int, seconds: float, failures: Mapping[Place, Failure]) -> None:
        self._file, self._seconds, self._failures = file, seconds * _FACTOR, failures
        self._renew_at = 0.0 if seconds else float("inf")
        self._now = mmap.mmap(file, _NOW.size)

    def begin(self, place: Place) -> Failure | None:
        if place in self._failures:
            return self._failures[place]
        _NOW.pack_into(self._now, 0, *place)
        if (now := time.monotonic()) >= self._renew_at:  # starting a timer takes as long as a short document
            self._renew_at = now + min(_SECONDS_A_TIMER, self._seconds / 4)
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._file)
        return None


@contextmanager
def tracking(part: Path, seconds: float) -> Iterator[Tracker]:
    """A tracker for the documents of a part, with files whose names begin with the part's; `forget` removes them.

    `seconds` is the time limit of a step for a document; 0 means no limit.
    """
    ends = [path.read_bytes() for path in ended_files(part.parent, part.name)]
    counts = Counter(_NOW.unpack_from(end) for end in ends)
    failures = {place: _failure(end, seconds) for end in ends if counts[place := _NOW.unpack_from(end)] >= _ENDS}
    path = part.with_name(f"{part.name}{_AT}{len(ends):06d}")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    was_enabled = faulthandler.is_enabled()
    try:
        os.truncate(file, _NOW.size)
        os.lseek(file, _NOW.size, os.SEEK_SET)  # the timer and the handler write here
        faulthandler.enable(file, all_threads=False)
        yield _FileTracker(file, seconds, failures)
    finally:
        faulthandler.cancel_dump_traceback_later()
        faulthandler.disable()
        if was_enabled:
            faulthandler.enable()
        os.close(file)


def _failure(end: bytes, seconds: float) -> Failure:
    crash = _CRASH.match(end, _NOW.size)
    return Failure("raised", crash[1].decode()) if crash else took_too_long(seconds)


def forget(part: Path) -> None:
    """Remove the files of a part."""
    for path in part.parent.glob(f"{part.name}{_AT}*"):
        path.unlink()


def ended_files(work: Path, part: str = "") -> list[Path]:
    """The files of the processes that ended while they were at an unfinished part."""
    return [path for path in work.glob(f"{part or '*'}{_AT}*") if path.stat().st_size > _NOW.size]

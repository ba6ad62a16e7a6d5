"""End a worker process that takes too long for one document, and remember the document.

If code in C does not return, only the end of its process stops it. Therefore a worker writes its current document and
step into a small file. It also starts a timer in C, which writes to this file and ends the process. The next process
that gets the part leaves out this step of this document.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FACTOR = 2
"""Code that can be interrupted by signals ends after the time limit. All other code ends after this multiple of it."""
_NOW = struct.Struct("<qq")
_SECONDS_A_TIMER = 1.0
_AT = "-at-"

Place = tuple[int, int]
"""The number of a document in its part, and the number of a step."""


class Tracker:
    """Remembers the current document of a process. This class is for the calling process and remembers nothing."""

    def reaches(self, place: Place) -> bool:
        """Begin a step of a document. Return False if an earlier process was ended at this place."""
        return True


class _FileTracker(Tracker):
    def __init__(self, file: int, seconds: float, overdue: frozenset[Place]) -> None:
        self._file, self._seconds, self._overdue, self._renew_at = file, seconds * _FACTOR, overdue, 0.0
        self._now = mmap.mmap(file, _NOW.size)

    def reaches(self, place: Place) -> bool:
        if place in self._overdue:
            return False
        _NOW.pack_into(self._now, 0, *place)
        if (now := time.monotonic()) >= self._renew_at:  # not for each document: it takes as long as a short document
            self._renew_at = now + min(_SECONDS_A_TIMER, self._seconds / 4)
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=self._file)
        return True


@contextmanager
def tracking(part: Path, seconds: float) -> Iterator[Tracker]:
    """Yield a tracker for the documents of a part. Its files begin with the part's name; `forget` removes them."""
    overdue = [_NOW.unpack(path.read_bytes()[: _NOW.size]) for path in overdue_files(part.parent, part.name)]
    path = part.with_name(f"{part.name}{_AT}{len(overdue):06d}")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.truncate(file, _NOW.size)
        os.lseek(file, _NOW.size, os.SEEK_SET)  # the timer writes here
        yield _FileTracker(file, seconds, frozenset(overdue))
    finally:
        faulthandler.cancel_dump_traceback_later()
        os.close(file)


def forget(part: Path) -> None:
    """Remove the files of a part."""
    for path in part.parent.glob(f"{part.name}{_AT}*"):
        path.unlink()


def overdue_files(work: Path, part: str = "") -> list[Path]:
    """Return the files of the processes that ended themselves during an unfinished part."""
    return [path for path in work.glob(f"{part or '*'}{_AT}*") if path.stat().st_size > _NOW.size]

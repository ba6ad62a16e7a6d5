"""Limits of processor time and memory, far above what is needed: quadratic code is stopped, and nothing is timed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class LimitReached(BaseException):
    """The limit of processor time is reached; no handler of `Exception` keeps it."""


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise `LimitReached` in the block after so many seconds of processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise LimitReached(f"more than {seconds} seconds of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def peak_bytes() -> int:
    """The largest memory of this process since the last call; 0 where the kernel does not tell it."""
    try:
        status = Path("/proc/self/status").read_text()
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) << 10

"""Faults of code that handles one document, and a user's function whose documents name the fault."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from pathlib import Path

from jax_diversity.schema import Document

SECRET = "the text of the document"
PUMPED = re.compile(r"(a+)+b")


def raising() -> None:
    raise KeyError(SECRET)


def leaving() -> None:
    raise SystemExit(0)


def recursing() -> None:
    recursing()


def filling() -> None:
    bytes(2**62)


def sleeping() -> None:
    time.sleep(1000)


def spinning() -> None:
    PUMPED.search("a" * 60)


def deaf() -> None:
    """Code in C that no signal reaches: neither its thread nor any other handles the clock's."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.CDLL(None).sleep(1000)


def crashing() -> None:
    """A fault of code in C that ends the process."""
    ctypes.string_at(0)


def pausing() -> None:
    """Once, a pause of the whole process, after which the timer in C is due; then work that takes no time."""
    mark = Path(os.environ["PAUSED"])
    if not mark.exists():
        mark.touch()
        deaf()


_ALL = (raising, leaving, recursing, filling, sleeping, spinning, deaf, crashing, pausing)
FAULTS = {each.__name__: each for each in _ALL}


def act(document: Document) -> None:
    """A user's function whose documents say what it does."""
    fault = FAULTS.get(document.text.split()[0])
    if fault is not None:
        fault()

"""Make runs in the background: a thread orders later positions while training reads earlier ones."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Generic, TypeVar

from jax_diversity.foundation.progress import Advance

Made = TypeVar("Made")
_MOST_SECONDS = 10.0
"""The time for which the end of a thread is waited for, which has released its folder."""
_makers: dict[Path, Maker[Any]] = {}


class _Stopped(Exception):
    """Raised in the thread to end it when its process ends."""


class Maker(threading.Thread, Generic[Made]):
    """Makes a stored run step by step in its own thread.

    When the process ends, the thread stops at its next call of `advance`; finished parts stay in the folder.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(name=f"schedule {root.name}", daemon=True)
        self.root = root
        self._first, self._stop_asked = threading.Event(), threading.Event()
        self._made: Made | None = None
        self.error: BaseException | None = None
        self._steps: Generator[Made, None, None] | None = None

    def first(self, steps: Generator[Made, None, None]) -> Made:
        """Start all steps in the background; waits for the first step and returns its result."""
        self._steps = steps
        _makers[self.root.resolve()] = self
        atexit.register(self.stop)
        self.start()
        try:
            self._first.wait()
        except BaseException:  # Ctrl-C: no caller would hold the run
            self.stop()
            raise
        if self._made is None:
            assert self.error is not None
            raise self.error
        return self._made

    def advancing(self, advance: Advance) -> Advance:
        """The progress function `advance`, which also ends the thread when the process ends."""

        def advance_or_stop(count: int) -> None:
            if self._stop_asked.is_set():
                raise _Stopped
            advance(count)

        return advance_or_stop

    def run(self) -> None:
        """Run all steps."""
        assert self._steps is not None
        try:
            for step in self._steps:
                if self._made is None:
                    self._made = step
                    self._first.set()
        except _Stopped:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._steps.close()  # this releases the lock of the folder
            self._first.set()
            atexit.unregister(self.stop)

    def stop(self) -> None:
        """Stop the thread, and wait until the folder is released."""
        self._stop_asked.set()
        self.join()


def error_of(root: Path) -> BaseException | None:
    """The error that stopped the background thread of a run in this process; None without an error.

    Call it when the folder is released. The error leaves the steps, and releases the folder, before the thread stores
    it: so this waits for the end of the thread.
    """
    maker = _makers.get(root.resolve())
    if maker is None:
        return None
    maker.join(_MOST_SECONDS)
    return maker.error

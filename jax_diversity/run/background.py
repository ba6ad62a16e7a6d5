"""Schedules made ahead: a thread orders what comes later while training follows what is made."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Generic, TypeVar

from jax_diversity.foundation.progress import Advance

Made = TypeVar("Made")
_makers: dict[Path, Maker[Any]] = {}


class _Stopped(Exception):
    """Ends the work of a thread whose process ends."""


class Maker(threading.Thread, Generic[Made]):
    """Takes the steps of a schedule that is being made, in a thread of its own.

    A process that ends stops it at the next call of `advance`: what it has made stays.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(name=f"schedule {root.name}", daemon=True)
        self.root = root
        self._first, self._stop_asked = threading.Event(), threading.Event()
        self._made: Made | None = None
        self.error: BaseException | None = None
        self._steps: Generator[Made, None, None] | None = None

    def first(self, steps: Generator[Made, None, None]) -> Made:
        """What the first of the steps makes; the others go on in the background."""
        self._steps = steps
        _makers[self.root.resolve()] = self
        atexit.register(self.stop)
        self.start()
        try:
            self._first.wait()
        except BaseException:  # Ctrl-C: nobody would hold what goes on
            self.stop()
            raise
        if self._made is None:
            assert self.error is not None
            raise self.error
        return self._made

    def advancing(self, advance: Advance) -> Advance:
        """The function of progress, which also ends the work when the process ends."""

        def advance_or_stop(count: int) -> None:
            if self._stop_asked.is_set():
                raise _Stopped
            advance(count)

        return advance_or_stop

    def run(self) -> None:
        """Take all steps."""
        assert self._steps is not None
        try:
            for made in self._steps:
                if self._made is None:
                    self._made = made
                    self._first.set()
        except _Stopped:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self._steps.close()  # the folder is given back
            self._first.set()
            atexit.unregister(self.stop)

    def stop(self) -> None:
        """End the work, and wait until the folder is given back."""
        self._stop_asked.set()
        self.join()


def error_of(root: Path) -> BaseException | None:
    """What ended the last work of this process at a schedule too early, if anything did."""
    maker = _makers.get(root.resolve())
    return None if maker is None else maker.error

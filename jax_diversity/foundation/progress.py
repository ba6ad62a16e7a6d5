"""Show the progress of long work on standard error: a moving line on a terminal, in a log a line every ten seconds."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from jax_diversity.foundation.terminal import clean, show
from jax_diversity.foundation.wording import in_number

if TYPE_CHECKING:
    from rich.progress import Task

Advance = Callable[[int], None]
"""A function that long work calls with the number of units done since the last call."""
_Stage = TypeVar("_Stage")

_SECONDS_BETWEEN_LINES = 10.0
_SLOW = 0.2
"""A rate in units a second, below which the rate per minute is shown."""
_SECONDS_WORTH_A_LINE = 1.0


def ignore(amount: int) -> None:
    """An `advance` that shows nothing."""


def compiling(advance: Advance) -> None:
    """Show `compiling` until the work calls `advance` again; user callbacks are not notified."""
    if isinstance(advance, _TaskAdvance):
        advance.compiles()


def tell(amount: int) -> None:
    """Add to the task that this thread's work is a part of; without a visible task this shows nothing.

    Raises:
        KeyboardInterrupt: this thread is to stop, see `stopped_by`.
    """
    stops = _stops.get()
    if stops is not None and stops.is_set():
        raise KeyboardInterrupt  # ends the thread; the error that set the event is reported
    if (shown := _shown.get()) is not None:
        shown(amount)


def reached(advance: Advance, amount: int) -> None:
    """Show that the work has reached `amount` units: work in this process has told a part of them, others have not."""
    if isinstance(advance, _TaskAdvance):
        advance.reaches(amount)


@contextmanager
def stopped_by(event: threading.Event) -> Iterator[None]:
    """In this block, `tell` ends the work when the event is set."""
    before = _stops.set(event)
    try:
        yield
    finally:
        _stops.reset(before)


@contextmanager
def compilation() -> Iterator[None]:
    """Show `compiling` in this thread's task while the block runs; this time is not part of the rate."""
    shown = _shown.get()
    if shown is None:
        yield
        return
    shown.compiles()
    try:
        yield
    finally:
        shown.compiled()


@dataclass(frozen=True)
class _TaskAdvance:
    """The `advance` function of a visible task."""

    tell: Advance
    reaches: Advance
    compiles: Callable[[], None]
    compiled: Callable[[], None]

    def __call__(self, amount: int) -> None:
        self.tell(amount)


_shown: ContextVar[_TaskAdvance | None] = ContextVar("shown", default=None)
_stops: ContextVar[threading.Event | None] = ContextVar("stops", default=None)


class Progress:
    """Shows one task at a time, unless `quiet`; a task that took a second or more leaves one line."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._place = ""

    def numbered(self, stages: Sequence[_Stage]) -> Iterator[_Stage]:
        """Yield the stages; while one is processed, the names of its tasks begin with `1/9`, `2/9` ..."""
        for number, stage in enumerate(stages, start=1):
            self._place = f"{number}/{len(stages)} " if len(stages) > 1 else ""
            yield stage
        self._place = ""

    @contextmanager
    def task(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        """Show a task while the block runs; yields a function that any thread calls with the number of new units.

        `unit` is a noun in the singular; only a `byte` is scaled. None means that `total` is unknown. During
        compilation the task shows `compiling` instead of a rate; this time is not part of the rate.
        """
        if self.quiet:
            yield ignore
            return
        from rich import progress
        from rich.console import Console
        from rich.table import Column
        from rich.text import Text

        class RateAndMemory(progress.ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text("  ".join(_rate_and_memory(task.speed, unit, compiles)))

        watched = is_watched(sys.stderr)
        # A disabled display still counts units: its task has the rate and the remaining time for the lines in a log.
        display = progress.Progress(
            progress.TextColumn("{task.description}", markup=False, table_column=Column(width=28, no_wrap=True)),
            progress.BarColumn(bar_width=8),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
            RateAndMemory(table_column=Column(no_wrap=True, overflow="crop")),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # standard output is only for results
            disable=not watched,
            get_time=time.monotonic,
        )
        display.add_task(clean(self._place + name), total=total)
        (task,) = display.tasks
        lock, seconds_of_last_line = threading.Lock(), 0.0
        compiles, compiled, compiling_since = False, 0.0, 0.0

        def advance(amount: int) -> None:
            nonlocal seconds_of_last_line
            end_compiling()
            with lock:  # rich locks only its counters: without this lock several threads could print the same line
                display.advance(task.id, amount)
                seconds = task.elapsed or 0.0
                if not watched and not task.finished and seconds - seconds_of_last_line >= _SECONDS_BETWEEN_LINES:
                    seconds_of_last_line = seconds
                    _print_line(task, unit, compiled, total)

        def reach(amount: int) -> None:
            if amount > task.completed:
                advance(amount - int(task.completed))

        def begin_compiling() -> None:
            nonlocal compiles, compiling_since
            with lock:
                compiles, compiling_since = True, task.elapsed or 0.0
                # rich computes the rate from its last measurements. A reset removes them; the start time is kept.
                started = task.start_time
                display.reset(task.id, completed=int(task.completed))
                task.start_time = started

        def end_compiling() -> None:
            nonlocal compiles, compiled
            with lock:
                compiled += (task.elapsed or 0.0) - compiling_since if compiles else 0.0
                compiles = False

        with display:
            shown = _TaskAdvance(advance, reach, begin_compiling, end_compiling)
            before = _shown.set(shown)
            try:
                yield shown
            finally:
                _shown.reset(before)
        if (task.elapsed or 0.0) >= _SECONDS_WORTH_A_LINE:
            _print_line(task, unit, compiled)


def is_watched(stream: Any) -> bool:
    """Whether a stream is a terminal that supports moving lines, outside continuous integration."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


def resident_bytes() -> int:
    """The memory that this process uses now, in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        # The second number is the number of resident pages.
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the unit on Linux is KiB


def _print_line(task: Task, unit: str, compiled: float, total: int | None = None) -> None:
    """Print a line for a log; `compiled` is the time of compilation in seconds. `total` adds the remaining time."""
    done = _amount(task.completed, unit)
    if total:
        done = f"{_number(task.completed) if unit != 'byte' else done} of {_amount(total, unit)}"
    elapsed = task.elapsed or 0.0
    # A last line has the mean rate, which a reader can compute again; other lines have that of the last 30 seconds. The
    # first work after a compilation counts as compilation, so there is no mean then.
    speed = task.speed if total or compiled else task.completed / max(elapsed, _SECONDS_WORTH_A_LINE)
    parts = [f"{done} in {_clock(elapsed)}", *_rate_and_memory(speed, unit)]
    if compiled >= _SECONDS_WORTH_A_LINE:
        parts.insert(1, f"{_clock(compiled)} of them to compile")
    if total and task.time_remaining is not None:
        parts.append(f"{_clock(task.time_remaining)} left")
    show(f"{task.description}: {', '.join(parts)}", sys.stderr)


def _rate_and_memory(speed: float | None, unit: str, compiles: bool = False) -> list[str]:
    # Slow work, such as the training runs of an experiment, has a rate per minute.
    is_slow = speed is not None and unit != "byte" and speed < _SLOW
    rate = [f"{_amount(60 * speed, unit)}/min" if is_slow else f"{_amount(speed, unit)}/s"] if speed else []
    return [*(["compiling"] if compiles else rate), _amount(resident_bytes(), "byte")]


def _clock(seconds: float | None) -> timedelta:
    return timedelta(seconds=round(seconds or 0.0))


def _amount(number: float, unit: str) -> str:
    """A number of units: `1,234 documents`, `2.5 steps`, `12.0 MB`."""
    if unit == "byte":
        from rich.filesize import decimal

        return decimal(int(number))
    return f"{_number(number)} {in_number(number, unit)}"


def _number(number: float) -> str:
    return f"{number:,.{0 if number >= 10 or number == int(number) else 1}f}"

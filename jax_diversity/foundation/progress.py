"""Progress of long work: a moving line on a terminal, plain lines in a log; with rate, time left and memory.

Everything goes to standard error, so that standard output holds results alone. A line moves only on a terminal that a
person can watch: files, pipes, dumb terminals and continuous integration get plain lines without escape codes.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Task

Advance = Callable[[int], None]
_Stage = TypeVar("_Stage")

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_WORTH_A_LINE = 1.0
_RATE_SECONDS = 30.0
_NUM_UNMEASURED = 2
"""First calls that start the rate again: the units may be left from a run that was cut off, and the first step waits
for files to open and for compilation."""
_LINE_WIDTH = 80
_NAME_WIDTH, _BAR_WIDTH = 28, 8


def ignore(amount: int) -> None:
    """An `advance` that shows nothing."""


class Progress:
    """Shows one task at a time on standard error; a task that took a second or more leaves one line.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._place = ""

    def numbered(self, stages: Sequence[_Stage]) -> Iterator[_Stage]:
        """The stages, one after another; tasks that are started meanwhile show the stage's number.

        Example:
            >>> for stage in progress.numbered(stages):   # names of tasks start with 1/9, 2/9 ...
            ...     run(stage)
        """
        try:
            for number, stage in enumerate(stages, start=1):
                self._place = f"{number}/{len(stages)} " if len(stages) > 1 else ""
                yield stage
        finally:
            self._place = ""

    @contextmanager
    def task(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        """Show a task while the block runs.

        Args:
            name: what is being done.
            total: units in all; None where that is not known.
            unit: `bytes` are scaled and named, everything else is counted.

        Yields:
            A function to be called with the number of units just done, from any thread.
        """
        if self.quiet:
            yield ignore
            return
        from rich.console import Console
        from rich.progress import BarColumn, ProgressColumn, TextColumn
        from rich.progress import Progress as Display
        from rich.table import Column
        from rich.text import Text

        class Figures(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text("  ".join(_figures(task, unit)))

        watched = is_watched(sys.stderr)
        fixed = Column(width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis")
        # A display that is disabled still counts: its task gives rate and time left for the plain lines.
        display = Display(
            TextColumn("{task.description}", markup=False, table_column=fixed),
            BarColumn(_BAR_WIDTH),
            Figures(table_column=Column(no_wrap=True, overflow="crop")),
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,  # results alone go there
            disable=not watched,
            speed_estimate_period=_RATE_SECONDS,
            get_time=time.monotonic,
        )
        task_id = display.add_task(self._place + name, total=total)
        (task,) = display.tasks
        start = last = time.monotonic()
        num_calls, lock = 0, threading.Lock()

        def advance(amount: int) -> None:
            nonlocal last, num_calls
            with lock:
                num_calls += 1
                if num_calls <= _NUM_UNMEASURED:  # clears the samples that the rate is made of
                    display.reset(task_id, completed=int(task.completed) + amount)
                else:
                    display.advance(task_id, amount)
                now = time.monotonic()
                if not watched and now - last >= _SECONDS_BETWEEN_LINES:
                    last = now
                    print(_line(task, unit), file=sys.stderr, flush=True)

        with display:
            yield advance
        seconds = time.monotonic() - start
        if seconds >= _SECONDS_WORTH_A_LINE:
            rate = f" ({_amount(task.completed / seconds, unit)}/s)" if task.completed else ""
            counted = f"{_amount(task.completed, unit)} " if task.completed else ""
            memory = f"{_amount(resident_bytes(), 'bytes')} of memory"
            print(_named(task, f"{counted}in {_clock(seconds)}{rate}, {memory}"), file=sys.stderr, flush=True)


def is_watched(stream: Any) -> bool:
    """Tell whether lines may move on this stream: a terminal that understands it, outside continuous integration."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


def resident_bytes() -> int:
    """Memory that this process uses now, in bytes; its peak where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return peak_bytes()


def peak_bytes() -> int:
    """The most memory that this process has used since it started, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # Linux counts kilobytes


def _figures(task: Task, unit: str, leave_out: str = "") -> list[str]:
    """Share, rate of the last 30 seconds (its unit may be left out), time left, memory."""
    parts = [f"{task.percentage:.0f} %"] if task.total else []
    if task.speed:
        parts.append(f"{_amount(task.speed, unit).removesuffix(f' {leave_out}')}/s")
        if task.time_remaining is not None:
            parts.append(f"{_clock(task.time_remaining)} left")
    return [*parts, _amount(resident_bytes(), "bytes")]


def _line(task: Task, unit: str) -> str:
    done = _amount(task.completed, unit)
    if task.total:
        done = f"{done.removesuffix(f' {unit}')} of {_amount(task.total, unit)}"
    return _named(task, ", ".join([done, *_figures(task, unit, leave_out=unit)]))


def _named(task: Task, text: str) -> str:
    """The task's name before a text; the name is cut where the line would be wider than a terminal."""
    room = max(_LINE_WIDTH - len(text) - 2, 3)
    name = task.description
    return f"{name if len(name) <= room else f'{name[: room - 3]}...'}: {text}"


def _amount(number: float, unit: str) -> str:
    """A number of units in few digits.

    Example:
        >>> _amount(1234567, "documents"), _amount(12e6, "bytes")
        ('1.2M documents', '12.0 MB')
    """
    if unit == "bytes":
        from rich.filesize import decimal

        return decimal(int(number))
    if number < 1e4:
        return f"{number:,.{0 if number >= 10 or number == int(number) else 1}f} {unit}"
    scale, sign = next((each for each in ((1e9, "G"), (1e6, "M")) if number >= each[0]), (1e3, "k"))
    return f"{number / scale:,.1f}{sign} {unit}"


def _clock(seconds: float) -> str:
    """Time as hours, minutes and seconds: `0:00:42`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"

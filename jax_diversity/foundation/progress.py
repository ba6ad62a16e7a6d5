"""Progress of long work: a line that moves on a terminal, plain lines in a log; with rate, time left and memory.

Everything goes to standard error, so that standard output holds results alone. A line moves only where somebody
can watch it: not in files and pipes, on dumb terminals or in continuous integration, which get no escape codes.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Advance = Callable[[int], None]
_Stage = TypeVar("_Stage")

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_WORTH_A_LINE = 1.0
_RATE_SECONDS = 30.0
_SECONDS_APART = 0.1
_NUM_FIRST = 2
_LINE_WIDTH = 80
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_NAME_WIDTH, _BAR_WIDTH = 28, 8


def ignore(amount: int) -> None:
    """An `advance` for those who do not watch."""


class Progress:
    """Shows one task at a time on standard error; of those that took a second or more, a line stays.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self._place = ""

    def numbered(self, stages: Sequence[_Stage]) -> Iterator[_Stage]:
        """The stages, one after another; a task that is begun meanwhile says which of them it belongs to.

        Example:
            >>> for stage in progress.numbered(stages):   # tasks begin with 1/9, 2/9 ...
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
        """Show a task while the block runs; the block calls what it gets with the units just done.

        Args:
            name: what is being done.
            total: units in all; None where nobody knows.
            unit: `bytes` are scaled and named, everything else is counted.
        """
        if self.quiet:
            yield ignore
            return
        meter = _Meter(self._place + name, total, unit)
        if is_watched(sys.stderr):
            with _moving_line(meter):
                yield meter.advance
        else:
            yield _Lines(meter)
        if meter.seconds >= _SECONDS_WORTH_A_LINE:
            print(meter.closing_line(), file=sys.stderr, flush=True)


def is_watched(stream: Any) -> bool:
    """Whether lines may move on this stream: a terminal that understands it, with somebody before it."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


def resident_bytes() -> int:
    """Memory of this process that is in use now, in bytes; where the system does not say, the most that was."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


class _Meter:
    """Counts what is done of one task, and says it in words; threads may advance it side by side."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = 0
        self.start = time.monotonic()
        self._marks = deque([(self.start, 0)])
        self._num_begun, self._begun = 0, self.start
        self._lock = threading.Lock()

    def advance(self, amount: int) -> None:
        """So many units more.

        Rates begin after the first units: these wait for what is done once (compilation, opening files), or were
        done by a run that was cut off. What comes within a tenth of a second, from several threads say, is one.
        """
        with self._lock:
            self.done += amount
            now = time.monotonic()
            if amount and self._num_begun <= _NUM_FIRST and now - self._begun >= _SECONDS_APART:
                self._num_begun, self._begun = self._num_begun + 1, now
            if self._num_begun <= _NUM_FIRST:
                self._marks[0] = (now, self.done)
            elif now - self._marks[-1][0] >= 0.5:
                self._marks.append((now, self.done))
                while len(self._marks) > 2 and now - self._marks[0][0] > _RATE_SECONDS:
                    self._marks.popleft()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.start

    @property
    def rate(self) -> float:
        """Units a second, of late; 0 where too little is done to tell."""
        with self._lock:
            since, before = self._marks[0]
            return (self.done - before) / max(time.monotonic() - since, 1e-9)

    @property
    def share(self) -> float | None:
        """What part of the task is done."""
        return min(self.done / self.total, 1.0) if self.total else None

    def figures(self, *, names_unit: bool = True) -> list[str]:
        """Share, rate, time left, memory, as short as can be; the rate with its unit or without."""
        share, rate = self.share, self.rate
        parts = [] if share is None else [f"{100 * share:.0f} %"]
        if rate > 0:
            amount = _amount(rate, self.unit)
            parts.append(f"{amount if names_unit else amount.removesuffix(f' {self.unit}')}/s")
        if self.total and rate > 0:
            parts.append(f"{_clock(max(self.total - self.done, 0) / rate)} left")
        return [*parts, _amount(resident_bytes(), "bytes")]

    def line(self) -> str:
        """One line of a log."""
        counted = _amount(self.done, self.unit)
        if self.total:
            counted = f"{counted.removesuffix(f' {self.unit}')} of {_amount(self.total, self.unit)}"
        figures = self.figures()
        if len(f"{self.name}: {', '.join([counted, *figures])}") > _LINE_WIDTH:
            figures = self.figures(names_unit=False)
        return self._named(", ".join([counted, *figures]))

    def closing_line(self) -> str:
        """What remains of a finished task: how much, how long, how fast, memory."""
        rate = f" ({_amount(self.done / self.seconds, self.unit)}/s)" if self.done else ""
        counted = f"{_amount(self.done, self.unit)} " if self.done else ""
        memory = _amount(resident_bytes(), "bytes")
        return self._named(f"{counted}in {_clock(self.seconds)}{rate}, {memory} of memory")

    def _named(self, text: str) -> str:
        """The task's name before what is said of it, cut where a line would be longer than a terminal is wide."""
        room = max(_LINE_WIDTH - len(text) - 2, 3)
        return f"{self.name if len(self.name) <= room else f'{self.name[: room - 3]}...'}: {text}"


def _amount(number: float, unit: str) -> str:
    """A number of units in three or four digits.

    Example:
        >>> _amount(1234567, "documents"), _amount(12e6, "bytes")
        ('1.23M documents', '12.0 MB')
    """
    is_scaled = number >= (1e3 if unit == "bytes" else 1e4)
    scale, sign = next((each for each in _SCALES if is_scaled and number >= each[0]), (1.0, ""))
    if is_scaled:
        digits = 0 if number >= 100 * scale else 1 if number >= 10 * scale else 2
    else:
        digits = 0 if number >= 10 or number == int(number) else 1
    short = f"{number / scale:,.{digits}f}"
    return f"{short} {sign}B" if unit == "bytes" else f"{short}{sign} {unit}"


def _clock(seconds: float) -> str:
    """Time to read at a glance: `0.4 s`, `42 s`, `3:05 min`, `1:02:03 h`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h" if hours else f"{minutes}:{rest:02d} min"


class _Lines:
    """A line every ten seconds, for logs."""

    def __init__(self, meter: _Meter) -> None:
        self._meter, self._last = meter, meter.start

    def __call__(self, amount: int) -> None:
        self._meter.advance(amount)
        now = time.monotonic()
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            print(self._meter.line(), file=sys.stderr, flush=True)


@contextmanager
def _moving_line(meter: _Meter) -> Iterator[None]:
    """Name, bar and figures on one line, several times a second; gone when the block ends."""
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    class Line:
        def __rich__(self) -> Table:
            grid = Table.grid(padding=(0, 1))
            grid.add_column(width=_NAME_WIDTH, no_wrap=True, overflow="ellipsis")
            grid.add_column(width=_BAR_WIDTH)
            grid.add_column(no_wrap=True, overflow="crop")
            known = None if meter.share is None else 1.0
            bar = ProgressBar(known, meter.share or 0.0, width=_BAR_WIDTH, animation_time=meter.seconds)
            grid.add_row(Text(meter.name), bar, Text("  ".join(meter.figures())))
            return grid

    # Standard output stays what it is: results alone go there.
    console = Console(stderr=True)
    with Live(Line(), console=console, refresh_per_second=8, transient=True, redirect_stdout=False):
        yield

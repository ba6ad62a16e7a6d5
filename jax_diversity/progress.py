"""Progress of long work: a bar with rate and remaining time on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

Advance = Callable[[int], None]

_SECONDS_BETWEEN_LINES = 10.0


def ignore(amount: int) -> None:
    """An `advance` for those who do not watch."""


class Progress:
    """Shows one task at a time on standard error.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

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
        elif sys.stderr.isatty():
            with _bar(name, total, unit) as advance:
                yield advance
        else:
            yield _Lines(name, total, unit)


@contextmanager
def _bar(name: str, total: int | None, unit: str) -> Iterator[Advance]:
    from rich import progress
    from rich.console import Console

    if unit == "bytes":
        amount = [progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()]
    else:
        amount = [progress.MofNCompleteColumn(), _rate_column(unit)]
    columns = [
        progress.TextColumn("{task.description:<22}"),
        progress.BarColumn(bar_width=24),
        *amount,
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    ]
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.advance(task, done)


def _rate_column(unit: str) -> ProgressColumn:
    from rich import progress
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(f"{task.speed or 0:,.0f} {unit}/s")

    return Rate()


class _Lines:
    """A line every ten seconds, for logs."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = 0
        self.start = self.last = time.monotonic()

    def __call__(self, amount: int) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self.last < _SECONDS_BETWEEN_LINES:
            return
        self.last = now
        rate = self.done / (now - self.start)
        line = f"{self.name}: {self.done:,} {self.unit}, {rate:,.0f} {self.unit}/s"
        if self.total:
            remaining = max(self.total - self.done, 0) / max(rate, 1e-9)
            line += f", {100 * self.done / self.total:.0f} %, about {remaining:.0f} s left"
        print(line, file=sys.stderr, flush=True)

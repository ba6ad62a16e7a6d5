"""Progress: a line that moves on a terminal, plain lines in a log, nothing where nothing is wanted."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading

import pytest

from jax_diversity.foundation import progress
from jax_diversity.foundation.progress import Progress, compilation, compiling

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WATCHED = """
import sys, time
from jax_diversity.foundation import progress
progress._SECONDS_WORTH_A_LINE = 0.2
with progress.Progress().task("pack", 40, "sequence") as advance:
    for _ in range(40):
        time.sleep(0.02)
        advance(1)
print("result")
"""


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    monkeypatch.setattr(progress, "resident_bytes", lambda: 2_500_000_000)
    return clock


def run(
    shown: Progress, clock: Clock, *, steps: int, seconds: float, amount: int, total: int | None, unit: str
) -> None:
    with shown.task("tokenize", total, unit) as advance:
        for _ in range(steps):
            clock.now += seconds
            advance(amount)


def test_a_log_gets_a_line_now_and_then(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    run(Progress(), clock, steps=60, seconds=0.5, amount=1_000_000, total=60_000_000, unit="byte")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "tokenize: 20.0 MB of 60.0 MB in 0:00:10, 2.0 MB/s, 2.5 GB, 0:00:20 left",
        "tokenize: 40.0 MB of 60.0 MB in 0:00:20, 2.0 MB/s, 2.5 GB, 0:00:10 left",
        "tokenize: 60.0 MB in 0:00:30, 2.0 MB/s, 2.5 GB",
    ]


def test_a_task_of_unknown_length_shows_no_time_left(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    run(Progress(), clock, steps=12, seconds=1.0, amount=5, total=None, unit="document")
    assert capsys.readouterr().err.splitlines() == [
        "tokenize: 50 documents in 0:00:10, 5 documents/s, 2.5 GB",
        "tokenize: 60 documents in 0:00:12, 5 documents/s, 2.5 GB",
    ]


def test_short_tasks_and_quiet_ones_leave_nothing(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    run(Progress(), clock, steps=3, seconds=0.1, amount=1, total=3, unit="stage")
    run(Progress(quiet=True), clock, steps=30, seconds=10.0, amount=1, total=30, unit="stage")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_the_rate_is_that_of_the_last_seconds(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    """What a cut-off run left behind is done at once; time left is of what is still to do."""
    with Progress().task("embed", 2_000, "document") as advance:
        advance(1_000)
        for _ in range(80):
            clock.now += 1.0
            advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2] == "embed: 1,800 of 2,000 documents in 0:01:20, 10 documents/s, 2.5 GB, 0:00:20 left"


def test_the_last_line_has_the_mean_rate(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    with Progress().task("embed", 6_000, "document") as advance:
        for seconds in (50.0, 10.0):
            for _ in range(30):
                clock.now += seconds / 30
                advance(100)
    assert capsys.readouterr().err.splitlines()[-1] == "embed: 6,000 documents in 0:01:00, 100 documents/s, 2.5 GB"


def test_compilation_is_shown_apart(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    """The rate counts from the first units that are done after it."""
    with Progress().task("order", 20_000, "sequence") as advance:
        for _ in range(2):  # some work compiles twice
            compiling(advance)
            clock.now += 60.0
            for _ in range(10):
                advance(1_000)
                clock.now += 1.0
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "order: 1,000 of 20,000 sequences in 0:01:00, 0:01:00 of them to compile, 2.5 GB",
        "order: 11,000 of 20,000 sequences in 0:02:10, 0:02:00 of them to compile, 2.5 GB",
        "order: 20,000 sequences in 0:02:20, 0:02:00 of them to compile, 1,000 sequences/s, 2.5 GB",
    ]
    with compilation():
        pass  # nothing is shown
    compiling(lambda amount: pytest.fail("a function of the user's own is told of units alone"))
    compiling(progress.ignore)


def test_what_compiles_within_a_task_is_told_apart_from_its_work(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    with Progress().task("order", 20_000, "sequence") as advance:
        for _ in range(2):
            with compilation():
                clock.now += 60.0
            for _ in range(10):
                clock.now += 1.0
                advance(1_000)
    assert capsys.readouterr().err.splitlines() == [
        "order: 1,000 of 20,000 sequences in 0:01:01, 0:01:00 of them to compile, 2.5 GB",
        "order: 11,000 of 20,000 sequences in 0:02:11, 0:02:00 of them to compile, 2.5 GB",
        "order: 20,000 sequences in 0:02:20, 0:02:00 of them to compile, 1,000 sequences/s, 2.5 GB",
    ]


def test_slow_work_has_a_rate_of_a_minute() -> None:
    assert progress._rate_and_memory(0.05, "run")[0] == "3 runs/min"
    assert progress._rate_and_memory(0.5, "run")[0] == "0.5 runs/s"
    assert progress._rate_and_memory(0.05, "byte")[0].endswith("bytes/s")


@pytest.mark.parametrize(("compiles", "rate"), [(True, "compiling"), (False, "5 sequences/s")])
def test_a_terminal_says_that_work_compiles(clock: Clock, compiles: bool, rate: str) -> None:
    assert progress._rate_and_memory(5.0, "sequence", compiles) == [rate, "2.5 GB"]


def test_tasks_name_their_stage(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    shown = Progress()
    for _ in shown.numbered(["one", "two"]):
        run(shown, clock, steps=1, seconds=2.0, amount=1, total=1, unit="stage")
    run(shown, clock, steps=1, seconds=2.0, amount=1, total=1, unit="stage")
    starts = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert starts == ["1/2 tokenize", "2/2 tokenize", "tokenize"]


def test_threads_may_advance_side_by_side(clock: Clock, capsys: pytest.CaptureFixture) -> None:
    with Progress().task("read", None, "record") as advance:
        threads = [threading.Thread(target=lambda: [advance(1) for _ in range(2_000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        clock.now += 2.0
    assert capsys.readouterr().err == "read: 8,000 records in 0:00:02, 4,000 records/s, 2.5 GB\n"


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, "step", "0 steps"),
        (1, "step", "1 step"),
        (9_999, "step", "9,999 steps"),
        (2.5, "step", "2.5 steps"),
        (1_234_567, "document", "1,234,567 documents"),
        (1_500, "byte", "1.5 kB"),
        (3.2e12, "byte", "3.2 TB"),
    ],
)
def test_amounts(number: float, unit: str, text: str) -> None:
    assert progress._amount(number, unit) == text


def test_memory_is_that_of_this_process() -> None:
    before = progress.resident_bytes()
    held = bytearray(os.urandom(1)) * 60_000_000
    assert progress.resident_bytes() - before > 50_000_000
    assert len(held) == 60_000_000


def test_only_a_terminal_outside_continuous_integration_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert progress.is_watched(Terminal())
    assert not progress.is_watched(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not progress.is_watched(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("CI", "true")
    assert not progress.is_watched(Terminal())


def on_a_terminal(**environment: str) -> tuple[str, str]:
    """Standard output, which goes to a pipe, and what a terminal of 80 columns gets as standard error."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "COLUMNS")}
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED],
        env={**kept, "TERM": "xterm-256color", **environment},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        parts = []
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            parts.append(part)
        out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    return out, b"".join(parts).decode()


@pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals end otherwise elsewhere")
def test_a_terminal_gets_a_line_that_moves_and_goes() -> None:
    out, shown = on_a_terminal()
    assert out == "result\n"
    assert "\x1b[2K" in shown, "the line is drawn again"
    assert "\x1b[3" in shown, "with colours"
    plain = ESCAPES.sub("", shown)
    frames = [line for line in re.split(r"[\r\n]+", plain) if line.startswith("pack ")]
    assert len(frames) > 2
    assert max(map(len, frames)) <= 80
    assert re.search(r"pack +\S+ +\d+% +[\d:]+ +[\d.]+ sequences/s +\d+", " ".join(frames))
    assert re.search(r"pack: 40 sequences in [\d:]+, [\d.]+ sequences/s, [\d.]+ MB\s*$", plain)


@pytest.mark.skipif(sys.platform != "linux", reason="pseudo-terminals end otherwise elsewhere")
def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    _, shown = on_a_terminal(NO_COLOR="1")
    assert "\x1b[2K" in shown
    assert not re.search(r"\x1b\[[0-9;]*m", shown.replace("\x1b[0m", "").replace("\x1b[m", ""))
    _, plain = on_a_terminal(TERM="dumb")
    assert "\x1b" not in plain
    assert plain.startswith("pack: 40 sequences in ")

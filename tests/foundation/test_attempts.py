"""Work on one document: exceptions, the end of its time, and the caller's own handler and timer."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
import time

import pytest

from jax_diversity.foundation.attempts import Failure, attempt, time_limit

pytestmark = pytest.mark.core

PUMPED = re.compile(r"(a+)+b")


def fail(text: str) -> None:
    raise ValueError(text)


def recurse() -> int:
    return 1 + recurse()


def swallow() -> None:
    with contextlib.suppress(BaseException):
        time.sleep(100)
    time.sleep(100)


def test_a_failure_names_type_and_line_never_the_message() -> None:
    failure = attempt(fail, "the document's text")
    line = fail.__code__.co_firstlineno + 1
    assert failure == Failure("raised", f"ValueError at {__name__}:{line}")
    assert attempt(recurse) == Failure("raised", "RecursionError")
    assert attempt(sys.exit, 0).what.startswith("SystemExit")
    assert attempt(lambda: bytes(2**62)) == Failure("raised", "MemoryError")


class Panic(BaseException):
    """An exception like those of libraries in Rust."""


def panic() -> None:
    raise Panic


def test_an_exception_of_any_type_is_a_failure() -> None:
    assert attempt(panic).what.startswith("Panic at ")


def test_the_clock_does_not_tick_while_an_exception_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Failure.of

    def slow(error: BaseException) -> Failure:
        time.sleep(0.5)
        return of(error)

    monkeypatch.setattr(Failure, "of", slow)
    with time_limit(0.2):
        assert attempt(fail, "").rule == "raised"


def test_an_attempt_within_an_attempt_does_not_stop_the_outer_clock() -> None:
    def work() -> None:
        assert attempt(int, "7") == 7
        time.sleep(100)

    with time_limit(0.2):
        assert attempt(work).rule == "took_too_long"


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interruption_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        attempt(interrupt)


@pytest.mark.parametrize("work", [lambda: time.sleep(100), lambda: PUMPED.search("a" * 60), swallow])
def test_work_ends_with_its_time(work) -> None:
    with time_limit(0.2):
        assert attempt(work) == Failure("took_too_long", "more than 0.2 seconds")
        assert attempt(len, "abc") == 3
        assert attempt(work) == Failure("took_too_long", "more than 0.2 seconds")


def test_an_exception_handler_of_the_work_does_not_catch_the_end() -> None:
    def work() -> str:
        try:
            time.sleep(100)
        except Exception:
            return "caught"
        return "slept"

    with time_limit(0.2):
        assert isinstance(attempt(work), Failure)


def test_only_attempts_are_limited() -> None:
    with time_limit(0.05):
        time.sleep(0.3)
        assert attempt(int, "7") == 7
        time.sleep(0.3)


def test_the_callers_handler_and_timer_work_on() -> None:
    calls = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: calls.append(number))
    handler = signal.getsignal(signal.SIGALRM)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with time_limit(0.2):
            assert isinstance(attempt(time.sleep, 100), Failure)
            time.sleep(0.5)
            assert len(calls) == 1  # within the block
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 100.0, 7.0)
        with time_limit(0.2), time_limit(0.1):
            pass
        remaining, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 90 < remaining <= 100
        assert interval == 7.0
        assert signal.getsignal(signal.SIGALRM) is handler
        with pytest.raises(KeyError), time_limit(0.2):
            raise KeyError
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handler_that_the_work_sets_stays() -> None:
    before = signal.getsignal(signal.SIGALRM)

    def own(number: int, frame: object) -> None: ...

    try:
        with time_limit(0.2):
            attempt(signal.signal, signal.SIGALRM, own)
        assert signal.getsignal(signal.SIGALRM) is own
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_have_no_limit_and_the_same_net() -> None:
    found = []

    def work() -> None:
        with time_limit(0.05):
            found.extend([attempt(time.sleep, 0.3), attempt(fail, "")])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] is None
    assert found[1].rule == "raised"

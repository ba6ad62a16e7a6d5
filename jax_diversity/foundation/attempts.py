"""Do a piece of work on one document: an exception or a slow document must not end a run over millions of documents.

A timer ticks in the main thread while `time_limit` is active. Its signal interrupts Python code, regular expressions
and sleep. It does not interrupt other code in C. Such code can only be stopped by ending the process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar

Result = TypeVar("Result")
_TICK_SECONDS = 1.0
_TICKS_A_LIMIT = 4
"""The smallest number of ticks within one time limit."""


class DocumentError(Exception):
    """The document does not suit the work. The message is counted and shown: it must not quote the document."""


class Failure(NamedTuple):
    """The reason why a piece of work has no result.

    It does not contain the exception's message, because the message may quote the document. Only the message of a
    `DocumentError` is kept.
    """

    rule: Literal["raised", "took_too_long"]
    what: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure of work that raised an exception: the exception's type, and the module and line of its origin."""
        if isinstance(error, DocumentError):
            return cls("raised", str(error))
        name, trace = type(error).__name__, error.__traceback__
        # The line where one of these two errors is raised depends on the depth of the stack and on the machine.
        if trace is None or isinstance(error, RecursionError | MemoryError):
            return cls("raised", name)
        while trace.tb_next is not None:
            trace = trace.tb_next
        return cls("raised", f"{name} at {trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}")


class TookTooLongError(BaseException):
    """The time of the work is over; not an `Exception`, so that the work's own `except Exception` does not catch it."""


class _Clock:
    """The time that the current piece of work has used; None between pieces of work."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.tick_seconds = min(_TICK_SECONDS, seconds / _TICKS_A_LIMIT)
        self.spent: float | None = None
        self._processor_seconds = time.thread_time()

    def tick(self) -> None:
        # There is only one tick after a pause of the process, and only one after a long call of C code. A pause uses no
        # processor time and counts as one tick. C code counts with the processor time that it used.
        now = time.thread_time()
        passed, self._processor_seconds = max(self.tick_seconds, now - self._processor_seconds), now
        if self.spent is None:
            return
        self.spent += passed
        if self.spent > self.seconds:
            self.spent = self.seconds  # the next tick raises again if the work catches this exception
            raise TookTooLongError


class _Current(threading.local):
    """The clock of the innermost `time_limit` of this thread."""

    clock = _Clock(float("inf"))


_current = _Current()


def attempt(work: Callable[..., Result], *arguments: Any) -> Result | Failure:
    """Return the result of `work(*arguments)`, or the reason for no result: an exception, or the end of its time.

    `KeyboardInterrupt` is raised.

    Example:
        >>> attempt(int, "7"), attempt(int, "seven").rule
        (7, 'raised')
    """
    clock = _current.clock
    before = clock.spent
    try:
        # The clock stops before an exception is handled: it must not tick in the handlers.
        try:
            clock.spent = 0.0
            return work(*arguments)
        finally:
            clock.spent = before
    except TookTooLongError:
        return took_too_long(clock.seconds)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # `SystemExit`, and a panic of a library in Rust, are not an `Exception`
        return Failure.of(error)


def took_too_long(seconds: float) -> Failure:
    """The failure of work that was ended because it took more than `seconds`."""
    return Failure("took_too_long", f"more than {seconds:g} seconds")


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit every `attempt` in the block to a time; 0 means no limit.

    Only the main thread gets signals: in other threads nothing is limited.

    The signal is SIGALRM. A handler and a timer of the caller continue during the block, and are restored after it.
    """
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return
    clock = _Clock(seconds)
    begun = time.monotonic()
    former_handler = signal.getsignal(signal.SIGALRM)
    remaining, interval = signal.getitimer(signal.ITIMER_REAL)
    due = begun + remaining if remaining else None

    def tick(number: int, frame: FrameType | None) -> None:
        nonlocal due
        if due is not None and time.monotonic() >= due:
            due = time.monotonic() + interval if interval else None
            if callable(former_handler):
                former_handler(number, frame)
            elif former_handler == signal.SIG_DFL:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.raise_signal(signal.SIGALRM)  # ends the process, as without this function
        clock.tick()

    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, clock.tick_seconds, clock.tick_seconds)
    outer, _current.clock = _current.clock, clock
    try:
        yield
    finally:
        _current.clock = outer
        if signal.getsignal(signal.SIGALRM) is tick:  # the work may have set a handler and a timer of its own
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, former_handler)
            if due is not None:
                signal.setitimer(signal.ITIMER_REAL, max(due - time.monotonic(), 1e-6), interval)

"""Run jobs in several processes, or threads; results have the order of the jobs.

Workers are started with `spawn`, as new Python processes: a fork would copy the locks of this process's threads, which
may be held. Each worker holds the reading end of a pipe, the lifeline. This process holds its only writing end. When
this process ends, even by SIGKILL, the operating system closes the writing end, and the workers stop at once.
"""

from __future__ import annotations

import contextvars
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from jax_diversity.foundation.errors import UserError

Job = TypeVar("Job")
Result = TypeVar("Result")
is_worker = False
"""Whether this process works for another one, which goes on if this process ends."""
_JOBS_A_PROCESS = 3
"""Submitted jobs per process without a taken result: so slow jobs do not stop other processes."""


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def in_threads(work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """Return the results of `work` for all jobs, in their order; as many threads as cores do the jobs.

    For work that spends its time in NumPy or JAX, which run in several threads at the same time.
    """
    if min(len(jobs), num_cores()) < 2:
        return [work(job) for job in jobs]
    with ThreadPoolExecutor(num_cores()) as pool:
        # A copy of the context for every job: it has the display of progress.
        running = [pool.submit(contextvars.copy_context().run, work, job) for job in jobs]
        return [future.result() for future in running]


def map_in_processes(
    work: Callable[..., Result],
    jobs: Iterable[tuple],
    num_processes: int,
    *,
    what: str,
    setting: str,
    environment: Mapping[str, str] | None = None,
    restarts: Callable[[], bool] = lambda: False,
) -> Iterator[Result]:
    """Yield the results of `work(*job)` in the order of the jobs; a few jobs are started in advance.

    Args:
        work: a function at the top level of a module; the workers import it. It must be safe to run twice if `restarts`
            is given.
        jobs: arguments that can be pickled; the iterable is read while results are taken.
        num_processes: the number of processes.
        what: the work of the processes, for the message if one is killed.
        setting: what to make smaller if memory is short, for the same message.
        environment: environment variables for the workers.
        restarts: asked after the end of a worker; True if the unfinished jobs start again in new workers.

    Raises:
        UserError: a worker was killed.
    """
    jobs = iter(jobs)
    unfinished: deque[tuple] = deque()  # begun jobs whose results are not yet taken
    while True:
        try:
            yield from _results(work, jobs, unfinished, num_processes, dict(environment or {}))
            return
        except BrokenProcessPool:
            if restarts():
                continue
            raise UserError(
                f"Expected {num_processes} {what} processes to finish, found a process that was ended from outside "
                "(killed, out of memory, or a script that starts processes without `if __name__ == '__main__':` "
                "around its own work); run it again, which keeps finished work: with that guard, and with a "
                f"smaller {setting} if memory is short."
            ) from None


def _results(
    work: Callable[..., Result],
    jobs: Iterator[tuple],
    unfinished: deque[tuple],
    num_processes: int,
    environment: dict[str, str],
) -> Iterator[Result]:
    """The results of the unfinished jobs, then of the others; `unfinished` is kept up to date."""
    context = multiprocessing.get_context("spawn")
    pipe: Any = context.Pipe(duplex=False)  # typed by platform
    child_end, parent_end = pipe
    with (
        child_end,
        parent_end,
        ProcessPoolExecutor(num_processes, context, _start_worker, (child_end, environment)) as workers,
    ):
        try:
            begun = deque(workers.submit(work, *job) for job in unfinished)
            for job in jobs:
                unfinished.append(job)
                begun.append(workers.submit(work, *job))
                if len(begun) == num_processes:
                    # The pool watches only workers that were started before its last wake-up. This submission wakes
                    # it after the last worker was started; otherwise the death of that worker would stay unnoticed.
                    workers.submit(os.getpid)
                if len(begun) >= _JOBS_A_PROCESS * num_processes:
                    yield _next(begun, unfinished)
            if begun:
                workers.submit(os.getpid)
            while begun:
                yield _next(begun, unfinished)
        except BrokenProcessPool:
            raise
        except BaseException:
            parent_end.close()  # ends the workers now: the pool would wait for their jobs to be finished
            raise


def _next(begun: deque[Future], unfinished: deque[tuple]) -> Any:
    result = begun.popleft().result()
    unfinished.popleft()
    return result


def _start_worker(lifeline: Connection, environment: dict[str, str]) -> None:
    # Ctrl-C in a terminal interrupts all processes; workers ignore it, and the process that started them ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    os.environ.update(environment)


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: it returns when the other end is closed
    os._exit(1)  # without clean-up: unfinished files have temporary names, and a lock may be held by another thread

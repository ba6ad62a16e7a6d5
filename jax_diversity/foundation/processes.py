"""Work shared among processes: jobs in, results out in the order of the jobs.

Workers are started by `spawn`, as new processes of Python: a fork would copy the locks of this process's threads in
whatever state they are in. Each worker holds the reading end of a pipe, the lifeline, whose only writing end is held
here. However this process ends, an interrupt and SIGKILL among them, the operating system closes that end, and the
workers stop at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from jax_diversity.foundation.errors import UserError

Result = TypeVar("Result")
_JOBS_A_PROCESS = 3
"""Jobs of a process that are started, or finished and not yet asked for: it stays busy while others are slow."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def map_in_processes(
    work: Callable[..., Result],
    jobs: Iterable[tuple],
    num_processes: int,
    *,
    what: str,
    setting: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Result]:
    """The results of `work(*job)` in the order of the jobs; a few jobs are taken ahead.

    Args:
        work: a function of a module, which the workers import.
        jobs: arguments that can be pickled; taken as results are asked for.
        num_processes: how many work side by side.
        what: what the processes do, for the message if one is killed.
        setting: the setting with their number, for the same message.
        environment: variables of the workers' environment.

    Raises:
        UserError: a worker was killed.
    """
    context = multiprocessing.get_context("spawn")
    pipe: Any = context.Pipe(duplex=False)  # typed by platform
    theirs, ours = pipe
    begun: deque = deque()
    with theirs, ours:
        workers = ProcessPoolExecutor(num_processes, context, _start_worker, (theirs, dict(environment or {})))
        with workers:
            try:
                for job in jobs:
                    begun.append(workers.submit(work, *job))
                    if len(begun) == num_processes:
                        # The pool watches the workers that it knew of when it last woke up. This submission wakes it
                        # after the last worker was started; otherwise the pool would not notice the death of that one.
                        workers.submit(os.getpid)
                    if len(begun) >= _JOBS_A_PROCESS * num_processes:
                        yield begun.popleft().result()
                if begun:
                    workers.submit(os.getpid)
                while begun:
                    yield begun.popleft().result()
            except BrokenProcessPool:
                raise UserError(
                    f"Expected {num_processes} {what} processes to live until they are done, found one ended from "
                    "outside (killed, memory ran out, or a script that starts processes without `if __name__ == "
                    "'__main__':` around its own work); run the same again, which keeps what is finished, with that "
                    f"guard, and with a smaller {setting} where memory is short."
                ) from None
            except BaseException:
                ours.close()  # ends the workers now: the pool would wait for their jobs to be finished
                raise


def _start_worker(lifeline: Connection, environment: dict[str, str]) -> None:
    # An interrupt of a terminal reaches all processes; the one that started the workers ends them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    os.environ.update(environment)


def _end_with(lifeline: Connection) -> None:
    lifeline.poll(None)  # nothing is ever sent: it returns when the other end is closed
    os._exit(1)  # without clean-up: unfinished files have temporary names, and a lock may be held by another thread

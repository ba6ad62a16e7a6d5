"""Run the jobs of a stage, in this process or in several. No stage knows which executor runs its jobs."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Protocol, runtime_checkable

from jax_diversity.foundation import processes
from jax_diversity.foundation.jobs import Job, Work, finished, run_job
from jax_diversity.foundation.processes import map_in_processes, num_cores
from jax_diversity.foundation.progress import stopped_by


@runtime_checkable
class Executor(Protocol):
    """Runs jobs. The files of the jobs and the order of the results are the same for every executor."""

    def map(self, work: Work, jobs: Sequence[Job]) -> Iterator[Any]:
        """Yield the results of the jobs in their order; finished jobs do not run again. Take all results.

        Raises:
            UserError: the error of a job, or a process or machine was lost. Finished jobs are kept.
        """
        ...


class Here:
    """Runs jobs in this process."""

    def map(self, work: Work, jobs: Iterable[Job]) -> Iterator[Any]:
        """See `Executor.map`."""
        if work.at_a_time == 1:
            for name, arguments in jobs:
                yield run_job(work.reference, name, arguments)
            return
        stops = threading.Event()
        running = deque[Future]()

        def run(name: str, arguments: tuple) -> Any:
            with stopped_by(stops):
                return run_job(work.reference, name, arguments)

        with ThreadPoolExecutor(work.at_a_time) as threads:
            try:
                for job in jobs:
                    # A copy of the context for every job: it has the display of progress.
                    running.append(threads.submit(contextvars.copy_context().run, run, *job))
                    if len(running) > work.at_a_time:
                        yield _next(running)
                while running:
                    yield _next(running)
            except BaseException:
                stops.set()
                threads.shutdown(cancel_futures=True)
                raise


def _next(running: deque[Future]) -> Any:
    """The result of the first job; the error of a later one is raised at once."""
    while not running[0].done():
        wait([job for job in running if not job.done()], return_when=FIRST_COMPLETED)
        for job in running:
            if job.done():
                job.result()
    return running.popleft().result()


class Processes:
    """Runs jobs in several processes of this machine.

    Args:
        number: the number of processes. 0 means one per core; then a little work is done in this process alone.
    """

    def __init__(self, number: int = 0) -> None:
        self._number = number

    def map(self, work: Work, jobs: Sequence[Job]) -> Iterator[Any]:
        """See `Executor.map`."""
        remaining = iter(jobs)
        number = self._number or num_cores()
        if work.alone or number == 1:
            yield from Here().map(work, remaining)
            return
        if not self._number:
            until = time.monotonic() + work.patience
            soon = iter(lambda: next(remaining, None) if time.monotonic() < until else None, None)
            yield from Here().map(work, soon)
        untraced = [*remaining]
        number = min(number, sum(finished(work, name) is None for name, _ in untraced))
        if number < 2:
            yield from Here().map(work, untraced)
            return
        traces, names = work.traces, [name for name, _ in untraced]
        traced_names = set(() if traces is None else traces(names))

        def ended_at_a_document() -> bool:
            new = set(() if traces is None else traces(names)) - traced_names
            traced_names.update(new)
            return bool(new)

        yield from map_in_processes(
            run_in_worker,
            [(work.reference, *job) for job in untraced],
            number,
            what=work.what,
            setting="number of processes (--processes)",
            environment=thread_limits(max(1, num_cores() // number)),
            restarts=ended_at_a_document,
        )


def run_in_worker(reference: str, name: str, arguments: Sequence[Any]) -> Any:
    """Do a job in a process that may end without ending the build."""
    processes.is_worker = True
    return run_job(reference, name, arguments)


def thread_limits(number: int) -> dict[str, str]:
    """The environment of a worker whose libraries may use this number of threads."""
    # Variables of the library `tokenizers`; without them, every process would start one thread per core.
    return {"RAYON_NUM_THREADS": str(number), "TOKENIZERS_PARALLELISM": "true" if number > 1 else "false"}

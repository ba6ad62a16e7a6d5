"""Who makes batches ahead: threads of this process, or processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from jax_diversity.loader.batches import Batch, OrderedBatches


class WorkerDied(RuntimeError):
    """A process that makes batches is gone: killed, or out of memory."""


class Threads:
    """Threads: no time to start, no copies; enough for all but the heaviest use of Python beside them."""

    def __init__(self, make: Callable[[int], Batch], num_threads: int) -> None:
        self._make = make
        self._executor: Executor = ThreadPoolExecutor(num_threads, thread_name_prefix="jax-diversity-loader")

    def submit(self, position: int) -> Future[Batch]:
        """Have the batch at a position made."""
        return self._executor.submit(self._make, position)

    def close(self) -> None:
        """End as soon as what is being done is done."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Processes:
    """Processes, each with the records open; batches come back over pipes, nothing else is shared.

    Args:
        batches: what they read; it must pickle.
        num_workers: how many.
    """

    def __init__(self, batches: OrderedBatches, num_workers: int) -> None:
        # `spawn`: a fork of a process that runs JAX's threads can hang.
        self._executor: Executor = ProcessPoolExecutor(
            num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_open,
            initargs=(batches,),
        )
        # All start now; and one more task than workers, for the pool does not watch the last one it started before
        # it is woken again: were that one killed, nobody would notice.
        for _ in range(num_workers + 1):
            self._executor.submit(_begin)

    def submit(self, position: int) -> Future[Batch]:
        """Have the batch at a position made.

        Raises:
            WorkerDied: a process is gone.
        """
        try:
            return self._executor.submit(_read, position)
        except BrokenProcessPool as error:
            raise WorkerDied(_SENTENCE) from error

    def close(self) -> None:
        """End the processes, as soon as what they are at is done."""
        self._executor.shutdown(wait=False, cancel_futures=True)


_SENTENCE = (
    "A process that makes batches ended before its work was done (killed, or out of memory); go on from the last "
    "checkpoint, with fewer workers if memory is short."
)


def result(future: Future[Batch]) -> Batch:
    """A batch that was submitted.

    Raises:
        WorkerDied: the process that made it is gone.
    """
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise WorkerDied(_SENTENCE) from error


_batches: OrderedBatches | None = None


def _open(batches: OrderedBatches) -> None:
    global _batches
    _batches = batches


def _begin() -> None:
    """Nothing: a task that starts a worker."""


def _read(position: int) -> Batch:
    if _batches is None:
        raise RuntimeError("A worker reads batches only after it was given them.")
    return _batches.read(position)

"""Who makes batches ahead: threads of this process, or processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache

from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.batches import Batch, OrderedBatches


class WorkerDied(RuntimeError):
    """A process that makes batches is gone: killed, or out of memory."""


class Threads:
    """Threads: no time to start, no copies; enough for all but the heaviest use of Python beside them."""

    def __init__(self, make: Callable[[int], Batch], num_threads: int) -> None:
        self._make = make
        self._executor: Executor = ThreadPoolExecutor(num_threads, thread_name_prefix="jax-diversity-loader")
        self._end = _ending(self, self._executor)

    def submit(self, position: int) -> Future[Batch]:
        """Have the batch at a position made."""
        return self._executor.submit(self._make, position)

    def result(self, future: Future[Batch]) -> Batch:
        """A batch that was submitted."""
        return future.result()

    def close(self) -> None:
        """End as soon as what is being done is done; what was submitted and not begun is cancelled."""
        self._end()


class Processes:
    """Processes, each with the records open; batches come back over pipes, nothing else is shared.

    Args:
        batches: what they read.
        num_workers: how many.

    Raises:
        UserError: batches that cannot be sent to another process, such as those of an ordering by a lambda.
    """

    def __init__(self, batches: OrderedBatches, num_workers: int) -> None:
        # `spawn`: a fork of a process that runs JAX's threads can hang.
        self._executor: Executor = ProcessPoolExecutor(
            num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_open,
            initargs=(_pickled(batches),),
        )
        self._end = _ending(self, self._executor)
        # All start now; and one more task than workers, for the pool does not watch the last one it started before
        # it is woken again: were that one killed, nobody would notice.
        self._begun = [self._executor.submit(_begin) for _ in range(num_workers + 1)]

    def submit(self, position: int) -> Future[Batch]:
        """Have the batch at a position made.

        Raises:
            WorkerDied: a process is gone.
        """
        try:
            return self._executor.submit(_read, position)
        except BrokenProcessPool as error:
            raise WorkerDied(self._why()) from error

    def result(self, future: Future[Batch]) -> Batch:
        """A batch that was submitted.

        Raises:
            WorkerDied: the process that made it is gone.
        """
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise WorkerDied(self._why()) from error

    def close(self) -> None:
        """End the processes, as soon as what they are at is done; what was not begun is cancelled."""
        self._end()

    def _why(self) -> str:
        """What to tell of a process that is gone; one that never came up mostly ran into the program itself."""
        if any(future.done() and future.exception() is None for future in self._begun):
            return (
                "A process that makes batches ended before its work was done (killed, or out of memory); go on "
                "from the last checkpoint, with fewer workers if memory is short."
            )
        return (
            "A process that makes batches ended at its start: it imports the program's own file, which must do "
            'its work under `if __name__ == "__main__":`, or make batches in threads (num_workers=0). If the file '
            "does, the process was killed, or out of memory: go on from the last checkpoint."
        )


def _ending(makers: object, executor: Executor) -> Callable[[], object]:
    """Ends an executor when called, or when what owns it is gone, or at the program's end.

    By the time the interpreter takes its modules apart, when an iterator that lies in one of them is closed, the
    executor cannot be shut down any more; `finalize` has done it before, and then does nothing.
    """
    return weakref.finalize(makers, executor.shutdown, wait=False, cancel_futures=True)


def _pickled(batches: OrderedBatches) -> bytes:
    try:
        return pickle.dumps(batches)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise UserError(
            f"Expected batches that worker processes can be given, found what does not pickle ({error}); of an "
            "ordering by a function, give a module's own one, neither a lambda nor one inside of another, or make "
            "batches in threads (num_workers=0)."
        ) from None


# Of a worker process.
_given = b""


def _open(batches: bytes) -> None:
    global _given
    _given = batches
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed tells no one: its workers would wait for work for ever."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


@cache
def _batches() -> OrderedBatches:
    return pickle.loads(_given)


def _begin() -> None:
    """A task that starts a worker, and has it open what it reads."""
    _batches()


def _read(position: int) -> Batch:
    return _batches().read(position)

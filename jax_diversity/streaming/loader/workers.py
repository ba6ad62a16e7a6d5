"""Run a function in the background: in threads of this process, or in worker processes."""

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
from typing import Any

from jax_diversity.foundation.errors import UserError


class WorkerDied(RuntimeError):
    """A worker process ended before its work was done: killed, or out of memory."""


class Workers:
    """Calls a function of a position in the background: in threads, or in processes if `num_processes` is not 0.

    Threads start at once and copy nothing. Processes are for programs that run much Python code themselves. Each worker
    process has a copy of the function, and returns results through pipes.
    """

    def __init__(self, make: Callable[[int], Any], num_threads: int, num_processes: int) -> None:
        self._started: list[Future[None]] = []
        self._executor: Executor
        if num_processes:
            self._make: Callable[[int], Any] = _call
            # `spawn` is used because a fork of a process with running JAX threads can hang.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(num_processes, context, _initialize, (_pickled(make),))
        else:
            self._make = make
            self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix="jax-diversity-loader")
        # `finalize` runs when this object is freed, and also before the interpreter removes its modules. If a module
        # holds the iterator, the iterator is closed later, when an executor can no longer be shut down.
        self.close = weakref.finalize(self, self._executor.shutdown, wait=False, cancel_futures=True)
        if num_processes:
            # All processes start now. There is one more task than processes, because the pool does not watch the last
            # process until it gets another task: if that process were killed, the pool would wait for it forever.
            self._started = [self._executor.submit(_start) for _ in range(num_processes + 1)]

    def submit(self, position: int) -> Future[Any]:
        """Start to call the function with a position. This raises the same errors as `result`."""
        try:
            return self._executor.submit(self._make, position)
        except BrokenProcessPool as error:
            raise WorkerDied(self._reason()) from error

    def result(self, future: Future[Any]) -> Any:
        """Wait for a result.

        Raises:
            WorkerDied: a process ended.
        """
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise WorkerDied(self._reason()) from error

    def _reason(self) -> str:
        if any(future.done() and future.exception() is None for future in self._started):
            return (
                "A worker process of the loader ended before its work was done (killed, or out of memory); continue "
                "from the last checkpoint, with fewer workers if memory is short."
            )
        # If no process started, the usual reason is that it ran the program itself, which then starts its own workers.
        return (
            "A worker process of the loader ended at its start: it imports the program's own file, which must do "
            'its work under `if __name__ == "__main__":`, or make batches in threads (num_workers=0). If the file '
            "does, the process was killed, or out of memory: continue from the last checkpoint."
        )


def _pickled(make: Callable[[int], Any]) -> bytes:
    try:
        return pickle.dumps(make)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise UserError(
            f"Expected a loader that can be sent to worker processes, found a part that cannot be pickled ({error}); "
            "make batches in threads (num_workers=0)."
        ) from None


# The code below runs in a worker process.
_sent = b""


def _initialize(make: bytes) -> None:
    # The first task unpickles the function: an error in the initializer would break the pool without showing its text.
    global _sent
    _sent = make
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent ends. A parent that is killed cannot end its workers itself."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


@cache
def _make() -> Callable[[int], Any]:
    return pickle.loads(_sent)


def _start() -> None:
    _make()


def _call(position: int) -> Any:
    return _make()(position)

"""Batches one after another, made ahead in threads, from a position that can be saved and restored."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from typing import Any

import grain

from jax_diversity.errors import UserError
from jax_diversity.loader.batches import Batch, OrderedBatches
from jax_diversity.loader.windows import ENDLESS

_STATE_VERSION = 1


class Loader(grain.IterDataset[Batch]):
    """The batches of an `OrderedBatches`, made ahead in background threads; iterate over it, or build on it."""

    def __init__(self, batches: OrderedBatches, *, num_prefetch: int = 2, num_threads: int = 1) -> None:
        super().__init__(batches)
        self.batches = batches
        self._num_prefetch = num_prefetch
        self._num_threads = num_threads

    @property
    def num_batches(self) -> int | None:
        """Batches from the start position on; None without a last epoch."""
        return None if self.batches.windows.end == ENDLESS else len(self.batches)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keep every n-th batch only: how Grain's `mp_prefetch` shares batches among worker processes.

        A program that does not parse a command line with absl calls `absl.flags.FLAGS.mark_as_parsed()` before it
        iterates, without which Grain starts no worker.

        Raises:
            UserError: neighbouring batches for one worker, which would come in another order.
        """
        if sequential_slice:
            raise UserError(
                "Expected mp_prefetch(sequential_slice=False), found True: it would change the order of batches."
            )
        batches, windows = copy(self.batches), self.batches.windows
        first = windows.first_batch + (sl.start or 0) * windows.batch_step
        batches.windows = replace(windows, first_batch=first, batch_step=windows.batch_step * (sl.step or 1))
        self.batches, self._parents = batches, (batches,)

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self.batches, self._num_prefetch, self._num_threads)

    def __str__(self) -> str:
        return f"Loader({self.batches})"


class BatchIterator(grain.DatasetIterator[Batch]):
    """Batches one after another; its state is the position of the next one that `next` will give."""

    def __init__(self, batches: OrderedBatches, num_prefetch: int = 2, num_threads: int = 1) -> None:
        super().__init__()
        self._batches = batches
        self._num_prefetch = num_prefetch
        self._num_threads = num_threads
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Batch]] = deque()
        self._position = min(batches.windows.position(0), batches.windows.end)

    def __next__(self) -> Batch:
        self._assert_not_closed()
        windows = self._batches.windows
        if not windows.num_batches(self._position):
            raise StopIteration
        batch = self._take() if self._num_prefetch else self._batches.read(self._position)
        self._position = windows.next_position(self._position)
        return batch

    def get_state(self) -> dict[str, Any]:
        """The next position and what it is a position of, ready for JSON."""
        return {
            "version": _STATE_VERSION,
            "position": self._position,
            "dataset": self._batches.dataset_fingerprint,
            "ordering": self._batches.order.fingerprint,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of whatever batch size and number of hosts.

        Raises:
            UserError: the state of another dataset or ordering, of a newer version, or no state at all.
        """
        own = self.get_state()
        if not isinstance(state, Mapping) or own.keys() - state.keys():
            raise UserError(f"Expected the state of a loader with {', '.join(own)}, found {state!r}.")
        if state["version"] != _STATE_VERSION:
            raise UserError(f"Expected a loader's state of version {_STATE_VERSION}, found {state['version']}.")
        for name in ("dataset", "ordering"):
            if state[name] != own[name]:
                raise UserError(
                    f"The checkpoint was made with the {name} of fingerprint {state[name]}, this loader's is "
                    f"{own[name]}; open the {name} it was made with, or start anew."
                )
        position = state["position"]
        if type(position) is not int or not 0 <= position <= self._batches.windows.end:
            raise UserError(
                f"Expected a position in 0 .. {self._batches.windows.end}, found {position!r}; "
                "give the loader as many epochs as the run that was saved."
            )
        self._forget()
        self._position = self._batches.windows.own_position(position)

    def start_prefetch(self) -> None:
        """Begin to make batches before the first is asked for."""
        if self._num_prefetch and not self._closed:
            self._fill()

    def close(self) -> None:
        """Stop making batches; the threads end as soon as what they are at is done."""
        super().close()
        self._forget()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _take(self) -> Batch:
        self._fill()
        batch = self._ahead.popleft()
        self._fill(taken=1)
        try:
            return batch.result()
        except BaseException:
            self._forget()  # the next call tries the same position again
            raise

    def _fill(self, taken: int = 0) -> None:
        """Have `num_prefetch` batches under way; the first `taken` positions are no longer among them."""
        windows = self._batches.windows
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._num_threads, thread_name_prefix="jax-diversity-loader")
        while len(self._ahead) < self._num_prefetch:
            step = windows.batch_step * windows.global_batch_size
            position = self._position + (taken + len(self._ahead)) * step
            if not windows.num_batches(position):
                break
            # The work knows the batches, not this iterator, so an iterator that is dropped takes its threads along.
            self._ahead.append(self._executor.submit(self._batches.read, position))

    def _forget(self) -> None:
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()

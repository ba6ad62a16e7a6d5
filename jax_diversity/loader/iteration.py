"""Batches one after another, made ahead in threads, from a position that can be saved and restored."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import grain

from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.batches import Batch, OrderedBatches
from jax_diversity.loader.placing import Placement
from jax_diversity.loader.windows import ENDLESS
from jax_diversity.loader.workers import Processes, Threads, WorkerDied

_STATE_VERSION = 1


@dataclass(frozen=True)
class Ahead:
    """How batches are made before they are asked for.

    Attributes:
        num_prefetch: batches under way at a time; 0 makes each when asked for.
        num_threads: threads that make them.
        num_workers: processes that make them instead, where there are any.
    """

    num_prefetch: int = 2
    num_threads: int = 1
    num_workers: int = 0


class Loader(grain.IterDataset[Batch]):
    """The batches of an `OrderedBatches`, made ahead in the background; iterate over it, or build on it.

    Args:
        batches: the batches by number.
        ahead: who makes them, and how many.
        placement: puts them on devices, as global arrays; None leaves them with NumPy.
    """

    def __init__(self, batches: OrderedBatches, ahead: Ahead = Ahead(), placement: Placement | None = None) -> None:
        super().__init__(batches)
        self.batches, self._ahead, self._placement = batches, ahead, placement

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
        return BatchIterator(self.batches, self._ahead, self._placement)

    def __str__(self) -> str:
        return f"Loader({self.batches})"


class BatchIterator(grain.DatasetIterator[Batch]):
    """Batches one after another; its state is the position of the next one that `next` will give."""

    def __init__(self, batches: OrderedBatches, ahead: Ahead = Ahead(), placement: Placement | None = None) -> None:
        super().__init__()
        self._batches, self._settings, self._placement = batches, ahead, placement
        # What makes batches knows them, not this iterator: one that is dropped takes its threads along.
        self._make = batches.read if placement is None else partial(_read_and_place, batches, placement)
        self._makes_here = not ahead.num_workers
        self._makers: Threads | Processes | None = None
        self._ahead: deque[Future[Batch]] = deque()
        self._position = min(batches.windows.position(0), batches.windows.end)

    def __next__(self) -> Batch:
        self._assert_not_closed()
        windows = self._batches.windows
        if not windows.num_batches(self._position):
            raise StopIteration
        batch = self._take() if self._settings.num_prefetch else self._make(self._position)
        self._position = windows.next_position(self._position)
        return batch

    @property
    def position(self) -> int:
        """Where the batch begins that comes next, counted over all epochs."""
        return self._position

    def get_state(self) -> dict[str, Any]:
        """The next position and what it is a position of, ready for JSON."""
        return self._state(self._position)

    def _state(self, position: int) -> dict[str, Any]:
        last = max(self._batches.windows.end - 1, 0)  # at the end there is no next epoch to make an ordering for
        return {
            "version": _STATE_VERSION,
            "position": position,
            "dataset": self._batches.source.fingerprint,
            "ordering": self._batches.order.fingerprint_at(min(position, last)),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of whatever batch size and number of hosts.

        Raises:
            UserError: the state of another dataset or ordering, of a newer version, or no state at all.
        """
        names = ("version", "position", "dataset", "ordering")
        if not isinstance(state, Mapping) or set(names) - state.keys():
            raise UserError(f"Expected the state of a loader with {', '.join(names)}, found {state!r}.")
        if state["version"] != _STATE_VERSION:
            raise UserError(f"Expected a loader's state of version {_STATE_VERSION}, found {state['version']}.")
        position = state["position"]
        if type(position) is not int or not 0 <= position <= self._batches.windows.end:
            raise UserError(
                f"Expected a position in 0 .. {self._batches.windows.end}, found {position!r}; "
                "give the loader as many epochs as the run that was saved."
            )
        own = self._state(position)
        for name in ("dataset", "ordering"):
            if state[name] != own[name] and not (name == "ordering" and self._touches(position, state[name])):
                raise UserError(
                    f"The checkpoint was made with the {name} of fingerprint {state[name]}, this loader's is "
                    f"{own[name]}; open the {name} it was made with, or start anew."
                )
        self._forget()
        self._position = self._batches.windows.own_position(position)

    def _touches(self, position: int, ordering: str) -> bool:
        """Whether an epoch of that ordering ends or begins at a position.

        Where one epoch ends and another begins, a run that ends there saves the ordering of the first, one of more
        epochs that of the second; either may go on as the other.
        """
        order = self._batches.order
        if not position or position % len(order):
            return False
        if order.fingerprint_at(position - 1) == ordering:
            return True
        with suppress(Exception):  # of a function that knows no more epochs than this loader has
            return order.fingerprint_at(position) == ordering
        return False

    def start_prefetch(self) -> None:
        """Begin to make batches before the first is asked for."""
        if self._settings.num_prefetch and not self._closed:
            self._fill()

    def close(self) -> None:
        """Stop making batches; threads and processes end as soon as what they are at is done."""
        super().close()
        # Whatever is under way ends with its makers. No more than this: an iterator in a module is closed when the
        # interpreter has taken most others apart already.
        self._ahead.clear()
        self._dismiss()

    def _take(self) -> Batch:
        try:
            self._fill()
            batch = self._ahead.popleft()
            makers = self._fill(taken=1)
            made = makers.result(batch)
            return made if self._makes_here or self._placement is None else self._placement.place(made)
        except BaseException as error:
            self._forget()  # the next call tries the same position again
            if isinstance(error, WorkerDied):
                self._dismiss()  # ... with new processes
            raise

    def _fill(self, taken: int = 0) -> Threads | Processes:
        """Have `num_prefetch` batches under way; the first `taken` positions are no longer among them."""
        windows = self._batches.windows
        if self._makers is None:
            self._makers = (
                Threads(self._make, self._settings.num_threads)
                if self._makes_here
                else Processes(self._batches, self._settings.num_workers)
            )
        while len(self._ahead) < self._settings.num_prefetch:
            step = windows.batch_step * windows.global_batch_size
            position = self._position + (taken + len(self._ahead)) * step
            if not windows.num_batches(position):
                break
            self._ahead.append(self._makers.submit(position))
        return self._makers

    def _forget(self) -> None:
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()

    def _dismiss(self) -> None:
        if self._makers is not None:
            self._makers.close()
            self._makers = None


def _read_and_place(batches: OrderedBatches, placement: Placement, position: int) -> Batch:
    return placement.place(batches.read(position))

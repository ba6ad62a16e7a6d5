"""Batches by number, and their iterator, whose position can be saved and restored."""

from __future__ import annotations

import operator
import os
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, SupportsIndex

import grain
import jax
import numpy as np

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.streaming.loader.device_placement import DevicePlacement
from jax_diversity.streaming.loader.settings import Windows
from jax_diversity.streaming.loader.workers import WorkerDied, Workers
from jax_diversity.streaming.run.run import Run
from jax_diversity.streaming.run.source import SequenceSource

Batch = dict[str, Any]
"""Arrays by field name: NumPy arrays, or global JAX arrays."""

_STATE_VERSION = 1


class OrderedBatches(grain.MapDataset[Batch]):
    """The batches by number: element k is the k-th batch after the start position.

    Elements are batches, not sequences: if the records of a batch are neighbours, one read is enough for the batch.

    Args:
        run: the run.
        source: reads the run's sequences.
        windows: which positions of the run each batch of this host has.
    """

    def __init__(self, run: Run, source: SequenceSource, windows: Windows) -> None:
        super().__init__()
        self.run, self.source, self.windows = run, source, windows

    def __len__(self) -> int:
        return self.windows.num_batches_here

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        # Grain's datasets repeat after their end: element len(self) is element 0.
        return self.read(self.windows.first_position + int(index) % len(self) * self.windows.step)

    @property
    def _element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of the arrays in all batches after the start position, for Grain's `get_element_spec`."""
        settings, windows = self.windows.settings, self.windows
        (start, length), *other_lengths = windows.lengths_from(settings.start_position) or windows.lengths
        if other_lengths:
            raise UserError(
                f"Expected batches of one shape for an element spec, found sequences of {length} "
                f"tokens at position {start} and of {other_lengths[0][1]} from position {other_lengths[0][0]} on; use "
                "the shape of each batch instead."
            )
        shapes = dict.fromkeys(settings.fields, ((windows.num_rows, length), settings.dtype))
        shapes |= {field: ((windows.num_rows,), dtype) for field, dtype in self.source.origins.items()}
        return {settings.names.get(field, field): jax.ShapeDtypeStruct(*shape) for field, shape in shapes.items()}

    def __str__(self) -> str:
        return f"OrderedBatches({self.windows.settings.global_batch_size} of {self.run})"

    def read(self, position: int) -> Batch:
        """Read this host's rows of the global batch at a position. With `decode="device"` they are stored rows."""
        settings, positions = self.windows.settings, self.windows.positions(position)
        sequences = self.run.at(positions)
        if len(sequences):
            batch = self.source.read(sequences, positions)
        else:  # the last batch can have no rows for this host
            batch = self.source.no_rows(self.windows.length_at(position))
        if missing := self.windows.num_rows - len(sequences):
            batch = {field: _padded(rows, missing) for field, rows in batch.items()}
        if settings.decode == "device":  # stored rows; the arrays get their type and names when they are placed
            return dict(batch)
        return self.named(
            {
                field: rows if rows.ndim == 1 else rows.astype(settings.dtype, copy=False)
                for field, rows in batch.items()
            }
        )

    def named(self, batch: Batch) -> Batch:
        """Return a batch with the names of the settings."""
        return {self.windows.settings.names.get(field, field): rows for field, rows in batch.items()}


def _padded(rows: np.ndarray, missing: int) -> np.ndarray:
    # Indices of datasets and sequences (one axis) are padded with -1, because 0 is a valid index.
    return np.pad(rows, ((0, missing), (0, 0))) if rows.ndim > 1 else np.pad(rows, (0, missing), constant_values=-1)


class BatchIterator(grain.DatasetIterator[Batch]):
    """Iterates over the batches in their order. The iterator's state is the position of the next batch.

    Threads may share an iterator: each batch is given to one thread. Only the process that made the iterator can use
    it. It cannot be copied, because two copies would give the same batches.

    Args:
        batches: the batches; the iterator closes their source.
        placement: puts batches on devices; with None batches are NumPy arrays.
    """

    def __init__(self, batches: OrderedBatches, placement: DevicePlacement | None = None) -> None:
        super().__init__()
        self._batches, self._windows, self._settings = batches, batches.windows, batches.windows.settings
        self._position = self._windows.first_position
        # Threads also place the batches that they read, so that the transfer to devices is done in advance, too. Worker
        # processes have no devices: their batches are placed here. `_make` and `_finish` do not refer to this iterator.
        # So Python can free an iterator that was not closed, and its workers end.
        self._make, self._finish = batches.read, None
        if placement is not None and self._settings.num_workers:
            self._finish = partial(_place, batches, placement)
        elif placement is not None:
            self._make = partial(_read_and_place, batches, placement)
        self._workers: Workers | None = None
        self._pending: deque[Future[Batch]] = deque()  # the next batches, from the current position on
        self._process = os.getpid()
        # The lock is held while the position changes. `close` does not acquire the lock, because it must not wait for a
        # batch that may never arrive.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        size = self._settings.global_batch_size
        return f"BatchIterator(next position {self._position:,} of {self._windows.end:,}, batches of {size:,})"

    def __next__(self) -> Batch:
        self.check_process()
        with self._lock:
            self._assert_not_closed()
            if not self._windows.num_batches(self._position):
                raise StopIteration
            batch = self._take() if self._settings.num_prefetch else self._make(self._position)
            # A padded last batch ends at the end of the run, so that the final state is the same for all batch sizes.
            self._position = min(self._position + self._windows.step, self._windows.end)
            return batch

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UserError(
            "Expected no copy or pickle of an iterator: the copy and the original would give the same batches; make "
            "another iterator with iter(loader), and give it the state of this iterator (get_state, set_state)."
        )

    def check_process(self) -> None:
        """Raise an error if this process did not make the iterator."""
        if self._process != os.getpid():
            # The threads do not exist in a forked process. It would wait for their batches forever.
            raise UserError(
                f"Expected the iterator in the process that made it ({self._process}), found it in a forked process; "
                "make another iterator there with iter(loader)."
            )

    @property
    def position(self) -> int:
        """The position where the next batch begins, counted over all epochs."""
        return self._position

    def get_state(self) -> dict[str, Any]:
        """Return the next position and the fingerprints of dataset and ordering, as JSON values."""
        return self._state(self._position)

    def _state(self, position: int) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "position": position,
            "dataset": self._batches.run.identity,
            "ordering": self._batches.run.fingerprint,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. The batch size and the number of hosts may have been different when it was saved.

        Raises:
            UserError: the state is for another dataset or ordering, has a newer version, or is not a state; a batch
                after its position would contain two sequence lengths.
        """
        names = ("version", "position", "dataset", "ordering")
        if not isinstance(state, Mapping) or set(names) - state.keys():
            raise UserError(
                f"Expected the state of a loader with {', '.join(names)}, found {quoted(state)}; give a position "
                "alone to make_loader as start_position."
            )
        if state["version"] != _STATE_VERSION:
            raise UserError(f"Expected a loader's state of version {_STATE_VERSION}, found {state['version']}.")
        position = _as_position(state["position"])
        if not 0 <= position <= self._windows.end:
            todo = (
                "restore the state as it was" if position < 0 else "give the loader as many epochs as the run that was"
            )
            raise UserError(f"Expected a position in 0 .. {self._windows.end}, found {position}; {todo} saved.")
        agrees = {
            "dataset": state["dataset"] == self._batches.run.identity,
            "ordering": self._batches.run.continues(position, state["ordering"]),
        }
        for name, fits in agrees.items():
            if not fits:
                expected = self._state(position)[name]
                raise UserError(
                    f"The checkpoint was made with the {name} of fingerprint {str(state[name])[:16]}, this loader's is "
                    f"{expected[:16]}; open the {name} of the checkpoint (a build of the same documents with the "
                    "same settings into a new folder makes the same one again), or start a new run."
                )
        self._windows.check_lengths(position)
        self._move(position)

    def _get_next_index(self) -> int:
        """Return the number of the next batch, counted from the start position, for Grain's `get_next_index`.

        After a restore with another batch size the position can be within a batch. Then the number of the following
        batch is returned.
        """
        return -((self._windows.first_position - self._position) // self._windows.step)

    def _set_next_index(self, index: SupportsIndex) -> None:
        """Continue with the batch of this number, for Grain's `set_next_index`."""
        windows = self._windows
        number = as_whole_number("the next index", index, 0, windows.num_batches_here)
        self._move(min(windows.first_position + number * windows.step, windows.end))

    def _move(self, position: int) -> None:
        with self._lock:
            self._cancel()  # prefetched batches belong to the old position
            self._position = position

    def start_prefetch(self) -> None:
        """Start prefetching before the first batch is requested."""
        self.check_process()
        with self._lock:
            if self._settings.num_prefetch and not self._closed:
                self._submit(self._position)

    def close(self) -> None:
        """Stop making batches; threads and processes finish their current batch and end."""
        super().close()
        # Closing the workers cancels pending batches. Do nothing else here: an iterator that a module holds is closed
        # when the interpreter has already removed most other modules.
        self._pending.clear()
        self._end_workers()
        self._batches.source.close()

    def _take(self) -> Batch:
        try:
            self._submit(self._position)
            batch = self._pending.popleft()
            # We submit another batch before we wait for this one, so that the queue stays full.
            workers = self._submit(self._position + self._windows.step)
            result = workers.result(batch)
            return result if self._finish is None else self._finish(result)
        except BaseException as error:
            if isinstance(error, Exception):
                self._assert_not_closed()  # another thread closed the iterator while this one waited
            self._cancel()  # the next call tries the same position again
            if isinstance(error, WorkerDied):
                self._end_workers()  # the next call starts new processes
            raise

    def _submit(self, first: int) -> Workers:
        """Submit batches until `num_prefetch` batches are pending. The first of them is at the position `first`."""
        settings = self._settings
        self._assert_not_closed()
        if self._workers is None:
            self._workers = Workers(self._make, settings.num_threads, settings.num_workers)
        while len(self._pending) < settings.num_prefetch:
            position = first + len(self._pending) * self._windows.step
            if not self._windows.num_batches(position):
                break
            self._pending.append(self._workers.submit(position))
        return self._workers

    def _cancel(self) -> None:
        for future in self._pending:
            future.cancel()
        self._pending.clear()

    def _end_workers(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def _read_and_place(batches: OrderedBatches, placement: DevicePlacement, position: int) -> Batch:
    return _place(batches, placement, batches.read(position))


def _place(batches: OrderedBatches, placement: DevicePlacement, batch: Batch) -> Batch:
    placed = placement.place(batch)
    return batches.named(placed) if batches.windows.settings.decode == "device" else placed


def _as_position(value: Any) -> int:
    """Return the position of a state as a plain int. Checkpoints of arrays give it as an integer of NumPy or JAX."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UserError(
            f"Expected the position of a state to be a whole number, found {quoted(value)} of the type "
            f"{type(value).__name__}; restore the state as it was saved."
        ) from None

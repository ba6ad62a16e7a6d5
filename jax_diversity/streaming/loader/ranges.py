"""Read the records of a stream by ranges of bytes, without files on this host.

Records have one size, so that a place in the order of the records gives its range of bytes. The rows of a batch on a
host lie side by side in the ordered layout: they are one request, or two at the end of a file. The ranges of the next
batches are requested in advance.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.streaming.dataset.remote import RemoteFolder
from jax_diversity.streaming.records.files import gather_records, record_range
from jax_diversity.streaming.records.reading import RecordReader, Rows

LARGEST_GAP = 16_384
"""Bytes between two ranges up to which they are one request. Larger gaps would fetch the rows of other hosts."""
MOST_AHEAD_BYTES = 64 * 2**20
"""The bytes that are requested in advance."""
_MOST_AHEAD_BATCHES = 32  # a slow request of one second causes no wait if eight batches are used per second
_NUM_THREADS = 16  # requests at a time
_LOOK_SECONDS = 0.5  # after this time, a thread that waits looks whether the stream was closed
_NUM_KEPT = 16  # batches by which threads may be apart


class Range(NamedTuple):
    """Neighbouring records of one file: their rows in the batch, and where they begin in the file."""

    file: int
    start: int
    stop: int
    rows: Int64[np.ndarray, " row"]
    starts: Int64[np.ndarray, " row"]


def ranges_of(records: RecordReader, places: Rows) -> Iterator[Range]:
    """Return the ranges of bytes of the records at some places, as few as `LARGEST_GAP` allows."""
    numbers, within = records.locate(places)
    starts, ends = record_range(within, records.record_bytes)
    by_start = np.lexsort((starts, numbers))
    file, start, end = numbers[by_start], starts[by_start], ends[by_start]
    apart = (np.diff(file) > 0) | (start[1:] - end[:-1] > LARGEST_GAP)
    for rows in np.split(np.arange(len(places)), np.flatnonzero(apart) + 1):
        if len(rows):
            yield Range(int(file[rows[0]]), int(start[rows[0]]), int(end[rows[-1]]), by_start[rows], start[rows])


class StreamedRanges:
    """Fetches the records of batches, and in advance the records of the next batches. `reader` reads them.

    The threads end when this object is closed or freed.

    Args:
        remote: the store.
        records: the records of the dataset.
        places: returns the places of the records at some positions.
        step: the distance in positions between two batches.
        end: the position after the last.
    """

    def __init__(
        self, remote: RemoteFolder, records: RecordReader, places: Callable[[Rows], Rows], step: int, end: int
    ) -> None:
        self._store, self._places, self._step, self._end = remote.store, places, step, end
        self._names = [path.relative_to(remote.root).as_posix() for path in records.paths]
        self.reader = records.moved([f"{remote.address}/{name}" for name in self._names], self._read)
        # The lock guards the requests: the ranges of each batch by its first place and its number of rows. A batch that
        # was read stays without ranges, because a slower thread would request it again.
        self._lock = threading.Lock()
        self._requests: dict[tuple[int, int], _Request] = {}
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._stopping = threading.Event()
        # Daemon threads: at exit Python waits for the threads of executors, here for requests that may hang. They do
        # not refer to this object, so that a deleted object is freed and then ends them.
        for _ in range(_NUM_THREADS):
            threading.Thread(
                target=work, args=(self._tasks, self._stopping), name="jax-diversity-stream", daemon=True
            ).start()
        self.close = weakref.finalize(self, _end, self._tasks, self._stopping)

    def request(self, positions: Rows) -> None:
        """Begin to fetch the batch at some positions and the batches after it, as far as the limits allow."""
        first = int(positions[0])
        with self._lock:
            # What slower and faster threads may need stays. Other requests belong to a position that the iterator left.
            near = range(first - _NUM_KEPT * self._step, first + (_MOST_AHEAD_BATCHES + _NUM_KEPT) * self._step)
            for key in [key for key, request in self._requests.items() if request.position not in near]:
                _cancel(self._requests.pop(key))
            if self._was_read(self._places(positions), first):  # the iterator went back
                self._requests = {key: request for key, request in self._requests.items() if request.parts}
            size = sum(request.size for request in self._requests.values())
            for number in range(_MOST_AHEAD_BATCHES):
                batch = positions + number * self._step
                batch = batch[batch < self._end]
                if not len(batch) or (number and size > MOST_AHEAD_BYTES):
                    break
                places = self._places(batch)
                former = self._requests.get(_key(places))
                if former is None or not (former.parts or former.position == int(batch[0])):
                    request = self._requests[_key(places)] = self._begun(places, int(batch[0]))
                    size += request.size

    def _was_read(self, places: Rows, position: int) -> bool:
        request = self._requests.get(_key(places))
        return request is not None and not request.parts and request.position == position

    def _begun(self, places: Rows, position: int) -> _Request:
        parts = []
        for part in ranges_of(self.reader, places):
            future = Future[Any]()
            read = partial(self._store.read_surely, self._names[part.file], part.start, part.stop, self._stopping.wait)
            self._tasks.put((future, read))
            parts.append((part, future))
        return _Request(position, sum(part.stop - part.start for part, _ in parts), parts)

    def _read(self, places: Rows) -> UInt8[np.ndarray, "row byte"]:
        """Return the records at some places."""
        with self._lock:
            # After an error the batch is requested again.
            request = self._requests.get(_key(places))
            if request is None or not request.parts:
                request = self._begun(places, 0)
            else:
                self._requests[_key(places)] = _Request(request.position, 0, [])
        rows = np.empty((len(places), self.reader.record_bytes), np.uint8)
        for part, future in request.parts:
            content = np.frombuffer(self._wait(future), np.uint8)
            rows[part.rows] = gather_records(content, part.starts, rows.shape[1], part.start)
        return rows

    def _wait(self, future: Future[Any]) -> Any:
        while True:
            try:
                return future.result(_LOOK_SECONDS)
            except TimeoutError:
                if self._stopping.is_set():  # a request that hangs must not keep a thread of a closed iterator
                    raise InterruptedError from None


class _Request(NamedTuple):
    position: int
    size: int  # bytes that were requested and not read yet
    parts: list[tuple[Range, Future[Any]]]


def _key(places: Rows) -> tuple[int, int]:
    return int(places[0]), len(places)


def _cancel(request: _Request) -> None:
    for _, future in request.parts:
        future.cancel()


def _end(tasks: SimpleQueue[Any], stopping: threading.Event) -> None:
    stopping.set()  # ends the tries of failed requests; None then ends a thread
    for _ in range(_NUM_THREADS):
        tasks.put(None)


def work(tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None], stopping: threading.Event) -> None:
    """Run tasks until None comes: the main function of a thread. When `stopping` is set, they are not begun."""
    while (task := tasks.get()) is not None:
        future, function = task
        if future.set_running_or_notify_cancel():
            try:
                if stopping.is_set():
                    raise InterruptedError
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        del task, future, function  # otherwise this thread would keep the reader alive until the next task

"""Read batches in the order of the record files, for datasets on object stores.

`make_loader` follows any ordering and keeps the files that it fetches. A stream requests only the bytes of the rows of
its host. A shuffled stream fetches whole files one after another, reads each once, and removes it. Batches follow the
window contract for the ordering in which the records were written, and the state of a stream can be exchanged with a
loader of `make_loader` over that ordering.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import lock
from jax_diversity.foundation.signatures import takes_settings
from jax_diversity.streaming.dataset.cache import locked
from jax_diversity.streaming.dataset.dataset import Dataset
from jax_diversity.streaming.dataset.remote import RemoteFolder
from jax_diversity.streaming.loader.loader import Loader
from jax_diversity.streaming.loader.ranges import StreamedRanges, work
from jax_diversity.streaming.loader.settings import ENDLESS, LoaderSettings
from jax_diversity.streaming.records.reading import RecordReader, Rows
from jax_diversity.streaming.run.run import Run, open_datasets
from jax_diversity.streaming.run.source import SequenceSource, open_layout

_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class StreamOptions(LoaderSettings):
    """The keyword arguments of `stream_batches`: options of the stream, and the settings of a loader."""

    shuffle_buffer: int = 0
    """The number of sequences in a block that is shuffled; 0 keeps the order of the records. All files of a block are
    on disk at the same time."""
    seed: int = 0
    """Seed of the shuffle."""
    read_ahead_files: int = 2
    """The number of files that a shuffled stream fetches in advance."""
    cache_folder: str | Path | None = None
    """The folder for orderings, and for the files of a shuffled stream while they are needed, see `open_dataset`. Each
    iterator has its own files."""


@takes_settings(StreamOptions, without=("num_workers",))
def stream_batches(dataset: str | Path | Dataset, **options: Any) -> Loader:
    """Read batches in the order of the records, as ranges of bytes, without files on this host.

    If the dataset has the ordered layout, the batches and states are the same as with `make_loader` and the layout's
    ordering. From an object store, a host fetches only its own rows: one request for each batch, some in advance (at
    most 64 MiB). The files of a local dataset are read in place.

    For a dataset in the packed layout, `shuffle_buffer` shuffles sequences during reading. Every epoch reads the files
    in another random order, and shuffles blocks of `shuffle_buffer` sequences. Every sequence is read once per epoch.
    The sequence at a position depends only on the position, the seed and the dataset. From an object store, every host
    fetches whole files. The disk has the files of one block, and the next `read_ahead_files` files.

    Args:
        dataset: a built dataset, its folder or its address.
        {settings}

    Raises:
        UserError: a setting is not valid, the dataset has no records, or a driver is not installed. While iterating: a
            file cannot be fetched or differs from the manifest; the next call of `next` tries it again.

    Example:
        >>> for batch in stream_batches("gs://bucket/out", global_batch_size=64):
        ...     batch["inputs"].shape
        (64, 512)
    """
    stream_options = {name: options.pop(name, default) for name, default in _OWN.items()}
    if "num_workers" in options:
        raise UserError("Expected stream_batches without num_workers, found it: threads fetch the files.")
    settings = LoaderSettings.checked(**options)
    buffer, seed = (as_whole_number(name, stream_options[name]) for name in ("shuffle_buffer", "seed"))
    num_ahead = as_whole_number("read_ahead_files", stream_options["read_ahead_files"])
    datasets = open_datasets(dataset, stream_options["cache_folder"])
    if len(datasets) != 1:
        raise UserError(f"Expected one dataset to stream, found {len(datasets)}.")
    run = StreamedRun(datasets[0], settings.end(datasets[0].num_sequences), buffer, seed, num_ahead)
    return Loader(run, StreamedSource(run, **settings.of_arrays), settings)


_OWN = {
    field.name: field.default for field in fields(StreamOptions) if field.name not in LoaderSettings.__annotations__
}


@dataclass(frozen=True)
class FilesOfBatch:
    """Numbers of files: the files that contain the batch, the files to fetch next, and others to keep for now."""

    needed: tuple[int, ...]
    ahead: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


class StreamedRun(Run):
    """The run of a stream: the record and the file at every position.

    To shuffle, each epoch puts the files into a random order, divides its steps into stretches (blocks) of
    `shuffle_buffer`, and permutes the steps of each stretch. Every random number is computed from the seed, the epoch
    and the place of the stretch, so that a position determines its sequence without other state. `end` is the position
    after the last epoch, `num_ahead` the number of files that are fetched in advance.
    """

    is_bijection = True

    def __init__(self, dataset: Dataset, end: int, shuffle_buffer: int = 0, seed: int = 0, num_ahead: int = 2) -> None:
        self.dataset, self.records, self._layout = dataset, dataset.records, open_layout(dataset)
        self.end, self.shuffle_buffer, self.seed, self.num_ahead = end, shuffle_buffer, seed, num_ahead
        self.name, self.info = "stream", {"method": "stream", "shuffle_buffer": shuffle_buffer, "seed": seed}

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamedRun, (self.dataset, self.end, self.shuffle_buffer, self.seed, self.num_ahead)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The dataset."""
        return (self.dataset,)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the layout; for a shuffled stream a hash of layout, file sizes, buffer and seed."""
        if not self.shuffle_buffer:
            return self._layout_fingerprint
        return fingerprint("stream", self._layout_fingerprint, self.records.counts, self.shuffle_buffer, self.seed)

    def _at(self, positions: Rows) -> Rows:
        return self.at(positions)

    def at(self, positions: Rows) -> Rows:
        """Return the sequences at some positions. With a shuffle, every epoch has another order."""
        places = self.record_places(positions)
        return places if self._layout is None else self._layout.at(places)

    def record_places(self, positions: Rows) -> Rows:
        """Return the places of the records at some positions."""
        epochs, steps = np.divmod(positions, len(self))
        if not self.shuffle_buffer:
            return steps
        places = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            files, starts = self._epoch(epoch)
            here = np.flatnonzero(epochs == epoch)
            stretches = (steps[here] + self._offset(epoch)) // self.shuffle_buffer
            for stretch in np.unique(stretches).tolist():
                rows, (first, stop) = here[stretches == stretch], self._stretch(epoch, stretch)
                # The steps after the shuffle, and their files in the order of the epoch.
                moved = first + _permutation(self.seed, epoch, first, stop - first)[steps[rows] - first]
                turn = np.searchsorted(starts, moved, side="right") - 1
                places[rows] = self._file_starts[files[turn]] + moved - starts[turn]
        return places

    def files(self, positions: Rows, needed: Rows) -> FilesOfBatch:
        """Return the files for a batch at these positions. `needed` are the files that contain the batch."""
        # A turn is a file of an epoch: turn 0 is the first file of the first epoch, and turns are counted over all
        # epochs, because files of the next epoch are fetched in advance, too.
        first = self._turn(int(positions[0]), 0)
        last = self._turn(int(positions[-1]), 1)
        ahead = range(first, min(last + self.num_ahead, self._last_turn) + 1)
        return FilesOfBatch(
            tuple(np.unique(needed).tolist()),
            tuple(map(self._file, ahead)),
            (self._file(first - 1),) if first else (),  # another thread may still read the previous batch
        )

    def _stretch(self, epoch: int, number: int) -> tuple[int, int]:
        # The first shifted stretch begins before the epoch; it is cut at the epoch's start. The last stretch is cut at
        # the epoch's end.
        first = number * self.shuffle_buffer - self._offset(epoch)
        return max(first, 0), min(first + self.shuffle_buffer, len(self))

    def _offset(self, epoch: int) -> int:
        """Return the shift of all stretches, a random number for every epoch.

        Without the shift, the ends of stretches would be the same in every epoch, and no sequence could move across
        them. A stretch that is as long as the epoch is not shifted, because the shift would divide it into two.
        """
        if self.shuffle_buffer >= len(self):
            return 0
        return int(_random(self.seed, epoch, 1)(1)[0] % np.uint64(self.shuffle_buffer))

    def _epoch(self, epoch: int) -> tuple[Int64[np.ndarray, " file"], Int64[np.ndarray, " file"]]:
        """Return the files in the order of an epoch, and the first step of each file."""
        return _file_order(self.seed if self.shuffle_buffer else None, epoch, self.records.counts)

    def _turn(self, position: int, side: int) -> int:
        """Return the turn of the file at a position.

        In a shuffled stream, it is the turn of the file at the start (`side` 0) or end (1) of the position's stretch.
        """
        epoch, step = divmod(position, len(self))
        if self.shuffle_buffer:
            stretch = self._stretch(epoch, (step + self._offset(epoch)) // self.shuffle_buffer)
            step = stretch[1] - 1 if side else stretch[0]
        starts = self._epoch(epoch)[1]
        return epoch * len(self.records.counts) + int(np.searchsorted(starts, step, side="right")) - 1

    def _file(self, turn: int) -> int:
        epoch, index = divmod(turn, len(self.records.counts))
        return int(self._epoch(epoch)[0][index])

    @cached_property
    def _layout_fingerprint(self) -> str:
        """The fingerprint of the order of the records; in the packed layout the order is 0, 1, 2 ..."""
        if self._layout is not None:
            return self._layout.fingerprint
        digest = hashlib.sha256()  # the same as `Ordering.fingerprint`, without an array of all numbers
        for start in range(0, len(self), _CHUNK):
            digest.update(np.arange(start, min(start + _CHUNK, len(self)), dtype=np.int64).tobytes())
        return digest.hexdigest()

    @cached_property
    def _last_turn(self) -> int:
        return self.end if self.end == ENDLESS else self._turn(self.end - 1, 1)

    @cached_property
    def _file_starts(self) -> Int64[np.ndarray, " boundary"]:
        return np.cumsum([0, *self.records.counts], dtype=np.int64)


def _random(seed: int, epoch: int, *counters: int) -> Any:
    """Return the function that gives raw numbers of a bit generator.

    NumPy guarantees that these numbers never change, unlike the results of `Generator.permutation`.
    """
    return np.random.PCG64([seed, epoch, *counters]).random_raw


@lru_cache(4)
def _permutation(seed: int, epoch: int, first: int, size: int) -> Int64[np.ndarray, " step"]:
    return np.argsort(_random(seed, epoch, 2, first)(size), kind="stable")


@lru_cache(4)
def _file_order(
    seed: int | None, epoch: int, counts: tuple[int, ...]
) -> tuple[Int64[np.ndarray, " file"], Int64[np.ndarray, " file"]]:
    files = np.arange(len(counts))
    if seed is not None:
        files = np.argsort(_random(seed, epoch, 0)(len(counts)), kind="stable")
    sizes = np.array(counts, np.int64)[files]
    return files, np.cumsum(sizes) - sizes


class StreamedSource(SequenceSource):
    """The records of a dataset, read file by file; every iterator has its own files."""

    def __init__(self, run: StreamedRun, **options: Any) -> None:
        super().__init__(run, **options)
        self._run = run
        self._files: StreamedFiles | None = None
        self._ranges: StreamedRanges | None = None

    def for_iterator(self, step: int, end: int) -> StreamedSource:
        """Return a copy of this source with its own files or requests, which end when it is closed or freed."""
        source, records, remote = copy(self), self._run.records, self._run.dataset.remote
        if remote is None:
            source.readers = [records if self._run.shuffle_buffer else records.forward()]
        elif self._run.shuffle_buffer:
            source._files = StreamedFiles(remote, records)
            source.readers = [source._files.reader]
        else:
            source._ranges = StreamedRanges(remote, records, self._run.record_places, step, end)
            source.readers = [source._ranges.reader]
        return source

    def read(self, sequences: Rows, positions: Rows | None = None) -> Mapping[str, np.ndarray]:
        """Return the arrays of the sequences at some positions. Their files stay on disk during the read."""
        assert positions is not None
        (records,), places = self.readers, self._run.record_places(positions)
        kept_files: Any = nullcontext()
        if self._files is not None:
            kept_files = self._files.hold(self._run.files(positions, records.files_of(places)))
        if self._ranges is not None:
            self._ranges.request(positions)
        with kept_files:
            return self._rows(records, sequences, places)

    def close(self) -> None:
        """Remove the files, and end the requests."""
        for cache in (self._files, self._ranges):
            if cache is not None:
                cache.close()


class StreamedFiles:
    """Fetches files in advance, one after another, and removes files that no batch needs any more.

    The files of one `FilesOfBatch` are on disk; `reader` reads the records from them. The folder of the files is
    removed when this object is freed or when the process ends. If the process was killed, the next stream that uses the
    cache removes the folder.
    """

    def __init__(self, remote: RemoteFolder, records: RecordReader) -> None:
        self._remote = remote
        self._names = [path.relative_to(remote.root).as_posix() for path in records.paths]
        folder, file = _new_folder(remote.cache_folder / "streams")
        self.reader = records.moved([folder / path.name for path in records.paths])
        # The lock guards the two fields below: the finished and running fetches by file number, and the number of
        # batches that read each file.
        self._lock = threading.Lock()
        self._fetches: dict[int, Future[None]] = {}
        self._in_use: Counter[int] = Counter()
        self._tasks: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        self._stopping = threading.Event()
        # A daemon thread is used, not an executor: at exit Python waits for the threads of executors, here for whole
        # files. The thread does not refer to this object, so that a deleted object is freed and then ends the thread.
        threading.Thread(
            target=work, args=(self._tasks, self._stopping), name="jax-diversity-stream", daemon=True
        ).start()
        self.close = weakref.finalize(self, _end, self._tasks, self._stopping, folder, file)

    @contextmanager
    def hold(self, files: FilesOfBatch) -> Iterator[None]:
        """Keep the needed files on disk while the block runs, and begin to fetch the next files."""
        with self._lock:
            self._in_use.update(files.needed)
            for file in (*files.needed, *files.ahead):
                if file not in self._fetches:
                    self._fetches[file] = future = Future[None]()
                    path, wait = self.reader.paths[file], self._stopping.wait
                    self._tasks.put((future, partial(self._remote.download, self._names[file], path, wait)))
            files_in_use = {*files.needed, *files.ahead, *files.kept}
            for file in [file for file in self._fetches if file not in files_in_use and not self._in_use[file]]:
                self._drop(file)
            # Read under the lock: when a fetch fails, the first thread that notices it drops the file, but the other
            # threads still need the future with the error.
            needed = {file: self._fetches[file] for file in files.needed}
        try:
            for file, fetch in needed.items():
                self._wait(file, fetch)
            yield
        finally:
            with self._lock:
                self._in_use.subtract(files.needed)

    def _wait(self, file: int, fetch: Future[None]) -> None:
        try:
            fetch.result()
        except BaseException:
            with self._lock:
                if self._fetches.get(file) is fetch:  # the next batch that needs the file fetches it again
                    self._drop(file)
            raise

    def _drop(self, file: int) -> None:
        fetch = self._fetches.pop(file)
        self.reader.close(file)
        fetch.cancel()  # the thread skips it if it has not begun
        path = self.reader.paths[file]
        # A running fetch writes to the file: the file is removed when the fetch has ended. One thread makes all
        # fetches, so that a new fetch of the same file begins after the removal.
        fetch.add_done_callback(lambda _: path.unlink(missing_ok=True))


def _end(tasks: SimpleQueue[Any], stopping: threading.Event, folder: Path, file: Any) -> None:
    stopping.set()  # ends a running fetch at its next piece; None then ends the thread
    tasks.put(None)
    # The folder is removed before its lock file, because abandoned folders are found by their lock files.
    shutil.rmtree(folder, ignore_errors=True)
    Path(file.name).unlink(missing_ok=True)
    file.close()


def _new_folder(parent: Path) -> tuple[Path, Any]:
    """Make a folder for one stream, with a file that is locked while the stream runs; remove abandoned folders."""
    # A new lock file that is not locked yet looks abandoned, so that other processes must wait until it is locked.
    with locked(parent):
        for path in parent.glob("*.lock"):
            with path.open("a") as file:
                if lock(file, wait=False):  # the process that held it has ended
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink(missing_ok=True)
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
        file = folder.with_suffix(".lock").open("a")
        lock(file)
    return folder, file

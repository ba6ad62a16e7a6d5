"""Batches in the order in which records lie, read file by file: for datasets on object stores.

Where `make_loader` reads any ordering from files that stay, a stream fetches whole files one after another, reads
each from its beginning to its end, and removes it. Its batches are those of the window contract for the ordering
that the records were written in; its state is that of `make_loader`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Int64

from jax_diversity.dataset import Dataset
from jax_diversity.dataset.remote import RemoteFolder
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.batches import OrderedBatches
from jax_diversity.loader.iteration import Ahead, BatchIterator, Loader
from jax_diversity.loader.making import assemble, named_order, open_any, whole_number
from jax_diversity.loader.orders import OrderIndex
from jax_diversity.loader.placing import Placement
from jax_diversity.loader.stream_files import StreamedFiles, Wanted
from jax_diversity.loader.windows import ENDLESS
from jax_diversity.records.decoding import FIELDS
from jax_diversity.records.reading import RecordReader

_CHUNK = 2**20


def stream_batches(
    dataset: str | Path | Dataset,
    *,
    global_batch_size: SupportsIndex,
    num_epochs: SupportsIndex | None = 1,
    shuffle_buffer: SupportsIndex = 0,
    seed: SupportsIndex = 0,
    start_position: SupportsIndex = 0,
    drop_remainder: bool = True,
    host_index: SupportsIndex = 0,
    num_hosts: SupportsIndex = 1,
    sharding: Any = None,
    fields: Sequence[str] = FIELDS,
    names: Mapping[str, str] | None = None,
    dtype: str | type | np.dtype = "int32",
    merge_segments: bool = False,
    num_prefetch: SupportsIndex = 2,
    num_threads: SupportsIndex = 1,
    read_ahead_files: SupportsIndex = 2,
    cache_folder: str | Path | None = None,
) -> Loader:
    """Batches in the order in which the records lie, fetched a file at a time.

    Of a dataset written in the ordered layout these are the batches that `make_loader` gives for its ordering, and
    the states of both are the same. Files of a dataset on an object store are there while they are needed and
    `read_ahead_files` more; every host fetches all of them. A local dataset's files are read where they lie.

    For a dataset without an order of its own, `shuffle_buffer` shuffles as streams do: files come in another random
    order every epoch, and sequences change places within stretches of that many. Each comes once an epoch.
    What comes at a position depends on nothing but the position, the seed and the dataset, so that a run is resumed
    by fetching the files of one stretch.

    Args:
        dataset: a built dataset, its folder or its address.
        global_batch_size: B, sequences of a batch over all hosts.
        num_epochs: how often every sequence comes; None never ends.
        shuffle_buffer: sequences of a stretch that is shuffled; 0 keeps the order of the records. All files that
            hold a stretch are there at a time.
        seed: of the shuffle.
        start_position: see `make_loader`, as all that is not said here.
        drop_remainder: see there.
        host_index: see there.
        num_hosts: see there.
        sharding: see there.
        fields: see there.
        names: see there.
        dtype: see there.
        merge_segments: see there.
        num_prefetch: see there.
        num_threads: see there.
        read_ahead_files: files fetched before they are needed.
        cache_folder: where files are kept while they are needed, see `open_dataset`; each iterator has its own.

    Raises:
        UserError: a setting that cannot be, a dataset without records, a driver that is not installed. While
            iterating: a file that cannot be fetched or is not the manifest's; the next `next` tries it again.

    Example:
        >>> for batch in stream_batches("gs://bucket/out", global_batch_size=64):
        ...     batch["inputs"].shape
        (64, 512)
    """
    counts = {"shuffle_buffer": shuffle_buffer, "seed": seed, "read_ahead_files": read_ahead_files}
    whole = {name: whole_number(name, value) for name, value in counts.items()}
    for name, value in whole.items():
        if value < 0:
            raise UserError(f"Expected {name} >= 0, found {value}.")
    opened = open_any(dataset, cache_folder)
    layout = None if opened.layout_ordering is None else named_order(opened, opened.layout_ordering)
    records = opened.records
    epochs = None if num_epochs is None else whole_number("num_epochs", num_epochs)
    end = ENDLESS if epochs is None else len(records) * epochs
    order = StreamOrder(
        records.counts,
        _layout_fingerprint(layout, len(records)),
        end=end,
        shuffle_buffer=whole["shuffle_buffer"],
        seed=whole["seed"],
        num_ahead=whole["read_ahead_files"],
    )
    return assemble(
        StreamedSource(records, layout, order, opened.fingerprint, opened.remote),
        order,
        global_batch_size=global_batch_size,
        num_epochs=epochs,
        start_position=start_position,
        drop_remainder=drop_remainder,
        host_index=host_index,
        num_hosts=num_hosts,
        sharding=sharding,
        fields=fields,
        names=names,
        dtype=dtype,
        merge_segments=merge_segments,
        num_prefetch=num_prefetch,
        num_threads=num_threads,
        kind=StreamLoader,
    )


def _layout_fingerprint(layout: OrderIndex | None, num_sequences: int) -> str:
    """That of the ordering in which the records lie, which is 0, 1, 2 ... in the packed layout."""
    if layout is not None:
        return layout.fingerprint
    digest = hashlib.sha256()
    for start in range(0, num_sequences, _CHUNK):
        digest.update(np.arange(start, min(start + _CHUNK, num_sequences), dtype=np.int64).tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class StreamOrder:
    """Where a stream is at every position: which record, in which files.

    To the loader it is an order of positions as they are; `StreamedSource` asks it for the records' places.

    Attributes:
        counts: records of every file.
        layout_fingerprint: of the ordering in which the records lie.
        end: the position after the last epoch.
        shuffle_buffer: sequences that are shuffled among themselves; 0: none.
        seed: of the shuffle.
        num_ahead: files that are wanted before they are needed.
    """

    counts: tuple[int, ...]
    layout_fingerprint: str
    end: int
    shuffle_buffer: int = 0
    seed: int = 0
    num_ahead: int = 2

    def __len__(self) -> int:
        return int(self._file_starts[-1])

    def fingerprint_at(self, position: int) -> str:
        """The layout's, or, of a shuffled stream, a hash of all that decides it."""
        if not self.shuffle_buffer:
            return self.layout_fingerprint
        return fingerprint("stream", self.layout_fingerprint, self.counts, self.shuffle_buffer, self.seed)

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The positions themselves."""
        return positions

    def places(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The places of the records that come at some positions."""
        epochs, steps = np.divmod(positions, len(self))
        if not self.shuffle_buffer:
            return steps
        places = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs).tolist():
            files, starts = self._epoch(epoch)
            for rows, first, stop in self._stretches(epoch, epochs, steps):
                moved = first + _permutation(self.seed, epoch, first, stop - first)[steps[rows] - first]
                turn = np.searchsorted(starts, moved, side="right") - 1
                places[rows] = self._file_starts[files[turn]] + moved - starts[turn]
        return places

    def wanted(self, positions: Int64[np.ndarray, " row"], needed: Int64[np.ndarray, " row"]) -> Wanted:
        """The files that a batch at these positions wants, which is read from those of `needed`."""
        if not len(positions):
            return Wanted(())
        first = self._turn(int(positions[0]), 0)
        last = self._turn(int(positions[-1]), 1)
        ahead = range(first, min(last + self.num_ahead, self._last_turn) + 1)
        return Wanted(
            tuple(np.unique(needed).tolist()),
            tuple(map(self._file, ahead)),
            (self._file(first - 1),) if first else (),  # other threads may be a batch behind
        )

    def _stretches(self, epoch: int, epochs: np.ndarray, steps: np.ndarray) -> list[tuple[np.ndarray, int, int]]:
        """The rows of an epoch by the stretch that they are shuffled in: rows, its first step and its end."""
        here = np.flatnonzero(epochs == epoch)
        number = (steps[here] + self._offset(epoch)) // self.shuffle_buffer
        return [(here[number == each], *self._stretch(epoch, each)) for each in np.unique(number).tolist()]

    def _stretch(self, epoch: int, number: int) -> tuple[int, int]:
        first = number * self.shuffle_buffer - self._offset(epoch)
        return max(first, 0), min(first + self.shuffle_buffer, len(self))

    def _offset(self, epoch: int) -> int:
        """Where stretches begin, another place every epoch; one that is as long as the epoch begins with it."""
        if self.shuffle_buffer >= len(self):
            return 0
        return int(_random(self.seed, epoch, 1)(1)[0] % np.uint64(self.shuffle_buffer))

    def _epoch(self, epoch: int) -> tuple[Int64[np.ndarray, " file"], Int64[np.ndarray, " file"]]:
        """The files in the order of an epoch, and the steps at which they begin."""
        return _file_order(self.seed if self.shuffle_buffer else None, epoch, self.counts)

    def _turn(self, position: int, side: int) -> int:
        """How many files were begun before the one at a position, or at the start (0) or end (1) of its stretch."""
        epoch, step = divmod(position, len(self))
        if self.shuffle_buffer:
            stretch = self._stretch(epoch, (step + self._offset(epoch)) // self.shuffle_buffer)
            step = stretch[1] - 1 if side else stretch[0]
        starts = self._epoch(epoch)[1]
        return epoch * len(self.counts) + int(np.searchsorted(starts, step, side="right")) - 1

    def _file(self, turn: int) -> int:
        epoch, index = divmod(turn, len(self.counts))
        return int(self._epoch(epoch)[0][index])

    @cached_property
    def _last_turn(self) -> int:
        return self.end if self.end == ENDLESS else self._turn(self.end - 1, 1)

    @cached_property
    def _file_starts(self) -> Int64[np.ndarray, " boundary"]:
        return np.cumsum([0, *self.counts], dtype=np.int64)


def _random(seed: int, epoch: int, *what: int) -> Any:
    """Raw numbers of a generator whose stream no version of NumPy changes."""
    return np.random.PCG64([seed, epoch, *what]).random_raw


@lru_cache(4)
def _permutation(seed: int, epoch: int, first: int, size: int) -> Int64[np.ndarray, " step"]:
    """A stretch's, by where it begins."""
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


class StreamedSource:
    """A dataset's records as a stream gives them; what it is asked for are positions.

    Args:
        records: in the order of their layout.
        layout: the ordering that they lie in; None: as packed.
        order: the stream's.
        fingerprint: of the dataset.
        remote: where the record files come from; None: they are there.
    """

    def __init__(
        self,
        records: RecordReader,
        layout: OrderIndex | None,
        order: StreamOrder,
        fingerprint: str,
        remote: RemoteFolder | None,
    ) -> None:
        self.fingerprint = fingerprint
        self._records, self._layout, self._order, self._remote = records, layout, order, remote
        self._files: StreamedFiles | None = None
        self._reader = records

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    @property
    def _arguments(self) -> tuple[Any, ...]:
        fixed = (self._records, self._layout, self._order)
        return (*fixed, self.fingerprint, self._remote)

    @property
    def width(self) -> int:
        """L, tokens of a row."""
        return self._records.width

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return repr(self._records)

    def renewed(self) -> StreamedSource:
        """The same with files of its own, which go when it goes."""
        source = StreamedSource(*self._arguments)
        source._reader = self._records if self._order.shuffle_buffer else self._records.forward()
        if self._remote is not None:
            source._files = StreamedFiles(self._remote, source._reader)
            source._reader = source._files.reader
        return source

    def read(
        self, sequences: Int64[np.ndarray, " row"], fields: Sequence[str], merge_segments: bool
    ) -> dict[str, np.ndarray]:
        """The arrays of the sequences at some positions.

        Raises:
            UserError: files that cannot be fetched, damaged records, or other sequences than they should hold.
        """
        positions = sequences  # as `StreamOrder.at` left them
        places = self._order.places(positions)
        expected = self._sequences_in(places)
        held: Any = nullcontext()
        if self._files is not None:
            held = self._files.hold(self._order.wanted(positions, self._reader.files_of(places)))
        with held:
            return dict(
                self._reader.read_batch(places, expected=expected, fields=fields, merge_segments=merge_segments)
            )

    def sequences(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions, whatever the layout."""
        return self._sequences_in(self._order.places(positions))

    def _sequences_in(self, places: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        return places if self._layout is None else self._layout.at(places)

    def close(self) -> None:
        """Remove the files."""
        if self._files is not None:
            self._files.close()


class StreamLoader(Loader):
    """A `Loader` each of whose iterators fetches files of its own."""

    def __iter__(self) -> BatchIterator:
        batches, source = copy(self.batches), self.batches.source
        if not isinstance(source, StreamedSource):
            raise TypeError(f"A StreamLoader reads from a StreamedSource, found {source!r}.")
        batches.source = source.renewed()
        return _StreamIterator(batches, batches.source, self._ahead, self._placement)


class _StreamIterator(BatchIterator):
    """A `BatchIterator` that removes its source's files when it is closed."""

    def __init__(
        self, batches: OrderedBatches, source: StreamedSource, ahead: Ahead, placement: Placement | None
    ) -> None:
        super().__init__(batches, ahead, placement)
        self._source = source

    def close(self) -> None:
        """Stop making batches, and remove the files."""
        super().close()
        self._source.close()

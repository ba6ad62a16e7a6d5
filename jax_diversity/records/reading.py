"""Record files read by place: ranges, random places, whole batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from jaxtyping import Int32, Int64

from jax_diversity.errors import UserError
from jax_diversity.records.buffers import BufferPool
from jax_diversity.records.codec import FIELDS, CorruptRecordError, OtherBuildError, checked_dtype, decode

# ArrayRecord reads a list of places in time that grows with the file, a range in time that does not. Reading ahead
# makes ranges that follow one another three to five times as fast, and only costs where places are random.
_OPTIONS = "readahead_buffer_size:{},max_parallelism:0"
_READ_AHEAD_BYTES = 4 * 2**20
_REPAIR = "find what changed with `jax-diversity verify`, then restore the file or write the records anew"


class RecordReader:
    """Reads sequences from record files by their place, from any number of threads.

    Files are opened when first needed; the number of records in each must be what it should be. A pickled reader
    carries names only. A range of neighbours is one read; a single record costs the same in a file of any size.

    Args:
        paths: the files, in order; records are counted over all of them.
        counts: the number of records of each.
        sequence_length: tokens that a record has place for.
        dtype: the stored type of a token, uint16 or int32.
        identity: fingerprint of the build that the records must be of, as `write_records` was given; None takes
            any build's.
        overlap: tokens of a record that are targets only (`Segments.overlap`).
        fetch: called with a file's path before it is opened, to have it there; must pickle where the reader does.
        read_ahead_bytes: how much of an open file is read, and held, at a time, for places that follow one another;
            only the file last opened and the one before it then stay open.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        counts: Sequence[int],
        *,
        sequence_length: int,
        dtype: np.dtype | str,
        identity: str | None = None,
        overlap: int = 0,
        fetch: Callable[[Path], object] | None = None,
        read_ahead_bytes: int = 0,
    ) -> None:
        if len(paths) != len(counts):
            raise ValueError(f"Expected one count a file, found {len(counts)} counts for {len(paths)} files.")
        self.paths = tuple(Path(path) for path in paths)
        self.counts = tuple(int(count) for count in counts)
        self.sequence_length = sequence_length
        self.dtype = checked_dtype(dtype)
        self.identity = identity
        self.overlap = overlap
        self.read_ahead_bytes = read_ahead_bytes
        self._fetch = fetch
        self._ends = np.cumsum(self.counts, dtype=np.int64)
        self._starts = self._ends - np.array(self.counts, np.int64)
        self._lock = threading.Lock()
        self._pool = BufferPool()
        self._readers: list[Any] = [None] * len(self.paths)
        self._last: Any = None

    def __len__(self) -> int:
        return sum(self.counts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.paths, self.counts, self._settings | {"fetch": self._fetch})

    def __repr__(self) -> str:
        return f"RecordReader({len(self)} records of {self.sequence_length} tokens in {len(self.paths)} files)"

    @property
    def _settings(self) -> dict[str, Any]:
        return {
            "sequence_length": self.sequence_length,
            "dtype": self.dtype.str,
            "identity": self.identity,
            "overlap": self.overlap,
            "read_ahead_bytes": self.read_ahead_bytes,
        }

    def moved(self, paths: Sequence[Path], **settings: Any) -> RecordReader:
        """A reader of the same records in other files, which it does not fetch; with other settings where given."""
        return RecordReader(paths, self.counts, **self._settings | settings)

    def forward(self) -> RecordReader:
        """A reader of the same files for places that mostly follow one another: it reads ahead in large pieces."""
        return self.moved(self.paths, fetch=self._fetch, read_ahead_bytes=_READ_AHEAD_BYTES)

    def files_of(self, indices: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The file that holds each of the records at some places, by its number."""
        return np.searchsorted(self._ends, indices, side="right")

    @property
    def width(self) -> int:
        """L, the tokens of a row of a batch."""
        return self.sequence_length - self.overlap

    def read(self, indices: Int64[np.ndarray, " row"]) -> list[bytes]:
        """The records at some places, in the order asked for.

        Raises:
            IndexError: a place outside of the records.
            UserError: a file that is missing, cut short, replaced or damaged.
        """
        if not len(indices):
            return []
        if indices.min() < 0 or indices.max() >= len(self):
            raise IndexError(f"Expected places in 0 .. {len(self) - 1}, found {indices.min()} .. {indices.max()}.")
        file = self.files_of(indices)
        begins = np.ones(len(indices), np.bool_)  # a run of neighbours in one file, read at once
        begins[1:] = (indices[1:] != indices[:-1] + 1) | (file[1:] != file[:-1])
        first = np.flatnonzero(begins)
        starts = indices[first] - self._starts[file[first]]
        stops = starts + np.diff(first, append=len(indices))
        records: list[bytes] = []
        readers = self._readers
        for index, start, stop in zip(file[first].tolist(), starts.tolist(), stops.tolist(), strict=True):
            reader = readers[index] or self._open(index)
            try:
                records += reader.read(start, stop)
            except (RuntimeError, IndexError) as error:
                self._blame(reader, index, start, stop, error)
        return records

    def read_batch(
        self,
        indices: Int64[np.ndarray, " row"],
        *,
        expected: Int64[np.ndarray, " row"] | None = None,
        fields: Sequence[str] = FIELDS,
        merge_segments: bool = False,
    ) -> dict[str, Int32[np.ndarray, "row token"]]:
        """`read`, then `decode`; `expected` are the sequences that should lie there.

        Rows are `width` tokens long: where sequences overlap, a row's last target is the token after it.

        Raises:
            UserError: as `read`, or a record that is another build's or not the expected sequence's.
        """
        try:
            batch = decode(
                self.read(indices),
                self.sequence_length,
                self.dtype,
                expected=expected,
                identity=self.identity,
                fields=fields,
                merge_segments=merge_segments,
                pool=self._pool,
            )
        except OtherBuildError as error:
            file = self.paths[int(np.searchsorted(self._ends, indices[error.row], side="right"))]
            raise UserError(
                f"{file} was written anew after the dataset was opened ({error.reason}); open the dataset again, "
                "and start anew what was read from the former one."
            ) from None
        except CorruptRecordError as error:
            raise UserError(self._sentence(int(indices[error.row]), error.reason)) from None
        if not self.overlap:
            return batch
        return {field: np.ascontiguousarray(rows[:, : self.width]) for field, rows in batch.items()}

    def close(self, file: int | None = None) -> None:
        """Close the files, or the one of that number; the next read opens what it needs again."""
        with self._lock:
            if file is None:
                self._readers = [None] * len(self.paths)
            else:
                self._readers[file] = None

    def _open(self, index: int) -> Any:
        if self._fetch is not None:
            self._fetch(self.paths[index])  # before the lock: reads of other files go on meanwhile
        with self._lock:
            if self._readers[index] is None:
                path = self.paths[index]
                if not path.is_file():
                    raise UserError(f"Expected the record file {path}, found none; {_REPAIR}.")
                reader = array_record_module.ArrayRecordReader(str(path), _OPTIONS.format(self.read_ahead_bytes))
                found = reader.num_records()
                if found != self.counts[index]:
                    raise UserError(
                        f"Expected {self.counts[index]} records in {path}, found {found}: it was cut short, "
                        f"replaced or never closed; {_REPAIR}."
                    )
                if self.read_ahead_bytes:
                    self._readers = [each if each is self._last else None for each in self._readers]
                self._readers[index] = self._last = reader
            return self._readers[index]

    def _blame(self, reader: Any, index: int, start: int, stop: int, error: Exception) -> NoReturn:
        """Name the first record of a range that cannot be read."""
        offset = int(self._starts[index])
        for place in range(start, stop):
            try:
                reader.read(place, place + 1)
            except (RuntimeError, IndexError) as single:
                error, start = single, place
                break
        raise UserError(self._sentence(offset + start, str(error).split(";")[0])) from None

    def _sentence(self, place: int, reason: str) -> str:
        index = int(np.searchsorted(self._ends, place, side="right"))
        record = place - int(self._starts[index])
        return f"Record {record} of {self.paths[index]} is damaged ({reason}); {_REPAIR}."


def _reopen(paths: tuple[Path, ...], counts: tuple[int, ...], settings: dict[str, Any]) -> RecordReader:
    return RecordReader(paths, counts, **settings)

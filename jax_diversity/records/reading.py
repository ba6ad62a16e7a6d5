"""Record files read by place: ranges, random places, whole batches.

Batches are made of the records' bodies straight from memory maps, several times as fast as by ArrayRecord's own
reader. That one reads whole records, and batches of what cannot be mapped (files of an older format or another
make); and where anything about a mapped body is wrong, it reads the records again, and its word on them stands.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from jaxtyping import Int32, Int64, Integer, UInt8

from jax_diversity.foundation.errors import UserError
from jax_diversity.records.buffers import BufferPool
from jax_diversity.records.codec import (
    BODY_START,
    Bodies,
    CorruptRecordError,
    OtherBuildError,
    body_bytes,
    checked_dtype,
)
from jax_diversity.records.decoding import FIELDS, decode
from jax_diversity.records.mapped import MappedFile

_T = TypeVar("_T")

# ArrayRecord reads a list of places in time that grows with the file, a range in time that does not. Reading ahead
# makes ranges that follow one another three to five times as fast, and only costs where places are random.
_OPTIONS = "readahead_buffer_size:{},max_parallelism:0"
_READ_AHEAD_BYTES = 4 * 2**20
_REPAIR = "find what changed with `jax-diversity verify`, then restore the file or write the records anew"


class RecordReader:
    """Reads sequences from record files by their place, from any number of threads.

    Files are opened when first needed; the number of records in each must be what it should be. A pickled reader
    carries names only. A single record costs the same in a file of any size.

    Args:
        paths: the files, in order; records are counted over all of them.
        counts: the number of records of each.
        sequence_length: tokens that a record has place for.
        dtype: the stored type of a token, uint16 or int32.
        identity: fingerprint of the build that the records must be of, as `write_records` was given; None takes
            any build's.
        overlap: tokens of a record that are targets only (`Segments.overlap`).
        fetch: called with a file's path before it is opened, to have it there; must pickle where the reader does.
        read_ahead_bytes: how much of an open file is read at a time, for places that follow one another; only the
            file last opened and the one before it then stay open.
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
        self._readers: dict[int, Any] = {}
        self._maps: dict[int, MappedFile | None] = {}

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
        self._check_places(indices)
        if not len(indices):
            return []
        file = self.files_of(indices)
        begins = np.ones(len(indices), np.bool_)  # a run of neighbours in one file, read at once
        begins[1:] = (indices[1:] != indices[:-1] + 1) | (file[1:] != file[:-1])
        first = np.flatnonzero(begins)
        starts = indices[first] - self._starts[file[first]]
        stops = starts + np.diff(first, append=len(indices))
        records: list[bytes] = []
        readers = self._readers
        for index, start, stop in zip(file[first].tolist(), starts.tolist(), stops.tolist(), strict=True):
            reader = readers.get(index) or self._opened(readers, index, self._open)
            try:
                records += reader.read(start, stop)
            except (RuntimeError, ValueError, IndexError) as error:
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
        """The arrays of the records at some places, see `decode`; `expected` are the sequences that lie there.

        Rows are `width` tokens long: where sequences overlap, a row's last target is the token after it.

        Raises:
            UserError: as `read`, or a record that is another build's or not the expected sequence's.
        """
        made = partial(decode, fields=fields, merge_segments=merge_segments, pool=self._pool)
        batch = self._from_bodies(indices, lambda records: made(self._checked(records, expected)))
        if not self.overlap:
            return batch
        return {field: np.ascontiguousarray(rows[:, : self.width]) for field, rows in batch.items()}

    def read_tokens(
        self, indices: Int64[np.ndarray, " row"], *, expected: Int64[np.ndarray, " row"] | None = None
    ) -> Integer[np.ndarray, "row token"]:
        """The tokens of the records at some places, as they are stored (uint16 or int32), padding 0.

        Rows are `sequence_length` tokens long. They are checked as those of a batch are.

        Raises:
            UserError: as `read_batch`.

        Example:
            >>> open_dataset("out/").records.read_tokens(np.arange(64)).shape
            (64, 512)
        """
        return self._from_bodies(indices, lambda records: self._checked(records, expected).tokens)

    def close(self, file: int | None = None) -> None:
        """Close the files, or the one of that number; the next read opens what it needs again."""
        with self._lock:
            for opened in (self._readers, self._maps):
                if file is None:
                    opened.clear()
                else:
                    opened.pop(file, None)

    def _checked(
        self, records: Sequence[bytes] | UInt8[np.ndarray, "row byte"], expected: Int64[np.ndarray, " row"] | None
    ) -> Bodies:
        return Bodies(records, self.sequence_length, self.dtype, expected=expected, identity=self.identity)

    def _from_bodies(self, indices: Int64[np.ndarray, " row"], make: Callable[[Any], _T]) -> _T:
        """What `make` makes of some records, given their bodies or, where these are not to be had, all of them."""
        self._check_places(indices)
        try:
            if (bodies := self._mapped(indices)) is not None:
                return make(bodies)
        except CorruptRecordError:
            pass
        try:
            return make(self.read(indices))
        except OtherBuildError as error:
            file = self.paths[int(np.searchsorted(self._ends, indices[error.row], side="right"))]
            raise UserError(
                f"{file} was written anew after the dataset was opened ({error.reason}); open the dataset again, "
                "and start anew what was read from the former one."
            ) from None
        except CorruptRecordError as error:
            raise UserError(self._sentence(int(indices[error.row]), error.reason)) from None

    def _check_places(self, indices: Int64[np.ndarray, " row"]) -> None:
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            raise IndexError(f"Expected places in 0 .. {len(self) - 1}, found {indices.min()} .. {indices.max()}.")

    def _mapped(self, indices: Int64[np.ndarray, " row"]) -> UInt8[np.ndarray, "row byte"] | None:
        """The bodies of the records at some places; None where a file of theirs cannot, or no longer, be mapped."""
        file = self.files_of(indices)
        places = indices - self._starts[file]
        num_bytes = body_bytes(self.sequence_length, self.dtype)
        if len(file) and (file == file[0]).all():
            mapped = self._map_of(int(file[0]))
            return None if mapped is None else mapped.beginnings(places, num_bytes)
        bodies = np.empty((len(indices), num_bytes), np.uint8)
        maps: dict[int, MappedFile] = {}
        for index in np.unique(file).tolist():
            mapped = self._map_of(index)
            if mapped is None or not mapped.is_whole():
                return None
            maps[index] = mapped
        for body, index, place in zip(bodies, file.tolist(), places.tolist(), strict=True):
            maps[index].copy_beginning(place, body)
        return bodies

    def _map_of(self, index: int) -> MappedFile | None:
        try:
            return self._maps[index]
        except KeyError:  # not yet, or closed by another thread
            return self._opened(self._maps, index, self._map)

    def _opened(self, opened: dict[int, _T], index: int, opening: Callable[[int], _T]) -> _T:
        """A file opened in one of two ways, once among all threads."""
        if self._fetch is not None:
            self._fetch(self.paths[index])  # before the lock: reads of other files go on meanwhile
        with self._lock:
            if index not in opened:
                file = opening(index)
                if self.read_ahead_bytes:
                    for former in list(opened)[:-1]:
                        del opened[former]
                opened[index] = file
            return opened[index]

    def _map(self, index: int) -> MappedFile | None:
        """A file as a map, if it has the bodies that it should have; what else it may be, `_open` finds out."""
        try:
            mapped = MappedFile.open(self.paths[index], in_sequence=self.read_ahead_bytes > 0)
        except OSError as error:
            raise _unreadable(self.paths[index], error) from None
        if mapped is None or len(mapped) != self.counts[index]:
            return None
        long_enough = mapped.smallest >= body_bytes(self.sequence_length, self.dtype)
        return mapped if long_enough and mapped.first_bytes.startswith(BODY_START) else None

    def _open(self, index: int) -> Any:
        """A file as ArrayRecord opens it."""
        path = self.paths[index]
        try:
            path.open("rb").close()  # ArrayRecord takes a file that it cannot open for an empty one
        except OSError as error:
            raise _unreadable(path, error) from None
        try:
            reader = array_record_module.ArrayRecordReader(str(path), _OPTIONS.format(self.read_ahead_bytes))
            found = reader.num_records()
        except (RuntimeError, ValueError) as error:
            raise UserError(f"{path} is damaged ({_first_clause(error)}); {_REPAIR}.") from None
        if found != self.counts[index]:
            raise UserError(
                f"Expected {self.counts[index]} records in {path}, found {found}: it was cut short, "
                f"replaced or never closed; {_REPAIR}."
            )
        return reader

    def _blame(self, reader: Any, index: int, start: int, stop: int, error: Exception) -> NoReturn:
        """Name the first record of a range that cannot be read."""
        offset = int(self._starts[index])
        for place in range(start, stop):
            try:
                reader.read(place, place + 1)
            except (RuntimeError, ValueError, IndexError) as single:
                error, start = single, place
                break
        raise UserError(self._sentence(offset + start, _first_clause(error))) from None

    def _sentence(self, place: int, reason: str) -> str:
        index = int(np.searchsorted(self._ends, place, side="right"))
        record = place - int(self._starts[index])
        return f"Record {record} of {self.paths[index]} is damaged ({reason}); {_REPAIR}."


def _first_clause(error: Exception) -> str:
    return str(error).split(";")[0]


def _unreadable(path: Path, error: OSError) -> UserError:
    """What to say of a file that the system does not give."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return UserError(f"Expected the record file {path}, found none; {_REPAIR}.")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit (`ulimit -n`), or write fewer, larger files (`records.sequences_per_file`)"
    else:
        remedy = "make it readable, then read again"
    return UserError(f"Expected to read {path}, but the system did not open it ({error.strerror}); {remedy}.")


def _reopen(paths: tuple[Path, ...], counts: tuple[int, ...], settings: dict[str, Any]) -> RecordReader:
    return RecordReader(paths, counts, **settings)

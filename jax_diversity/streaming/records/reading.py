"""Read record files by place or by sequence, from any number of threads, in random or in stored order."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer, UInt8

from jax_diversity.foundation.artifacts import NO_ARRAY
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.wording import counted
from jax_diversity.schema.orderings import as_integers
from jax_diversity.streaming.records import codec
from jax_diversity.streaming.records.decoding import FIELDS, Arrays, BufferPool, LossMask, decode, stored_rows
from jax_diversity.streaming.records.files import REPAIR, RecordFile

Rows = Int64[np.ndarray, " row"]
"""A whole number for each row of a batch."""
GivenRows = Rows | Sequence[int]
"""Numbers of rows in the types that users may give."""

_INVERTED_AT_A_TIME = 2**20


@dataclasses.dataclass(eq=False, repr=False)
class RecordReader:
    """Reads sequences from record files, from any number of threads.

    A *place* is the number of a record, counted over all files; `places_of` gives the places of sequences. A file is
    opened at its first use and must have the expected number of records. A pickled reader contains only names; the
    other process opens the files itself. The time to read one record does not depend on the size of its file.

    Args:
        paths: the files, in order.
        counts: the number of records of each file.
        sequence_length: the number of token places in a record.
        dtype: the stored type of a token, uint16 or int32.
        identity: the fingerprint of the records' build, as given to `write_records`. None accepts any build.
        overlap: number of tokens at the end of a record that are only targets (`Segments.overlap`).
        has_loss_mask: whether records have a loss mask. Without it all tokens count towards the loss.
        layout: a .npy file with the sequence at every place. With None, sequence i is at place i.
        fetch: called with a file's path before the file is opened, to fetch the file. It must be picklable if the
            reader is pickled.
        in_sequence: for ascending places: the system reads ahead, and only the last two opened files stay open.
        read_rows: reads the records at some places, as the rows of a matrix, in place of the files. `paths` are then
            the addresses of the files, for messages.
        memory_map: with False, records are read by system calls. This is slower, but a truncated file or a failing disk
            then gives an error instead of ending the process (see `RecordFile`).
    """

    paths: Sequence[Any]
    counts: Sequence[int]
    _: dataclasses.KW_ONLY
    sequence_length: int
    dtype: np.dtype | str
    identity: str | None = None
    overlap: int = 0
    has_loss_mask: bool = False
    layout: Path | None = None
    fetch: Callable[[Path], object] | None = None
    in_sequence: bool = False
    read_rows: Callable[[Rows], UInt8[np.ndarray, "row byte"]] | None = None
    memory_map: bool = True

    def __post_init__(self) -> None:
        self._dtype = codec.as_dtype(self.dtype)
        self._body_bytes = codec.body_bytes(self.sequence_length, self._dtype, self.has_loss_mask)
        self.counts = tuple(self.counts)
        self._ends = np.cumsum(self.counts, dtype=np.int64)
        self._starts = self._ends - np.array(self.counts, np.int64)
        self._lock = threading.Lock()
        self._pool = BufferPool()
        self._files: dict[int, RecordFile] = {}

    def __len__(self) -> int:
        return sum(self.counts)

    def __reduce__(self) -> tuple[Any, ...]:
        names = [field.name for field in dataclasses.fields(self)]
        return partial(RecordReader, **{name: getattr(self, name) for name in names}), ()

    def __repr__(self) -> str:
        records = f"{counted(len(self), 'record')} of {counted(self.sequence_length, 'token')}"
        return f"RecordReader({records} in {counted(len(self.paths), 'file')})"

    def moved(
        self, paths: Sequence[Any], read_rows: Callable[[Rows], UInt8[np.ndarray, "row byte"]] | None = None
    ) -> RecordReader:
        """Return a reader of the same records in other files, or through `read_rows`. It does not fetch the files."""
        return dataclasses.replace(self, paths=paths, fetch=None, read_rows=read_rows)

    def forward(self) -> RecordReader:
        """Return a reader of the same files for ascending places."""
        return dataclasses.replace(self, in_sequence=True)

    @property
    def width(self) -> int:
        """L, the number of tokens in a row of a batch."""
        return self.sequence_length - self.overlap

    def places_of(self, sequences: GivenRows) -> Rows:
        """Return the places of some sequences.

        Raises:
            IndexError: there is no such sequence.
            UserError: the layout cannot be read.
        """
        sequences = self._rows("sequences", sequences)
        return sequences if self.layout is None else self._place_of[sequences].astype(np.int64, copy=False)

    def sequences_at(self, places: Rows) -> Rows:
        """Return the sequences whose records are at some places, see `places_of`."""
        return places if self.layout is None else self._order[places].astype(np.int64)

    def files_of(self, places: Rows) -> Rows:
        """Return the number of the file for each of some places."""
        return np.searchsorted(self._ends, places, side="right")

    def locate(self, places: Rows) -> tuple[Rows, Rows]:
        """Return the number of the file for each of some places, and the number of the record in this file."""
        numbers = self.files_of(places)
        return numbers, places - self._starts[numbers]

    @property
    def record_bytes(self) -> int:
        """The number of bytes of every record."""
        return self._body_bytes

    def read_sequences(
        self,
        sequences: GivenRows,
        *,
        fields: Sequence[str] = FIELDS,
        merge_segments: bool = False,
        loss_mask: LossMask = "all",
    ) -> Arrays:
        """Read the arrays of some sequences, in the given order. This raises the same errors as `read_batch`.

        Example:
            >>> open_dataset("out/").records.read_sequences(np.array([7, 3]))["inputs"].shape
            (2, 512)
        """
        sequences = self._rows("sequences", sequences)
        places = self.places_of(sequences)
        options: dict[str, Any] = {"fields": fields, "merge_segments": merge_segments, "loss_mask": loss_mask}
        return self.read_batch(places, expected=sequences, **options)

    def read_batch(
        self,
        places: GivenRows,
        *,
        expected: Rows | None = None,
        fields: Sequence[str] = FIELDS,
        merge_segments: bool = False,
        loss_mask: LossMask = "all",
    ) -> Arrays:
        """Read the arrays of the records at some places, see `decode`. `expected` are the sequences of the records.

        Rows have `width` tokens. If sequences overlap, the last target of a row is the token after the row.

        Raises:
            IndexError: there is no record at a place.
            UserError: a file is missing, truncated, replaced or damaged; a record is of another build or another
                sequence.
        """
        bodies = self._bodies(places, expected)
        options: dict[str, Any] = {"fields": fields, "merge_segments": merge_segments, "loss_mask": loss_mask}
        return decode(bodies, **options, pool=self._pool, width=self.width)

    def read_stored(
        self, places: GivenRows, *, expected: Rows | None = None, dtype: np.dtype, has_loss_mask: bool = False
    ) -> dict[str, Integer[np.ndarray, "row column"]]:
        """Read what devices need to make the arrays of the records at some places, see `stored_rows`.

        `dtype` is the type of the tokens, at least as wide as the stored type. The checks and errors are the same as in
        `read_batch`.
        """
        return stored_rows(self._bodies(places, expected), self.width, dtype, has_loss_mask)

    def read_tokens(self, places: GivenRows, *, expected: Rows | None = None) -> Integer[np.ndarray, "row token"]:
        """Read the tokens of the records at some places, in their stored type (uint16 or int32). Padding is 0.

        Rows have `sequence_length` tokens. The checks and errors are the same as in `read_batch`.

        Example:
            >>> open_dataset("out/").records.read_tokens(np.arange(64)).shape
            (64, 512)
        """
        return self._bodies(places, expected).plain_tokens()

    def read_segments(
        self, places: GivenRows, *, expected: Rows | None = None
    ) -> list[tuple[Int64[np.ndarray, " segment"], Int64[np.ndarray, " segment"]]]:
        """Read the document and the number of tokens of every segment in the records at some places.

        The documents are in a file beside the record file, whose checksum is compared. The errors are the same as in
        `read_batch`.

        Example:
            >>> documents, lengths = open_dataset("out/").records.read_segments([7])[0]
        """
        places = self._rows("places", places)
        lengths = codec.segment_lengths(self._bodies(places, expected))
        numbers = self.files_of(places)
        documents: dict[int, Int64[np.ndarray, " segment"]] = {}
        for number in np.unique(numbers).tolist():  # a file's documents are in memory only for its own rows
            rows = np.flatnonzero(numbers == number)
            within = places[rows] - self._starts[number]
            for row, record, row_documents in zip(rows.tolist(), within, self._documents(number, within), strict=True):
                if len(row_documents) != len(lengths[row]):
                    reason = f"{len(lengths[row])} segments, documents of {len(row_documents)}"
                    raise self._damaged(number, int(record), reason)
                documents[row] = row_documents
        return [(documents[row], sizes) for row, sizes in enumerate(lengths)]

    def _documents(self, number: int, rows: Int64[np.ndarray, " row"]) -> list[Int64[np.ndarray, " segment"]]:
        path = codec.documents_path(self.paths[number])
        if self.fetch is not None:
            self.fetch(path)
        try:
            return codec.read_documents(path, self.counts[number], rows)
        except ValueError as error:
            raise UserError(f"{path} is damaged ({in_one_line(error)}); {REPAIR}.") from None

    def close(self, file: int | None = None) -> None:
        """Close all files or one file. The next read opens the files that it needs."""
        with self._lock:
            # If threads still read from a file, its map stays until the last of these threads has finished.
            for number in list(self._files) if file is None else [file]:
                self._files.pop(number, None)

    @cached_property
    def _order(self) -> Int64[np.ndarray, " place"]:
        """The sequence at every place, as a memory map of the layout's file."""
        # We do not check that this is the order in which the records were written: every record has its sequence's
        # index, which is compared.
        path = Path(self.layout or "")
        if self.fetch is not None:
            self.fetch(path)
        try:
            # Unlike this call, np.load treats other files as pickles and advises to allow them.
            order = np.lib.format.open_memmap(path, mode="r")
            if order.shape != (len(self),):
                raise ValueError(f"an array of shape {order.shape}")
        except NO_ARRAY as error:
            raise UserError(
                f"Expected the {len(self)} sequences in the order of their records at {path}, found no readable file "
                f"({in_one_line(error)}); restore the file, or run `jax-diversity order` and `write` "
                "again."
            ) from None
        return order

    @cached_property
    def _place_of(self) -> Integer[np.ndarray, " sequence"]:
        """The inverse of `_order`. It needs four bytes of memory per sequence; eight bytes from 2^31 sequences on."""
        place_of = np.zeros(len(self), np.int32 if len(self) < 2**31 else np.int64)
        for start in range(0, len(self), _INVERTED_AT_A_TIME):
            stop = min(start + _INVERTED_AT_A_TIME, len(self))
            place_of[self._order[start:stop]] = np.arange(start, stop)
        return place_of

    def _bodies(self, places: GivenRows, expected: Rows | None) -> codec.Bodies:
        places = self._rows("places", places)
        if self.read_rows is not None:
            return self._check(self.read_rows(places), places, expected)
        numbers, within = self.locate(places)
        in_one_file = len(numbers) > 0 and bool((numbers == numbers[0]).all())  # `unique` takes a tenth of the read
        files = {number: self._file(number) for number in (numbers[:1] if in_one_file else np.unique(numbers)).tolist()}
        for number, file in files.items():
            if not file.is_whole():
                raise UserError(f"Expected {self.paths[number]} as it was opened, found it cut short; {REPAIR}.")
        if in_one_file:
            rows = files[int(numbers[0])].bodies(within)
        else:
            rows = np.empty((len(places), self._body_bytes), np.uint8)
            for row, number, place in zip(rows, numbers.tolist(), within.tolist(), strict=True):
                files[number].copy_body(place, row)
        return self._check(rows, places, expected)

    def _check(self, bodies: UInt8[np.ndarray, "row byte"], places: Rows, expected: Rows | None) -> codec.Bodies:
        """Check that bodies belong to the records at their places."""
        try:
            return codec.check_bodies(
                bodies,
                self.sequence_length,
                self._dtype,
                expected=expected,
                identity=self.identity,
                has_loss_mask=self.has_loss_mask,
                overlap=self.overlap,
            )
        except codec.CorruptRecordError as error:
            number = int(self.files_of(places[error.row : error.row + 1])[0])
            if isinstance(error, codec.OtherBuildError):
                raise UserError(
                    f"{self.paths[number]} was written again after the dataset was opened ({error}); "
                    "open the dataset again, and restart the programs that read it."
                ) from None
            raise self._damaged(number, int(places[error.row] - self._starts[number]), str(error)) from None

    def _file(self, number: int) -> RecordFile:
        """Return a file. It is opened only once for all threads."""
        if (file := self._files.get(number)) is not None:
            return file
        if self.fetch is not None:
            self.fetch(self.paths[number])  # without the lock, so that reads of other files continue
        with self._lock:
            if (file := self._files.get(number)) is None:  # otherwise another thread has opened it meanwhile
                file = RecordFile(
                    self.paths[number],
                    self.counts[number],
                    self._body_bytes,
                    in_sequence=self.in_sequence,
                    memory_map=self.memory_map,
                )
                if self.in_sequence:
                    # The file before the new file stays open: a batch may begin in one file and end in the next file.
                    for older in list(self._files)[:-1]:
                        del self._files[older]
                self._files[number] = file
            return file

    def _rows(self, what: str, rows_or_row: GivenRows) -> Rows:
        if (
            isinstance(rows_or_row, np.ndarray) and rows_or_row.dtype == np.int64 and rows_or_row.ndim == 1
        ):  # as in every batch
            rows = rows_or_row
        else:
            rows = as_integers(what, rows_or_row, least=-(2**63))
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise IndexError(f"Expected {what} in 0 .. {len(self) - 1}, found {rows.min()} .. {rows.max()}.")
        return rows

    def _damaged(self, number: int, record: int, reason: str) -> UserError:
        return UserError(f"Record {record} of {self.paths[number]} is damaged ({reason}); {REPAIR}.")

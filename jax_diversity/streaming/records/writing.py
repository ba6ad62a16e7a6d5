"""Gather sequences from the tokens of their segments, and write them as record files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from jaxtyping import Bool, Int64, UInt8

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import space_for
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Segments
from jax_diversity.streaming.records.codec import (
    CorruptRecordError,
    as_dtype,
    body_bytes,
    check_bodies,
    documents_path,
    encode,
    write_documents,
)
from jax_diversity.streaming.records.files import RecordFile

Gather = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""A function (document_index, document_offset, length) -> values.

The arguments have one row per segment. The result has one value per token of all segments, one after another.
"""

_OPTIONS = "group_size:1,uncompressed"  # `records.files` can read only this layout
_CHUNK_BYTES = 2 * 2**20


@dataclass(frozen=True)
class RecordKind:
    """What the records of one file have in common.

    Attributes:
        sequence_length: the number of tokens of a stored sequence.
        dtype: the type of the stored tokens, uint16 or int32.
        identity: the fingerprint (hexadecimal) of the sequences' content. Every record contains its first eight bytes.
            With it, a reader of one build refuses the records of another build.
        has_loss_mask: whether the records say which tokens count towards the loss.
        overlap: 1 if the last token of a sequence is only a target, otherwise 0.
    """

    sequence_length: int
    dtype: np.dtype
    identity: str = ""
    has_loss_mask: bool = False
    overlap: int = 0

    @property
    def num_bytes(self) -> int:
        """The number of bytes of a record."""
        return body_bytes(self.sequence_length, self.dtype, self.has_loss_mask)

    @property
    def about(self) -> dict[str, Any]:
        """The arguments of `check_bodies` that are the same for all records."""
        return {"identity": self.identity, "has_loss_mask": self.has_loss_mask, "overlap": self.overlap}


@dataclass(frozen=True)
class Source:
    """What records are made from.

    Attributes:
        segments: the segments of some sequences.
        gather: reads the tokens of segments.
        kind: the kind of the records.
        inserted_ends: which segments end with `end_id` instead of the document's token; None for none of them. These
            end tokens never count towards the loss.
        end_id: the end token.
        read_loss_mask: says which tokens count towards the loss; None if the records have no loss mask.
        first_sequence: the index of the first sequence of `segments` in its dataset.
        first_document: the index in the dataset of the document that `segments` give the index 0.
    """

    segments: Segments
    gather: Gather
    kind: RecordKind
    inserted_ends: Bool[np.ndarray, " segment"] | None = None
    end_id: int = 0
    read_loss_mask: Gather | None = None
    first_sequence: int = 0
    first_document: int = 0


class Encoded(NamedTuple):
    """The records of some sequences, and the documents of their segments, one sequence after another."""

    bodies: UInt8[np.ndarray, "sequence byte"]
    num_segments: Int64[np.ndarray, " sequence"]
    documents: Int64[np.ndarray, " segment"]


def encode_sequences(source: Source, sequences: Int64[np.ndarray, " sequence"]) -> Iterator[Encoded]:
    """Yield the records of some sequences, in the given order. A few MiB of tokens are in memory at a time.

    Args:
        source: what the records are made from.
        sequences: sequences of `source.segments`; the first one has the number 0.
    """
    segments, kind = source.segments, source.kind
    row_ends = np.cumsum(np.bincount(segments.sequence_index, minlength=segments.num_sequences))
    row_starts = np.concatenate([[0], row_ends]).astype(np.int64)
    chunk_size = max(1, _CHUNK_BYTES // (kind.sequence_length * kind.dtype.itemsize))
    for start in range(0, len(sequences), chunk_size):
        chunk = sequences[start : start + chunk_size]
        num_segments = row_starts[chunk + 1] - row_starts[chunk]
        # `rows` are the rows of the chunk's segments: each sequence has a run of rows, one sequence after another.
        first = np.cumsum(num_segments) - num_segments
        rows = np.repeat(row_starts[chunk] - first, num_segments) + np.arange(num_segments.sum())
        documents, length = segments.document_index[rows], segments.length[rows]
        runs = documents, segments.document_offset[rows], length
        tokens = source.gather(*runs)
        loss_mask = None if source.read_loss_mask is None else source.read_loss_mask(*runs)
        if source.inserted_ends is not None and (inserted := source.inserted_ends[rows]).any():
            # Packing ended these segments with an end token in the middle of their documents. In this place,
            # `gather` gave the document's next token, which is the first token of the next segment.
            tokens, places = np.array(tokens), np.cumsum(length)[inserted] - 1
            tokens[places] = source.end_id
            if loss_mask is not None:
                loss_mask[places] = False
        bodies = encode(
            sequence_indices=chunk + source.first_sequence,
            num_segments=num_segments,
            position=segments.position[rows],
            length=length,
            tokens=np.asarray(tokens, dtype=kind.dtype),
            sequence_length=kind.sequence_length,
            identity=kind.identity,
            loss_mask=loss_mask,
            overlap=kind.overlap,
        )
        yield Encoded(bodies, num_segments, documents + source.first_document)


def write_record_file(path: Path, chunks: Iterable[Encoded], count: int, kind: RecordKind) -> None:
    """Write the record file of `count` sequences from their encoded records, and the file of their documents.

    A file gets its name only when it is complete. A UserError is raised if the disk is full or the folder cannot be
    written.
    """
    numbers, indices = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

    def records() -> Iterator[Sequence[bytes]]:
        for chunk in chunks:
            numbers.append(chunk.num_segments)
            indices.append(chunk.documents)
            yield [body.tobytes() for body in chunk.bodies]

    write_array_record(path, records(), count, _OPTIONS, count_of=partial(_num_sequences, kind=kind))
    with space_for(path.parent):
        write_documents(documents_path(path), np.concatenate(numbers), np.concatenate(indices))


def write_records(
    segments: Segments,
    gather: Gather,
    dtype: np.dtype | str,
    order: Int64[np.ndarray, " position"],
    folder: Path,
    stem: str,
    *,
    sequences_per_file: int,
    identity: str = "",
    inserted_ends: Bool[np.ndarray, " segment"] | None = None,
    end_id: int = 0,
    read_loss_mask: Gather | None = None,
    advance: Advance = ignore,
) -> tuple[int, ...]:
    """Write sequences in the order of `order`, as `stem-00000-of-00003.array_record` and so on, in this process.

    Sequences are read in the order of `order`, at random places if it is not the order of the segments. A build reads
    them in the order of the segments and sorts them, see `sorting`; the files are the same. For the other arguments see
    `Source` and `RecordKind`.

    Returns:
        The number of records of every file.
    """
    has_loss_mask = read_loss_mask is not None
    kind = RecordKind(segments.sequence_length, as_dtype(dtype), identity, has_loss_mask, segments.overlap)
    source = Source(segments, gather, kind, inserted_ends, end_id, read_loss_mask)
    counts = file_counts(len(order), sequences_per_file)
    start = 0
    for path, count in zip(record_paths(folder, stem, len(counts)), counts, strict=True):
        chunks = encode_sequences(source, order[start : start + count])
        write_record_file(path, _told(chunks, advance), count, kind)
        start += count
    return counts


def _told(chunks: Iterable[Encoded], advance: Advance) -> Iterator[Encoded]:
    """Yield chunks; `advance` is called with the number of sequences that were written."""
    for chunk in chunks:
        yield chunk
        advance(len(chunk.bodies))


def file_counts(num_sequences: int, sequences_per_file: int) -> tuple[int, ...]:
    """Return the number of records of each file. All files are full except the last."""
    full, rest = divmod(num_sequences, sequences_per_file)
    return (sequences_per_file,) * full + ((rest,) if rest else ())


def record_paths(folder: Path, stem: str, num_files: int) -> list[Path]:
    """Return the paths of the files, `stem-00000-of-00003.array_record` and so on."""
    return [folder / f"{stem}-{index:05d}-of-{num_files:05d}.array_record" for index in range(num_files)]


def num_records(path: Path) -> int:
    """Return the number of records in a file, from ArrayRecord's own reader.

    It is 0 if the file is another kind of file, is truncated or was never closed.
    """
    return array_record_module.ArrayRecordReader(str(path)).num_records()


def write_array_record(
    path: Path,
    chunks: Iterable[Sequence[bytes]],
    count: int,
    options: str,
    *,
    count_of: Callable[[Path], int] = num_records,
    advance: Advance = ignore,
) -> None:
    """Write one ArrayRecord file. It gets its name only after `count_of` has found the expected number of records.

    A UserError is raised if the disk is full or the folder cannot be written.
    """
    try:
        with atomic_path(path) as temporary:
            writer = array_record_module.ArrayRecordWriter(str(temporary), options)
            try:
                for chunk in chunks:
                    for record in chunk:
                        writer.write(record)
                    advance(len(chunk))
            finally:
                writer.close()  # this writes the footer, and raises an error if a write has failed
            if (num_written := count_of(temporary)) != count:
                raise OSError(f"{num_written} of {count} records arrived on disk")
    except (OSError, RuntimeError) as error:
        reason = str(error).split(";")[0]
        raise UserError(f"Could not write {path}: {reason}; free space or choose another folder.") from None


def _num_sequences(path: Path, *, kind: RecordKind) -> int:
    """Return the number of records in a file if its first record is of this kind; 0 for any other file."""
    # Both readers must accept the file. ArrayRecord's own reader proves that it is a true ArrayRecord file. Our reader
    # supports only one layout: if a later version of ArrayRecord writes another layout, the error is raised now and not
    # in training.
    try:
        count = num_records(path)
        if count < 1:
            return 0
        file = RecordFile(path, count, kind.num_bytes)
        body = file.bodies(np.zeros(1, np.int64))
        check_bodies(body, kind.sequence_length, kind.dtype, **kind.about)
    except (CorruptRecordError, UserError):
        return 0
    return len(file)

"""Gather sequences from the tokens of their segments, and write them as record files, several at the same time.

The writers are threads. ArrayRecord and NumPy release the interpreter's lock while they copy, and the last flush of a
file only waits for the disk. If the writers were processes, each would need a copy of the segments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from jaxtyping import Bool, Int64

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.records.codec import CorruptRecordError, as_dtype, body_bytes, check_bodies, encode, encode_documents
from jax_diversity.records.files import RecordFile
from jax_diversity.schema import Segments

Gather = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""A function (document_index, document_offset, length) -> values.

The arguments have one row per segment. The result has one value per token of all segments, one after another.
"""

_OPTIONS = "group_size:1,uncompressed"  # `records.files` can read only this layout
_CHUNK_BYTES = 2 * 2**20


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
    num_writers: int = 1,
    advance: Advance = ignore,
) -> tuple[int, ...]:
    """Write sequences in the order of `order`, as `stem-00000-of-00003.array_record` and so on.

    A file gets its name only when it is complete. An existing file is kept if it has the right number of records of the
    same identity. So an interrupted run continues where it stopped. The bytes are the same for any number of writers.
    Each writer has a few MiB of tokens in memory at a time, and calls `gather` from its own thread.

    Every record contains the first eight bytes of `identity`, the fingerprint (hexadecimal) of the sequences' content.
    With it, a reader of one build refuses the records of another build. The last token of a segment in `inserted_ends`
    is `end_id` instead of the document's token. `read_loss_mask` says which tokens count towards the loss; this is
    stored in the records. Inserted end tokens never count.

    Returns:
        The number of records of every file.
    """
    dtype = as_dtype(dtype)
    counts = file_counts(len(order), sequences_per_file)
    paths = record_paths(folder, stem, len(counts))
    starts = np.cumsum([0, *counts]).tolist()
    row_ends = np.cumsum(np.bincount(segments.sequence_index, minlength=segments.num_sequences))
    row_starts = np.concatenate([[0], row_ends]).astype(np.int64)
    chunk_size = max(1, _CHUNK_BYTES // (segments.sequence_length * dtype.itemsize))
    count_of = partial(
        _num_sequences,
        sequence_length=segments.sequence_length,
        dtype=dtype,
        identity=identity,
        has_loss_mask=read_loss_mask is not None,
    )

    def encoded(sequences: Int64[np.ndarray, " sequence"], advance: Advance) -> Iterator[list[bytes]]:
        numbers, indices = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for start in range(0, len(sequences), chunk_size):
            chunk = sequences[start : start + chunk_size]
            num_segments = row_starts[chunk + 1] - row_starts[chunk]
            # `rows` are the rows of the chunk's segments: each sequence has a run of rows, one sequence after another.
            first = np.cumsum(num_segments) - num_segments
            rows = np.repeat(row_starts[chunk] - first, num_segments) + np.arange(num_segments.sum())
            documents, length = segments.document_index[rows], segments.length[rows]
            runs = documents, segments.document_offset[rows], length
            tokens, loss_mask = gather(*runs), None if read_loss_mask is None else read_loss_mask(*runs)
            if inserted_ends is not None and (inserted := inserted_ends[rows]).any():
                # Packing ended these segments with an end token in the middle of their documents. In this place,
                # `gather` gave the document's next token, which is the first token of the next segment.
                tokens, places = np.array(tokens), np.cumsum(length)[inserted] - 1
                tokens[places] = end_id
                if loss_mask is not None:
                    loss_mask[places] = False
            bodies = encode(
                sequence_indices=chunk,
                num_segments=num_segments,
                position=segments.position[rows],
                length=length,
                tokens=np.asarray(tokens, dtype=dtype),
                sequence_length=segments.sequence_length,
                identity=identity,
                loss_mask=loss_mask,
            )
            numbers.append(num_segments)
            indices.append(documents)
            yield [body.tobytes() for body in bodies]
            advance(len(chunk))
        yield [encode_documents(np.concatenate(numbers), np.concatenate(indices))]

    def write(index: int, advance: Advance) -> None:
        path, count = paths[index], counts[index]
        if path.exists() and count_of(path) == count:
            advance(count)
        else:
            chunks = encoded(order[starts[index] :][:count], advance)
            write_array_record(path, chunks, count, _OPTIONS, count_of=count_of)

    # A single writer runs in this thread, so that an interrupt stops it at once.
    if min(num_writers, len(counts)) > 1:
        _side_by_side(write, len(counts), num_writers, advance)
    else:
        for index in range(len(counts)):
            write(index, advance)
    return counts


def file_counts(num_sequences: int, sequences_per_file: int) -> tuple[int, ...]:
    """Return the number of records of each file. All files are full except the last."""
    full, rest = divmod(num_sequences, sequences_per_file)
    return (sequences_per_file,) * full + ((rest,) if rest else ())


def record_paths(folder: Path, stem: str, num_files: int) -> list[Path]:
    """Return the paths of the files, `stem-00000-of-00003.array_record` and so on."""
    return [folder / f"{stem}-{index:05d}-of-{num_files:05d}.array_record" for index in range(num_files)]


def _side_by_side(write: Callable[[int, Advance], None], num_files: int, num_writers: int, advance: Advance) -> None:
    """Write files with several threads. An error or an interrupt stops all threads, and no partial file remains."""
    lock, stopping = threading.Lock(), threading.Event()

    def tell(num_sequences: int) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt  # ends only this thread: the caller gets the error that set the event
        with lock:
            advance(num_sequences)

    with ThreadPoolExecutor(num_writers, thread_name_prefix="jax-diversity-writer") as writers:
        try:
            futures = [writers.submit(write, index, tell) for index in range(num_files)]
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future in finished:
                    future.result()
        except BaseException:
            stopping.set()
            writers.shutdown(cancel_futures=True)  # waits for the threads, which remove their temporary files
            raise


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
            if (found := count_of(temporary)) != count:
                raise OSError(f"{found} of {count} records arrived on disk")
    except (OSError, RuntimeError) as error:
        reason = str(error).split(";")[0]
        raise UserError(f"Could not write {path}: {reason}; free space or choose another folder.") from None


def _num_sequences(path: Path, *, sequence_length: int, dtype: np.dtype, identity: str, has_loss_mask: bool) -> int:
    """Return the number of records in a file if its first record is of this build; 0 for any other file."""
    # Both readers must accept the file. ArrayRecord's own reader proves that it is a true ArrayRecord file. Our reader
    # supports only one layout: if a later version of ArrayRecord writes another layout, the error is raised now and not
    # in training.
    try:
        count = num_records(path) - 1  # the last record has the documents
        if count < 1:
            return 0
        file = RecordFile(path, count, body_bytes(sequence_length, dtype, has_loss_mask))
        body = file.bodies(np.zeros(1, np.int64))
        check_bodies(body, sequence_length, dtype, identity=identity, has_loss_mask=has_loss_mask)
    except (CorruptRecordError, UserError):
        return 0
    return len(file)

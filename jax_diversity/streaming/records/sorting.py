"""Write records in an order in two passes, which read and write all bytes in sequence: the work of three kinds of jobs.

`invert` stores the place of every sequence in the order. Pass 1 (`sort_run`) encodes a run of neighbouring sequences,
sorts them by place, and spools them to a file. Pass 2 (`write_ordered_file`) writes a record file. The sequences of its
places lie side by side in every run. It reads them in buckets that fit in memory.

A run and a bucket have at most `_BUCKET_BYTES`. With R runs, a bucket reads R pieces of about `_BUCKET_BYTES` / R
bytes: 45 KB in a dataset of 400 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import NO_ARRAY, atomic_path, read_array, write_array
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.folders import space_for
from jax_diversity.foundation.jobs import Opened, opened, work
from jax_diversity.streaming.records.codec import CorruptRecordError, check_bodies
from jax_diversity.streaming.records.jobs import open_source, record_kind, record_path, told
from jax_diversity.streaming.records.writing import Encoded, RecordKind, encode_sequences, write_record_file

_BUCKET_BYTES = 128 * 2**20
_PIECE = 2**20  # positions of an ordering that are read at a time
_PLACES = 2**25  # sequences whose places are in memory at the same time: 256 MiB
_ROW = np.dtype([("place", "<i8"), ("first", "<i8")])
"""A row of a run: its place in the order, and the number of its first segment in the run."""


def run_length(num_bytes: int) -> int:
    """Return the number of sequences of a run, or of a bucket, for records of `num_bytes` bytes."""
    return max(1, _BUCKET_BYTES // num_bytes)


def places_length(run: int) -> int:
    """Return the number of sequences of a file of places, a multiple of the length of a run."""
    return max(1, _PLACES // run) * run


def run_name(folder: Path, number: int) -> Path:
    """Return the path that the names of the files of a run begin with."""
    return folder / f"run-{number:06d}"


@work("inverting the order", patience=10.0)
def invert(name: Path, dataset: Opened, ordering: str, first: int, stop: int) -> int:
    """Store the places in the order of the sequences from `first` to `stop - 1`, in `name.npy`; returns their number.

    Raises:
        UserError: the order does not contain every sequence once, or there is no space.
    """
    order = opened(dataset).open_ordering(ordering)
    places = np.full(stop - first, -1, np.int64)
    for start in range(0, len(order), _PIECE):
        positions = np.arange(start, min(start + _PIECE, len(order)))
        sequences = order.at(positions) - first
        mine = (sequences >= 0) & (sequences < stop - first)
        places[sequences[mine]] = positions[mine]
    if (places < 0).any():
        raise UserError(
            f"Expected every sequence once in the ordering {ordering!r}, found that sequence "
            f"{first + int(np.argmin(places))} is absent; run `jax-diversity order` again."
        )
    with space_for(name.parent):
        write_array(Path(f"{name}.npy"), places)
    return stop - first


@work("sorting sequences", patience=10.0)
def sort_run(name: Path, dataset: Opened, places: str, places_first: int, first: int, stop: int) -> int:
    """Spool the records of the sequences from `first` to `stop - 1`, sorted by place; returns their number.

    Args:
        name: the path that the names of the files begin with: rows, documents of the segments, records.
        dataset: the dataset of the sequences.
        places: the file of `invert`.
        places_first: the first sequence of that file.
        first: the first sequence.
        stop: the sequence after the last.

    Raises:
        UserError: there is no space.
    """
    source = open_source(opened(dataset), "train", first, stop)
    place = read_array(Path(places), "write", mmap=True)[first - places_first : stop - places_first]
    order = np.argsort(place)
    bodies = np.empty((stop - first, source.kind.num_bytes), np.uint8)
    counts, documents, done = [], [], 0
    for chunk in told(encode_sequences(source, np.arange(stop - first))):
        bodies[done : done + len(chunk.bodies)] = chunk.bodies
        counts.append(chunk.num_segments)
        documents.append(chunk.documents)
        done += len(chunk.bodies)
    num_segments = np.concatenate(counts)
    starts = np.concatenate([[0], np.cumsum(num_segments)])
    rows = np.empty(len(order) + 1, _ROW)
    rows["place"] = np.append(place[order], np.iinfo(np.int64).max)
    rows["first"] = np.concatenate([[0], np.cumsum(num_segments[order])])
    segments = np.repeat(starts[:-1][order] - rows["first"][:-1], num_segments[order]) + np.arange(starts[-1])
    with space_for(name.parent):
        with atomic_path(Path(f"{name}.records")) as temporary, temporary.open("wb") as file:
            for part in np.array_split(order, max(1, bodies.nbytes // 2**22)):  # a part of 4 MiB is copied at a time
                file.write(bodies[part].data)
        write_array(Path(f"{name}.documents.npy"), np.concatenate(documents)[segments])
        write_array(Path(f"{name}.rows.npy"), rows)
    return stop - first


@work("writing records", patience=10.0)
def write_ordered_file(
    name: Path, dataset: Opened, ordering: str, runs: str, num_runs: int, first: int, stop: int
) -> int:
    """Write the file `name.array_record` with the places from `first` to `stop - 1` of an order; returns their number.

    Args:
        name: the path of the file without its ending.
        dataset: the dataset of the sequences.
        ordering: the name of the order.
        runs: the folder of the runs.
        num_runs: the number of runs.
        first: the first place.
        stop: the place after the last.

    Raises:
        UserError: a file of a run is absent or damaged, or there is no space.
    """
    whole = opened(dataset)
    kind, order = record_kind(whole), whole.open_ordering(ordering)
    paths = [run_name(Path(runs), number) for number in range(num_runs)]
    size = run_length(kind.num_bytes)

    def buckets() -> Iterator[Encoded]:
        for start in range(first, stop, size):
            end = min(start + size, stop)
            yield from _bucket(paths, kind, order.at(np.arange(start, end)), start)

    write_record_file(record_path(name), told(buckets()), stop - first, kind)
    return stop - first


def _bucket(
    runs: list[Path], kind: RecordKind, sequences: Int64[np.ndarray, " place"], start: int
) -> Iterator[Encoded]:
    """Read the records of the places from `start` on, and yield them by place; `sequences` has their sequences."""
    bodies = np.empty((len(sequences), kind.num_bytes), np.uint8)
    num_segments = np.full(len(sequences), -1, np.int64)
    owners, documents = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for run in runs:
        try:
            rows = np.lib.format.open_memmap(f"{run}.rows.npy", mode="r")
            begin, end = map(int, np.searchsorted(rows["place"], [start, start + len(sequences)]))
            if begin == end:
                continue
            at, firsts = rows["place"][begin:end] - start, np.array(rows["first"][begin : end + 1])
            size = (end - begin) * kind.num_bytes
            read = np.fromfile(f"{run}.records", np.uint8, size, offset=begin * kind.num_bytes)
            bodies[at] = read.reshape(end - begin, kind.num_bytes)
            num_segments[at] = np.diff(firsts)
            owners.append(np.repeat(at, np.diff(firsts)))
            documents.append(np.load(f"{run}.documents.npy", mmap_mode="r")[firsts[0] : firsts[-1]])
            if len(documents[-1]) != len(owners[-1]):
                raise ValueError("fewer documents than segments")
        except (*NO_ARRAY, IndexError) as error:
            raise _damaged(run, error) from None
    if (num_segments < 0).any():
        raise _damaged(runs[0].parent, "other places than those of the order")
    # A stable sort: the segments of a sequence stay in their order.
    by_place = np.argsort(np.concatenate(owners), kind="stable")
    documents_by_place, ends = np.concatenate(documents)[by_place], np.cumsum(num_segments)
    for part in np.array_split(np.arange(len(sequences)), max(1, bodies.nbytes // 2**22)):
        try:
            check_bodies(
                bodies[part],
                kind.sequence_length,
                kind.dtype,
                expected=sequences[part],
                **kind.about,
            )
        except CorruptRecordError as error:
            raise _damaged(runs[0].parent, error) from None
        yield Encoded(
            bodies[part], num_segments[part], documents_by_place[ends[part[0]] - num_segments[part[0]] : ends[part[-1]]]
        )


def _damaged(path: Path, reason: object) -> UserError:
    return UserError(
        f"Expected sorted sequences in {path}, found: {in_one_line(reason)}; the files were changed: delete the folder "
        f"{path if path.is_dir() else path.parent} and run `jax-diversity write` again."
    )

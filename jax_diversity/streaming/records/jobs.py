"""Writes one record file in the order of packing: the work of one job. It reads only what its sequences need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.jobs import Opened, opened, work
from jax_diversity.foundation.progress import tell
from jax_diversity.streaming.records.codec import as_dtype
from jax_diversity.streaming.records.writing import Encoded, RecordKind, Source, encode_sequences, write_record_file


# Two files at a time: ArrayRecord and NumPy release the interpreter's lock while they copy, and the last flush of a
# file only waits for the disk.
@work("writing records", at_a_time=2, patience=10.0)
def write_file(name: Path, dataset: Opened, part: str, first: int, stop: int) -> int:
    """Write `name.array_record` and its documents, of the sequences from `first` to `stop - 1`; returns their number.

    Args:
        name: the path of the file without its ending.
        dataset: the dataset of the sequences.
        part: `train` or `validation`.
        first: the first sequence.
        stop: the sequence after the last.
    """
    source = open_source(opened(dataset), part, first, stop)
    chunks = encode_sequences(source, np.arange(stop - first))
    write_record_file(record_path(name), told(chunks), stop - first, source.kind)
    return stop - first


def record_path(name: Path) -> Path:
    """Return the path of the record file of a job."""
    return name.with_name(f"{name.name}.array_record")


def told(chunks: Iterable[Encoded]) -> Iterator[Encoded]:
    """Yield chunks, and show their number of sequences as progress."""
    for chunk in chunks:
        yield chunk
        tell(len(chunk.bodies))


def record_kind(dataset: Any) -> RecordKind:
    """Return the kind of the records of a dataset, which is a `jax_diversity.streaming.dataset.Dataset`."""
    dtype = as_dtype(dataset.counts("tokenize")["token_dtype"])
    # Every record has the fingerprint of the packing. With it, an open reader detects a new build of the dataset.
    identity = dataset.stored.stage("pack")["fingerprint"]
    length = dataset.sequence_length + dataset.overlap
    return RecordKind(length, dtype, identity, dataset.has_loss_mask, dataset.overlap)


def open_source(dataset: Any, part: str, first: int, stop: int) -> Source:
    """Open the segments of the sequences from `first` to `stop - 1`, and the files of tokens that they need."""
    segments = dataset.segments_between(part, first, stop)
    used = segments.document_index if len(segments) else np.zeros(1, np.int64)
    tokens, first_document = dataset.tokens_between(int(used.min()), int(used.max()))
    segments = replace(segments, document_index=segments.document_index - first_document)
    inserted = segments.inserted_ends(tokens.document_lengths) if dataset.counts("pack")["num_inserted_ends"] else None
    return Source(
        segments,
        tokens.gather,
        record_kind(dataset),
        inserted,
        dataset.end_id,
        tokens.loss_mask if dataset.has_loss_mask else None,
        first,
        first_document,
    )

"""The documents that training has read up to a position."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.streaming.dataset import Dataset

if TYPE_CHECKING:
    import pyarrow as pa


def seen_documents(
    datasets: Sequence[Dataset],
    dataset: Int64[np.ndarray, " position"],
    sequence: Int64[np.ndarray, " position"],
    path: str | Path | None = None,
) -> pa.Table:
    """The documents of the sequences at all positions so far, as `Run.seen` describes them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for number, member in enumerate(datasets):
        places = np.flatnonzero(dataset == number)
        tables.append(_met(member, number, sequence[places], places))
    table = pa.concat_tables(tables)
    if path is not None:
        with atomic_path(Path(path)) as temporary:
            pq.write_table(table, temporary, compression="zstd")
    return table


def _met(
    dataset: Dataset, number: int, sequences: Int64[np.ndarray, " met"], positions: Int64[np.ndarray, " met"]
) -> pa.Table:
    """The documents of the sequences at ascending positions."""
    import pyarrow as pa

    times = np.bincount(sequences, minlength=dataset.num_sequences)
    first = np.full(dataset.num_sequences, np.iinfo(np.int64).max)
    np.minimum.at(first, sequences, positions)
    last = np.full(dataset.num_sequences, -1)
    np.maximum.at(last, sequences, positions)
    segments = dataset.segments
    used = np.flatnonzero(times[segments.sequence_index] > 0)
    sequence, document = segments.sequence_index[used], segments.document_index[used]
    distinct, place = np.unique(document, return_inverse=True)
    firsts = np.full(len(distinct), np.iinfo(np.int64).max)
    np.minimum.at(firsts, place, first[sequence])
    lasts = np.full(len(distinct), -1)
    np.maximum.at(lasts, place, last[sequence])
    # A sequence with several segments of a document counts once.
    pairs = np.unique(np.stack([place, sequence]), axis=1)
    of_document = np.bincount(pairs[0], times[pairs[1]], minlength=len(distinct)).astype(np.int64)
    tokens = np.bincount(place, segments.length[used] * times[sequence], minlength=len(distinct)).astype(np.int64)
    ids = np.array(list(dataset.document_store.ids()), object)[distinct]
    return pa.table(
        {
            "dataset": np.full(len(distinct), number, np.int32),
            "id": pa.array(ids.tolist(), pa.string()),
            "tokens": tokens,
            "sequences": of_document,
            "first_position": firsts,
            "last_position": lasts,
        }
    )

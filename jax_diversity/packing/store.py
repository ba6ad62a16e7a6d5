"""The segments table as a Parquet file, and what can be read off it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jax_diversity.schema import Segments


def write_segments(path: Path, segments: Segments) -> None:
    """Write the columns of `Segments`, a row a segment; the same bytes for the same segments."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: getattr(segments, name) for name in Segments.COLUMNS})
    pq.write_table(table, path, compression="zstd")


def num_documents_cut(segments: Segments) -> int:
    """Number of documents that lie in more than one segment."""
    _, times = np.unique(segments.document_index, return_counts=True)
    return int((times > 1).sum())

"""The segments table as a Parquet file."""

from __future__ import annotations

from pathlib import Path

from jax_diversity.schema import Segments


def write_segments(path: Path, segments: Segments) -> None:
    """Write the columns of `Segments`, a row a segment; the same bytes for the same segments."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({name: getattr(segments, name) for name in Segments.COLUMNS})
    pq.write_table(table, path, compression="zstd")

"""Read the segments of neighbouring sequences, without the rest of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments


def read_segments_between(path: Path, first: int, stop: int, sequence_length: int, overlap: int) -> Segments:
    """Read the segments of the sequences from `first` to `stop - 1`, which get the numbers 0, 1 ...

    Only the row groups of the Parquet file that contain these sequences are read.

    Args:
        path: the table of the segments.
        first: the first sequence.
        stop: the sequence after the last.
        sequence_length: the number of tokens of a stored sequence.
        overlap: see `Segments`.

    Raises:
        UserError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            found = file.metadata
            column = file.schema_arrow.get_field_index("sequence_index")
            bounds = [found.row_group(number).column(column).statistics for number in range(found.num_row_groups)]
            wanted = [
                number
                for number, bound in enumerate(bounds)
                if bound is None or not bound.has_min_max or (bound.min < stop and bound.max >= first)
            ]
            table = file.read_row_groups(wanted, columns=list(Segments.COLUMNS))
        columns = {name: table[name].to_numpy() for name in Segments.COLUMNS}
    except (pa.ArrowException, OSError, KeyError, IndexError) as error:
        reason = (str(error).splitlines() or ["no such column"])[0]
        raise UserError(f"{path} does not contain segments ({reason}); run `jax-diversity pack` again.") from None
    begin, end = np.searchsorted(columns["sequence_index"], [first, stop])
    columns = {name: values[begin:end] for name, values in columns.items()}
    columns["sequence_index"] = columns["sequence_index"] - first
    return Segments(**columns, num_sequences=stop - first, sequence_length=sequence_length, overlap=overlap)

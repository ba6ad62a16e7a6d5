"""The artifacts of the stage `pack`: segments, documents' appearances, and Megatron's order of the sequences."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import read_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments

if TYPE_CHECKING:
    import pyarrow as pa

    from jax_diversity.foundation.stored import StoredStages

SEQUENCES = "sequences"
SEGMENTS = "segments.parquet"
VALIDATION = "validation.parquet"
APPEARANCES = "appearances.npy"
HELD_OUT = "held_out.npy"
SHUFFLE_INDEX = "shuffle_index.npy"
SPLIT = np.dtype([("id", "<u8"), ("text", "<u8"), ("held_out", "?")])
"""The type of the rows of `HELD_OUT`, one for each document: hashes of its id and of its text, and whether it is kept
for validation."""
_GROUP_ROWS = 1 << 20  # of a row group, which is read as a whole
_PARTS = {"train": (SEGMENTS, "num_sequences"), "validation": (VALIDATION, "num_validation_sequences")}


def read_segments(
    stored: StoredStages, part: Literal["train", "validation"] = "train", first: int = 0, stop: int | None = None
) -> Segments:
    """Read the packing of the sequences `first` up to `stop` of a part, which get the numbers 0, 1 ...

    Only the row groups that contain these sequences are read. A damaged file is a `UserError`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name, count = _PARTS[part]
    path = stored.file("pack", f"{SEQUENCES}/{name}")
    stop = stored.number("pack", count) if stop is None else stop
    try:
        with pq.ParquetFile(path) as file:
            place = file.schema_arrow.get_field_index("sequence_index")
            found = [file.metadata.row_group(number).column(place).statistics for number in range(file.num_row_groups)]
            # Rows are sorted by sequence.
            wanted = [
                number
                for number, held in enumerate(found)
                if held is None or not held.has_min_max or (held.min < stop and held.max >= first)
            ]
            table = file.read_row_groups(wanted, columns=list(Segments.COLUMNS))
        columns = {column: table[column].to_numpy() for column in Segments.COLUMNS}
    except (pa.ArrowException, OSError, KeyError, IndexError) as error:
        reason = (str(error).splitlines() or ["no such column"])[0]
        raise UserError(f"{path} does not contain segments ({reason}); run `jax-diversity pack` again.") from None
    rows = slice(*np.searchsorted(columns["sequence_index"], [first, stop]).tolist())
    columns = {column: values[rows] for column, values in columns.items()}
    columns["sequence_index"] = columns["sequence_index"] - first
    return Segments(
        **columns,
        num_sequences=stop - first,
        sequence_length=stored_length(stored),
        overlap=stored.number("pack", "overlap"),
    )


def write_segments(path: Path, tables: Iterable[pa.Table]) -> None:
    """Write a file of segments from one or more tables. The file does not depend on the tables' numbers of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rest = iter(tables)
    waiting = next(rest)
    with pq.ParquetWriter(path, waiting.schema, compression="zstd") as writer:
        for table in filter(len, rest):
            if full := len(waiting) // _GROUP_ROWS * _GROUP_ROWS:
                writer.write_table(waiting.slice(0, full), _GROUP_ROWS)
            waiting = pa.concat_tables([waiting.slice(full), table])
        writer.write_table(waiting, _GROUP_ROWS)


def segments_file(stored: StoredStages) -> Path:
    """Return the path of the file with the training sequences' segments."""
    return stored.file("pack", f"{SEQUENCES}/{SEGMENTS}")


def read_appearances(stored: StoredStages) -> Int64[np.ndarray, " document"] | None:
    """Return how often each document was packed for training (its weight); None if the documents have no weights."""
    if "num_appearances" not in stored.counts("pack"):
        return None
    return read_array(stored.file("pack", f"{SEQUENCES}/{APPEARANCES}"), "pack")


def read_held_out(stored: StoredStages) -> np.ndarray:
    """Return a row of the type `SPLIT` for every document."""
    return read_split(stored.file("pack", f"{SEQUENCES}/{HELD_OUT}"))


def read_split(path: Path) -> np.ndarray:
    """Read a file of rows of the type `SPLIT`; a file with other content is a `UserError`."""
    rows = read_array(path, "pack")
    if rows.dtype != SPLIT or rows.ndim != 1:
        raise UserError(
            f"Expected the hashes of ids and texts in {path}, found {rows.dtype} of shape {rows.shape}; build the "
            "dataset with this version, in a new folder."
        )
    return rows


def stored_length(stored: StoredStages) -> int:
    """Return the number of tokens of a stored sequence: the model's input plus the overlap with the next sequence."""
    return stored.number("pack", "sequence_length") + stored.number("pack", "overlap")

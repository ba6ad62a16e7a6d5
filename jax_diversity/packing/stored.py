"""The artifacts of the stage `pack`: segments, documents' appearances, and Megatron's order of the sequences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import read_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages

SEQUENCES = "sequences"
SEGMENTS = "segments.parquet"
VALIDATION = "validation.parquet"
APPEARANCES = "appearances.npy"
HELD_OUT = "held_out.npy"
SHUFFLE_INDEX = "shuffle_index.npy"


def read_segments(stored: StoredStages, first: int = 0, stop: int | None = None) -> Segments:
    """Read the packing of the training sequences `first` up to `stop`, which get the numbers 0, 1 ...

    A damaged file is a `UserError`.
    """
    whole = stored.number("pack", "num_sequences")
    return _read_segments(segments_file(stored), stored, first, whole if stop is None else stop)


def read_validation_segments(stored: StoredStages) -> Segments:
    """Read the packing of the validation sequences; a damaged file is a `UserError`."""
    path = stored.file("pack", f"{SEQUENCES}/{VALIDATION}")
    return _read_segments(path, stored, 0, stored.number("pack", "num_validation_sequences"))


def segments_file(stored: StoredStages) -> Path:
    """Return the path of the file with the training sequences' segments."""
    return stored.file("pack", f"{SEQUENCES}/{SEGMENTS}")


def read_appearances(stored: StoredStages) -> Int64[np.ndarray, " document"] | None:
    """Return how often each document was packed for training (its weight); None if the documents have no weights."""
    if "num_appearances" not in stored.counts("pack"):
        return None
    return read_array(stored.file("pack", f"{SEQUENCES}/{APPEARANCES}"), "pack")


def read_held_out(stored: StoredStages) -> np.ndarray:
    """Return a record of every document: `id`, a hash of its id, and `held_out`, whether it was kept for validation."""
    return read_array(stored.file("pack", f"{SEQUENCES}/{HELD_OUT}"), "pack")


def stored_length(stored: StoredStages) -> int:
    """Return the number of tokens of a stored sequence: the model's input plus the overlap with the next sequence."""
    return stored.number("pack", "sequence_length") + stored.number("pack", "overlap")


def _read_segments(path: Path, stored: StoredStages, first: int, stop: int) -> Segments:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [number for number in range(file.num_row_groups) if _may_hold(file, number, first, stop)]
            table = file.read_row_groups(groups, columns=list(Segments.COLUMNS))
        columns = {column: table[column].to_numpy() for column in Segments.COLUMNS}
    except (pyarrow.ArrowException, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} does not contain segments ({reason}); run `jax-diversity pack` again.") from None
    rows = slice(*np.searchsorted(columns["sequence_index"], [first, stop]).tolist())
    columns = {name: values[rows] for name, values in columns.items()}
    columns["sequence_index"] = columns["sequence_index"] - first
    return Segments(
        **columns,
        num_sequences=stop - first,
        sequence_length=stored_length(stored),
        overlap=stored.number("pack", "overlap"),
    )


def _may_hold(file: Any, number: int, first: int, stop: int) -> bool:
    """Whether a row group may have segments of the sequences `first` up to `stop`: rows are sorted by sequence."""
    about = file.metadata.row_group(number)
    place = [about.column(column).path_in_schema for column in range(about.num_columns)].index("sequence_index")
    held = about.column(place).statistics
    return held is None or not held.has_min_max or (held.min < stop and held.max >= first)

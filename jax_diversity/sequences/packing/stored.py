"""The artifacts of the stage `pack`: segments, documents' appearances, and Megatron's order of the sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import read_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stored import Artifact, Count, OptionalArtifact, Part, StoredStages, StoredValue, path_of
from jax_diversity.schema import Segments

if TYPE_CHECKING:
    import pyarrow as pa

SEQUENCES = "sequences"
SEGMENTS: Mapping[Part, Artifact[Path]] = {
    "train": Artifact("pack", f"{SEQUENCES}/segments.parquet", path_of),
    "validation": Artifact("pack", f"{SEQUENCES}/validation.parquet", path_of),
}
SHUFFLE_INDEX = "shuffle_index.npy"
"""The name of the file with Megatron's order of the sequences, which other programs read."""
SPLIT = np.dtype([("id", "<u8"), ("text", "<u8"), ("held_out", "?")])
"""The type of the rows of `document_hashes`, one for each document: hashes of its id and of its text, and
whether it is kept for validation."""
_GROUP_ROWS = 1 << 20  # of a row group, which is read as a whole


def read_segments(stored: StoredStages, first: int = 0, stop: int | None = None) -> Segments:
    """Read the packing of the sequences `first` up to `stop` of the part, which get the numbers 0, 1 ...

    Only the row groups that contain these sequences are read. A damaged file is a `UserError`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = SEGMENTS[stored.part].path(stored)
    stop = PackingArtifacts.num_sequences.read(stored) if stop is None else stop
    try:
        with pq.ParquetFile(path) as file:
            place = file.schema_arrow.get_field_index("sequence_index")
            statistics = [
                file.metadata.row_group(number).column(place).statistics for number in range(file.num_row_groups)
            ]
            # Rows are sorted by sequence.
            numbers = [
                number
                for number, limits in enumerate(statistics)
                if limits is None or not limits.has_min_max or (limits.min < stop and limits.max >= first)
            ]
            table = file.read_row_groups(numbers, columns=list(Segments.COLUMNS))
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


def read_split(path: Path, stage: str = "pack") -> np.ndarray:
    """Read a file of rows of the type `SPLIT`; a file with other content is a `UserError`."""
    rows = read_array(path, stage)
    if rows.dtype != SPLIT or rows.ndim != 1:
        raise UserError(
            f"Expected the hashes of ids and texts in {path}, found {rows.dtype} of shape {rows.shape}; build the "
            "dataset with this version, in a new folder."
        )
    return rows


def stored_length(stored: StoredStages) -> int:
    """Return the number of tokens of a stored sequence: the model's input plus the overlap with the next sequence."""
    return stored.number("pack", "sequence_length") + stored.number("pack", "overlap")


_ROWS = "num_rows"


class PackingArtifacts:
    """The artifacts of the stage `pack`."""

    sequence_length = Count("pack", "sequence_length")
    """L, the number of tokens of a sequence that a model sees."""
    overlap = Count("pack", "overlap")
    """Number of tokens at the end of a stored sequence that are also the beginning of the next one in the text.

    In the earlier sequence the model only predicts these tokens. The overlap is 1 for the packing methods `megatron`
    and `partial_shuffle`, and 0 for the package's other methods.
    """
    num_rows = StoredValue(lambda stored: stored.number("pack", _ROWS) if _ROWS in stored.counts("pack") else 0)
    """The number of rows of a batch whose text goes on in the next batch, in the order `corpus_order`; 0 if the packing
    method does not divide the text into such rows."""
    num_sequences = Count("pack", "num_sequences", validation="num_validation_sequences")
    """Number of training sequences; of `validation`, the number of validation sequences."""
    segments = StoredValue(read_segments)
    """The packing of the training sequences; of `validation`, that of the validation sequences."""
    num_loss_tokens = Count("pack", "num_loss_tokens", validation="num_validation_loss_tokens")
    """Number of tokens of the part's sequences that count towards the loss with `loss_mask="answers"`; without chats,
    every token counts."""
    appearances = OptionalArtifact[Int64[np.ndarray, " document"]]("pack", f"{SEQUENCES}/appearances.npy", read_array)
    """How often each document was packed for training (its weight); None if the documents have no weights."""
    document_hashes = Artifact("pack", f"{SEQUENCES}/held_out.npy", read_split)
    """For each document, hashes of its id and its text, and whether it is kept for validation (type `SPLIT`)."""
    held_out = StoredValue(lambda stored: PackingArtifacts.document_hashes.read(stored)["held_out"])
    """Whether each document is kept for validation; with a weight of 0 it is not in the validation sequences."""

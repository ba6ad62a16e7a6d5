"""Vectors that other programs computed: a .npy file, or a column of Parquet files.

Rows are matched with documents by ids if the Parquet files have ids, otherwise by the stored order of the documents.
Vectors are read in blocks. Only the document number of each row stays in memory (8 bytes per row). During the matching,
all ids are in memory too.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int64

from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BLOCK_ROWS = 8192
_UNUSED = -1

Block = tuple[Int64[np.ndarray, " row"], Float32[np.ndarray, "row feature"]]


@dataclass(frozen=True)
class PrecomputedVectors:
    """Vectors in files, opened and matched with documents; so far only ids have been read.

    Attributes:
        dimensions: number of features of a vector.
        num_unused: number of rows whose ids are not ids of documents.
        blocks: yields the rows of all documents, each once, as (document indices, vectors); a few thousand rows at a
            time, in the order of the files.
    """

    dimensions: int
    num_unused: int
    blocks: Callable[[], Iterator[Block]]


def precomputed(
    *, document_ids: Callable[[], Any], path: str, column: str = "embedding", id_column: str | None = "id"
) -> PrecomputedVectors:
    """Open vectors in files: a .npy, or a column of Parquet files, matched by the documents' ids.

    Args:
        document_ids: returns the ids of all documents in stored order, a list or an Arrow column; called once.
        path: a .npy, a Parquet file or a glob of Parquet files; `~` is the home folder.
        column: the Parquet column with the vectors.
        id_column: the Parquet column with the ids of documents. If there is no such column, or for None, rows must be
            in the stored order of the documents.

    Raises:
        UserError: there is no such file or column; the content is not rows of numbers; rows have different lengths;
            there are more or fewer rows than documents; a document has no row, or two rows; while blocks are read, a
            row contains NaN or infinity. The message names the file and the row, counted from 0.

    Example:
        >>> np.save("vectors.npy", np.eye(3, dtype=np.float32))
        >>> precomputed(document_ids=lambda: ["a", "b", "c"], path="vectors.npy").dimensions
        3
    """
    paths = input_files(path)
    ids = document_ids()
    if paths[0].suffix == ".npy":
        if len(paths) > 1:
            raise UserError(
                f"Expected one .npy file or Parquet files at the embedding's path {path}, found {len(paths)} "
                f"files (the first is {paths[0]}); join them, or store them as Parquet."
            )
        return _open_array(paths[0], len(ids))
    return _open_tables(paths, column, id_column, ids)


def input_files(path: str, **_: Any) -> list[Path]:
    """Return the files of a path or glob, sorted by name; other options are checked later, when files are opened."""
    pattern = os.path.expanduser(path)
    matches = [pattern] if os.path.isfile(pattern) else sorted(glob.glob(pattern, recursive=True))
    paths = [Path(name) for name in matches if os.path.isfile(name)]
    if not paths:
        raise UserError(
            f"Expected the embedding's path to name a .npy file, Parquet files or a glob of Parquet files, found "
            f"no file at {path!r}; give the path of the vectors."
        )
    return paths


def _open_array(path: Path, num_documents: int) -> PrecomputedVectors:
    try:
        # We do not use np.load: it treats other files as pickles, and its error advises users to allow pickles.
        stored = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a broken header makes NumPy raise various errors
        reason = in_one_line(error)
        raise UserError(f"Expected a .npy array at {path}, found: {reason}; save it again with numpy.save.") from None
    if stored.ndim != 2 or stored.dtype.kind != "f" or not stored.shape[1]:
        raise UserError(
            f"Expected floating-point vectors of the shape (document, feature >= 1) in {path}, found {stored.dtype} "
            f"{stored.shape}; save one row per document."
        )
    _check_number(str(path), len(stored), num_documents)

    def blocks() -> Iterator[Block]:
        for start in range(0, num_documents, _BLOCK_ROWS):
            numbers = np.arange(start, min(start + _BLOCK_ROWS, num_documents))
            yield numbers, _as_float32(stored[start : start + _BLOCK_ROWS], path, numbers)

    return PrecomputedVectors(stored.shape[1], 0, blocks)


def _open_tables(paths: Sequence[Path], column: str, id_column: str | None, ids: Any) -> PrecomputedVectors:
    names, lengths = zip(*(_check_column(path, column) for path in paths), strict=True)
    has_ids = [id_column in columns for columns in names]
    if all(has_ids):
        targets, num_unused = _match_ids(paths, str(id_column), ids)
    elif any(has_ids):
        without = paths[has_ids.index(False)]
        raise UserError(
            f"Expected either all files of vectors or no file to have the column {id_column!r}, found {without} "
            "without it; add the column, or set the option id_column to None to use the order of the rows."
        )
    else:
        _check_number(f"{counted(len(paths), 'file')} (the first is {paths[0]})", sum(lengths), len(ids))
        targets, num_unused = np.arange(len(ids)), 0
    dimensions = _first_width(paths, column)

    def blocks() -> Iterator[Block]:
        for path, documents in zip(paths, np.split(targets, np.cumsum(lengths)[:-1]), strict=True):
            start = 0
            for batch in _batches(path, column):
                vectors = _read_rows(batch, dimensions, column, path, start)
                used = np.flatnonzero(documents[start : start + len(batch)] != _UNUSED)
                yield documents[start + used], _as_float32(vectors[used], path, start + used)
                start += len(batch)

    return PrecomputedVectors(dimensions, num_unused, blocks)


def _match_ids(paths: Sequence[Path], id_column: str, ids: Any) -> tuple[Int64[np.ndarray, " row"], int]:
    """Return the document of every row (`_UNUSED` for an id without a document) and the number of unused rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # The ids stay in Arrow's memory: a Python object for every id would need several times as much memory.
    parts = [[*_batches(path, id_column, pa.large_string())] for path in paths]
    names = pa.chunked_array([batch for part in parts for batch in part], pa.large_string())
    id_column_values = pa.array(ids, pa.large_string()) if isinstance(ids, Sequence) else ids.cast(pa.large_string())
    places = pc.index_in(names, value_set=id_column_values)  # type: ignore[attr-defined]
    rows = places.fill_null(_UNUSED).to_numpy().astype(np.int64)
    first = np.full(len(ids), -1, np.int64)
    # We write the rows backwards, so that the first row of each document remains.
    used = np.flatnonzero(rows != _UNUSED)
    first[rows[used][::-1]] = used[::-1]
    repeated = used[first[rows[used]] != used]
    if len(repeated):
        # Row numbers continue over all files; the message names the file and the row within the file.
        starts = np.cumsum([0, *(sum(map(len, part)) for part in parts)])
        number = int(np.searchsorted(starts, repeated[0], side="right")) - 1
        raise UserError(
            f"Expected one vector per document, found a second one for {names[int(repeated[0])].as_py()!r} in row "
            f"{repeated[0] - starts[number]} of {paths[number]}; remove one of the two."
        )
    lacking = np.flatnonzero(first < 0)
    if len(lacking):
        raise UserError(
            f"Expected a vector for each of the {len(ids)} documents in the column {id_column!r} of {paths[0]}"
            f"{' and the other files' if len(paths) > 1 else ''}, found none for {len(lacking)} "
            f"documents (the first is {id_column_values[int(lacking[0])].as_py()!r}); add their rows."
        )
    return rows, len(rows) - len(used)


def _read_rows(batch: pa.Array, dimensions: int, column: str, path: Path, start: int) -> np.ndarray:
    """Convert a batch of lists to a matrix; `start` is the number of the batch's first row in the file."""
    import pyarrow.compute as pc

    widths = pc.list_value_length(batch).fill_null(-1).to_numpy(zero_copy_only=False)  # type: ignore[attr-defined]
    wrong = widths != dimensions
    if wrong.any():
        row = int(np.argmax(wrong))
        description = "null" if widths[row] < 0 else f"{widths[row]} numbers"
        raise UserError(
            f"Expected vectors of {dimensions} numbers in the column {column!r}, found {description} in "
            f"row {start + row} of {path}; repair that row."
        )
    # `flatten`, unlike `values`, leaves out numbers outside the offsets of the batch. A null number becomes NaN, for
    # which `_as_float32` raises an error that names the row.
    return np.asarray(batch.flatten().to_numpy(zero_copy_only=False)).reshape(len(batch), dimensions)


def _check_column(path: Path, column: str) -> tuple[list[str], int]:
    """Check that `column` has lists of floating-point numbers; return the file's column names and number of rows."""
    import pyarrow.types as types

    with _parquet(path) as table:
        schema, num_rows = table.schema_arrow, table.metadata.num_rows
    if column not in schema.names:
        raise UserError(
            f"Expected the column {column!r} in {path}, found {', '.join(schema.names) or 'no columns'}; give "
            "the name of the vectors' column in the option `column`."
        )
    kind: Any = schema.field(column).type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not is_list or not types.is_floating(kind.value_type):
        raise UserError(
            f"Expected lists of floating-point numbers in the column {column!r} of {path}, found {kind}; give "
            "the name of the vectors' column in the option `column`."
        )
    return list(schema.names), num_rows


def _first_width(paths: Sequence[Path], column: str) -> int:
    # The number of features comes from a row, not from the column's type: in the schema, lists of any length have no
    # width.
    for path in paths:
        for batch in _batches(path, column):
            if len(batch):
                if first := batch[0].as_py():
                    return len(first)
                description = "null" if first is None else "an empty vector"
                raise UserError(f"Expected vectors in the column {column!r} of {path}, found {description} in row 0.")
    raise UserError(f"Expected vectors in the column {column!r} of {paths[0]}, found no rows.")


def _batches(path: Path, column: str, kind: pa.DataType | None = None) -> Iterator[pa.Array]:
    """Yield a column in batches, cast to `kind` if it is given."""
    with _parquet(path) as table:
        for batch in table.iter_batches(_BLOCK_ROWS, columns=[column]):
            rows = batch.column(0)
            rows.validate(full=True)  # damaged files have impossible offsets, which would crash the process
            yield rows if kind is None else rows.cast(kind)


@contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            yield table
    except (pa.ArrowException, OSError, UnicodeError) as error:  # also for a name that is not UTF-8
        raise UserError(
            f"Expected a Parquet file (or a single .npy) at {path}, found: {in_one_line(error)}; write it again."
        ) from None


def _check_number(where: str, num_rows: int, num_documents: int) -> None:
    if num_rows != num_documents:
        raise UserError(
            f"Expected a row for each of the {num_documents} documents, found {num_rows} rows in {where}; the rows "
            "must be in the stored order of the documents, or Parquet files need a column of ids."
        )


def _as_float32(rows: np.ndarray, path: Path, numbers: Int64[np.ndarray, " row"]) -> Float32[np.ndarray, "row feature"]:
    """Convert rows to float32 and check that they are finite; `numbers` are their row numbers in the file."""
    # A float64 beyond the range of float32 becomes infinity, for which the check below raises an error with the row.
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(rows, np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise UserError(
            f"Expected finite vectors, found NaN, infinity or a number beyond float32 in row "
            f"{numbers[np.argmin(finite)]} of {path}; repair that row."
        )
    return vectors

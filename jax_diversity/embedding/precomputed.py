"""Vectors that were computed elsewhere: a .npy file, or a column of Parquet files.

Rows are matched with the corpus's documents by their ids where the Parquet files have them, and otherwise one by
one in the order in which the documents are stored. Vectors are read in blocks; what is held of all rows is their
place in the corpus, 8 bytes each, and, while ids are matched, the documents' ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float32, Int64

from jax_diversity.embedding.outside import find_vector_files
from jax_diversity.embedding.settings import EmbeddingConfig
from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BLOCK_ROWS = 8192
_UNUSED = -1

Block = tuple[Int64[np.ndarray, " row"], Float32[np.ndarray, "row feature"]]


@dataclass(frozen=True)
class PrecomputedVectors:
    """Vectors in files, opened and matched with documents; nothing but their ids has been read yet.

    Attributes:
        dimensions: width of the vectors.
        num_unused: rows whose ids are no document's.
        blocks: gives the rows of all documents, each once, as (document indices, vectors), a few thousand at a
            time in the order of the files.
    """

    dimensions: int
    num_unused: int
    blocks: Callable[[], Iterator[Block]]


def open_precomputed(config: EmbeddingConfig, document_ids: Callable[[], Sequence[str]]) -> PrecomputedVectors:
    """Open the vectors at `config.path` and match their rows with the documents.

    Args:
        config: `path`, `column` and `id_column`.
        document_ids: gives the ids of all documents in stored order; called once.

    Raises:
        UserError: no such file or column; something other than rows of numbers; rows of different widths; more or
            fewer rows than documents; a document without a row, or with two; while blocks are read, NaN or
            infinity. Names the file and the row, counted from 0.

    Example:
        >>> np.save("vectors.npy", np.eye(3, dtype=np.float32))
        >>> config = EmbeddingConfig(method="precomputed", path="vectors.npy")
        >>> open_precomputed(config, lambda: ["a", "b", "c"]).dimensions
        3
    """
    paths = find_vector_files(config)
    ids = document_ids()
    if paths[0].suffix == ".npy":
        if len(paths) > 1:
            raise UserError(
                f"Expected one .npy file or Parquet files at embedding.path={config.path}, found {len(paths)} "
                f"files from {paths[0]} on; join them, or store them as Parquet."
            )
        return _open_array(paths[0], len(ids))
    return _open_tables(paths, config, ids)


def _open_array(path: Path, num_documents: int) -> PrecomputedVectors:
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a broken header makes NumPy raise half a dozen kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"Expected a .npy array at {path}, found: {reason}; save it anew with numpy.save.") from None
    if not isinstance(stored, np.ndarray) or stored.ndim != 2 or stored.dtype.kind != "f" or not stored.shape[1]:
        found = f"{stored.dtype} {stored.shape}" if isinstance(stored, np.ndarray) else "several arrays"
        raise UserError(
            f"Expected floating-point vectors of the shape (document, feature >= 1) in {path}, found {found}; save "
            "one row a document."
        )
    _check_number(str(path), len(stored), num_documents)

    def blocks() -> Iterator[Block]:
        for start in range(0, num_documents, _BLOCK_ROWS):
            vectors = _as_float32(stored[start : start + _BLOCK_ROWS], path, start)
            yield np.arange(start, start + len(vectors)), vectors

    return PrecomputedVectors(stored.shape[1], 0, blocks)


def _open_tables(paths: Sequence[Path], config: EmbeddingConfig, ids: Sequence[str]) -> PrecomputedVectors:
    has_ids = [config.id_column in _column_names(path, config.column) for path in paths]
    if all(has_ids):
        targets, num_unused = _match_ids(paths, str(config.id_column), ids)
    elif any(has_ids):
        without = paths[has_ids.index(False)]
        raise UserError(
            f"Expected all files of embedding.path to have the column {config.id_column!r} or none, found "
            f"{without} without it; add it there, or set embedding.id_column to null to go by the rows' order."
        )
    else:
        num_rows = 0
        for path in paths:
            with _parquet(path) as table:
                num_rows += table.metadata.num_rows
        _check_number(f"{len(paths)} files at {config.path}", num_rows, len(ids))
        targets, num_unused = np.arange(num_rows), 0
    reader = _TableReader(paths, config.column, targets, _first_width(paths, config.column))
    return PrecomputedVectors(reader.dimensions, num_unused, reader.blocks)


def _match_ids(paths: Sequence[Path], id_column: str, ids: Sequence[str]) -> tuple[Int64[np.ndarray, " row"], int]:
    """The document of every row, `_UNUSED` where the id is no document's, and how many those are."""
    places = {name: index for index, name in enumerate(ids)}
    seen = np.zeros(len(ids), bool)
    targets = [np.zeros(0, np.int64)]
    for path in paths:
        row = 0
        for batch in _batches(path, id_column):
            names = [str(name) for name in batch.to_pylist()]
            found = np.array([places.get(name, _UNUSED) for name in names], np.int64)
            for place, target in enumerate(found.tolist()):
                if target != _UNUSED and seen[target]:
                    raise UserError(
                        f"Expected one vector a document, found a second one of {names[place]!r} in row "
                        f"{row + place} of {path}; remove one of the two."
                    )
                seen[target] |= target != _UNUSED
            targets.append(found)
            row += len(names)
    if not seen.all():
        missing = int(np.argmin(seen))
        raise UserError(
            f"Expected a vector of each of the {len(ids)} documents in the column {id_column!r} of {paths[0]}"
            f"{' and the other files' if len(paths) > 1 else ''}, found none of {len(ids) - int(seen.sum())}, the "
            f"first being {ids[missing]!r}; add their rows."
        )
    rows = np.concatenate(targets)
    return rows, int((rows == _UNUSED).sum())


@dataclass(frozen=True)
class _TableReader:
    """Reads the vectors' column of Parquet files; `targets` holds every row's document."""

    paths: Sequence[Path]
    column: str
    targets: Int64[np.ndarray, " row"]
    dimensions: int

    def blocks(self) -> Iterator[Block]:
        first = 0
        for path in self.paths:
            start = 0
            for batch in _batches(path, self.column):
                vectors = self._vectors(batch, path, start)
                targets = self.targets[first : first + len(batch)]
                used = targets != _UNUSED
                yield targets[used], _as_float32(vectors[used], path, start, np.flatnonzero(used))
                start += len(batch)
                first += len(batch)

    def _vectors(self, batch: pa.Array, path: Path, start: int) -> np.ndarray:
        import pyarrow.compute as pc

        widths = pc.list_value_length(batch).fill_null(-1).to_numpy(zero_copy_only=False)  # type: ignore[attr-defined]
        wrong = widths != self.dimensions
        if wrong.any():
            row = int(np.argmax(wrong))
            found = "null" if widths[row] < 0 else f"{widths[row]} numbers"
            raise UserError(
                f"Expected vectors of {self.dimensions} numbers in the column {self.column!r}, found {found} in "
                f"row {start + row} of {path}; repair that row."
            )
        # `flatten` goes by the offsets; a null number becomes NaN, which is refused with its row.
        values = batch.flatten().to_numpy(zero_copy_only=False)
        return np.asarray(values).reshape(len(batch), self.dimensions)


def _column_names(path: Path, column: str) -> list[str]:
    """The names of a file's columns, `column` among them and made of lists of floating-point numbers."""
    import pyarrow.types as types

    with _parquet(path) as table:
        schema = table.schema_arrow
    if column not in schema.names:
        raise UserError(
            f"Expected the column {column!r} in {path}, found {', '.join(schema.names) or 'no columns'}; name the "
            "vectors' column in embedding.column."
        )
    kind: Any = schema.field(column).type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not is_list or not types.is_floating(kind.value_type):
        raise UserError(
            f"Expected lists of floating-point numbers in the column {column!r} of {path}, found {kind}; name the "
            "vectors' column in embedding.column."
        )
    return list(schema.names)


def _first_width(paths: Sequence[Path], column: str) -> int:
    for path in paths:
        for batch in _batches(path, column):
            first = batch[0].as_py() if len(batch) else None
            if first is not None and not first:
                raise UserError(f"Expected vectors in the column {column!r} of {path}, found an empty one in row 0.")
            if first is not None:
                return len(first)
            if len(batch):
                raise UserError(f"Expected vectors in the column {column!r} of {path}, found null in row 0.")
    raise UserError(f"Expected vectors in the column {column!r} of {paths[0]}, found no rows.")


def _batches(path: Path, column: str) -> Iterator[pa.Array]:
    with _parquet(path) as table:
        for batch in table.iter_batches(_BLOCK_ROWS, columns=[column]):
            rows = batch.column(0)
            rows.validate(full=True)  # damaged files give offsets and letters that cannot be
            yield rows


@contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            yield table
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise UserError(
            f"Expected a Parquet file (or a single .npy) at {path}, found: {what}; write it anew."
        ) from None


def _check_number(where: str, num_rows: int, num_documents: int) -> None:
    if num_rows != num_documents:
        raise UserError(
            f"Expected a row for each of the {num_documents} documents, found {num_rows} rows in {where}; the rows "
            "have to follow the documents' stored order, or Parquet files need a column of ids."
        )


def _as_float32(
    rows: np.ndarray, path: Path, start: int, places: Int64[np.ndarray, " row"] | None = None
) -> Float32[np.ndarray, "row feature"]:
    """The rows as float32, all finite; `start` (and `places` after it) say which rows of the file they are."""
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(rows, np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise UserError(
            f"Expected finite vectors, found NaN, infinity or a number beyond float32 in row "
            f"{start + (row if places is None else int(places[row]))} of {path}; repair that row."
        )
    return vectors

"""Decisions as Parquet files: one row for each document that was read, in the order of reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.schema.document_store import DECISIONS

_GROUP_ROWS = 10_000
_FILE_ROWS = 1_000_000


class _Write(Protocol):
    def __call__(self, candidate: Candidate) -> None: ...


def decisions_file(number: int) -> str:
    """Return the name of the file of decisions of this number."""
    return f"decisions-{number:05d}.parquet"


@contextmanager
def decisions_writer(folder: Path, name: Callable[[int], str] = decisions_file) -> Iterator[_Write]:
    """Yield a function that stores the decision on one document. Up to ten thousand rows are in memory.

    `name` gives the files' names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[tuple] = []
    num_rows = 0
    with ExitStack() as open_file:
        parquet: pq.ParquetWriter | None = None

        def write_group() -> None:
            nonlocal parquet, num_rows
            if parquet is None:
                path = folder / name(num_rows // _FILE_ROWS)
                temporary = open_file.enter_context(atomic_path(path))
                words = ["source", "language", "step", "rule"]
                writer = pq.ParquetWriter(temporary, DECISIONS, compression="zstd", use_dictionary=words)  # type: ignore[arg-type]
                parquet = open_file.enter_context(writer)
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), DECISIONS, strict=True)
            ]
            parquet.write_table(pa.Table.from_arrays(columns, schema=DECISIONS))
            num_rows += len(rows)
            rows.clear()
            if num_rows % _FILE_ROWS == 0:
                open_file.close()
                parquet = None

        def write(candidate: Candidate) -> None:
            document, removed = candidate.document, candidate.removed
            kept = removed is None
            why = (None, None, None, None) if removed is None else removed
            measured = list(candidate.measured.items())
            added = json.dumps(candidate.scores, sort_keys=True, ensure_ascii=False) if candidate.scores else None
            duplicates = (candidate.duplicate_group, candidate.duplicate_of)
            labels = (document.id, document.source, candidate.language)
            rows.append((*labels, kept, candidate.edited_by, *why, measured, added, *duplicates))
            if len(rows) == _GROUP_ROWS:
                write_group()

        yield write
        if rows:
            write_group()

"""Removed documents in full, as Parquet files by step and rule.

Every part stores the documents that a phase removed, beside its result. At the end they are gathered. The files have
the columns of stored documents, so a corpus may be read from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.text.normal_forms import text_hash
from jax_diversity.preparation.passes.blocks import damage_as_error, read_blocks, write_blocks
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.schema.document_store import SCHEMA

REMOVED = "removed"
"""The folder of the files, in the folder of preparation."""
_SCHEMA = pa.schema(
    [
        *SCHEMA,
        pa.field("step", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),
        pa.field("value", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("duplicate_of", pa.string()),
    ]
)
_GROUP_BYTES = 2**20
_NOT_IN_NAMES = re.compile(r"[^\w.-]")

Row = tuple[Any, ...]
"""The values of the columns, without the hash of the text."""


def removed_row(candidate: Candidate, text: str) -> Row:
    """Return the row of a removed document; `text` is its text before the step that removed it."""
    document, removed = candidate.document, candidate.removed
    if removed is None:
        raise ValueError(f"document {document.id} was not removed")
    metadata = json.dumps({**document.metadata, **candidate.scores}, sort_keys=True, ensure_ascii=False)
    columns = (document.id, text, document.source, candidate.language, document.title, metadata)
    return (*columns, *removed, candidate.duplicate_of)


def write_removed(path: Path, rows: Sequence[Row]) -> None:
    """Store the rows of one part and phase."""
    write_blocks(path, json.dumps(rows).encode())


def gather_removed(paths: Iterable[Path], folder: Path) -> None:
    """Write the rows of all parts to a file for each step and rule, such as `gopher.least_words.parquet`.

    About a megabyte of text for each rule is in memory.

    Raises:
        UserError: a part is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        rules: dict[str, _Rule] = {}
        for row in _rows(paths):
            name = _NOT_IN_NAMES.sub("_", f"{row[6]}.{row[7]}")
            if name not in rules:
                temporary = files.enter_context(atomic_path(folder / f"{name}.parquet"))
                writer = pq.ParquetWriter(temporary, _SCHEMA, compression="zstd", write_statistics=False)
                rules[name] = _Rule(files.enter_context(writer))
            rules[name].add(row)
        for rule in rules.values():
            rule.flush()


def _rows(paths: Iterable[Path]) -> Iterator[Row]:
    for path in paths:
        if path.exists():
            with damage_as_error(path):
                (block,) = read_blocks(path, 1)
                yield from map(tuple, json.loads(bytes(block)))


class _Rule:
    """The file of a rule, and the rows of its next row group."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer
        self._rows: list[Row] = []
        self._num_bytes = 0

    def add(self, row: Row) -> None:
        encoded = row[1].encode()
        self._rows.append((*row[:6], text_hash(row[1]), *row[6:]))
        self._num_bytes += len(encoded)
        if self._num_bytes >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*self._rows, strict=True), _SCHEMA, strict=True)
            ]
            self._writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
            self._rows, self._num_bytes = [], 0

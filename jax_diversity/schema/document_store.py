"""Documents as Parquet files: written in a stream, read in small batches or by columns.

The files `documents-00000.parquet` ... contain about equal numbers of text bytes. Their columns are `id`, `text`,
`source`, `language`, `title`, `metadata` (a JSON object with sorted keys) and `text_hash` (BLAKE2b of the text, 16
bytes: equal texts are exact duplicates). `language` and `title` may be null. A corpus of tokens has one more column,
`tokens`; its little-endian int32 bytes are hashed instead of the text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from jaxtyping import Int32, Int64, UInt64

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.text.normal_forms import text_hash
from jax_diversity.schema.documents import (
    LOSS_SPANS,
    TURN_FIELDS,
    TURN_SPANS,
    TURN_STARTS,
    ChatSpans,
    Document,
    TokenDocument,
)

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string()),
        pa.field("title", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("text_hash", pa.binary(16), nullable=False),
    ]
)
DECISIONS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("language", pa.string()),
        pa.field("kept", pa.bool_(), nullable=False),
        pa.field("edited_by", pa.list_(pa.string()), nullable=False),
        pa.field("step", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("measured", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("fields", pa.string()),
        pa.field("duplicate_group", pa.int64()),
        pa.field("duplicate_of", pa.string()),
    ]
)
"""The columns of `preparation/decisions`. `edited_by` has the steps that changed the text. The columns `step` to
`threshold` are null for kept documents. `measured` maps `step.rule` to the measured value. `fields` has the fields that
steps added, such as `detected_language`, as a JSON object; null without such fields."""
_TOKENS = pa.field("tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)
_TOKEN_SCHEMA = SCHEMA.append(_TOKENS)
_GROUP_BYTES = 4 * 2**20
_GROUP_DOCUMENTS = 1000
_MOST_FIELDS = 10_000


@dataclass(frozen=True)
class StoredCorpus:
    """The stored files: their number, whether every document has a text, and documents by metadata field.

    The fields of chats with a value for each turn are not counted: they make no groups of documents.
    """

    num_files: int
    has_text: bool
    metadata_fields: dict[str, int]  # the first ten thousand by name

    @classmethod
    def joined(cls, parts: Sequence[StoredCorpus]) -> StoredCorpus:
        """Return the counts of several stored parts of a corpus together."""
        fields = Counter[str]()
        for part in parts:
            fields.update(part.metadata_fields)
        return cls(sum(part.num_files for part in parts), all(part.has_text for part in parts), _first_fields(fields))


def _first_fields(fields: Counter[str]) -> dict[str, int]:
    return {name: fields[name] for name in sorted(fields)[:_MOST_FIELDS]}


def document_file(number: int) -> str:
    """Return the name of the file of documents of this number."""
    return f"documents-{number:05d}.parquet"


def write_documents(
    documents: Iterable[Document], folder: Path, file_bytes: int, name: Callable[[int], str] = document_file
) -> StoredCorpus:
    """Store documents in order. At most about 4 MB of text (or one document) are in memory.

    A file has at most `file_bytes` bytes of text. A longer document gets its own file. `name` gives the files' names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as open_file:
        writer = _Writer(folder, file_bytes, open_file, name)
        for document in documents:
            writer.add(document)
        writer.close_file()
    return StoredCorpus(writer.num_files, writer.has_text, _first_fields(writer.fields))


class _Writer:
    """The current file and the rows of its next row group."""

    def __init__(self, folder: Path, file_bytes: int, open_file: ExitStack, name: Callable[[int], str]) -> None:
        self.num_files, self.has_text, self.fields = 0, True, Counter[str]()
        # `open_file` contains the temporary path and the writer, so that the file is removed after an error.
        self._folder, self._most_file_bytes, self._open_file = folder, file_bytes, open_file
        self._name = name
        self._rows: list[tuple] = []
        self._group_bytes, self._file_bytes = 0, 0
        self._parquet: pq.ParquetWriter | None = None
        self._schema = SCHEMA

    def add(self, document: Document) -> None:
        encoded = document.text.encode()
        size, copied = len(encoded), text_hash(document.text)
        if isinstance(document, TokenDocument):
            self._schema = _TOKEN_SCHEMA  # a corpus has either texts or tokens
            tokens = document.tokens.astype("<i4").tobytes()
            size, copied = size + len(tokens), xxhash.xxh3_128_digest(tokens)
        # We check this before we add the document, so that a file or group is too large only if it has one document.
        if self._file_bytes and self._file_bytes + size > self._most_file_bytes:
            self.close_file()
        elif self._rows and self._group_bytes + size > _GROUP_BYTES:
            self._write_group()
        # The keys are sorted, so that the stored bytes do not depend on the order of a record's fields.
        metadata = json.dumps(dict(document.metadata), sort_keys=True, ensure_ascii=False, allow_nan=False)
        row = (document.id, document.text, document.source, document.language, document.title, metadata, copied)
        self._rows.append((*row, document.tokens) if isinstance(document, TokenDocument) else row)
        fields = (name for name, value in document.metadata.items() if value is not None and name not in TURN_FIELDS)
        self.fields.update(fields)
        self.has_text &= bool(encoded)
        self._group_bytes += size
        self._file_bytes += size
        # We write the group now and not before the next document. The next document may be large, and it would be read
        # while this group is in memory.
        if len(self._rows) == _GROUP_DOCUMENTS or self._group_bytes >= _GROUP_BYTES:
            self._write_group()

    def close_file(self) -> None:
        if self._rows:
            self._write_group()
        if self._parquet is not None:
            self._open_file.close()
            self._parquet = None
            self.num_files += 1
        self._file_bytes = 0

    def _write_group(self) -> None:
        if self._parquet is None:
            path = self._folder / self._name(self.num_files)
            temporary = self._open_file.enter_context(atomic_path(path))
            parquet = pq.ParquetWriter(
                temporary,
                self._schema,
                compression="zstd",
                # In other columns the values differ in every row, so dictionaries and statistics would only need space.
                use_dictionary=["source", "language"],  # type: ignore[arg-type]
                write_statistics=False,
            )
            self._parquet = self._open_file.enter_context(parquet)
        columns = [
            _lists(column) if field.name == "tokens" else pa.array(column, field.type)
            for column, field in zip(zip(*self._rows, strict=True), self._schema, strict=True)
        ]
        self._parquet.write_table(pa.Table.from_arrays(columns, schema=self._schema))
        self._rows, self._group_bytes = [], 0


def _lists(arrays: Sequence[np.ndarray]) -> pa.Array:
    offsets = np.cumsum([0, *map(len, arrays)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.concatenate(arrays), type=_TOKENS.type)


@dataclass(frozen=True)
class DocumentStore:
    """Stored documents in their order. The object contains only paths, so it can be sent to worker processes.

    Reading raises a `UserError` if a file is absent or damaged. Methods with a `path` read only this file.
    """

    paths: tuple[Path, ...]

    @classmethod
    def of_folder(cls, folder: str | Path) -> DocumentStore:
        """Return the documents of a folder. If there are no documents, this is a `UserError`."""
        # We sort by length first: the file after documents-99999 is documents-100000.
        paths = sorted(Path(folder).glob("documents-*.parquet"), key=lambda path: (len(path.name), path.name))
        if not paths:
            raise UserError(f"Expected documents-*.parquet in {folder}, found none; prepare the corpus first.")
        return cls(tuple(paths))

    @cached_property
    def first_documents(self) -> Int64[np.ndarray, " file_and_end"]:
        """The index of every file's first document, then the number of all documents."""
        counts = []
        for path in self.paths:
            with _stored_file(path) as table:
                counts.append(table.metadata.num_rows)
        return np.cumsum([0, *counts])

    @property
    def num_documents(self) -> int:
        """The number of documents in all files."""
        return int(self.first_documents[-1])

    def texts(self, path: Path | None = None, max_characters: int | None = None) -> Iterator[list[str]]:
        """Yield the texts, or their first characters, in lists of at most 1,000 documents and about 4 MB.

        A list with one document may be larger.
        """
        for group in self._groups("text", path):
            texts = group["text"]
            if max_characters is not None:  # Arrow cuts the texts before they become Python objects
                texts = pc.utf8_slice_codeunits(texts, 0, max_characters)  # type: ignore[attr-defined]
            yield texts.to_pylist()

    def chat_spans(self, path: Path | None = None) -> Iterator[list[ChatSpans | None]]:
        """Yield the parts of each chat; None for documents that are not chats.

        The lists have the same documents as the lists of `texts`.
        """
        for group in self._groups("metadata", path):
            fields = map(json.loads, group["metadata"].to_pylist())
            yield [
                ChatSpans(
                    row[TURN_SPANS],
                    row[LOSS_SPANS],
                    row[TURN_STARTS],
                    row["roles"],
                )
                if LOSS_SPANS in row
                else None
                for row in fields
            ]

    def token_lists(
        self, path: Path | None = None
    ) -> Iterator[tuple[Int32[np.ndarray, " token"], Int64[np.ndarray, " document"]]]:
        """Yield the tokens of stored token documents, one document after another, and the documents' token counts.

        About 4 MB are read at a time.
        """
        for group in self._groups("tokens", path):
            if "tokens" not in group.column_names:
                raise UserError(
                    f"Expected documents that came as tokens in {path or self.paths[0]}, found texts; set "
                    "corpus.format to megatron or tokens, or tokenizer.kind to what turns texts into tokens."
                )
            for lists in group["tokens"].chunks:
                yield lists.flatten().to_numpy(), np.diff(lists.offsets.to_numpy()).astype(np.int64)

    def columns(self, names: Sequence[str], path: Path | None = None) -> pa.Table:
        """Read columns of all documents, in order, as an Arrow table. Use this for small columns."""
        tables = []
        for file in self.paths if path is None else (path,):
            with _stored_file(file) as table:
                tables.append(table.read(columns=list(names)))
        return pa.concat_tables(tables)

    def ids(self) -> Iterator[str]:
        """Yield the documents' ids. The ids of one file are in Python's memory at a time."""
        for path in self.paths:
            yield from self.columns(["id"], path)["id"].to_pylist()

    def metadata(self, names: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
        """Yield metadata fields, in stored groups of at most 1,000 documents; None for a missing field."""
        for group in self._groups("metadata"):
            records = [json.loads(text) for text in group["metadata"].to_pylist()]
            yield {name: [record.get(name) for record in records] for name in names}

    def rows(self, indices: Int64[np.ndarray, " document"], names: Sequence[str]) -> list[dict[str, Any]]:
        """Read columns of some documents, given by ascending indices. Only their stored groups are read."""
        rows: list[dict[str, Any]] = []
        start = 0
        for path in self.paths:
            with _stored_file(path) as table:
                for index in range(table.num_row_groups):
                    stop = start + table.metadata.row_group(index).num_rows
                    low, high = np.searchsorted(indices, (start, stop))
                    if low < high:  # skip other groups
                        group = table.read_row_group(index, columns=list(names))
                        rows += group.take(pa.array(indices[low:high] - start)).to_pylist()
                    start = stop
        return rows

    def text_hashes(self) -> UInt64[np.ndarray, "document 2"]:
        """Return the hash of every text as two integers; copies have equal hashes, see `text_hash`."""
        # Two big-endian integers have the same order as the bytes of a hash, and need no Python objects. An Arrow chunk
        # may be a part of a larger buffer, at an offset.
        halves = [
            np.frombuffer(chunk.buffers()[-1], ">u8").reshape(-1, 2)[chunk.offset :][: len(chunk)]
            for chunk in self.columns(["text_hash"])["text_hash"].chunks
        ]
        return np.concatenate(halves).astype(np.uint64)

    def group_duplicates(self, fields: Sequence[str] = ()) -> Int64[np.ndarray, " document"]:
        """Return every document's number: copies have equal numbers, from 0 on, in the order of the texts' hashes.

        Args:
            fields: metadata fields that mark copies. Documents with the same value are copies too, directly or through
                other documents.
        """
        halves = self.text_hashes()
        order = np.lexsort((halves[:, 1], halves[:, 0]))  # the last key decides first
        is_new = np.diff(halves[order], axis=0, prepend=halves[order[:1]]).any(axis=1)
        groups = np.empty(len(order), np.int64)
        groups[order] = np.cumsum(is_new)
        if fields:
            return _joined(groups, list(self._marks(fields)))
        return groups

    def _marks(self, fields: Sequence[str]) -> Iterator[Int64[np.ndarray, " document"]]:
        """Yield, for each metadata field, the documents' numbers; -1 for a missing number."""
        values: dict[str, list[int]] = {name: [] for name in fields}
        for group in self.metadata(fields):
            for name in fields:
                values[name] += [-1 if value is None else value for value in group[name]]
        for name in fields:
            yield np.array(values[name], np.int64)

    def _groups(self, column: str, path: Path | None = None) -> Iterator[pa.Table]:
        """Yield a column, in stored groups of at most 1,000 documents; without the column, the tables are empty."""
        for file in self.paths if path is None else (path,):
            with _stored_file(file) as table:
                for index in range(table.num_row_groups):
                    yield table.read_row_group(index, columns=[column])


def _joined(
    groups: Int64[np.ndarray, " document"], marks: Sequence[Int64[np.ndarray, " document"]]
) -> Int64[np.ndarray, " document"]:
    """Join the groups of documents that have a common mark. A joined group gets the lowest number of its groups."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # We make a graph of groups and marks. Every marked document connects its group with its mark.
    one, other, num_nodes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], int(groups.max(initial=-1)) + 1
    num_groups = num_nodes
    for mark in marks:
        marked = np.flatnonzero(mark >= 0)
        one.append(groups[marked])
        other.append(num_nodes + mark[marked])
        num_nodes += int(mark.max(initial=-1)) + 1
    entries = np.ones(sum(map(len, one)), bool), (np.concatenate(one), np.concatenate(other))
    component = connected_components(coo_array(entries, shape=(num_nodes, num_nodes)), directed=False)[1][:num_groups]
    _, first, number = np.unique(component, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[number][groups]


@contextmanager
def _stored_file(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as table:
            yield table
    except FileNotFoundError:
        raise UserError(f"Expected stored documents at {path}, found no such file; prepare the corpus.") from None
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is damaged ({in_one_line(error)}); prepare the corpus again.") from None

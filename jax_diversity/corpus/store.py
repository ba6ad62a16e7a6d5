"""Documents as Parquet files: written in a stream, read in small batches or by columns.

The files `documents-00000.parquet` ... hold about equal numbers of text bytes, with the columns `id`, `text`, `source`,
`language`, `title` (these two may be null), `metadata` (a JSON object, keys sorted) and `text_hash` (BLAKE2b of the
text, 16 bytes: equal texts are exact duplicates). A corpus of tokens has the further column `tokens`, whose
little-endian int32 bytes are hashed in place of the text.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int32, Int64

from jax_diversity.corpus.readers.records import LOSS_SPANS, TURN_SPANS, TokenDocument
from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.schema import Document

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
_TOKENS = pa.field("tokens", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False)
_TOKEN_SCHEMA = SCHEMA.append(_TOKENS)
_GROUP_BYTES = 4 * 2**20
_GROUP_DOCUMENTS = 1000
_MOST_FIELDS = 10_000


@dataclass(frozen=True)
class StoredCorpus:
    """The stored files: their number, whether every document has a text, and documents by metadata field."""

    num_files: int
    has_text: bool
    metadata_fields: dict[str, int]  # the first ten thousand by name


def write_documents(documents: Iterable[Document], folder: Path, file_bytes: int) -> StoredCorpus:
    """Store documents in order, with at most some 4 MB of text (or one document) in memory.

    A file takes `file_bytes` bytes of text; a document that is longer has a file of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as open_file:
        writer = _Writer(folder, file_bytes, open_file)
        for document in documents:
            writer.add(document)
        writer.close_file()
    fields = {name: writer.fields[name] for name in sorted(writer.fields)[:_MOST_FIELDS]}
    return StoredCorpus(writer.num_files, writer.has_text, fields)


class _Writer:
    """The current file and the rows of its next row group."""

    def __init__(self, folder: Path, file_bytes: int, open_file: ExitStack) -> None:
        self.num_files, self.has_text, self.fields = 0, True, Counter[str]()
        # `open_file` holds the temporary path and the writer: after an error the file is removed.
        self._folder, self._most_file_bytes, self._open_file = folder, file_bytes, open_file
        self._rows: list[tuple] = []
        self._group_bytes, self._file_bytes = 0, 0
        self._parquet: pq.ParquetWriter | None = None
        self._schema = SCHEMA

    def add(self, document: Document) -> None:
        encoded = document.text.encode()
        size, hashed = len(encoded), encoded
        if isinstance(document, TokenDocument):
            self._schema = _TOKEN_SCHEMA  # a corpus has either texts or tokens
            hashed = document.tokens.astype("<i4").tobytes()
            size += len(hashed)
        # Before the document, not after it: no file or group exceeds its size by more than a single document.
        if self._file_bytes and self._file_bytes + size > self._most_file_bytes:
            self.close_file()
        elif self._rows and self._group_bytes + size > _GROUP_BYTES:
            self._write_group()
        # Sorted keys: the stored bytes do not depend on the order of a record's fields.
        metadata = json.dumps(dict(document.metadata), sort_keys=True, ensure_ascii=False, allow_nan=False)
        text_hash = hashlib.blake2b(hashed, digest_size=16).digest()
        row = (document.id, document.text, document.source, document.language, document.title, metadata, text_hash)
        self._rows.append((*row, document.tokens) if isinstance(document, TokenDocument) else row)
        self.fields.update(name for name, value in document.metadata.items() if value is not None)
        self.has_text &= bool(encoded)
        self._group_bytes += size
        self._file_bytes += size
        # Now, not with the next document, which may be large and would be read while this group is in memory.
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
            path = self._folder / f"documents-{self.num_files:05d}.parquet"
            temporary = self._open_file.enter_context(atomic_path(path))
            parquet = pq.ParquetWriter(
                temporary,
                self._schema,
                compression="zstd",
                # Values of other columns differ in every row: dictionaries and statistics would only take space.
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
    """Stored documents in their order; it holds only paths and can be sent to worker processes.

    Reading raises `UserError` if a file is absent or damaged. Methods with a `path` read that file alone.
    """

    paths: tuple[Path, ...]

    @classmethod
    def of_folder(cls, folder: str | Path) -> DocumentStore:
        """The documents of a folder; a `UserError` if there are none."""
        # By length first: the file after documents-99999 is documents-100000.
        paths = sorted(Path(folder).glob("documents-*.parquet"), key=lambda path: (len(path.name), path.name))
        if not paths:
            raise UserError(f"Expected documents-*.parquet in {folder}, found none; prepare the corpus first.")
        return cls(tuple(paths))

    @cached_property
    def first_documents(self) -> Int64[np.ndarray, " file_and_end"]:
        """The index of every file's first document, and at the end the number of documents."""
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
        """The texts, or their first characters, in lists of at most 1,000 documents and some 4 MB (or one document)."""
        for group in self._groups("text", path):
            texts = group["text"]
            if max_characters is not None:  # cut by Arrow, before the texts become Python objects
                texts = pc.utf8_slice_codeunits(texts, 0, max_characters)  # type: ignore[attr-defined]
            yield texts.to_pylist()

    def chat_spans(self, path: Path | None = None) -> Iterator[list[tuple[list, list] | None]]:
        """The places of each chat's turns and answers in characters; None for documents that are not chats.

        The lists have the documents of those of `texts`.
        """
        for group in self._groups("metadata", path):
            fields = map(json.loads, group["metadata"].to_pylist())
            yield [(each[TURN_SPANS], each[LOSS_SPANS]) if LOSS_SPANS in each else None for each in fields]

    def token_lists(
        self, path: Path | None = None
    ) -> Iterator[tuple[Int32[np.ndarray, " token"], Int64[np.ndarray, " document"]]]:
        """The documents' own tokens end to end and their numbers of tokens, some 4 MB at a time."""
        for group in self._groups("tokens", path):
            if "tokens" not in group.column_names:
                raise UserError(
                    f"Expected documents that came as tokens in {path or self.paths[0]}, found texts; set "
                    "corpus.format to megatron or tokens, or tokenizer.kind to what turns texts into tokens."
                )
            for lists in group["tokens"].chunks:
                yield lists.flatten().to_numpy(), np.diff(lists.offsets.to_numpy()).astype(np.int64)

    def columns(self, names: Sequence[str], path: Path | None = None) -> pa.Table:
        """Columns of all documents in order as Arrow tables, for small columns."""
        tables = []
        for each in self.paths if path is None else (path,):
            with _stored_file(each) as table:
                tables.append(table.read(columns=list(names)))
        return pa.concat_tables(tables)

    def ids(self) -> Iterator[str]:
        """The documents' ids, one file of them in Python's memory at a time."""
        for path in self.paths:
            yield from self.columns(["id"], path)["id"].to_pylist()

    def metadata(self, names: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
        """Metadata fields, in stored groups of at most 1,000 documents; None for a missing field."""
        for group in self._groups("metadata"):
            records = [json.loads(text) for text in group["metadata"].to_pylist()]
            yield {name: [record.get(name) for record in records] for name in names}

    def rows(self, indices: Int64[np.ndarray, " document"], names: Sequence[str]) -> list[dict[str, Any]]:
        """Columns of documents with ascending indices; only their stored groups are read."""
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

    def group_duplicates(self, fields: Sequence[str] = ()) -> Int64[np.ndarray, " document"]:
        """Equal numbers for copies of one text, 0 .. number of different texts - 1, in the order of the hashes.

        Args:
            fields: metadata fields that mark copies: documents of one value are copies too, directly or through others.
        """
        # A hash as two big-endian integers, which sort like its bytes, without Python objects. An Arrow chunk may be a
        # part of a larger buffer, at its offset.
        halves = np.concatenate(
            [
                np.frombuffer(chunk.buffers()[-1], ">u8").reshape(-1, 2)[chunk.offset :][: len(chunk)]
                for chunk in self.columns(["text_hash"])["text_hash"].chunks
            ]
        )
        order = np.lexsort((halves[:, 1], halves[:, 0]))  # the last key decides first
        is_new = np.diff(halves[order], axis=0, prepend=halves[order[:1]]).any(axis=1)
        groups = np.empty(len(order), np.int64)
        groups[order] = np.cumsum(is_new)
        if fields:
            return _joined(groups, list(self._marks(fields)))
        return groups

    def _marks(self, fields: Sequence[str]) -> Iterator[Int64[np.ndarray, " document"]]:
        """The numbers in metadata fields; -1 for a missing number."""
        values: dict[str, list[int]] = {name: [] for name in fields}
        for group in self.metadata(fields):
            for name in fields:
                values[name] += [-1 if value is None else value for value in group[name]]
        for name in fields:
            yield np.array(values[name], np.int64)

    def _groups(self, column: str, path: Path | None = None) -> Iterator[pa.Table]:
        """A column, in stored groups of at most 1,000 documents; empty if the column is not stored."""
        for each in self.paths if path is None else (path,):
            with _stored_file(each) as table:
                for index in range(table.num_row_groups):
                    yield table.read_row_group(index, columns=[column])


def _joined(
    groups: Int64[np.ndarray, " document"], marks: Sequence[Int64[np.ndarray, " document"]]
) -> Int64[np.ndarray, " document"]:
    """Join groups of documents with a common mark; a joined group has the lowest number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of groups and marks: every marked document connects its group with its mark.
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

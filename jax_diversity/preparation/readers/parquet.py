"""Read Parquet files in small batches; each row is one record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import InputFile, reading_faults
from jax_diversity.preparation.readers.records import TEXT, TOKENS, Found, Place, Problem, RecordForm, converted
from jax_diversity.preparation.settings import CorpusConfig

# Rows become Python objects one batch at a time; a row group may be larger than memory.
_BATCH_BYTES = 8 * 2**20
_BATCH_ROWS = 1000
_STORED = {"id": pa.string(), "text": pa.string(), "metadata": pa.string(), "text_hash": pa.binary(16)}
"""Columns of documents that this package stored, such as documents of a dataset or removed documents."""
_UNREADABLE = (LookupError, ValueError, OverflowError, RecursionError, pa.ArrowException)
"""Exceptions of Arrow for values that Python cannot hold; a LookupError for an unknown time zone."""


def read_parquet(file: InputFile, config: CorpusConfig, advance: Advance, form: RecordForm = TEXT) -> Found:
    """Read the documents of the rows, about 8 MB at a time. For the progress, all rows are treated as equally long."""
    with reading_faults(file), file.open() as stored:
        table = pq.ParquetFile(stored)
        column, columns = form.field(config), table.schema_arrow.names
        types = {field.name: field.type for field in table.schema_arrow}
        is_stored = all(types.get(name) == kind for name, kind in _STORED.items())
        if not form.is_in(columns, config):
            raise form.missing(file, config, columns)
        if form is TOKENS:
            columns = _columns_with_ids(file, table.schema_arrow, column)
        num_rows = table.metadata.num_rows
        size, row = file.size(), 0
        for batch in table.iter_batches(_batch_rows(table.metadata), columns=columns):
            for record in _token_records(batch, column) if form is TOKENS else _records(batch):
                row += 1
                place = Place(file, row)
                record = converted(_with_metadata, record) if is_stored else record
                yield place, record if isinstance(record, Problem) else form.document(record, place, config)
            # Each step is the difference of two rounded values: the steps add up to the exact file size.
            advance(size * row // num_rows - size * (row - len(batch)) // num_rows)


def _with_metadata(record: dict[str, Any] | Problem) -> dict[str, Any] | Problem:
    """Return the record of a document that this package stored, with the entries of its metadata as fields."""
    if isinstance(record, Problem):
        return record
    fields = json.loads(record.pop("metadata"))
    del record["text_hash"]
    return fields | record


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """The number of rows in a batch: so many that the longest rows fill about `_BATCH_BYTES`."""
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    longest = max((group.total_byte_size / max(group.num_rows, 1) for group in groups), default=0.0)
    return int(min(max(_BATCH_BYTES // max(longest, 1.0), 1), _BATCH_ROWS))


def _records(batch: pa.RecordBatch) -> Iterator[dict[str, Any] | Problem]:
    batch = _without_nanoseconds(batch)
    try:  # "lossy": if a map has equal keys, the last one is kept, as in JSON
        yield from batch.to_pylist(maps_as_pydicts="lossy")
        return
    except _UNREADABLE:
        pass  # Arrow converts the whole batch or nothing: now each row is converted alone, to find the broken rows
    for index in range(len(batch)):
        try:
            yield from batch.slice(index, 1).to_pylist(maps_as_pydicts="lossy")
        except UnicodeDecodeError as error:
            yield Problem.of_unicode(error)
        except _UNREADABLE as error:
            yield Problem("num_broken_records", f"unreadable row: {in_one_line(error)}")


def _columns_with_ids(file: InputFile, schema: pa.Schema, column: str) -> list[str]:
    """The column of token ids and all other columns, except lists of numbers such as attention masks."""
    entries = {field.name: _entry_type(field.type) for field in schema}
    entry = entries[column]
    if entry is None or not (pa.types.is_integer(entry) or pa.types.is_null(entry)):
        raise UserError(
            f"Expected lists of whole numbers in column {column!r} of {file.address}, found "
            f"{schema.field(column).type}; set corpus.tokens_field."
        )
    return [name for name, entry in entries.items() if name == column or entry is None or not _is_number(entry)]


def _entry_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of a list's entries; None if the type is not a list."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if is_list else None


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _token_records(batch: pa.RecordBatch, column: str) -> Iterator[dict[str, Any] | Problem]:
    """The rows of a batch as dicts, with token ids as arrays; None replaces a list that is null or contains null."""
    lists = batch.column(column)
    entry = pa.int64() if pa.types.is_null(lists.type.value_type) else lists.type.value_type
    lists = lists.cast(pa.large_list(entry))
    # All ids are in one array, and each row gets a view of it: there is no Python object for each token.
    offsets, nulls = lists.offsets.to_numpy(), lists.is_null().to_numpy(zero_copy_only=False)
    absent = np.flatnonzero(lists.values.is_null().to_numpy(zero_copy_only=False))
    ids = lists.values.fill_null(0).to_numpy()
    other_columns = batch.drop_columns([column])
    records = _records(other_columns) if other_columns.num_columns else ({} for _ in range(len(batch)))
    for index, record in enumerate(records):
        begin, end = int(offsets[index]), int(offsets[index + 1])
        # A row contains a null if there are more nulls before its end than before its begin.
        broken = nulls[index] or np.searchsorted(absent, begin) != np.searchsorted(absent, end)
        if isinstance(record, dict):
            record[column] = None if broken else ids[begin:end]
        yield record


def _without_nanoseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times in nanoseconds to microseconds, the smallest unit of Python's times."""
    schema = pa.schema([field.with_type(_python_type(field.type)) for field in batch.schema])
    return batch if schema.equals(batch.schema) else batch.cast(schema, safe=False)


def _python_type(kind: pa.DataType) -> pa.DataType:
    if getattr(kind, "unit", None) == "ns":
        if pa.types.is_timestamp(kind):
            return pa.timestamp("us", kind.tz)
        return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_python_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_python_type(kind.value_type)))
    return kind

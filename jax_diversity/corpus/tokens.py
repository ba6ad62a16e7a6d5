"""Corpora that are tokens already: Megatron datasets, and JSONL, Parquet or ArrayRecord files with token ids."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jax_diversity.corpus.examples import decode_example
from jax_diversity.corpus.files import InputFile, reading_faults
from jax_diversity.corpus.jsonl import read_jsonl
from jax_diversity.corpus.parquet import read_parquet
from jax_diversity.corpus.report import Place, ReadReport
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.corpus.token_document import TOKENS, TokenDocument, token_ids
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.schema import Document
from jax_diversity.token_store.megatron import TokenFile

_READ_BYTES = 8 * 2**20
_READ_RECORDS = 1000
_DOCUMENTS_A_STEP = 1000


def read_megatron(
    file: InputFile, config: CorpusConfig, report: ReadReport, advance: Advance
) -> Iterator[tuple[Place, Document]]:
    """The documents of one `.idx` and its `.bin`; the `.bin` itself, which is a file of the corpus too, gives none.

    Their source is the prefix's base name, their ids are prefix and number: `web_text_document:17`.

    Args:
        file: one of the two files.
        config: whether broken records stop the reading.
        report: counts what is skipped.
        advance: told the stored bytes read.

    Raises:
        UserError: files that lie elsewhere than on this machine, that do not fit one another, or are damaged; with
            `config.strict` the first document with negative token ids or ids above 2^31 - 1.
    """
    path = _local(file)
    if path.suffix == ".bin":
        if not path.with_suffix(".idx").is_file():
            raise UserError(f"Expected an index beside {file.address}, found no .idx; copy both files.")
        advance(file.size())
        return
    prefix = path.with_suffix("")
    store = TokenFile(prefix)
    named = dataclasses.replace(file, address=str(prefix), name=file.name.removesuffix(".idx"))
    source = PurePosixPath(named.name).name
    for index in range(store.num_documents):
        place = Place(named, index + 1)
        try:
            tokens = token_ids(store.document(index))
        except ValueError as error:
            report.skip("num_broken_records", place, str(error), strict=config.strict)
            continue
        yield place, TokenDocument(id=place.name, text="", source=source, tokens=tokens)
    advance(file.size())


def read_tokens(
    file: InputFile, config: CorpusConfig, report: ReadReport, advance: Advance
) -> Iterator[tuple[Place, Document]]:
    """The documents of a JSONL, Parquet or ArrayRecord file whose records hold token ids.

    Args:
        file: the file; its name says what it is.
        config: names the fields.
        report: counts what is skipped.
        advance: told the stored bytes read.

    Raises:
        UserError: a name that says nothing, a damaged file, or one in which no record has the token ids; with
            `config.strict` the first broken record.
    """
    if file.stores_array_records:
        yield from _read_array_records(file, config, report, advance)
    elif file.format in ("jsonl", "parquet"):
        read = read_jsonl if file.format == "jsonl" else read_parquet
        yield from read(file, config, report, advance, TOKENS)
    else:
        raise UserError(
            f"Expected files of token ids named .jsonl, .parquet or .array_record, found {file.address}; "
            "rename it to what it is, or set corpus.format."
        )


def _read_array_records(
    file: InputFile, config: CorpusConfig, report: ReadReport, advance: Advance
) -> Iterator[tuple[Place, Document]]:
    from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]

    path = _local(file)
    with reading_faults(file):
        size = os.stat(path).st_size
    fields_found: dict[str, None] = {}
    num_with_field, row = 0, 0
    try:
        reader = array_record_module.ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:0")
        num_records = reader.num_records()
        rows = int(min(max(_READ_BYTES * num_records // max(size, 1), 1), _READ_RECORDS))
        for begin in range(0, num_records, rows):
            end = min(begin + rows, num_records)
            for record in reader.read(begin, end):
                row += 1
                place = Place(file, row)
                fields = _record_fields(record, place, config, report)
                if fields is None:
                    continue
                num_with_field += config.tokens_field in fields
                fields_found.update(dict.fromkeys(list(fields)[: 100 - len(fields_found)]))
                document = TOKENS.make(fields, place, config, report)
                if document is not None:
                    yield place, document
            advance(size * end // num_records - size * begin // num_records)
    except (ValueError, RuntimeError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        what = str(error).partition("\n")[0]
        raise UserError(f"{file.address} is no ArrayRecord file, or a damaged one ({what}); fetch it anew.") from None
    if size and not num_records:
        raise UserError(f"Expected records in {file.address}, found none; its writer may not have been closed.")
    if fields_found and not num_with_field:
        raise TOKENS.missing(file, config, list(fields_found))


def _record_fields(record: bytes, place: Place, config: CorpusConfig, report: ReadReport) -> dict[str, Any] | None:
    """The fields of one record; None where it cannot be read, which `report` counts."""
    try:
        if config.array_record_tokens != "example":
            dtype = np.dtype(config.array_record_tokens).newbyteorder("<")
            return {config.tokens_field: np.frombuffer(record, dtype)}
        features = decode_example(record)
        return {name: values if name == config.tokens_field else _plain(values) for name, values in features.items()}
    except ValueError as error:  # UnicodeDecodeError included
        report.skip("num_broken_records", place, str(error), strict=config.strict)
        return None


def _plain(values: Any) -> Any:
    """A feature as a record has it: one value alone, bytes as text where they are."""
    plain = values.tolist() if isinstance(values, np.ndarray) else [_text(value) for value in values]
    return plain[0] if len(plain) == 1 else plain


def _text(value: Any) -> Any:
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _local(file: InputFile) -> Path:
    """The file's path on this machine.

    Raises:
        UserError: it lies elsewhere.
    """
    if file.filesystem is not None:
        raise UserError(
            f"Expected Megatron and ArrayRecord files on this machine, found {file.address}; copy them first."
        )
    return Path(file.address)

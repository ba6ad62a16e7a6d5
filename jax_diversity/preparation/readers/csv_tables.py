"""CSV and TSV tables, plain or compressed: the first line names the columns, each later row is one record."""

from __future__ import annotations

import csv
from itertools import chain
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import MAX_DOCUMENT_BYTES, InputFile
from jax_diversity.preparation.readers.records import TEXT, Found, Place, Problem, RecordForm, Records
from jax_diversity.preparation.settings import CorpusConfig

_DELIMITERS = ",\t;|"


def read_csv(file: InputFile, config: CorpusConfig, advance: Advance, form: RecordForm = TEXT) -> Found:
    """Read the documents of the rows: the columns are fields, as in JSON Lines.

    Of comma, tab, semicolon and bar, the most frequent character of the first line separates the cells. Cells in double
    quotes may have line breaks (RFC 4180).
    """
    return form.documents(file, config, _rows(file, advance))


def _rows(file: InputFile, advance: Advance) -> Records:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    with file.stream() as (stored, content):
        # Bytes that are not UTF-8 become lone surrogates, so that only their rows are broken.
        lines = (line.decode("utf-8", "surrogateescape") for line in iter(content.readline, b""))
        head = next(lines, "").removeprefix("\ufeff")
        delimiter = max(_DELIMITERS, key=head.count)
        rows = csv.reader(chain([head], lines), delimiter=delimiter)
        names = next(rows, [])
        if len(set(names)) < len(names) or not all(name.strip() for name in names):
            raise UserError(
                f"Expected different names of columns in the first line of {file.address}, found {', '.join(names)}; "
                "name every column once."
            )
        position = 0
        while True:
            place = Place(file, rows.line_num + 1)
            try:
                cells = next(rows, None)
            except csv.Error as error:
                yield place, Problem("num_broken_records", f"not CSV: {error}")
                continue
            if cells is None:
                break
            if cells:  # a blank line has no cells
                yield place, _record(names, cells)
                advance(stored.tell() - position)
                position = stored.tell()
        advance(stored.tell() - position)


def _record(names: list[str], cells: list[str]) -> dict[str, Any] | Problem:
    if len(cells) != len(names):
        return Problem("num_broken_records", f"expected {len(names)} cells, found {len(cells)}")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        return Problem.of_unicode(error)
    return dict(zip(names, cells, strict=True))

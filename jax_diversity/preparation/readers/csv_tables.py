"""CSV and TSV tables, plain or compressed: the first line names the columns, each later row is one record."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Literal

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import MAX_DOCUMENT_BYTES, InputFile, without_compression
from jax_diversity.preparation.readers.records import TEXT, Found, Place, Problem, RecordForm, Records
from jax_diversity.preparation.settings import CorpusConfig

_DELIMITERS = ",;|\t"


def read_csv(file: InputFile, config: CorpusConfig, advance: Advance, form: RecordForm = TEXT) -> Found:
    """Read the documents of the rows: the columns are fields, as in JSON Lines.

    Of comma, tab, semicolon and bar, the most frequent character of the first line separates the cells. Cells in double
    quotes may have line breaks (RFC 4180). If quotes are misplaced, each line of the row is read separately: `\\"` is
    then a quote, and tab-separated lines are read without quoting.
    """
    return form.documents(file, config, _rows(file, advance))


def _rows(file: InputFile, advance: Advance) -> Records:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    with file.stream(advance) as content:
        # Bytes that are not UTF-8 become lone surrogates, so that only their rows are broken.
        lines = (line.decode("utf-8", "surrogateescape") for line in iter(content.readline, b""))
        head = next(lines, "").removeprefix("\ufeff")
        is_tsv = without_compression(file.name).lower().endswith(".tsv")
        delimiter = max(
            reversed(_DELIMITERS) if is_tsv else _DELIMITERS, key=head.count
        )  # the first one, if none occurs
        row_lines: list[str] = []
        rows = csv.reader(_kept(chain([head], lines), row_lines), delimiter=delimiter, strict=True)
        try:
            names = next(rows, [])
        except csv.Error as error:
            raise UserError(
                f"Expected names of columns in the first line of {file.address}, found {error}; end lines with a line "
                "feed, and write quotes in quoted cells twice."
            ) from None
        if len(set(names)) < len(names) or not all(name.strip() for name in names):
            raise UserError(
                f"Expected different names of columns in the first line of {file.address}, found {', '.join(names)}; "
                "name every column once."
            )
        while True:
            place = Place(file, rows.line_num + 1)
            row_lines.clear()
            try:
                cells = next(rows, None)
                # A quote that begins a cell of running text would join its line with the next ones.
                is_joined = len(row_lines) > 1 and len(names) > 1 and delimiter == "\t"
                is_joined = is_joined and all(map(_is_whole(names), row_lines))
                lines_cells = [] if cells is None else _each_line(row_lines, names, delimiter) if is_joined else [cells]
            except csv.Error:
                cells, lines_cells = [], _each_line(row_lines, names, delimiter)
            if cells is None:
                break
            for number, line_cells in enumerate(lines_cells):
                if line_cells:  # a blank line has no cells
                    yield place._replace(line=place.line + number), _record(names, line_cells)  # type: ignore[operator]


def _kept(lines: Iterable[str], row_lines: list[str]) -> Iterator[str]:
    for line in lines:
        row_lines.append(line)
        yield line


def _is_whole(names: list[str]) -> Callable[[str], bool]:
    return lambda line: line.count("\t") == len(names) - 1


def _each_line(lines: list[str], names: list[str], delimiter: str) -> list[list[str] | Problem]:
    """Return the cells of every line, or a problem."""
    lines_cells: list[list[str] | Problem] = []
    for line in lines:
        forms: list[tuple[str, Literal[0, 3]]] = [(line, csv.QUOTE_MINIMAL)]
        if '\\"' in line:  # other backslashes are text
            forms.append((line.replace('\\"', '""'), csv.QUOTE_MINIMAL))
        if delimiter == "\t" and _is_whole(names)(line):
            forms.append((line, csv.QUOTE_NONE))
        cells: list[str] | Problem = []
        for form, quoting in forms:
            try:
                cells = next(csv.reader([form], delimiter=delimiter, strict=True, quoting=quoting), [])
                break
            except csv.Error as error:
                cells = Problem("num_broken_records", f"not CSV: {error}")
        lines_cells.append(cells)
    return lines_cells


def _record(names: list[str], cells: list[str] | Problem) -> dict[str, Any] | Problem:
    if isinstance(cells, Problem):
        return cells
    if len(cells) != len(names):
        return Problem("num_broken_records", f"expected {len(names)} cells, found {len(cells)}")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        return Problem.of_unicode(error)
    return dict(zip(names, cells, strict=True))

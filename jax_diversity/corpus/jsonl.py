"""JSON Lines, plain or compressed: one record a line, read line by line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

from jax_diversity.corpus.files import MAX_DOCUMENT_BYTES, InputFile
from jax_diversity.corpus.records import TEXT, RecordForm
from jax_diversity.corpus.report import Place, ReadReport
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.schema import Document

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINES_A_STEP = 64


def read_jsonl(
    file: InputFile, config: CorpusConfig, report: ReadReport, advance: Advance, form: RecordForm = TEXT
) -> Iterator[tuple[Place, Document]]:
    """A file's documents in order; blank lines are passed over, broken ones counted.

    Args:
        file: the file.
        config: names the fields.
        report: counts what is skipped.
        advance: told the stored bytes read.
        form: what the records hold.

    Raises:
        UserError: the file is damaged, holds no JSON object or no record with the form's field; with
            `config.strict` the first broken record.
    """
    num_lines, num_objects, num_with_field = 0, 0, 0
    fields_found: dict[str, None] = {}
    with file.stream() as (stored, content):
        for number, line in _numbered_lines(file, stored, content, advance):
            num_lines += 1
            place = Place(file, number)
            record = _parse(line, place, config, report)
            del line  # a line may be most of the memory there is
            if record is None:
                continue
            num_objects += 1
            num_with_field += form.field(config) in record
            if not num_with_field and len(fields_found) < 100:
                fields_found.update(dict.fromkeys(record))
            document = form.make(record, place, config, report)
            del record
            if document is not None:
                yield place, document
    if num_lines and not num_objects:
        raise UserError(
            f"Expected JSON Lines in {file.address}, found no line that is a JSON object; "
            "write one object a line, or set corpus.format to what it is."
        )
    if num_objects and not num_with_field:
        raise form.missing(file, config, list(fields_found))


def _numbered_lines(
    file: InputFile, stored: io.BufferedReader, content: io.BufferedReader, advance: Advance
) -> Iterator[tuple[int, bytes]]:
    number, position = 0, 0
    while line := content.readline(MAX_DOCUMENT_BYTES + 1):
        number += 1
        if len(line) > MAX_DOCUMENT_BYTES:
            raise UserError(
                f"{file.address}:{number} is longer than {MAX_DOCUMENT_BYTES} bytes; cut it into several documents."
            )
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if number % _LINES_A_STEP == 0:
            advance(stored.tell() - position)
            position = stored.tell()
        if not line.isspace():
            yield number, line
    advance(stored.tell() - position)


def _parse(line: bytes, place: Place, config: CorpusConfig, report: ReadReport) -> dict[str, Any] | None:
    """A line's object, or None where it is none, which `report` counts."""
    kind, what = "num_broken_records", ""
    try:
        record = json.loads(line.decode("utf-8"))
        if isinstance(record, dict):
            if _SURROGATE.search(line):  # half a pair cannot be stored as text, a whole one can
                json.dumps(record, ensure_ascii=False).encode("utf-8")
            return record
        what = f"expected a JSON object, found {type(record).__name__}"
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        kind, what = "num_invalid_utf8", f"no valid UTF-8: {error.reason} at character {error.start + 1}"
    except json.JSONDecodeError as error:
        what = f"no JSON: {error.msg} at character {error.colno}"
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, brackets nested as deep
        what = f"no JSON that can be read: {error}"
    report.skip(kind, place, what, strict=config.strict)
    return None

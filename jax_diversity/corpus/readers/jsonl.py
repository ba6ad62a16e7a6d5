"""JSON Lines, plain or compressed: one record per line, read line by line."""

from __future__ import annotations

import json
import re
from typing import Any

from jax_diversity.corpus.readers.files import MAX_DOCUMENT_BYTES, InputFile
from jax_diversity.corpus.readers.records import TEXT, Found, Place, Problem, RecordForm, Records, converted
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINES_PER_STEP = 64


def read_jsonl(file: InputFile, config: CorpusConfig, advance: Advance, form: RecordForm = TEXT) -> Found:
    """Read the documents of the lines; blank lines are left out."""
    return form.documents(file, config, read_objects(file, advance))


def read_objects(file: InputFile, advance: Advance) -> Records:
    """Yield the lines as JSON objects; blank lines are left out."""
    number, position, num_lines, num_objects = 0, 0, 0, 0
    with file.stream() as (stored, content):
        # We give `readline` a limit. Without it, a file without line ends would be read into memory as a whole.
        while line := content.readline(MAX_DOCUMENT_BYTES + 1):
            number += 1
            if len(line) > MAX_DOCUMENT_BYTES:
                raise UserError(
                    f"{file.address}:{number} is longer than {MAX_DOCUMENT_BYTES} bytes; cut it into several documents."
                )
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if number % _LINES_PER_STEP == 0:  # position in the stored file, which may be compressed
                advance(stored.tell() - position)
                position = stored.tell()
            if not line.isspace():
                record = converted(_parse, line)
                del line  # it may have 1 GB, and its text is copied several times before the document is stored
                num_lines += 1
                num_objects += isinstance(record, dict)
                yield Place(file, number), record
        advance(stored.tell() - position)
    if num_lines and not num_objects:
        raise UserError(
            f"Expected JSON Lines in {file.address}, found no line that is a JSON object; "
            "write one object a line, or set corpus.format to its format."
        )


def _parse(line: bytes) -> dict[str, Any] | Problem:
    try:
        record = json.loads(line.decode("utf-8"))
        if not isinstance(record, dict):
            return Problem("num_broken_records", f"expected a JSON object, found {type(record).__name__}")
        # JSON may contain a lone surrogate such as \\ud800, which cannot be stored as UTF-8. Only lines with such an
        # escape are encoded as a check, because encoding copies the whole record.
        if _SURROGATE.search(line):
            json.dumps(record, ensure_ascii=False).encode("utf-8")
        return record
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        return Problem.of_unicode(error)
    except json.JSONDecodeError as error:
        # Some messages of the module json end in "at", because it continues them with the place.
        return Problem("num_broken_records", f"not JSON: {error.msg.removesuffix(' at')} at character {error.colno}")
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, or thousands of nested brackets
        return Problem("num_broken_records", f"unreadable JSON: {error}")

"""JSON Lines and arrays of JSON objects, plain or compressed. One record is in memory at a time."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import MAX_DOCUMENT_BYTES, InputFile
from jax_diversity.preparation.readers.records import TEXT, Found, Place, Problem, RecordForm, Records, converted
from jax_diversity.preparation.settings import CorpusConfig

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DECODER = json.JSONDecoder()
_ARRAY, _BUFFER = re.compile(rb"(?:\xef\xbb\xbf)?\s*+\[\s*+[{\]]"), 1000


_PIECE_CHARACTERS = 1 << 20
_CUT_SHORT = 16
"""Number of characters at the end of a piece in which an error may be due to the missing rest."""
_NEXT_ENTRY = re.compile(r"[ \t\r\n,]*(?:(?P<end>\])|(?=[^ \t\r\n,\]]))")
_REST = "the rest of the array is left out"


def read_jsonl(file: InputFile, config: CorpusConfig, advance: Advance, form: RecordForm = TEXT) -> Found:
    """Read the documents of the lines, or of the objects of an array; blank lines are left out."""
    return form.documents(file, config, read_objects(file, advance))


def read_objects(file: InputFile, advance: Advance) -> Records:
    """Yield the lines, or the entries of an array, as JSON objects; blank lines are left out."""
    number, num_lines, num_objects = 0, 0, 0
    with file.stream(advance) as content:
        if _ARRAY.match(content.peek(_BUFFER)[:_BUFFER]):
            for number, record in enumerate(_entries(content), 1):
                yield Place(file, number), record
            return  # after a fault, the rest of an array is not lines
        # We give `readline` a limit. Without it, a file without line ends would be read into memory as a whole.
        while line := content.readline(MAX_DOCUMENT_BYTES + 1):
            number += 1
            if len(line) > MAX_DOCUMENT_BYTES:
                raise UserError(
                    f"{file.address}:{number} is longer than {MAX_DOCUMENT_BYTES} bytes; cut it into several documents."
                )
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if not line.isspace():
                record = converted(_parse, line)
                del line  # it may have 1 GB, and its text is copied several times before the document is stored
                num_lines += 1
                num_objects += isinstance(record, dict)
                yield Place(file, number), record
    if num_lines and not num_objects:
        raise UserError(
            f"Expected JSON Lines in {file.address}, found no line that is a JSON object; "
            "write one object a line or an array of objects, or set corpus.format to its format."
        )


def _entries(content: io.BufferedReader) -> Iterator[dict[str, Any] | Problem]:
    """Yield the entries of an array, one after another."""
    decode = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode
    text, place = "", 0
    while decode(content.read(1)) != "[":  # the caller has seen it
        pass
    while piece := content.read(max(_PIECE_CHARACTERS, len(text) - place)):  # twice the text keeps the time linear
        text, place = text[place:] + decode(piece), 0
        while match := _NEXT_ENTRY.match(text, place):
            place = match.end()
            if match["end"]:
                if text[place:].strip() or content.read(_PIECE_CHARACTERS).strip():
                    yield Problem("num_broken_records", "expected the end of the file after the array, found more")
                return
            try:
                record, end = _DECODER.raw_decode(text, place)
            except json.JSONDecodeError as fault:
                if fault.msg.startswith("Unterminated string") or fault.pos >= len(text) - _CUT_SHORT:
                    break
                yield Problem("num_broken_records", f"not JSON: {fault.msg.removesuffix(' at')}; {_REST}")
                return
            except (ValueError, RecursionError) as fault:
                yield Problem("num_broken_records", f"unreadable JSON: {fault}; {_REST}")
                return
            if end == len(text):  # a number may go on
                break
            place = end
            yield _checked(record, has_surrogate=True)
        if len(text) - place > MAX_DOCUMENT_BYTES:
            break
    yield Problem("num_broken_records", "the array of JSON objects is cut off here, or an entry is too long")


def _checked(record: Any, has_surrogate: bool) -> dict[str, Any] | Problem:
    """Return the record if it is an object whose texts can be stored."""
    if not isinstance(record, dict):
        return Problem("num_broken_records", f"expected a JSON object, found {type(record).__name__}")
    try:
        # JSON may contain a lone surrogate such as \\ud800, which cannot be stored as UTF-8.
        if has_surrogate:
            json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        return Problem.of_unicode(error)
    return record


def _parse(line: bytes) -> dict[str, Any] | Problem:
    try:
        # Only lines with the escape of a surrogate are encoded as a check, because encoding copies the whole record.
        return _checked(json.loads(line.decode("utf-8")), _SURROGATE.search(line) is not None)
    except UnicodeDecodeError as error:
        return Problem.of_unicode(error)
    except json.JSONDecodeError as error:
        # A line that is cut off is broken at its end. Some messages of the module json end in "at", because it
        # continues them with the place.
        place = f"character {error.pos + 1}" if error.doc[error.pos :].strip() else "the end of the line"
        return Problem("num_broken_records", f"not JSON: {error.msg.removesuffix(' at')} at {place}")
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits, or thousands of nested brackets
        return Problem("num_broken_records", f"unreadable JSON: {error}")

"""Text and source files: one document per file, or one document from each match of a pattern to the next match."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.files import (
    LOOKED_AT,
    MAX_DOCUMENT_BYTES,
    InputFile,
    OtherFormat,
    format_of,
    without_compression,
)
from jax_diversity.preparation.readers.records import Found, Place, Problem, converted
from jax_diversity.schema import Document

_LANGUAGES = (
    ".c:c .cc:c++ .cpp:c++ .cs:c# .go:go .h:c .hpp:c++ .java:java .jl:julia .js:javascript .kt:kotlin .lua:lua "
    ".php:php .pl:perl .py:python .r:r .rb:ruby .rs:rust .scala:scala .sh:shell .sql:sql .swift:swift .ts:typescript"
)
_LANGUAGE_OF_ENDING = dict(re.findall(r"(\S+):(\S+)", _LANGUAGES))


def read_text(file: InputFile, advance: Advance, begins: str | None = None, *, is_named: bool = True) -> Found:
    """Read the file as one document. With a pattern, a new document begins at each matching line.

    Text before the first matching line is a document, too. Blank lines at the ends of documents are dropped. The id is
    the file's name below the fixed folders of the glob, with a number if the file has several documents. The title is
    the name. Files with the ending of a programming language have a language such as `code:python`.

    Raises:
        OtherFormat: the content is not running text. This is not checked for files that are named as text (`is_named`).
    """
    place = Place(file, None)
    with file.stream() as (stored, content):
        whole = content.read(LOOKED_AT)
        if not is_named and (format := format_of(whole)) is not None:
            raise OtherFormat(format)
        whole += content.read(MAX_DOCUMENT_BYTES + 1 - len(whole))
        if len(whole) > MAX_DOCUMENT_BYTES:
            raise UserError(f"{file.address} is longer than {MAX_DOCUMENT_BYTES} bytes; cut it into several documents.")
        advance(stored.tell())
    try:
        has_mark = whole.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        text = whole.decode("utf-16" if has_mark else "utf-8-sig")
    except UnicodeDecodeError as error:
        yield place, Problem.of_unicode(error)
        return
    language = _programming_language(file.name)
    code = f"code:{language}" if language else None
    # The source is the folder: with one source for each file, every document would be a separate group.
    if begins is None:
        yield place, Document(id=place.name, text=text, source=file.folder, language=code, title=file.name)
        return
    parts, number = _parts(text, begins), 0
    while (part := converted(_next, parts)) is not None:
        number += 1
        if isinstance(part, Problem):  # after an exception the generator has ended
            yield place, part._replace(what=f"{part.what}; the rest of the file is left out")
        else:
            name = f"{place.name}#{number}"
            yield place, Document(id=name, text=part, source=file.folder, language=code, title=file.name)


def _parts(text: str, begins: str) -> Iterator[str]:
    pattern, lines = re.compile(begins), []
    for line in text.split("\n"):
        if lines and pattern.search(line):
            yield "\n".join(lines).rstrip()
            lines = []
        if lines or line.strip():
            lines.append(line)
    if lines:
        yield "\n".join(lines).rstrip()


def _next(parts: Iterator[str]) -> str | None:
    return next(parts, None)


def is_source(name: str) -> bool:
    """Return whether a file has the ending of source code."""
    return _programming_language(name) is not None


def _programming_language(name: str) -> str | None:
    return _LANGUAGE_OF_ENDING.get(PurePosixPath(without_compression(name)).suffix.lower())

"""Text and source files: one document per file, or one document from each match of a pattern to the next match."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.preparation.readers.compression import container_error
from jax_diversity.preparation.readers.decoding import decoded_by, undecodable
from jax_diversity.preparation.readers.files import (
    LOOKED_AT,
    MAX_DOCUMENT_BYTES,
    InputFile,
    OtherFormat,
    format_of,
    without_compression,
)
from jax_diversity.preparation.readers.records import ENCODING, Found, Place, Problem, converted
from jax_diversity.schema import Document

_LANGUAGES = (
    ".c:c .cc:c++ .cpp:c++ .cs:c# .go:go .h:c .hpp:c++ .java:java .jl:julia .js:javascript .kt:kotlin .lua:lua "
    ".php:php .pl:perl .py:python .r:r .rb:ruby .rs:rust .scala:scala .sh:shell .sql:sql .swift:swift .ts:typescript"
)
_BINARY_WITHIN = 8000
"""A file with a zero byte in these first bytes is binary, unless it is UTF-16. Git has the same rule."""
_LANGUAGE_OF_ENDING = dict(re.findall(r"(\S+):(\S+)", _LANGUAGES))


def read_text(file: InputFile, advance: Advance, begins: str | None = None, *, is_named: bool = True) -> Found:
    """Read the file as one document. With a pattern, a new document begins at each matching line.

    Text before the first matching line is a document, too. Blank lines at the ends of documents are dropped. The id is
    the file's name below the fixed folders of the glob, with a number if the file has several documents. The title is
    the name. Files with the ending of a programming language have a language such as `code:python`. A file that is not
    UTF-8 and has no byte order mark is read in the encoding that its bytes suggest, which is stored in the field
    `encoding`.

    Raises:
        OtherFormat: the content is not running text. This is not checked for files that are named as text (`is_named`).
    """
    place = Place(file, None)
    with file.stream(advance) as content:
        whole = content.read(LOOKED_AT)
        if not is_named and (format := format_of(whole)) is not None:
            raise OtherFormat(format)
        whole += content.read(MAX_DOCUMENT_BYTES + 1 - len(whole))
        if len(whole) > MAX_DOCUMENT_BYTES:
            raise UserError(f"{file.address} is longer than {MAX_DOCUMENT_BYTES} bytes; cut it into several documents.")
    if error := container_error(whole, file.address, PurePosixPath(file.address).name):
        raise error
    text, encoding = _decoded(whole)
    problem = Problem("num_undecodable", "binary data, not text") if encoding is None else undecodable(text)
    if problem is not None:
        yield place, problem
        return
    metadata: dict[str, Any] = {} if encoding == "utf-8" else {ENCODING: encoding}
    language = _programming_language(file.name)
    code = f"code:{language}" if language else None
    # The source is the folder: with one source for each file, every document would be a separate group.
    if begins is None:
        yield place, Document(place.name, text, file.folder, code, file.name, metadata)
        return
    parts, number = _parts(text, begins), 0
    while (part := converted(_next, parts)) is not None:
        number += 1
        if isinstance(part, Problem):  # after an exception the generator has ended
            yield place, part._replace(what=f"{part.what}; the rest of the file is left out")
        else:
            name = f"{place.name}#{number}"
            yield place, Document(name, part, file.folder, code, file.name, metadata)


def _decoded(whole: bytes) -> tuple[str, str | None]:
    """Return the text of a file and its encoding; None for a binary file."""
    if whole.startswith(b"%PDF-"):
        return "", None
    has_zeros = b"\0" in whole[:_BINARY_WITHIN]
    if not has_zeros:
        try:
            return whole.decode("utf-8-sig"), "utf-8"
        except UnicodeDecodeError:
            pass
    text, encoding = decoded_by(whole, None)
    return text, None if has_zeros and not encoding.startswith(("utf-16", "utf-32")) else encoding


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

"""Text and source files: one document a file."""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from jax_diversity.corpus.files import MAX_DOCUMENT_BYTES, InputFile, without_compression
from jax_diversity.corpus.records import Found
from jax_diversity.corpus.report import Place, Problem
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.schema import Document

_PROGRAMMING_LANGUAGES = {
    ".c": "c",
    ".cc": "c++",
    ".cpp": "c++",
    ".cs": "c#",
    ".go": "go",
    ".h": "c",
    ".hpp": "c++",
    ".java": "java",
    ".jl": "julia",
    ".js": "javascript",
    ".kt": "kotlin",
    ".lua": "lua",
    ".php": "php",
    ".pl": "perl",
    ".py": "python",
    ".r": "r",
    ".rb": "ruby",
    ".rs": "rust",
    ".scala": "scala",
    ".sh": "shell",
    ".sql": "sql",
    ".swift": "swift",
    ".ts": "typescript",
}


def read_text(file: InputFile, advance: Advance) -> Found:
    """A reader: the file as one document.

    Its id and title are its name below the glob's fixed folders. Its language is `code:python` and the like for the
    endings of programming languages. Its source is the folder that holds it: with a source for each file, every
    document would be a group of its own.

    Raises:
        UserError: the file cannot be read, or is longer than `MAX_DOCUMENT_BYTES`.
    """
    place = Place(file, None)
    with file.stream() as (stored, content):
        whole = content.read(MAX_DOCUMENT_BYTES + 1)
        if len(whole) > MAX_DOCUMENT_BYTES:
            raise UserError(f"{file.address} is longer than {MAX_DOCUMENT_BYTES} bytes; cut it into several documents.")
        advance(stored.tell())
    try:
        text = whole.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield place, Problem.of_unicode(error)
        return
    ending = PurePosixPath(without_compression(file.name)).suffix.lower()
    language = _PROGRAMMING_LANGUAGES.get(ending)
    yield (
        place,
        Document(
            id=place.name,
            text=text,
            source=_folder(file) or file.stem,
            language=f"code:{language}" if language else None,
            title=file.name,
        ),
    )


def _folder(file: InputFile) -> str:
    parent = os.path.abspath(file.address) if file.filesystem is None else file.address.partition("://")[2]
    return os.fsencode(PurePosixPath(parent).parent.name).decode("utf-8", "replace")

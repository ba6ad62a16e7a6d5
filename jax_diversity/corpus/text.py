"""Text and source files: one document a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from jax_diversity.corpus.files import InputFile, read_whole
from jax_diversity.corpus.report import Place, ReadReport
from jax_diversity.corpus.settings import CorpusConfig
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


def read_text(
    file: InputFile, config: CorpusConfig, report: ReadReport, advance: Advance
) -> Iterator[tuple[Place, Document]]:
    """The file as a document.

    Its id and title are its name below the glob's fixed folders, its source the folder that holds it (a source a
    file would be a group a document), its language `code:python` and the like where the ending tells.

    Raises:
        UserError: the file cannot be read; it is no UTF-8 and `config.strict` is set.
    """
    place = Place(file, None)
    content, stored_bytes = read_whole(file)
    advance(stored_bytes)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"no valid UTF-8: {error.reason} at byte {error.start + 1}"
        report.skip("num_invalid_utf8", place, what, strict=config.strict)
        return
    ending = PurePosixPath(file.name.removesuffix(".gz").removesuffix(".zst")).suffix.lower()
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

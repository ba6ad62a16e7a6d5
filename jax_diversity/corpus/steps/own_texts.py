"""The user's own texts that a step learns from: files that an option names."""

from __future__ import annotations

import glob
import gzip
import json
import os
import shlex
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.errors import UserError, in_one_line, quoted

_COMPRESSIONS = (".gz", ".zst")


def find_texts(option: str, patterns: str) -> list[Path]:
    """The files of an option, each once, sorted: names or globs with spaces between them, quoted as in a shell.

    Raises:
        UserError: a name or glob without a file.
    """
    if os.path.isfile(os.path.expanduser(patterns)):
        return [Path(patterns).expanduser()]
    try:
        words = shlex.split(patterns)
    except ValueError:
        words = [patterns]
    found = set[str]()
    for word in words:
        files = [name for name in glob.glob(os.path.expanduser(word), recursive=True) if os.path.isfile(name)]
        if not files:
            raise UserError(f"Expected the option {option!r} to name files of texts, found none at {quoted(word)}.")
        found.update(files)
    return [Path(name) for name in sorted(found)]


def texts_hash(option: str, patterns: str) -> list[str]:
    """The hashes of the files' bytes."""
    return [file_hash(path) for path in find_texts(option, patterns)]


def read_texts(option: str, patterns: str) -> Iterator[str]:
    """The texts of the files, blank ones left out.

    JSON Lines and Parquet files have them in the field `text`. Of other files, a single one has a text a line; of
    several, each is one text. All but Parquet may be compressed (.gz, .zst).

    Raises:
        UserError: a file that cannot be read, is damaged, or has no texts where they are expected.
    """
    paths = find_texts(option, patterns)
    plain = [path for path in paths if _ending(path) not in (".jsonl", ".ndjson", ".json", ".parquet", ".pq")]
    for path in paths:
        with _faults(path):
            if _ending(path) in (".parquet", ".pq"):
                texts = _of_parquet(path)
            elif path not in plain:
                texts = _of_json_lines(path)
            else:
                texts = _of_text(path, by_line=len(plain) == 1)
            for text in texts:
                if text and not text.isspace():
                    yield text


def _ending(path: Path) -> str:
    name = path.name.lower()
    for ending in _COMPRESSIONS:
        name = name.removesuffix(ending)
    return PurePosixPath(name).suffix


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except (EOFError, OSError, zlib.error, pa.ArrowException, UnicodeError) as error:
        raise UserError(f"Expected UTF-8 texts in {path} that can be read, found: {in_one_line(error)}.") from None


@contextmanager
def _content(path: Path) -> Iterator[Any]:
    with path.open("rb") as stored:
        if path.name.endswith(".gz"):
            with gzip.GzipFile(fileobj=stored) as content:
                yield content
        elif path.name.endswith(".zst"):
            with pa.CompressedInputStream(pa.PythonFile(stored, "r"), "zstd") as content:
                yield content
        else:
            yield stored


def _of_json_lines(path: Path) -> Iterator[str]:
    with _content(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                record: Any = json.loads(line)
                text = record["text"]
                text.encode()  # JSON may spell one half of a surrogate pair
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                raise UserError(
                    f"Expected a JSON object with a field 'text' a line in {path}, found none in line {number}."
                ) from None
            yield text


def _of_parquet(path: Path) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        if "text" not in file.schema_arrow.names:
            raise UserError(f"Expected a column 'text' in {path}, found {', '.join(file.schema_arrow.names[:20])}.")
        for batch in file.iter_batches(columns=["text"]):
            yield from (str(text) for text in batch.column(0).to_pylist() if text is not None)


def _of_text(path: Path, *, by_line: bool) -> Iterator[str]:
    with _content(path) as content:
        if by_line:
            yield from (line.decode("utf-8-sig") for line in content)
        else:
            yield content.read().decode("utf-8-sig")

"""Files that are named in an option of a step: the user's texts, records and lists. The corpus's readers read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.progress import ignore
from jax_diversity.preparation.readers.files import InputFile, find_local
from jax_diversity.preparation.readers.jsonl import read_jsonl, read_objects
from jax_diversity.preparation.readers.parquet import read_parquet
from jax_diversity.preparation.readers.records import Place, Problem
from jax_diversity.preparation.readers.text import read_text
from jax_diversity.preparation.settings import CorpusConfig


def find_named(option: str, patterns: Sequence[str]) -> list[InputFile]:
    """Find the files of an option's names and globs. Each file is returned once, sorted by address.

    Raises:
        UserError: there is no pattern, or a pattern matches no file.
    """
    if not patterns:
        raise UserError(f"Expected the option {option!r} to name files, found none.")
    by_address: dict[str, InputFile] = {}
    for pattern in patterns:
        files = find_local(pattern)
        if not files:
            raise UserError(f"Expected the option {option!r} to name files, found none at {quoted(pattern)}.")
        by_address |= {file.address: file for file in files}
    return [by_address[address] for address in sorted(by_address)]


def hash_named(option: str, patterns: Sequence[str]) -> list[str]:
    """Return the hashes of the files' bytes."""
    return [file_hash(Path(file.address)) for file in find_named(option, patterns)]


def read_content(file: InputFile) -> str:
    """Return the text of a plain or compressed file.

    Raises:
        UserError: the file cannot be read, is damaged, or is not UTF-8.
    """
    with file.stream() as content:
        return content.read().decode("utf-8-sig")


def read_records(file: InputFile) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file.

    Raises:
        UserError: a line is not a JSON object.
    """
    for place, record in read_objects(file, ignore):
        if isinstance(record, Problem):
            raise UserError(f"{place}: {record.what}; correct the record.")
        yield place, record


def read_texts(option: str, patterns: Sequence[str]) -> Iterator[str]:
    """Yield the texts of the files, as in `read_texts_of_files`."""
    return (text for _, text in read_texts_of_files(option, patterns))


def read_texts_of_files(option: str, patterns: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of the file, from 0, and each of its texts; blank texts are left out.

    JSON Lines and Parquet files have the texts in the field `text`. If there is a single other file, each of its lines
    is a text. If there are several other files, each file is one text.

    Raises:
        UserError: a file cannot be read or is damaged, or a record has no text.
    """
    files = find_named(option, patterns)
    num_plain = sum(file.format not in ("jsonl", "parquet") for file in files)
    for number, file in enumerate(files):
        match file.format:
            case "jsonl":
                records = read_jsonl(file, CorpusConfig(), ignore)
            case "parquet":
                records = read_parquet(file, CorpusConfig(), ignore)
            case _:
                records = read_text(file, ignore, r"\S" if num_plain == 1 else None)
        for place, record in records:
            if isinstance(record, Problem):
                raise UserError(f"{place}: {record.what}; the option {option!r} needs a text in every record.")
            if record.text and not record.text.isspace():
                yield number, record.text

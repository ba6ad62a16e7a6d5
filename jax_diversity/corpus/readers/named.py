"""Files that an option of a step names: the user's own texts, records and lists, read by the corpus's readers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jax_diversity.corpus.readers.files import InputFile, find_local
from jax_diversity.corpus.readers.jsonl import read_jsonl, read_objects
from jax_diversity.corpus.readers.parquet import read_parquet
from jax_diversity.corpus.readers.records import Place, Problem
from jax_diversity.corpus.readers.text import read_text
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.foundation.artifacts import file_hash
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.progress import ignore


def find_named(option: str, patterns: Sequence[str]) -> list[InputFile]:
    """The files of an option's names and globs, each once, sorted by address.

    Raises:
        UserError: no pattern, or a pattern without a file.
    """
    if not patterns:
        raise UserError(f"Expected the option {option!r} to name files, found none.")
    found: dict[str, InputFile] = {}
    for pattern in patterns:
        files = find_local(pattern)
        if not files:
            raise UserError(f"Expected the option {option!r} to name files, found none at {quoted(pattern)}.")
        found |= {file.address: file for file in files}
    return [found[address] for address in sorted(found)]


def hash_named(option: str, patterns: Sequence[str]) -> list[str]:
    """The hashes of the files' bytes."""
    return [file_hash(Path(file.address)) for file in find_named(option, patterns)]


def read_content(file: InputFile) -> str:
    """The text of a plain or compressed file.

    Raises:
        UserError: a file that cannot be read, is damaged, or is not UTF-8.
    """
    with file.stream() as (_, content):
        return content.read().decode("utf-8-sig")


def read_records(file: InputFile) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a file of JSON Lines.

    Raises:
        UserError: a line that is not a JSON object.
    """
    for place, record in read_objects(file, ignore):
        if isinstance(record, Problem):
            raise UserError(f"{place}: {record.what}; correct the record.")
        yield place, record


def read_texts(option: str, patterns: Sequence[str]) -> Iterator[str]:
    """The texts of the files; blank texts are left out.

    JSON Lines and Parquet files hold texts in the field `text`. A single other file holds a text a line; of several
    other files each is one text.

    Raises:
        UserError: a file that cannot be read or is damaged, or a record without a text.
    """
    files = find_named(option, patterns)
    num_plain = sum(file.format not in ("jsonl", "parquet") for file in files)
    for file in files:
        match file.format:
            case "jsonl":
                records = read_jsonl(file, CorpusConfig(), ignore)
            case "parquet":
                records = read_parquet(file, CorpusConfig(), ignore)
            case _:
                records = read_text(file, ignore, r"\S" if num_plain == 1 else None)
        for place, found in records:
            if isinstance(found, Problem):
                raise UserError(f"{place}: {found.what}; the option {option!r} needs a text in every record.")
            if found.text and not found.text.isspace():
                yield found.text

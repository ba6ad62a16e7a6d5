"""Files, or the installed Python packages -> documents, one after another, never all in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from jax_diversity.corpus.files import InputFile, find_files
from jax_diversity.corpus.identity import IdRegistry
from jax_diversity.corpus.jsonl import read_jsonl
from jax_diversity.corpus.parquet import read_parquet
from jax_diversity.corpus.python_environment import read_python_environment, select_documents
from jax_diversity.corpus.report import Place, ReadReport
from jax_diversity.corpus.settings import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.corpus.text import read_text
from jax_diversity.corpus.token_document import TokenDocument
from jax_diversity.corpus.tokens import read_megatron, read_tokens
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Document

_READERS = {
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "text": read_text,
    "megatron": read_megatron,
    "tokens": read_tokens,
}
_TOKEN_BYTES = 4  # of a token that came with its document, as it is stored


def read_documents(config: CorpusConfig, report: ReadReport, advance: Advance = ignore) -> Iterator[Document]:
    """Read a corpus: files sorted by address, their documents in order, then the Python environment's.

    Args:
        config: what to read and how.
        report: counts what is given out and what is skipped; pass a new one.
        advance: told the stored bytes read, which sum up to about `input_size(config)`.

    Raises:
        UserError: nothing to read, a file that is not what its name says, an id that comes twice (unless they are
            renamed), no usable document at all; with `config.strict` the first broken record.

    Example:
        >>> report = ReadReport()
        >>> documents = list(read_documents(CorpusConfig(paths=("texts/*.jsonl.gz",)), report))
        >>> report.num_documents == len(documents)
        True
    """
    ids = IdRegistry()
    for place, document in _read_sources(config, report, advance):
        if _is_empty(document):
            report.num_empty_documents += 1
            continue
        try:
            text_bytes = len(document.text.encode())
        except UnicodeEncodeError as error:
            what = f"no valid UTF-8: {error.reason} at character {error.start + 1}"
            report.skip("num_invalid_utf8", place, what, strict=config.strict)
            continue
        if not ids.add(document.id):
            document = _settle_duplicate(document, place, ids, config, report)
        report.num_documents += 1
        report.text_bytes += text_bytes
        report.num_tokens += len(document.tokens) if isinstance(document, TokenDocument) else 0
        yield document
    if not report.num_documents:
        first = f"; the first problem: {report.problems[0]}" if report.problems else ""
        raise UserError(
            f"Expected at least one document that is not empty in {', '.join(config.paths)}, found "
            f"{report.num_problems} broken and {report.num_empty_documents} empty ones{first}."
        )


def input_size(config: CorpusConfig) -> int:
    """Stored bytes that `read_documents` will tell its `advance` of, about: the total of a progress bar.

    Raises:
        UserError: see `read_documents`.
    """
    size = sum(file.size() for file in find_files(config))
    if PYTHON_ENVIRONMENT in config.paths:
        size += sum(candidate.text_bytes for candidate in select_documents(config.max_bytes))
    return size


def _read_sources(config: CorpusConfig, report: ReadReport, advance: Advance) -> Iterator[tuple[Place, Document]]:
    for file in find_files(config):
        for place, document in _READERS[_format(file, config)](file, config, report, advance):
            read_bytes = report.text_bytes + _TOKEN_BYTES * report.num_tokens
            if config.max_bytes is not None and read_bytes >= config.max_bytes:
                return
            yield place, document
    if PYTHON_ENVIRONMENT in config.paths:
        remaining = None if config.max_bytes is None else config.max_bytes - report.text_bytes
        yield from read_python_environment(remaining, config, report, advance)


def _format(file: InputFile, config: CorpusConfig) -> str:
    return file.format if config.format == "auto" else config.format


def _is_empty(document: Document) -> bool:
    if isinstance(document, TokenDocument):
        return not len(document.tokens)
    return not document.text or document.text.isspace()


def _settle_duplicate(
    document: Document, place: Place, ids: IdRegistry, config: CorpusConfig, report: ReadReport
) -> Document:
    """A document whose id has come before: rename it or stop."""
    if config.duplicate_ids == "rename":
        report.num_renamed_ids += 1
        return dataclasses.replace(document, id=ids.add_renamed(document.id))
    # Only hashes are kept, so the first place is found by reading once more: slow, but then the build is over.
    lenient = dataclasses.replace(config, strict=False, max_bytes=None)
    readings = _read_sources(lenient, ReadReport(), ignore)
    places = (at for at, other in readings if other.id == document.id and not _is_empty(other))
    first = next(places, place)
    if first == place:  # no duplicate: two ids with one hash
        return document
    raise UserError(
        f"Expected every document to have an id of its own, found {document.id!r} at {first} and again at {place}; "
        "set corpus.duplicate_ids=rename, or name another field in corpus.id_field."
    )

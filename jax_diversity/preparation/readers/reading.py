"""Read files, or the installed Python packages, as documents. One document is in memory at a time.

Every format has a reader, `read_FORMAT`. It reports the stored bytes to `advance`. It raises a `UserError` if a file is
damaged or does not have the type that its name says. A broken record is a `Problem`, which is counted or raised here.
"""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from jax_diversity.foundation.artifacts import HashMemory, fingerprint
from jax_diversity.foundation.attempts import Failure
from jax_diversity.foundation.errors import UserError, did_you_mean
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.preparation.identity import IdRegistry
from jax_diversity.preparation.readers.array_record import read_array_records
from jax_diversity.preparation.readers.bare_tokens import is_bare, read_bare_tokens
from jax_diversity.preparation.readers.chat import chat_form
from jax_diversity.preparation.readers.code import Licences, read_code
from jax_diversity.preparation.readers.csv_tables import read_csv
from jax_diversity.preparation.readers.files import LINKING, InputFile, OtherFormat, find_files, reading_faults
from jax_diversity.preparation.readers.jsonl import read_jsonl
from jax_diversity.preparation.readers.latex import read_latex
from jax_diversity.preparation.readers.mediawiki import read_mediawiki
from jax_diversity.preparation.readers.megatron import read_megatron
from jax_diversity.preparation.readers.parquet import read_parquet
from jax_diversity.preparation.readers.python_environment import (
    find_packages,
    read_python_environment,
    select_documents,
)
from jax_diversity.preparation.readers.records import (
    TEXT,
    TOKENS,
    Found,
    Place,
    Problem,
    ReadReport,
    TokenDocument,
)
from jax_diversity.preparation.readers.stack_exchange import read_stack_exchange
from jax_diversity.preparation.readers.text import read_text
from jax_diversity.preparation.readers.web import read_html, read_warc
from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT, CorpusConfig
from jax_diversity.schema import Document

_READERS: dict[str, Callable[[InputFile, Advance], Found]] = {
    "html": read_html,
    "latex": read_latex,
    "mediawiki": read_mediawiki,
    "stack_exchange": read_stack_exchange,
    "warc": read_warc,
}
"""The readers of files without configurable fields."""
_MOST_FIELDS = 20  # number of fields in an error
_GROUP_BYTES = 64 * 2**20
_TOKEN_BYTES = 4  # number of bytes of a stored token
_REMOTE_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "crc32c", "generation")


def read_documents(config: CorpusConfig, report: ReadReport, advance: Advance = ignore) -> Iterator[Document]:
    """Read a corpus: files sorted by address, their documents in order, then documents of the Python environment.

    Give a new `report`; the counts are written into it. `advance` is called with numbers of stored bytes; their sum is
    about `input_size(config)`.
    """
    reading = Reading(config, report)
    yield from reading.documents(_read_sources(config, report, advance))
    reading.check()


def groups_of_files(config: CorpusConfig) -> list[Group]:
    """Divide the files of a corpus into groups that can be read independently, in the order of reading.

    A group has consecutive files of together about 64 MB, or one larger file. The Python environment is the last group.
    The settings `max_bytes` and `duplicate_ids=rename` depend on all earlier documents: with them there is one group.
    """
    files = find_files(config)
    has_environment = PYTHON_ENVIRONMENT in config.paths
    if config.max_bytes is not None or config.duplicate_ids == "rename":
        return [Group([file.plain for file in files], has_environment)]
    groups, size = [Group([], False)], 0
    for file in files:
        groups[-1].files.append(file.plain)
        with reading_faults(file):
            size += file.size()
        if size >= _GROUP_BYTES:
            groups.append(Group([], False))
            size = 0
    if has_environment:
        groups.append(Group([], True))
    return [group for group in groups if group.files or group.has_environment]


def read_group(group: Group, reading: Reading, advance: Advance = ignore) -> Iterator[Document]:
    """Read the documents of a group of files. `reading` gets the counts, and checks them afterwards.

    Raises:
        UserError: see `read_documents`; or a file changed while it was read.
    """
    files = [InputFile.of_plain(plain) for plain in group.files]
    readings = _read_files(files, group.has_environment, reading.config, reading.report, advance)
    yield from reading.documents(readings)


def sample_documents(
    config: CorpusConfig, number: int, report: ReadReport, advance: Advance = ignore
) -> Iterator[Document]:
    """Read the first documents of each file: equally many of each file, and at most `number` documents together.

    If there are more files than `number`, files at equal distances in the list are read. See `read_documents` for the
    other arguments.
    """
    files = find_files(config)
    num_sources = len(files) + (PYTHON_ENVIRONMENT in config.paths)
    chosen = (
        range(num_sources)
        if num_sources <= number
        else [number_of * num_sources // number for number_of in range(number)]
    )
    num_of_source = max(number // num_sources, 1)

    def found() -> Found:
        licences = Licences()
        for index in chosen:
            if index < len(files):
                yield from islice(_read_file(files[index], config, licences, advance), num_of_source)
            else:
                yield from islice(read_python_environment(config.max_bytes, advance), num_of_source)

    reading = Reading(config, report)
    yield from reading.documents(found())
    reading.check()


class Group(NamedTuple):
    """Files that one job reads, as `InputFile.plain`, and whether it also reads the Python environment."""

    files: list[list[str]]
    has_environment: bool


class Reading:
    """The counts of a corpus, or of a group of its files, while it is read; `check` is for the whole corpus."""

    def __init__(self, config: CorpusConfig, report: ReadReport | None = None) -> None:
        self.config, self.report = config, report or ReadReport()
        self.ids, self._named = IdRegistry(), _NamedFields(config)

    def documents(self, readings: Found) -> Iterator[Document]:
        """Yield the documents, with unique ids. Other records are counted."""
        config, report = self.config, self.report
        # `_read_files` compares `max_bytes` with the counts of this loop. They are up to date there because a generator
        # runs only when the next value is requested.
        for place, result in readings:
            try:
                text_bytes = len(result.text.encode()) if isinstance(result, Document) else 0
            except UnicodeEncodeError as error:
                text_bytes, result = 0, Problem.of_unicode(error)
            if isinstance(result, Problem):
                if config.strict:
                    raise UserError(
                        f"{place}: {result.what}; correct the record, or read without corpus.strict to skip such "
                        "records."
                    )
                report.skip(place, result)
                continue
            if _is_empty(result):
                report.num_empty_documents += 1
                continue
            if place.file.partitions:
                result = _with_partitions(result, place.file, config)
            document = result if self.ids.add(result.id) else _with_other_id(result, place, self.ids, config, report)
            self._named.add(place, document)
            report.num_documents += 1
            report.text_bytes += text_bytes
            report.count_replaced(place, document)
            report.num_text_files += place.line is None and document.id == place.name and place.file.format == "text"
            report.num_tokens += len(document.tokens) if isinstance(document, TokenDocument) else 0
            yield document

    def plain(self) -> dict[str, Any]:
        """The counts as JSON values, without the ids."""
        return {"report": self.report.plain(), "named": self._named.plain()}

    def add(self, other: Mapping[str, Any]) -> None:
        """Add the counts of the group of files that follows, as `plain` returns."""
        self.report.add(other["report"])
        self._named.join(*other["named"])

    def check(self) -> None:
        """Raise a `UserError` if the corpus has no documents, or no record with a field that the settings name."""
        report = self.report
        if not report.num_documents:
            first = f"; the first problem: {report.problems[0]}" if report.problems else ""
            # dolma gives its files of token ids this ending, and NumPy its arrays, which are not a corpus.
            linking = f"; {LINKING}" if ".npy:" in first else ""
            raise UserError(
                f"Expected at least one document that is not empty in {', '.join(self.config.paths)}, found "
                f"{report.num_problems} broken and {report.num_empty_documents} empty ones{first}{linking}."
            )
        self._named.check()


class _NamedFields:
    """The fields that the settings name and that no record had so far; a field with its usual name may be absent."""

    def __init__(self, config: CorpusConfig) -> None:
        names = ("id_field", "source_field", "language_field", "title_field")
        fields = {name: getattr(config, name) for name in names}
        self._absent = {name: value for name, value in fields.items() if value not in (None, getattr(_USUAL, name))}
        self._config, self._num_records = config, 0
        self._fields: dict[str, None] = {}

    def add(self, place: Place, document: Document) -> None:
        """Look at a document; only records have fields, so files with one document each are left out."""
        if not self._absent or place.line is None:
            return
        self._num_records += 1
        is_used = {
            "id_field": document.id != place.name,
            "source_field": document.source != place.file.source,
            "language_field": document.language is not None,
            "title_field": document.title is not None,
        }
        content = self._config.tokens_field if isinstance(document, TokenDocument) else self._config.text_field
        taken = [getattr(self._config, name) for name, is_found in is_used.items() if is_found]
        inner = [
            f"{name}.{inner_name}"
            for name, value in document.metadata.items()
            if isinstance(value, dict)
            for inner_name in value
        ]
        self._fields.update(dict.fromkeys([content, *taken, *document.metadata, *inner]))
        self._absent = {name: value for name, value in self._absent.items() if not is_used[name]}

    def plain(self) -> list[Any]:
        """The absent fields, the number of records, and the first other fields, as JSON values."""
        return [self._absent, self._num_records, [*self._fields][:_MOST_FIELDS]]

    def join(self, absent: Mapping[str, Any], num_records: int, fields: Sequence[str]) -> None:
        """Add what `plain` returned for the documents that follow."""
        self._absent = {name: value for name, value in self._absent.items() if name in absent}
        self._num_records += num_records
        self._fields.update(dict.fromkeys(fields))

    def check(self) -> None:
        """Raise a `UserError` for a named field that no record had."""
        for name, value in self._absent.items():
            if not self._num_records:
                raise UserError(
                    f"Expected records with the field {value!r} (corpus.{name}), found only files without fields; "
                    f"leave corpus.{name} out."
                )
            near = did_you_mean(value, self._fields).removesuffix(".")
            raise UserError(
                f"Expected a text or number in the field {value!r} of a record (corpus.{name}), found none in "
                f"{self._num_records:,} records, whose fields are {', '.join([*self._fields][:_MOST_FIELDS])}"
                f"{near or f'; name one of them, or leave corpus.{name} out.'}"
            )


_USUAL = CorpusConfig()


def input_size(config: CorpusConfig) -> int:
    """Estimate the number of stored bytes that `read_documents` reports, for a progress bar."""
    size = sum(file.size() for file in find_files(config))
    if PYTHON_ENVIRONMENT in config.paths:
        size += sum(candidate.text_bytes for candidate in select_documents(config.max_bytes))
    return size


def input_fingerprint(config: CorpusConfig, cache: Path | None = None, advance: Advance = ignore) -> str:
    """Hash the names, sizes and contents of the input files, and the packages and version of the Python environment.

    Folders are left out, so that the same files in another folder have the same fingerprint. Settings are left out,
    because the caller adds them. For a remote file we use a tag of its store (ETag, checksum, generation) instead of
    the content. `cache` is a small JSON file of content hashes by path, size and time of change.
    """
    memory = HashMemory(cache)  # hashing takes as long as reading, so only changed files are hashed again
    files, licences = [], Licences()
    for file in find_files(config):
        with reading_faults(file):
            size = file.size()
            content = memory.hash(file.address) if file.filesystem is None else _remote_tag(file)
        files.append([file.name, size, content])
        if config.format == "code":  # the licence may be in a file that is not among the files of the corpus
            files[-1].append(licences.of(file))
        if file.partitions:  # folders above the fixed folders of a glob are not part of the name
            files[-1].append(file.partitions)
        advance(size)
    memory.save()
    packages = []
    if PYTHON_ENVIRONMENT in config.paths:
        packages = [platform.python_version()]
        packages += sorted(f"{package.name}=={package.version}" for package in find_packages())
    return fingerprint(files, packages)


def _read_sources(config: CorpusConfig, report: ReadReport, advance: Advance) -> Found:
    return _read_files(find_files(config), PYTHON_ENVIRONMENT in config.paths, config, report, advance)


def _read_files(
    files: Sequence[InputFile], has_environment: bool, config: CorpusConfig, report: ReadReport, advance: Advance
) -> Found:
    licences = Licences()
    for file in files:
        with reading_faults(file):
            stamp = file.stamp()
        for place, document in _read_file(file, config, licences, advance):
            read_bytes = report.text_bytes + _TOKEN_BYTES * report.num_tokens
            # Only documents are checked: skipped records do not count towards the limit.
            if isinstance(document, Document) and config.max_bytes is not None and read_bytes >= config.max_bytes:
                return
            yield place, document
        with reading_faults(file):
            if file.stamp() != stamp:
                raise UserError(
                    f"Expected {file.address} to stay as it is while it is read, found that it changed; finish writing "
                    "the files of the corpus, then run the same command again."
                )
    if has_environment:
        # The documents of packages are chosen by hash before reading. They may have the remaining bytes of the limit.
        remaining = None if config.max_bytes is None else config.max_bytes - report.text_bytes
        yield from read_python_environment(remaining, advance)


def _read_file(file: InputFile, config: CorpusConfig, licences: Licences, advance: Advance) -> Found:
    """Yield the documents of a file. If the reader raises an exception outside of a record, the rest is a problem."""
    try:
        try:
            yield from _reader(file, config, licences, advance)
        except OtherFormat as found:  # raised before the first document
            yield from _reader(file, dataclasses.replace(config, format=found.format), licences, advance)
    except UserError:
        raise
    except Exception as error:
        failure = Failure.of(error)
        yield Place(file, None), Problem.of_failure(failure._replace(what=f"{failure.what}; its rest is left out"))


def _reader(file: InputFile, config: CorpusConfig, licences: Licences, advance: Advance) -> Found:
    kind, form = (file.format if config.format == "auto" else config.format), TEXT
    if kind == "megatron":
        return read_megatron(file, advance)
    if kind == "tokens":
        if file.stores_array_records:
            return read_array_records(file, config, advance)
        if is_bare(file):
            return read_bare_tokens(file, config, advance)
        kind, form = file.format_of_content, TOKENS
    if kind == "chat":
        kind, form = file.format_of_content, chat_form(config)
    if kind == "jsonl":
        return read_jsonl(file, config, advance, form)
    if kind == "parquet":
        return read_parquet(file, config, advance, form)
    if kind == "csv" and form is not TOKENS:
        return read_csv(file, config, advance, form)
    named_tokens = (".ds", ".bin", ".idx")
    if (form is TOKENS or config.format in ("auto", "chat")) and file.name.endswith(named_tokens):
        expected = "token ids in .jsonl, .parquet or .array_record files" if form is TOKENS else "texts"
        raise UserError(
            f"Expected {expected}, found {file.address}; set corpus.format=megatron for a .bin with its .idx, and "
            "corpus.format=tokens for a token file without one (docs/howto/existing-shards.md)."
        )
    if form is TOKENS:
        raise UserError(
            f"Expected files of token ids named .jsonl, .parquet or .array_record, found {file.address}; rename it to "
            "its format, or set corpus.format."
        )
    if kind == "code":
        return read_code(file, licences, advance)
    if kind == "text":
        is_named = config.format not in ("auto", "chat") or config.documents_begin is not None
        return read_text(file, advance, config.documents_begin, is_named=is_named)
    return _READERS[kind](file, advance)


def _with_partitions(document: Document, file: InputFile, config: CorpusConfig) -> Document:
    """Add the fields that the file's folders give, if the document does not have them."""
    fields = {name: value for name, value in file.partitions.items() if name not in document.metadata}
    changes: dict[str, Any] = {}
    if document.language is None and config.language_field in fields:
        changes["language"] = fields.pop(config.language_field)
    if document.source in (file.source, file.folder) and config.source_field in fields:
        changes["source"] = fields.pop(config.source_field)
    taken = (config.language_field, config.source_field)
    metadata = {**document.metadata, **{name: value for name, value in fields.items() if name not in taken}}
    return dataclasses.replace(document, metadata=metadata, **changes)


def _is_empty(document: Document) -> bool:
    if isinstance(document, TokenDocument):
        return not len(document.tokens)
    return not document.text or document.text.isspace()


def _with_other_id(
    document: Document, place: Place, ids: IdRegistry, config: CorpusConfig, report: ReadReport
) -> Document:
    """Rename a document with a repeated id: add a number. If the settings do not allow this, raise a `UserError`."""
    if config.duplicate_ids == "rename":
        report.num_renamed_ids += 1
        return dataclasses.replace(document, id=ids.add_renamed(document.id))
    # We store only hashes of ids. To find the first document with this id, we read the corpus again. This is slow, but
    # the build ends with this error.
    readings = _read_sources(dataclasses.replace(config, max_bytes=None), ReadReport(), ignore)
    first = next(
        at for at, other in readings if isinstance(other, Document) and other.id == document.id and not _is_empty(other)
    )
    if first == place:  # the id is not a duplicate: two different ids have the same hash
        return document
    raise UserError(
        f"Expected every document to have its own id, found {document.id!r} at {first} and again at {place}; "
        "set corpus.duplicate_ids=rename, or name another field in corpus.id_field."
    )


def _remote_tag(file: InputFile) -> str:
    info = file.filesystem.info(file.address)
    for name in _REMOTE_TAGS:
        if info.get(name):
            return f"{name} {info[name]}"
    return file.filesystem.ukey(file.address)

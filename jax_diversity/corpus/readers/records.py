"""Records with named fields (lines of JSON, rows, examples) -> documents of text or of token ids, or what is wrong."""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from xml.etree.ElementTree import ParseError

import numpy as np
from jaxtyping import Int32

from jax_diversity.corpus.readers.files import InputFile
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.foundation.errors import UserError, in_one_line, shortened
from jax_diversity.schema import Document

MAX_PROBLEMS = 20
TURN_SPANS = "turn_spans"
"""The metadata field of a stored chat: where in its text something is said, as pairs of start and stop in characters.

What is between them was written by the template.
"""
LEARNED_SPANS = "learned_spans"
"""The metadata field of a stored chat: where the answers are, with what ends them, as pairs of the same kind."""
_LARGEST_ID = 2**31 - 1
_MOST_FIELDS = 100
_MOST_LEVELS = 64
"""Levels to which a record's fields may be nested: Python's readers and writers of JSON end at some hundreds."""


class Place(NamedTuple):
    """The place of a record: its file and its line or row, counted from 1 (None: the file is one document)."""

    file: InputFile
    line: int | None

    @property
    def name(self) -> str:
        """The place without the corpus's own folder: the same on every machine."""
        return self.file.name if self.line is None else f"{self.file.name}:{self.line}"

    def __str__(self) -> str:
        return self.file.address if self.line is None else f"{self.file.address}:{self.line}"


class Problem(NamedTuple):
    """Why a record gives no document: the count of `ReadReport` that it belongs to, and a sentence."""

    kind: Literal["num_broken_records", "num_without_text", "num_text_not_string", "num_invalid_utf8"]
    what: str

    @classmethod
    def of_unicode(cls, error: UnicodeDecodeError | UnicodeEncodeError) -> Problem:
        """The problem of bytes that are no UTF-8, or of a string that cannot be written as UTF-8."""
        unit = "byte" if isinstance(error, UnicodeDecodeError) else "character"
        return cls("num_invalid_utf8", f"no valid UTF-8: {error.reason} at {unit} {error.start + 1}")

    @classmethod
    def of_xml(cls, content: bytes, error: ParseError) -> Problem:
        """The problem of bytes that are no XML."""
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as no_utf8:
            return cls.of_unicode(no_utf8)
        return cls("num_broken_records", f"no XML: {in_one_line(error)}")


@dataclass
class ReadReport:
    """Counts that grow while a corpus is read; a record that is skipped is counted in exactly one of the kinds."""

    num_documents: int = 0
    text_bytes: int = 0
    num_tokens: int = 0  # that came with the documents; 0 for a corpus of texts
    num_empty_documents: int = 0  # blank texts and records without a token included
    num_broken_records: int = 0  # no JSON object, rows that cannot be read, token ids that are missing or invalid
    num_without_text: int = 0
    num_text_not_string: int = 0
    num_invalid_utf8: int = 0  # lone surrogates ("\ud800" in JSON) included
    num_renamed_ids: int = 0
    problems: list[str] = field(default_factory=list)  # the first ones, as `file:line: what`

    @property
    def num_problems(self) -> int:
        """Records skipped because something is wrong with them."""
        return self.num_broken_records + self.num_without_text + self.num_text_not_string + self.num_invalid_utf8

    def skip(self, place: Place, problem: Problem) -> None:
        """Count a record that is skipped."""
        setattr(self, problem.kind, getattr(self, problem.kind) + 1)
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(shortened(f"{place.name}: {problem.what}"))


Found = Iterator[tuple[Place, Document | Problem]]
"""What every reader of a file gives, in the file's order: its documents, and the records that are none."""
Records = Iterator[tuple[Place, dict[str, Any] | Problem]]
"""A file's records by their fields' names, and what could not be read as a record."""


@dataclass(frozen=True, slots=True)
class TokenDocument(Document):
    """A document that comes as token ids; its text is empty unless the corpus holds that as well."""

    tokens: Int32[np.ndarray, " token"] = field(default_factory=lambda: np.zeros(0, np.int32), compare=False)


@dataclass(frozen=True)
class RecordForm:
    """The field that every record needs (a setting of `CorpusConfig` names it), and how a record becomes a document."""

    setting: str
    content: str
    make: Callable[[dict[str, Any], Place, CorpusConfig], Document | Problem]

    def field(self, config: CorpusConfig) -> str:
        """The field's name."""
        return getattr(config, self.setting)

    def is_in(self, fields: Iterable[str], config: CorpusConfig) -> bool:
        """Whether a record with these fields has the one that is needed."""
        return self.field(config) in fields

    def document(self, record: dict[str, Any], place: Place, config: CorpusConfig) -> Document | Problem:
        """The document of a record."""
        try:
            return self.make(record, place, config)
        except _TooDeepError:
            return Problem("num_broken_records", f"fields nested more than {_MOST_LEVELS} levels deep")

    def missing(self, file: InputFile, config: CorpusConfig, fields: Iterable[str]) -> UserError:
        """The error of a file in which no record has the field."""
        found = ", ".join(sorted(fields)) or "no fields"
        return UserError(
            f"Expected {self.content} in field {self.field(config)!r} of {file.address}, found only {found}; "
            f"set corpus.{self.setting}."
        )

    def documents(self, file: InputFile, config: CorpusConfig, records: Records) -> Found:
        """The documents of a file's records; a `UserError` if no record has the field."""
        num_records, num_with_field = 0, 0
        fields_found: dict[str, None] = {}
        for place, record in records:
            if isinstance(record, Problem):
                yield place, record
                continue
            num_records += 1
            num_with_field += self.is_in(record, config)
            # For the message, if no record has the field; records may have different fields.
            if not num_with_field and len(fields_found) < _MOST_FIELDS:
                fields_found.update(dict.fromkeys(record))
            yield place, self.document(record, place, config)
        if num_records and not num_with_field:
            raise self.missing(file, config, fields_found)


# Both remove the fields that they know from the record: the others are the metadata.
def _make_document(fields: dict[str, Any], place: Place, config: CorpusConfig) -> Document | Problem:
    if config.text_field not in fields:
        return Problem("num_without_text", _no_field(config.text_field, fields))
    text = fields.pop(config.text_field)
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        return Problem("num_text_not_string", f"field {config.text_field!r} holds {kind}, no string")
    return Document(text=text, **labels(fields, place, config))


def _make_token_document(fields: dict[str, Any], place: Place, config: CorpusConfig) -> Document | Problem:
    if config.tokens_field not in fields:
        return Problem("num_broken_records", _no_field(config.tokens_field, fields))
    try:
        tokens = token_ids(fields.pop(config.tokens_field))
    except ValueError as error:
        return Problem("num_broken_records", f"field {config.tokens_field!r}: {error}")
    text = fields.pop(config.text_field, None)
    # Attention masks, positions and the like are as long as the tokens, and would take most of the metadata's space.
    fields = {name: value for name, value in fields.items() if not _are_numbers(value)}
    return TokenDocument(text=text if isinstance(text, str) else "", tokens=tokens, **labels(fields, place, config))


TEXT = RecordForm("text_field", "the text", _make_document)
"""Records that hold a text."""
TOKENS = RecordForm("tokens_field", "token ids", _make_token_document)
"""Records that hold token ids."""


def token_ids(values: Any) -> Int32[np.ndarray, " token"]:
    """Token ids from a list of Python's integers or an integer array; a ValueError says what is wrong with them."""
    if isinstance(values, list | tuple):
        if not set(map(type, values)) <= {int}:  # `True` is an int to isinstance, but no token
            bad = next(value for value in values if type(value) is not int)
            raise ValueError(f"token ids hold {bad!r}, no whole number")
        try:
            values = np.array(values, np.int64)
        except OverflowError:
            bad = next(value for value in values if not 0 <= value <= _LARGEST_ID)
            raise ValueError(_out_of_range(bad)) from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise ValueError(f"expected a list of token ids, found {'null' if values is None else repr(values)[:40]}")
    if len(values):  # the least and the largest id are enough: no array of comparisons is made
        for bad in (int(values.min()), int(values.max())):
            if not 0 <= bad <= _LARGEST_ID:
                raise ValueError(_out_of_range(bad))
    return values.astype(np.int32, copy=False)


def _out_of_range(token: int) -> str:
    return f"expected token ids of 0 to {_LARGEST_ID}, found {token}"


def _no_field(name: str, fields: Mapping[str, Any]) -> str:
    listed = ", ".join(sorted(fields)[:20]) + (" ..." if len(fields) > 20 else "") if fields else "no fields"
    return f"no field {name!r} among {listed}"


def _are_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(entry, int | float) for entry in value)


def labels(fields: dict[str, Any], place: Place, config: CorpusConfig) -> dict[str, Any]:
    """A document's id, source, language and title, taken from `fields`, and its metadata: all other fields."""
    return {
        "id": _take_label(fields, config.id_field) or place.name,
        "source": _take_label(fields, config.source_field) or place.file.stem,
        "language": _take_label(fields, config.language_field),
        "title": _take_label(fields, config.title_field),
        "metadata": {key: _plain_value(value) for key, value in fields.items()},
    }


def _take_label(fields: dict[str, Any], name: str | None) -> str | None:
    """Remove and return a field that holds a word or a whole number; any other value stays, as metadata."""
    value = fields.get(name) if name is not None else None
    if name is None or isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        return None
    return str(fields.pop(name))


class _TooDeepError(Exception):
    """A value is nested too deeply."""


def _plain_value(value: Any, levels: int = _MOST_LEVELS) -> Any:
    """A value as JSON can hold it: NaN and infinities as null, decimals and other unknown types as their text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple):
        if levels == 0:
            raise _TooDeepError
        if isinstance(value, Mapping):
            return {str(key): _plain_value(entry, levels - 1) for key, entry in value.items()}
        return [_plain_value(entry, levels - 1) for entry in value]
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)

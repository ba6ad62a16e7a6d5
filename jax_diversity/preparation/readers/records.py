"""Convert records with named fields (JSON lines, rows, examples) to documents of text or token ids, or to problems."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args
from xml.etree.ElementTree import ParseError

import numpy as np
from jaxtyping import Int32

from jax_diversity.foundation.attempts import Failure, Result, attempt
from jax_diversity.foundation.errors import UserError, in_one_line, shortened
from jax_diversity.preparation.readers.files import InputFile
from jax_diversity.preparation.readers.turns import turn_fields
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document
from jax_diversity.schema.documents import TURN_FIELDS, TokenDocument

MAX_PROBLEMS = 20
REPLACED = "\ufffd"
"""The character in place of undecodable bytes."""
ENCODING = "encoding"
"""The metadata field of a text file that is not UTF-8: the encoding in which it was read."""
_LARGEST_ID = 2**31 - 1
_MAX_FIELDS = 100
_MAX_LEVELS = 64
"""Maximum depth of nested fields. Python's reader and writer of JSON allow a few hundred levels."""


class Place(NamedTuple):
    """The place of a record: its file and its line or row, counted from 1. None means that the file is one document."""

    file: InputFile
    line: int | None

    @property
    def name(self) -> str:
        """The place without the folder of the corpus, so that it is equal on every machine."""
        return self.file.name if self.line is None else f"{self.file.name}:{self.line}"

    def __str__(self) -> str:
        return self.file.address if self.line is None else f"{self.file.address}:{self.line}"


_Kind = Literal[
    "num_broken_records",
    "num_without_text",
    "num_text_not_string",
    "num_invalid_utf8",
    "num_undecodable",
    "num_raised",
    "num_took_too_long",
]


class Problem(NamedTuple):
    """The reason why a record gives no document: a count of `ReadReport`, and a sentence."""

    kind: _Kind
    what: str

    @classmethod
    def of_unicode(cls, error: UnicodeDecodeError | UnicodeEncodeError) -> Problem:
        """Make the problem for bytes that are not UTF-8, or for a string that cannot be encoded as UTF-8."""
        unit = "byte" if isinstance(error, UnicodeDecodeError) else "character"
        return cls("num_invalid_utf8", f"invalid UTF-8: {error.reason} at {unit} {error.start + 1}")

    @classmethod
    def of_failure(cls, failure: Failure) -> Problem:
        """Make the problem for a reader that raised an exception or took too long."""
        return cls("num_raised" if failure.rule == "raised" else "num_took_too_long", failure.what)

    @classmethod
    def of_xml(cls, content: bytes, error: ParseError) -> Problem:
        """Make the problem for bytes that are not XML."""
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as no_utf8:
            return cls.of_unicode(no_utf8)
        return cls("num_broken_records", f"not XML: {in_one_line(error)}")


@dataclass
class ReadReport:
    """Counts that grow while a corpus is read. A skipped record is counted in exactly one of the counts."""

    num_documents: int = 0
    text_bytes: int = 0
    num_tokens: int = 0  # stored tokens; 0 for a corpus of texts
    num_empty_documents: int = 0  # including blank texts and records without a token
    num_broken_records: int = 0  # not a JSON object, unreadable rows, missing or invalid token ids
    num_without_text: int = 0
    num_text_not_string: int = 0
    num_invalid_utf8: int = 0  # including lone surrogates ("\ud800" in JSON)
    num_undecodable: int = 0  # pages of which too many characters cannot be decoded
    num_raised: int = 0  # records for which the reading code raised an exception that no other count includes
    num_took_too_long: int = 0  # records that took too long to read
    num_renamed_ids: int = 0
    num_text_files: int = 0  # documents that are whole files of running text
    num_other_encodings: int = 0  # documents of text files that are not UTF-8
    num_replaced: int = 0  # characters U+FFFD in the texts: they could not be decoded, here or by an earlier program
    replaced_by_file: dict[str, int] = field(default_factory=dict)  # the files with the most of them
    replaced_by_source: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # `file:line: what`, the first ones and the first of each kind

    def __post_init__(self) -> None:
        self._kinds = set[str]()  # those of the problems, as records gave them

    @property
    def num_problems(self) -> int:
        """The number of skipped broken records."""
        return sum(getattr(self, kind) for kind in get_args(_Kind))

    def count_replaced(self, place: Place, document: Document) -> None:
        """Count the characters U+FFFD of a text, also by file and by source, and texts in other encodings."""
        self.num_other_encodings += ENCODING in document.metadata and place.file.format == "text"
        if REPLACED in document.text:
            number = document.text.count(REPLACED)
            self.num_replaced += number
            for counts, name in ((self.replaced_by_file, place.file.name), (self.replaced_by_source, document.source)):
                counts[name] = counts.get(name, 0) + number

    def plain(self) -> dict[str, Any]:
        """The counts as JSON values. Of files and sources with replaced characters, the largest counts stay."""
        counts = dataclasses.asdict(self)
        for name in ("replaced_by_file", "replaced_by_source"):
            counts[name] = dict(Counter(counts[name]).most_common(MAX_PROBLEMS))
        return counts

    def add(self, other: Mapping[str, Any]) -> None:
        """Add the counts of what was read afterwards, as `plain` returns them."""
        for name, value in other.items():
            total = getattr(self, name)
            if isinstance(value, dict):
                total.update(Counter(total) + Counter(value))
            elif isinstance(value, list):
                for problem in value:
                    self._list(problem)
            else:
                setattr(self, name, total + value)

    def skip(self, place: Place, problem: Problem) -> None:
        """Count a skipped record. Its sentence may quote the record, so personal data in the sentence are masked."""
        setattr(self, problem.kind, getattr(self, problem.kind) + 1)
        kind = _without_numbers(problem.what)
        if len(self.problems) < MAX_PROBLEMS or (kind not in self._kinds and len(self._kinds) < MAX_PROBLEMS):
            from jax_diversity.preparation.steps.personal_data import masked

            self._kinds.add(kind)
            self._list(shortened(f"{place.name}: {masked(problem.what)}"))

    def _list(self, problem: str) -> None:
        """List a problem. If the list is full, the last one of a repeated kind makes room for a new kind."""
        kinds = [*map(kind_of_problem, self.problems)]
        if len(kinds) >= MAX_PROBLEMS:
            repeated = [index for index, kind in enumerate(kinds) if kind in kinds[:index]]
            if kind_of_problem(problem) in kinds or not repeated:
                return
            del self.problems[repeated[-1]]
        self.problems.append(problem)


def kind_of_problem(problem: str) -> str:
    """Return what problems of one kind share: the sentence of `file:line: what`, without numbers."""
    return _without_numbers(problem.partition(": ")[2])


def _without_numbers(sentence: str) -> str:
    return re.sub(r"\d+", "", sentence)


def converted(make: Callable[..., Result], *arguments: Any) -> Result | Problem:
    """Return `make(*arguments)` for one record; a problem if the call raises an exception or takes too long."""
    document = attempt(make, *arguments)
    return Problem.of_failure(document) if isinstance(document, Failure) else document


Found = Iterator[tuple[Place, Document | Problem]]
"""The result of a reader: documents and problems, in the order of the file."""
Records = Iterator[tuple[Place, dict[str, Any] | Problem]]
"""The records of a file by field names, and problems."""


@dataclass(frozen=True)
class RecordForm:
    """The required field of a record, named by a setting of `CorpusConfig`, and the conversion to a document."""

    setting: str
    content: str
    make: Callable[[dict[str, Any], Place, CorpusConfig], Document | Problem]

    def field(self, config: CorpusConfig) -> str:
        """Return the name of the field."""
        return getattr(config, self.setting)

    def is_in(self, fields: Iterable[str], config: CorpusConfig) -> bool:
        """Return whether the required field is among these fields; of names of columns, whether it may be."""
        name = self.field(config)
        if name in fields or "." not in name:
            return name in fields
        return _holder(fields, name) is not None if isinstance(fields, Mapping) else name.partition(".")[0] in fields

    def document(self, record: dict[str, Any], place: Place, config: CorpusConfig) -> Document | Problem:
        """Make the document of a record."""
        return converted(self._made, record, place, config)

    def _made(self, record: dict[str, Any], place: Place, config: CorpusConfig) -> Document | Problem:
        try:
            return self.make(record, place, config)
        except _TooDeepError:
            return Problem("num_broken_records", f"fields nested more than {_MAX_LEVELS} levels deep")
        except UnicodeDecodeError as error:
            return Problem.of_unicode(error)

    def missing(self, file: InputFile, config: CorpusConfig, fields: Iterable[str]) -> UserError:
        """Make the error for a file in which no record has the field."""
        names = ", ".join(sorted(fields)) or "no fields"
        if chats := turn_fields(fields):
            return UserError(
                f"Expected {self.content} in field {self.field(config)!r} of {file.address}, found the turns of chats "
                f"in {', '.join(chats)}; set corpus.format=chat."
            )
        option = f"--corpus.{self.setting.replace('_', '-')}"
        apart = (
            "; if only this file has another field, rename the field, or prepare this file alone (`jax-diversity "
            f"prepare {option} FIELD --out PART`) and name PART/documents/*.parquet in its place"
        )
        return UserError(
            f"Expected {self.content} in field {self.field(config)!r} of {file.address}, found only {names}; "
            f"set corpus.{self.setting}{apart if self.setting == 'text_field' else ''}."
        )

    def documents(self, file: InputFile, config: CorpusConfig, records: Records) -> Found:
        """Yield the documents of a file's records. If no record has the field, this is a `UserError`."""
        num_records, num_with_field = 0, 0
        fields_found: dict[str, None] = {}
        for place, record in records:
            if isinstance(record, Problem):
                yield place, record
                continue
            num_records += 1
            num_with_field += self.is_in(record, config)
            # For the error message; records may have different fields.
            if not num_with_field and len(fields_found) < _MAX_FIELDS:
                fields_found.update(dict.fromkeys(record))
            yield place, self.document(record, place, config)
        if num_records and not num_with_field:
            raise self.missing(file, config, fields_found)


# Both functions remove the fields that they read; the other fields become the metadata.
def _make_document(fields: dict[str, Any], place: Place, config: CorpusConfig) -> Document | Problem:
    holder = _holder(fields, config.text_field)
    if holder is None:
        return Problem("num_without_text", _no_field(config.text_field, fields))
    text = _decoded(holder[0].pop(holder[1]))
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        return Problem("num_text_not_string", f"field {config.text_field!r} holds {kind}, expected a string")
    if fields.keys() >= {*TURN_FIELDS}:
        advice = "read its original file with corpus.format=chat"
        return Problem("num_without_text", f"a chat as a dataset stores it, whose answers would be lost; {advice}")
    return Document(text=text, **labels(fields, place, config))


def _make_token_document(fields: dict[str, Any], place: Place, config: CorpusConfig) -> Document | Problem:
    if config.tokens_field not in fields:
        return Problem("num_broken_records", _no_field(config.tokens_field, fields))
    try:
        tokens = token_ids(fields.pop(config.tokens_field))
    except ValueError as error:
        return Problem("num_broken_records", f"field {config.tokens_field!r}: {error}")
    text = fields.pop(config.text_field, None)
    # Attention masks, positions and similar lists would take most of the space of the metadata.
    fields = {name: value for name, value in fields.items() if not _are_numbers(value)}
    return TokenDocument(text=text if isinstance(text, str) else "", tokens=tokens, **labels(fields, place, config))


TEXT = RecordForm("text_field", "the text", _make_document)
"""Records of texts."""
TOKENS = RecordForm("tokens_field", "token ids", _make_token_document)
"""Records of token ids."""


def token_ids(values: Any) -> Int32[np.ndarray, " token"]:
    """Convert a list of Python integers or an integer array to token ids. Other values are a ValueError."""
    if isinstance(values, list | tuple):
        if not set(map(type, values)) <= {int}:  # `True` is an int for isinstance, but not a token
            bad = next(value for value in values if type(value) is not int)
            raise ValueError(f"token ids hold {bad!r}, expected whole numbers")
        try:
            values = np.array(values, np.int64)
        except OverflowError:
            bad = next(value for value in values if not 0 <= value <= _LARGEST_ID)
            raise ValueError(_out_of_range(bad)) from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise ValueError(f"expected a list of token ids, found {'null' if values is None else repr(values)[:40]}")
    if len(values):  # we check only the smallest and the largest id, so that we need no array of comparisons
        for bad in (int(values.min()), int(values.max())):
            if not 0 <= bad <= _LARGEST_ID:
                raise ValueError(_out_of_range(bad))
    return values.astype(np.int32, copy=False)


def _out_of_range(token: int) -> str:
    return f"expected token ids of 0 to {_LARGEST_ID}, found {token}"


def _no_field(name: str, fields: Mapping[str, Any]) -> str:
    listed = ", ".join(sorted(fields)[:20]) + (" ..." if len(fields) > 20 else "") if fields else "no fields"
    advice = "; corpus.format=chat reads chats" if turn_fields(fields) else ""
    return f"no field {name!r} among {listed}{advice}"


def _are_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(entry, int | float) for entry in value)


def labels(fields: dict[str, Any], place: Place, config: CorpusConfig) -> dict[str, Any]:
    """Remove id, source, language and title from `fields`, and return them with all other fields as metadata."""
    return {
        "id": _take_label(fields, config.id_field) or place.name,
        "source": _take_label(fields, config.source_field) or place.file.source,
        "language": _take_label(fields, config.language_field),
        "title": _take_label(fields, config.title_field),
        "metadata": {key: plain_value(value) for key, value in fields.items()},
    }


def _take_label(fields: dict[str, Any], name: str | None) -> str | None:
    """Remove and return a field if it is a string or a whole number. Other values stay in the metadata."""
    holder = _holder(fields, name) if name is not None and (name in fields or "." in name) else None
    if holder is None:
        return None
    value = _decoded(holder[0][holder[1]])
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        return None
    del holder[0][holder[1]]
    return str(value)


def _decoded(value: Any) -> Any:
    """Return bytes as text: older programs write texts without the mark of a string. Other values stay."""
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _holder(fields: Mapping[str, Any], name: str) -> tuple[dict[str, Any], str] | None:
    """Return the mapping that has a field, and the field's name in it; None if there is no such field.

    `meta.set` is the field with this name, or the field `set` of the field `meta`.
    """
    if name in fields:
        return fields, name  # type: ignore[return-value]
    inner: Any = fields
    *path, last = name.split(".")
    for part in path:
        inner = inner.get(part) if isinstance(inner, dict) else None
    return (inner, last) if path and isinstance(inner, dict) and last in inner else None


class _TooDeepError(Exception):
    """The value is nested too deeply."""


def plain_value(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Convert a value for JSON: NaN and infinities become null, decimals and unknown types become text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping | list | tuple):
        if levels == 0:
            raise _TooDeepError
        if isinstance(value, Mapping):
            return {str(key): plain_value(entry, levels - 1) for key, entry in value.items()}
        return [plain_value(entry, levels - 1) for entry in value]
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)

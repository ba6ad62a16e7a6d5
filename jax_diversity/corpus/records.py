"""A record's fields -> a document."""

from __future__ import annotations

import base64
import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jax_diversity.corpus.files import InputFile
from jax_diversity.corpus.report import Place, ReadReport
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Document


@dataclass(frozen=True)
class RecordForm:
    """What a record cannot do without, and what is made of it.

    Attributes:
        setting: the setting of `CorpusConfig` that names the field.
        content: what the field holds, in words.
        make: the document of a record; None where there is none, which the report counts.
    """

    setting: str
    content: str
    make: Callable[[Mapping[str, Any], Place, CorpusConfig, ReadReport], Document | None]

    def field(self, config: CorpusConfig) -> str:
        """The field's name."""
        return getattr(config, self.setting)

    def missing(self, file: InputFile, config: CorpusConfig, fields: list[str]) -> UserError:
        """The error of a file in which no record has the field."""
        found = ", ".join(sorted(fields)) or "no fields"
        return UserError(
            f"Expected {self.content} in field {self.field(config)!r} of {file.address}, found only {found}; "
            f"set corpus.{self.setting}."
        )


def make_document(record: Mapping[str, Any], place: Place, config: CorpusConfig, report: ReadReport) -> Document | None:
    """Sort a record's fields into a document; None where it has no text, which `report` counts.

    A missing id becomes `file:line`, a missing source the file's name without endings. Ids may be integers.
    What is no usable id, source, language or title stays in the metadata with all other fields.

    Raises:
        UserError: no text and `config.strict`.
    """
    fields = dict(record)
    if config.text_field not in fields:
        what = f"no field {config.text_field!r} among {listed(fields)}"
        report.skip("num_without_text", place, what, strict=config.strict)
        return None
    text = fields.pop(config.text_field)
    if not isinstance(text, str):
        kind = "null" if text is None else type(text).__name__
        what = f"field {config.text_field!r} holds {kind}, no string"
        report.skip("num_text_not_string", place, what, strict=config.strict)
        return None
    return Document(text=text, **document_labels(fields, place, config))


TEXT = RecordForm("text_field", "the text", make_document)
"""Records that hold a text."""


def document_labels(fields: dict[str, Any], place: Place, config: CorpusConfig) -> dict[str, Any]:
    """A document's id, source, language and title, taken from `fields`, and its metadata: what is left there."""
    return {
        "id": _take_label(fields, config.id_field) or place.name,
        "source": _take_label(fields, config.source_field) or place.file.stem,
        "language": _take_label(fields, config.language_field),
        "title": _take_label(fields, config.title_field),
        "metadata": {key: plain_value(value) for key, value in fields.items()},
    }


def _take_label(fields: dict[str, Any], name: str | None) -> str | None:
    """Remove and return a field that holds a word or a whole number; leave any other value where it is."""
    value = fields.get(name) if name is not None else None
    if name is None or isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        return None
    return str(fields.pop(name))


def plain_value(value: Any) -> Any:
    """A value as JSON can hold it.

    NaN and the infinities become null, dates and times ISO 8601 text, durations seconds, bytes Base64 text,
    decimals and whatever else their text; keys become text.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    return str(value)


def listed(fields: Mapping[str, Any]) -> str:
    """The fields' names for a message, the first twenty."""
    names = sorted(fields)
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "") if names else "no fields"

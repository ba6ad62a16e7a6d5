"""A document whose tokens came with it, and what may be a token id."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int32

from jax_diversity.corpus.records import RecordForm, document_labels, listed
from jax_diversity.corpus.report import Place, ReadReport
from jax_diversity.corpus.settings import CorpusConfig
from jax_diversity.schema import Document

_LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TokenDocument(Document):
    """A document that comes as token ids; its text is empty, but where the corpus holds that as well."""

    tokens: Int32[np.ndarray, " token"] = field(default_factory=lambda: np.zeros(0, np.int32), compare=False)


def token_ids(values: Any) -> Int32[np.ndarray, " token"]:
    """Token ids from a list of Python's integers or an integer array.

    Raises:
        ValueError: something else, or an id that is negative or above 2^31 - 1; says what.
    """
    if isinstance(values, list | tuple):
        if not set(map(type, values)) <= {int}:
            bad = next(value for value in values if type(value) is not int)
            raise ValueError(f"token ids hold {bad!r}, no whole number")
        try:
            values = np.frombuffer(array("q", values), np.int64)
        except OverflowError:
            bad = next(value for value in values if not 0 <= value <= _LARGEST_ID)
            raise ValueError(_out_of_range(bad)) from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        raise ValueError(f"expected a list of token ids, found {'null' if values is None else repr(values)[:40]}")
    if len(values):
        for bad in (int(values.min()), int(values.max())):
            if not 0 <= bad <= _LARGEST_ID:
                raise ValueError(_out_of_range(bad))
    return values.astype(np.int32, copy=False)


def _out_of_range(token: int) -> str:
    return f"expected token ids of 0 to {_LARGEST_ID}, found {token}"


def make_token_document(
    record: Mapping[str, Any], place: Place, config: CorpusConfig, report: ReadReport
) -> TokenDocument | None:
    """Sort a record's fields into a document; None where its token ids are missing or none, which `report` counts.

    Other lists of numbers (attention masks, positions) are left out of the metadata.

    Raises:
        UserError: no token ids and `config.strict`.
    """
    fields = dict(record)
    if config.tokens_field not in fields:
        what = f"no field {config.tokens_field!r} among {listed(fields)}"
        report.skip("num_broken_records", place, what, strict=config.strict)
        return None
    try:
        tokens = token_ids(fields.pop(config.tokens_field))
    except ValueError as error:
        report.skip("num_broken_records", place, f"field {config.tokens_field!r}: {error}", strict=config.strict)
        return None
    text = fields.pop(config.text_field, None)
    fields = {name: value for name, value in fields.items() if not _are_numbers(value)}
    return TokenDocument(
        text=text if isinstance(text, str) else "", tokens=tokens, **document_labels(fields, place, config)
    )


def _are_numbers(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return True
    return isinstance(value, list) and bool(value) and all(isinstance(entry, int | float) for entry in value)


TOKENS = RecordForm("tokens_field", "token ids", make_token_document)
"""Records that hold token ids."""

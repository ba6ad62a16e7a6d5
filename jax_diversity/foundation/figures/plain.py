"""Convert numbers, arrays and texts to plain values for JSON: rounded numbers, clean strings, histograms, tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

_BINS_PER_OCTAVE = 2
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+")
# Marks that change the reading direction; with them a name could look like another.
_DIRECTION = re.compile(r"[\u202a-\u202e\u2066-\u2069]")


def round_value(value: float | int | np.number | None, digits: int = 6) -> float | int | None:
    """A number to `digits` significant digits; None for None, NaN and infinities; an int stays an int."""
    if value is None or isinstance(value, int | np.integer):
        return None if value is None else int(value)
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def round_values(values: np.ndarray, digits: int = 6) -> list[float | int | None]:
    """Apply `round_value` to every element of an array."""
    return [round_value(value, digits) for value in values.tolist()]


def length_histogram(lengths: Int64[np.ndarray, " document"]) -> dict[str, list]:
    """Documents and their tokens in bins (edge <= length < next edge) whose widths grow with the length.

    The bins reach from the first to the last bin with a document. Empty documents are left out.
    """
    lengths = lengths[lengths > 0]
    if not len(lengths):
        return {"edges": [], "documents": [], "tokens": []}
    num_bins = int(math.log2(int(lengths.max())) * _BINS_PER_OCTAVE) + 1
    # The next whole number at or above each power; below 8 tokens some edges coincide and are merged.
    edges = np.unique(np.ceil(2.0 ** (np.arange(num_bins + 1) / _BINS_PER_OCTAVE)).astype(np.int64))
    index = np.searchsorted(edges, lengths, side="right") - 1
    documents = np.bincount(index, minlength=len(edges) - 1)
    tokens = np.bincount(index, weights=lengths, minlength=len(edges) - 1).astype(np.int64)
    first = int(index.min())  # the last bin contains the longest document
    columns = {"edges": edges, "documents": documents, "tokens": tokens}
    return {name: column[first:].tolist() for name, column in columns.items()}


def count_histogram(counts: Int64[np.ndarray, " any"], max_bins: int = 40) -> dict[str, list[int]]:
    """How often each count occurs, in at most `max_bins` bins of equal whole width: `edges` and `frequency`."""
    if not len(counts):
        return {"edges": [], "frequency": []}
    low, high = int(counts.min()), int(counts.max())
    width = -(-(high - low + 1) // max_bins)
    # Widths are whole numbers. With a width of 1.5, bins would contain one and two values in turn and look like a comb.
    frequency = np.bincount((counts - low) // width)
    edges = low + width * np.arange(len(frequency) + 1)
    return {"edges": edges.tolist(), "frequency": frequency.tolist()}


def largest_groups(
    documents: Int64[np.ndarray, " group"], tokens: Int64[np.ndarray, " group"], max_rows: int
) -> tuple[list[int], list[dict[str, Any]], dict[str, Any]]:
    """Table rows of the first `max_rows` groups that have documents, and the sums over all other groups.

    A row has documents, tokens, and the share of all tokens. The sums also have the number of `groups`.
    """
    # `lexsort` sorts by its last key first: tokens, then documents, then the lower number.
    order = np.lexsort((np.arange(len(tokens)), -documents, -tokens))
    order = order[documents[order] > 0]
    total = max(int(tokens.sum()), 1)

    def line(chosen: Any) -> dict[str, Any]:
        num_tokens = int(tokens[chosen].sum())
        share = round_value(num_tokens / total)
        return {"documents": int(documents[chosen].sum()), "tokens": num_tokens, "share": share}

    groups, rest = order.tolist(), order[max_rows:]
    return groups, [line(group) for group in groups[:max_rows]], {"groups": len(rest), **line(rest)}


def clean_text(text: str, max_characters: int = 160) -> str:
    """One printable line of any text: without control characters, lone surrogates and marks of reading direction."""
    # A title may have megabytes: only the shown part is cleaned.
    text = text[: 4 * max_characters]
    # Paired surrogates become their character, lone ones the replacement character.
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = _CONTROL.sub(" ", _DIRECTION.sub("", text)).strip()
    return text if len(text) <= max_characters else text[: max_characters - 1].rstrip() + "…"


def as_json(value: Any) -> Any:
    """Settings as plain JSON values: string keys, lists, clean strings, None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {clean_text(str(key)): as_json(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(part) for part in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return round_value(value, digits=12)
    return clean_text(str(value), 1000)

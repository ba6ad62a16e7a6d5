"""From long arrays and strange text to a few plain values: envelopes, histograms, tables, clean strings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64

MAX_POINTS = 600
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+")
# Marks that turn the reading direction of what follows, and could make a name look like another.
_DIRECTION = re.compile(r"[\u202a-\u202e\u2066-\u2069]")


def round_value(value: float | int | np.number, digits: int = 6) -> float | int | None:
    """A number to `digits` significant digits; None for NaN and infinities; whole numbers stay whole."""
    if isinstance(value, int | np.integer):
        return int(value)
    value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def round_optional(value: float | int | None) -> float | int | None:
    """`round_value`, or None for None."""
    return None if value is None else round_value(value)


def round_values(values: np.ndarray, digits: int = 6) -> list[float | int | None]:
    """`round_value` over an array."""
    return [round_value(value, digits) for value in values.tolist()]


class Curve(NamedTuple):
    """A long curve in few points: of every stretch of positions the mean, the least and the largest value.

    Attributes:
        position: the stretches' mean positions, ascending.
        mean: the values' means.
        low: the least values.
        high: the largest values.
        number: how many values a point stands for.
    """

    position: Float64[np.ndarray, " point"]
    mean: Float64[np.ndarray, " point"]
    low: Float64[np.ndarray, " point"]
    high: Float64[np.ndarray, " point"]
    number: Float64[np.ndarray, " point"]


def shorten(
    curve: Float[np.ndarray, " position"] | Curve,
    positions: np.ndarray | None = None,
    max_points: int = MAX_POINTS,
) -> Curve:
    """Shorten a curve to at most `max_points` points without losing a peak.

    Neighbouring values share a bucket; of each bucket the mean, the least and the largest value are kept, so that
    the band between them holds every value of the curve. Values that are not finite are left out. A curve that was
    shortened can be shortened again.

    Args:
        curve: one value a position, or what an earlier call gave.
        positions: the horizontal coordinate of every value, ascending; None counts 1, 2 ...; a shortened curve has
            its own.
        max_points: most buckets.

    Example:
        >>> shorten(np.array([1.0, 3.0, 2.0, 2.0]), max_points=2).high.tolist()
        [3.0, 2.0]
    """
    if isinstance(curve, Curve):
        positions, values, low, high, number = curve
    else:
        finite = np.isfinite(curve)
        values = low = high = curve[finite].astype(np.float64)
        positions = np.arange(1, len(curve) + 1) if positions is None else np.asarray(positions)
        positions, number = positions[finite].astype(np.float64), np.ones(len(values))
    num_buckets = min(len(values), max_points)
    if not num_buckets:
        return Curve(*np.zeros((5, 0)))
    starts = np.arange(num_buckets, dtype=np.int64) * len(values) // num_buckets
    numbers = np.add.reduceat(number, starts)
    return Curve(
        np.add.reduceat(positions * number, starts) / numbers,
        np.add.reduceat(values * number, starts) / numbers,
        np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
        numbers,
    )


def envelope(
    curve: Float[np.ndarray, " position"] | Curve,
    positions: np.ndarray | None = None,
    max_points: int = MAX_POINTS,
) -> dict[str, list[float]]:
    """A curve as `shorten` leaves it, in plain numbers.

    Returns:
        `position` (mean of the bucket's), `mean`, `min` and `max`, lists of equal length.

    Example:
        >>> envelope(np.array([1.0, 3.0, 2.0, 2.0]), max_points=2)
        {'position': [1.5, 3.5], 'mean': [2.0, 2.0], 'min': [1.0, 2.0], 'max': [3.0, 2.0]}
    """
    short = shorten(curve, positions, max_points)

    def rounded(column: Float64[np.ndarray, " point"], digits: int = 6) -> list[float]:
        return [float(f"{value:.{digits}g}") for value in column.tolist()]

    return {
        "position": rounded(short.position, digits=9),
        "mean": rounded(short.mean),
        "min": rounded(short.low),
        "max": rounded(short.high),
    }


def length_histogram(lengths: Int64[np.ndarray, " document"], bins_per_octave: int = 2) -> dict[str, list]:
    """Documents and their tokens in bins whose widths grow with the length (empty documents are in none).

    Returns:
        `edges` (one more than bins; a bin holds edge <= length < next edge), `documents` and `tokens` of each bin;
        from the first bin that holds a document to the last.
    """
    lengths = lengths[lengths > 0]
    if not len(lengths):
        return {"edges": [], "documents": [], "tokens": []}
    num_bins = int(math.log2(int(lengths.max())) * bins_per_octave) + 1
    # The next whole number at or above each power: below 8 tokens some edges coincide, and one of them is enough.
    edges = np.unique(np.ceil(2.0 ** (np.arange(num_bins + 1) / bins_per_octave)).astype(np.int64))
    index = np.searchsorted(edges, lengths, side="right") - 1
    documents = np.bincount(index, minlength=len(edges) - 1)
    tokens = np.bincount(index, weights=lengths, minlength=len(edges) - 1).astype(np.int64)
    first = int(index.min())  # the last bin holds the longest document
    return {
        "edges": edges[first:].tolist(),
        "documents": documents[first:].tolist(),
        "tokens": tokens[first:].tolist(),
    }


def count_histogram(counts: Int64[np.ndarray, " any"], max_bins: int = 40) -> dict[str, list[int]]:
    """How often each count occurs, in at most `max_bins` bins of equal whole width: `edges` and `frequency`."""
    if not len(counts):
        return {"edges": [], "frequency": []}
    low, high = int(counts.min()), int(counts.max())
    width = -(-(high - low + 1) // max_bins)
    frequency = np.bincount((counts - low) // width)
    edges = low + width * np.arange(len(frequency) + 1)
    return {"edges": edges.tolist(), "frequency": frequency.tolist()}


def group_table(
    codes: Int64[np.ndarray, " document"],
    names: Sequence[str],
    lengths: Int64[np.ndarray, " document"],
    max_rows: int = 30,
) -> dict[str, Any]:
    """The groups with the most tokens, and the rest in one line.

    Returns:
        `rows` of name, documents, tokens and share (of all tokens); `rest` likewise with the number of `groups`;
        `num_groups` that hold any document.
    """
    documents = np.bincount(codes, minlength=len(names))
    tokens = np.bincount(codes, weights=lengths, minlength=len(names)).astype(np.int64)
    total = max(int(tokens.sum()), 1)
    order = np.lexsort((np.arange(len(names)), -documents, -tokens))
    order = order[documents[order] > 0]
    top, rest = [int(group) for group in order[:max_rows]], order[max_rows:]
    rows = [
        {
            "name": clean_text(names[group], 120),
            "documents": int(documents[group]),
            "tokens": int(tokens[group]),
            "share": round_value(int(tokens[group]) / total),
        }
        for group in top
    ]
    return {"rows": rows, "rest": rest_row(rest, documents, tokens), "num_groups": len(order)}


def rest_row(rest: np.ndarray, documents: np.ndarray, tokens: np.ndarray) -> dict[str, Any]:
    """The groups that a table leaves out, summed: `groups`, `documents`, `tokens`, `share` of all tokens."""
    return {
        "groups": len(rest),
        "documents": int(documents[rest].sum()),
        "tokens": int(tokens[rest].sum()),
        "share": round_value(tokens[rest].sum() / max(int(tokens.sum()), 1)),
    }


def clean_text(text: str, max_characters: int = 160) -> str:
    """One printable line of any text: no control characters, no lone surrogates, no overridden reading
    direction, cut at `max_characters`.

    Example:
        >>> clean_text("a\\x00b\\n\\n  c")
        'a b c'
    """
    # A corpus can hold titles of megabytes: what cannot be shown need not be cleaned.
    text = text[: 4 * max_characters]
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    text = _CONTROL.sub(" ", _DIRECTION.sub("", text)).strip()
    return text if len(text) <= max_characters else text[: max_characters - 1].rstrip() + "…"


def as_json(value: Any) -> Any:
    """Settings as plain JSON values: string keys, lists, clean strings, None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {clean_text(str(key)): as_json(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [as_json(part) for part in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    if isinstance(value, int | float | np.number):
        return round_value(value, digits=12)
    return clean_text(str(value), 1000)

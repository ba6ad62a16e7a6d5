"""Documents' codes: which group of a family every document belongs to.

A family gives every document one *code*, the number of its group. Groups come from names (source, language, host of
the address, a metadata field), from quantiles of numbers (length, a quality score) or from equal texts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float64, Int32, Int64

from jax_diversity.foundation.errors import UserError

UNKNOWN = "unknown"
"""The group of documents without a value."""
OTHER = "(other)"
"""The group of documents whose value is rarer than those that have groups of their own."""
UNIQUE = "unique"
"""The group of documents that have no copy."""
_BARE_HOST = re.compile(r"(localhost|[^\s/:@?#\\]+\.[^\s/:@?#\\]+)(:\d+)?([/?#]|$)", re.IGNORECASE)
"""An address without a scheme; `mailto:`, `urn:` and paths of files are none."""


@dataclass(frozen=True)
class Codes:
    """One family's group of every document, and the groups' names.

    Attributes:
        group: number of the group, for every document of the corpus.
        names: the groups' names.
        num_missing: documents without a value, which are in the group `unknown`.
        num_joined: documents whose own value is too rare for a group, which are in the group `(other)`.
    """

    group: Int32[np.ndarray, " document"]
    names: tuple[str, ...]
    num_missing: int = 0
    num_joined: int = 0


def categorical(values: Iterable[str | None], max_groups: int | None = None) -> Codes:
    """Groups by value, sorted by name; a missing or blank value belongs to the group `unknown`.

    Args:
        values: one a document; read once.
        max_groups: groups at most, `unknown` and `(other)` included; None for no limit. Where there are more
            values, the ones with most documents keep their groups (ties: the first by name), the rest are one.

    Example:
        >>> categorical(["en", None, "de", "en"]).names
        ('de', 'en', 'unknown')
    """
    places: dict[str, int] = {}
    coded: list[int] = []
    missing = 0
    for value in values:
        if value is None or not value.strip():
            missing += 1
            value = UNKNOWN
        coded.append(places.setdefault(value, len(places)))
    first_seen = np.array(coded, np.int64)
    sizes = np.bincount(first_seen, minlength=len(places))
    labels = list(places)
    kept = set(labels)
    if max_groups is not None and len(labels) > max_groups:
        by_size = sorted(range(len(labels)), key=lambda place: (-sizes[place], labels[place]))
        named = [labels[place] for place in by_size if labels[place] not in (UNKNOWN, OTHER)]
        always = [OTHER, *([UNKNOWN] if UNKNOWN in places else [])]
        kept = {*always, *named[: max(max_groups - len(always), 0)]}
    names = tuple(sorted(kept))
    number = {name: index for index, name in enumerate(names)}
    of_place = np.array([number.get(label, number.get(OTHER, -1)) for label in labels], np.int32)
    joined = sum(int(size) for label, size in zip(labels, sizes, strict=True) if label not in kept)
    group = of_place[first_seen] if len(labels) else np.zeros(0, np.int32)
    return Codes(group, names, missing, joined)


def length_bins(document_lengths: Int64[np.ndarray, " document"], num_bins: int) -> Codes:
    """Quantile bins of the documents' token counts, about as many documents in each.

    Lengths that many documents share fall into one bin, so that fewer bins than asked may come out.
    """
    group, lowest, highest = _quantile_bins(document_lengths, num_bins)
    return Codes(group, tuple(f"{low}-{high}" for low, high in zip(lowest, highest, strict=True)))


def numeric_bins(values: Float64[np.ndarray, " document"], num_bins: int) -> Codes:
    """Quantile bins of a number, such as a quality score; NaN is missing and belongs to the group `unknown`.

    Example:
        >>> numeric_bins(np.array([.1, .2, .3, .4, np.nan]), 2).names
        ('0.1 to 0.2', '0.3 to 0.4', 'unknown')
    """
    known = ~np.isnan(values)
    binned, lowest, highest = _quantile_bins(values[known], num_bins)
    names = [f"{low:.6g} to {high:.6g}" for low, high in zip(lowest, highest, strict=True)]
    group = np.full(len(values), len(names), np.int32)
    group[known] = binned
    missing = int((~known).sum())
    return Codes(group, (*names, UNKNOWN) if missing else tuple(names), missing)


def _quantile_bins(values: np.ndarray, num_bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every value's bin, and the bins' lowest and highest values."""
    if not len(values):
        return np.zeros(0, np.int32), values, values
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    edges = np.unique(np.quantile(ordered, np.arange(1, num_bins) / num_bins, method="inverted_cdf"))
    _, sorted_group = np.unique(np.searchsorted(edges, ordered, side="left"), return_inverse=True)
    group = np.empty(len(values), np.int32)
    group[order] = sorted_group
    first = np.flatnonzero(np.diff(sorted_group, prepend=-1))
    last = np.append(first[1:], len(ordered)) - 1
    return group, ordered[first], ordered[last]


def hosts(addresses: Iterable[Any], max_groups: int | None = None) -> Codes:
    """Groups by the host of an address: lower case, without `www.`, user and port; none is `unknown`,
    and so is what is no text.

    Example:
        >>> hosts(["https://www.Example.org:8080/a", "example.org/b", None]).names
        ('example.org', 'unknown')
    """
    return categorical(map(_host, addresses), max_groups)


def _host(address: Any) -> str | None:
    if not isinstance(address, str) or not address.strip():
        return None
    address = address.strip()
    if "//" not in address:
        if not _BARE_HOST.match(address):
            return None
        address = f"//{address}"
    try:
        host = urlsplit(address).hostname
    except ValueError:  # brackets without an address between them
        return None
    return host.removeprefix("www.").rstrip(".") if host else None


def copies(duplicate_group: Int64[np.ndarray, " document"]) -> Codes:
    """Groups of documents with equal texts; all documents without a copy are one group, `unique`.

    Args:
        duplicate_group: equal numbers (0 .. documents - 1) mark copies of one text.
    """
    sizes = np.bincount(duplicate_group, minlength=1)
    repeated = np.flatnonzero(sizes > 1)
    of_group = np.zeros(len(sizes), np.int32)
    of_group[repeated] = np.arange(1, len(repeated) + 1)
    return Codes(of_group[duplicate_group], (UNIQUE, *(f"copies {index + 1}" for index in range(len(repeated)))))


def field_codes(name: str, values: Sequence[Any], num_bins: int, max_groups: int) -> Codes:
    """Groups of a metadata field: quantile bins where all its values are numbers, else one group a value.

    Args:
        name: the field, for messages.
        values: one a document, None where it has none: text, numbers or booleans.
        num_bins: quantile bins of numbers.
        max_groups: groups of names at most, see `categorical`.

    Raises:
        UserError: no document has a value; values of another kind; nearly every document has a value of its own,
            as an id has.
    """
    kinds = Counter(type(value) for value in values if value is not None)
    if not kinds:
        raise UserError(
            f"Expected documents with a value in the metadata field {name!r}, found none among {len(values)}; "
            "name another field in characteristics.families."
        )
    if strange := [kind for kind in kinds if kind not in (str, bool, int, float)]:
        place = next(index for index, value in enumerate(values) if type(value) is strange[0])
        raise UserError(
            f"Expected text, numbers or booleans in the metadata field {name!r}, found {values[place]!r} in "
            f"document {place}; name another field in characteristics.families."
        )
    if not kinds.keys() - {int, float}:
        return numeric_bins(np.array([_number(name, place, value) for place, value in enumerate(values)]), num_bins)
    known = sum(kinds.values())
    num_different = len({str(value) for value in values if value is not None})
    if num_different > max(max_groups, known // 2):
        raise UserError(
            f"Expected the metadata field {name!r} to put documents into groups, found {num_different} different "
            f"values in {known} documents, as an id has; name another field in characteristics.families."
        )
    return categorical((None if value is None else str(value) for value in values), max_groups)


def _number(name: str, place: int, value: float | None) -> float:
    try:
        return np.nan if value is None else float(value)
    except OverflowError:
        raise UserError(
            f"Expected numbers that float64 can hold in the metadata field {name!r}, found one of "
            f"{len(str(value))} digits in document {place}; repair the record or name another field in "
            "characteristics.families."
        ) from None

"""Rules that weigh documents: by source, language, cluster, by fields of their metadata, by the means of groups."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Integer

from jax_diversity.foundation.checks import as_weight
from jax_diversity.foundation.errors import UserError, quoted

LARGEST = 1000
"""The maximum of appearances of a document in one packing; more are treated as a mistake."""
_RULE = re.compile(r"(?P<name>[^<>=@]+)(@(?P<family>[^<>=@]+))?(?P<sign>>=|<=|=|<|>)(?P<value>.*)", re.DOTALL)
_COMPARE: dict[str, Callable[..., Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True)
class WeightRule:
    """One rule: the weights of matching documents are multiplied by `factor`.

    Attributes:
        text: the rule as in the settings, such as `source=web-*`, `quality>=0.8`, `quality@cluster>=0.8`.
        name: `source`, `language`, a clustering or a metadata field.
        family: the groups whose mean of the field is compared; None compares each document's own value.
        sign: `=` compares texts, in which `*` matches any characters; other signs compare numbers.
        value: the value to compare with.
        factor: the factor of the weights.
    """

    text: str
    name: str
    family: str | None
    sign: str
    value: str
    factor: float

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the rule uses: a family or a field, and the family of the means."""
        return (self.name,) if self.family is None else (self.name, self.family)

    def holds(self, values: Sequence[Any]) -> Bool[np.ndarray, " document"]:
        """Whether the rule matches documents with these values; None never matches.

        Raises:
            UserError: a value that cannot be compared with a number.
        """
        if self.sign == "=":
            return np.array([value is not None and fnmatchcase(_as_text(value), self.value) for value in values], bool)
        return self.holds_of_numbers(numbers(values, self.text))

    def holds_of_numbers(self, values: Float64[np.ndarray, " value"]) -> Bool[np.ndarray, " value"]:
        """The same for numbers; NaN never matches."""
        return _COMPARE[self.sign](values, float(self.value))

    def holds_of_means(
        self, values: Float64[np.ndarray, " document"], group: Integer[np.ndarray, " document"]
    ) -> Bool[np.ndarray, " document"]:
        """Whether the rule matches the mean of every document's group; documents without a value do not count."""
        known = ~np.isnan(values)
        counts = np.bincount(group[known], minlength=int(group.max(initial=-1)) + 1)
        sums = np.bincount(group[known], values[known], minlength=len(counts))
        means = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        return self.holds_of_numbers(means)[group]


def parse_rules(weights: Mapping[str, float]) -> tuple[WeightRule, ...]:
    """The rules of `packing.weights`.

    Raises:
        UserError: a rule that cannot be read, or a factor that is not a number from 0 to 1,000.

    Example:
        >>> [rule] = parse_rules({"source=web-*": 2.5})
        >>> rule.name, rule.sign, rule.value, rule.factor
        ('source', '=', 'web-*', 2.5)
    """
    rules = []
    for text, given in weights.items():
        factor = as_weight(f"packing.weights of {text!r}", given)
        if factor > LARGEST:
            raise UserError(f"Expected packing.weights of {text!r} to be at most {LARGEST:,}, found {given:g}.")
        found = _RULE.fullmatch(text)
        if found is None or not found["name"].strip():
            raise UserError(
                f"Expected rules such as source=web-*, quality>=0.8 or quality@cluster>=0.8 in packing.weights, found "
                f"{quoted(text)}."
            )
        name, family, sign, value = (part and part.strip() for part in found.group("name", "family", "sign", "value"))
        if family is not None and sign == "=":
            raise UserError(f"Expected packing.weights of {text!r} to compare a mean by >=, <=, < or >, found =.")
        if sign != "=" and not _is_finite(value):
            raise UserError(f"Expected packing.weights of {text!r} to compare with a number, found {quoted(value)}.")
        rules.append(WeightRule(text, name, family, sign, value, factor))
    return tuple(rules)


def numbers(values: Sequence[Any], what: str) -> Float64[np.ndarray, " value"]:
    """Values as numbers, NaN for None; other values are a UserError that begins with `what`."""
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise UserError(
                f"Expected numbers for the rule {what!r} of packing.weights, found {quoted(value)}; compare texts by =."
            )
    return np.array([math.nan if value is None else _as_float(value) for value in values], np.float64)


def field_weights(values: Sequence[Any], names: Callable[[int], str], field: str) -> Float64[np.ndarray, " document"]:
    """The weights in a metadata field; None is 1.

    Args:
        values: the documents' values.
        names: the id of a document, by its place among the values.
        field: its name.

    Raises:
        UserError: a value is not a finite number >= 0; the sentence has the document's id.
    """
    found = np.ones(len(values))
    for place, value in enumerate(values):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= _as_float(value) < math.inf:
            raise UserError(
                f"Expected a finite number >= 0 in the metadata field {field!r}, which packing.weight_field uses as "
                f"the document's weight, found {quoted(value)} in document {names(place)!r}."
            )
        found[place] = value
    return found


def check_largest(weights: Float64[np.ndarray, " document"], names: Callable[[int], str]) -> None:
    """Check that no document appears too often; the error has the id of the most frequent one."""
    if len(weights) and weights.max() > LARGEST:
        most = int(weights.argmax())
        raise UserError(
            f"Expected weights of at most {LARGEST:,}, found {weights[most]:,.6g} of document {names(most)!r} (all "
            f"{len(weights):,} documents together would appear {weights.sum():,.6g} times); lower it."
        )


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False

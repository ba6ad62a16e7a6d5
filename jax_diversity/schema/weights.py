"""Rules that give weights to documents or groups.

They are used in the setting `packing.weights`, in the step `weight`, and in the weights of a run.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from jax_diversity.foundation.checks import as_weight, reads_as_number
from jax_diversity.foundation.errors import UserError, quoted

LARGEST = 1000
"""The largest weight: a document is packed at most this number of times. A larger weight is treated as a mistake."""
_RULE = re.compile(r"(?P<name>[^<>=@]+?)(@(?P<family>[^<>=@]+?))?(?P<sign>>=|<=|!=|=|<|>)(?P<value>.*)", re.DOTALL)
_COMPARE: dict[str, Callable[..., Any]] = {">=": operator.ge, "<=": operator.le, "<": operator.lt, ">": operator.gt}


@dataclass(frozen=True)
class WeightRule:
    """One rule: the weights of matching documents are multiplied by `factor`.

    Attributes:
        text: the rule as in the settings, such as `source=web-*`, `quality>=0.8`, `quality@cluster>=0.8`.
        name: `source`, `language`, a clustering or a metadata field.
        family: if it is given, the rule compares the mean of the field over each group of this family. With None, it
            compares each document's own value.
        sign: `=` and `!=` compare texts, in which `*` matches any characters. Other signs compare numbers.
        value: the value to compare with.
        factor: the weights are multiplied by this number.
    """

    text: str
    name: str
    family: str | None
    sign: str
    value: str
    factor: float

    @property
    def compares_numbers(self) -> bool:
        """Whether the rule compares numbers, not texts."""
        return self.sign in _COMPARE

    def compare(self, numbers: Any) -> Any:
        """Compare a number, or an array of numbers, with the rule's value. NaN never matches."""
        return _COMPARE[self.sign](numbers, float(self.value))

    def matches(self, value: Any) -> bool:
        """Return whether the rule matches a document's own value. Only `!=` matches None.

        Example:
            >>> [rule] = parse_rules({"source=web-*": 2.5}, "weights")
            >>> rule.matches("web-1"), rule.matches("books")
            (True, False)
        """
        if self.compares_numbers:
            return is_number(value) and self.compare(value)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        return (value is not None and fits(text, self.value)) == (self.sign == "=")


def parse_rules(weights: Mapping[str, float], where: str, family: str | None = None) -> tuple[WeightRule, ...]:
    """Parse rules and their factors.

    Args:
        weights: rule -> factor.
        where: the name of the setting, for error messages.
        family: the family that all rules refer to. Each rule is then the name of a group, or a pattern of names, and
            each factor is a share in any unit.

    Raises:
        UserError: a rule that cannot be read; a factor that is not finite, below 0, or (without `family`) above 1,000.

    Example:
        >>> [rule] = parse_rules({"source=web-*": 2.5}, "weights")
        >>> rule.name, rule.sign, rule.value, rule.factor
        ('source', '=', 'web-*', 2.5)
        >>> parse_rules({"web-*": 2.5}, "weights", "source")[0].value
        'web-*'
    """
    rules = []
    for text, weight in weights.items():
        factor = as_weight(f"{where} of {quoted(text)}", weight)
        if family is not None:  # a group's name may contain signs, such as lang=en
            rules.append(WeightRule(text, family, None, "=", text, factor))
            continue
        if factor > LARGEST:
            raise UserError(f"Expected {where} of {quoted(text)} to be at most {LARGEST:,}, found {factor:g}.")
        match = _RULE.fullmatch(text)
        if match is None or not match["name"].strip():
            raise UserError(
                f"Expected rules such as source=web-*, quality>=0.8 or quality@cluster>=0.8 in {where}, found "
                f"{quoted(text)}."
            )
        name, of, sign, value = (part and part.strip() for part in match.group("name", "family", "sign", "value"))
        if of is not None and sign not in _COMPARE:
            raise UserError(f"Expected {where} of {quoted(text)} to compare a mean by >=, <=, < or >, found {sign}.")
        if sign in _COMPARE and not reads_as_number(value):
            raise UserError(f"Expected {where} of {quoted(text)} to compare with a number, found {quoted(value)}.")
        rules.append(WeightRule(text, name, of, sign, value, factor))
    return tuple(rules)


def fits(text: str, pattern: str) -> bool:
    """Return whether a text equals a pattern or matches it; `*` matches any characters."""
    return text == pattern or fnmatchcase(text, pattern)


def is_number(value: Any) -> bool:
    """Return whether a value of the metadata is a number. True and False are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Values that users give, checked before any work: a `UserError` says what was expected and what was found."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from jax_diversity.foundation.errors import UserError


def whole_number(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """The value as a plain int (it may be one of NumPy's), refused below `least` and above `most`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        upper = "" if most is None else f" and <= {most}"
        raise UserError(f"Expected {name} to be a whole number >= {least}{upper}, found {value!r}.")
    return number


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Check that a value is one of the words that are allowed."""
    if value not in (words := tuple(known)):
        raise UserError(f"Expected {name} to be one of {', '.join(words)}, found {value!r}.")


def weight(name: str, value: Any) -> float:
    """The value as a finite float >= 0."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not (math.isfinite(number) and number >= 0):
        raise UserError(f"Expected {name} to be finite and >= 0, found {value!r}.")
    return number


def at_least(least: int, section: str, settings: Any, *names: str) -> None:
    """Check fields of a settings dataclass, which messages call `section`; a field that is None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UserError(f"Expected {section}.{name} >= {least}, found {value}.")


def seed(section: str, value: int) -> None:
    """Check a seed that NumPy's and JAX's generators both take."""
    if not 0 <= value < 2**32:
        raise UserError(f"Expected {section}.seed from 0 to 2^32 - 1, found {value}.")

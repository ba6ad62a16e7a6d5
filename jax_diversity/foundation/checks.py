"""Check users' values before any work starts; a `UserError` contains the expected and the found value."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jax_diversity.foundation.errors import UserError, quoted

_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")
_LONGEST_NAME = 200
"""The largest number of bytes of a name in a file name: file names have at most 255 bytes, including endings."""


def as_whole_number(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """The value as a plain int; raises if it is not an integer from `least` to `most`. NumPy integers are accepted."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        upper = "" if most is None else f" and <= {most}"
        raise UserError(f"Expected {name} to be a whole number >= {least}{upper}, found {quoted(value)}.")
    return number


def share(name: str, value: float) -> None:
    """Check that a number is a share, from 0 to 1."""
    if not 0 <= value <= 1:
        raise UserError(f"Expected {name} from 0 to 1, found {value}.")


def as_tuple(values: Any) -> tuple[Any, ...]:
    """The values as a tuple; a single value, such as a text, becomes a tuple with one element."""
    try:
        return (values,) if isinstance(values, str | bytes | Mapping) else tuple(values)
    except TypeError:  # an array without axes also raises TypeError
        return (values,)


def check_type(name: str, value: Any, kind: Any, words: str) -> None:
    """Check an argument's type; `words` describe the type in messages: `an Ordering; make one with jd.order`."""
    if not isinstance(value, kind):
        raise UserError(f"Expected {name} to be {words}, found {_type_name(value)}.")


def check_mapping(name: str, value: Any, words: str) -> None:
    """Check that an argument is a mapping, such as `family -> shares`."""
    check_type(name, value, Mapping, f"a mapping {words}")
    for key in value:
        check_type(f"every key of {name}", key, str, "a text")


def check_function(name: str, value: Any) -> None:
    """Check that an argument can be called, such as `advance`."""
    check_type(name, value, Callable, "a function")


def _type_name(value: Any) -> str:
    return "None" if value is None else f"{type(value).__name__} {quoted(value)}"


def check_one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Check that a value is one of the allowed words."""
    words = tuple(choices)
    if not isinstance(value, str) or value not in words:
        raise UserError(f"Expected {name} to be one of {', '.join(words)}, found {quoted(value)}.")


def as_weight(name: str, value: Any) -> float:
    """The value as a finite float >= 0."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool | str | bytes) or not (math.isfinite(number) and number >= 0):
        raise UserError(f"Expected {name} to be finite and >= 0, found {quoted(value)}.")
    return number


def reads_as_number(text: str) -> bool:
    """Whether a text is a finite number, such as `0.8`."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def number_in_data(text: str) -> int | None:
    """The whole number that a text in users' data contains; None for other texts and for more than 18 digits.

    `int` also takes spaces, underscores and the digits of all scripts, and raises for thousands of digits.

    Example:
        >>> number_in_data("-12"), number_in_data("1_2"), number_in_data("9" * 5000)
        (-12, None, None)
    """
    return int(text) if _NUMBER.fullmatch(text) else None


def check_file_name(what: str, name: str) -> None:
    """Check that a name can be part of file names: printable, without slashes, and short enough for endings."""
    # A printable name has no lone surrogates, so it can be encoded.
    if not name.isprintable() or not 0 < len(name.encode()) <= _LONGEST_NAME or name.startswith(".") or "/" in name:
        raise UserError(
            f"Expected {what} to be a plain file name of at most {_LONGEST_NAME} bytes, found {quoted(name)}."
        )


def check_folder_name(what: str, name: str) -> None:
    """Check the name of a folder: libraries in C++ need names in UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError(f"Expected {what} to be a folder with a name in UTF-8, found {quoted(name)}.") from None


def check_at_least(least: int, section: str, settings: Any, *names: str) -> None:
    """Check fields of a settings dataclass; `section` is its name in messages. None is accepted."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < least:
            raise UserError(f"Expected {section}.{name} >= {least}, found {value}.")


def check_seed(section: str, value: int) -> None:
    """Check that a seed is in the range of NumPy's and JAX's generators."""
    if not 0 <= value < 2**32:
        raise UserError(f"Expected {section}.seed from 0 to 2^32 - 1, found {value}.")

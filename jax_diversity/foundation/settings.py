"""Settings as dataclasses, made from the plain nested values of a YAML file or a manifest."""

from __future__ import annotations

import dataclasses
import types
import typing
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from jax_diversity.foundation.errors import UserError, did_you_mean, in_one_line

_Settings = TypeVar("_Settings")


def read_settings(path: str | Path, base: _Settings) -> _Settings:
    """Read settings from a YAML file.

    Args:
        path: the file; its keys are the names of the fields of `base`, nested as there.
        base: a dataclass with the values of what the file leaves out.

    Raises:
        UserError: no such file, no YAML, an unknown key, a value of the wrong type: the file is named.
    """
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"Expected a configuration file at {path}, found none.") from None
    except UnicodeDecodeError:
        raise UserError(f"Expected YAML in {path}, found bytes that are no text; name another file.") from None
    except yaml.YAMLError as error:
        raise UserError(f"Expected YAML in {path}; {_fault(error)}.") from None
    values = {} if values is None else values  # an empty file
    if isinstance(values, dict):
        values = _overlaid(dataclasses.asdict(typing.cast(Any, base)), values)
    try:
        return settings_from_plain(type(base), values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _fault(error: Any) -> str:
    """What is wrong with a file that is no YAML, and where, without the lines that the parser quotes."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return in_one_line(error)
    return f"line {mark.line + 1}, column {mark.column + 1} is none: {error.problem}"


def _overlaid(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Merge nested settings into others: lists and single values replace, sections merge."""
    merged = dict(base)
    for key, value in values.items():
        section = merged.get(key)
        merged[key] = _overlaid(section, value) if isinstance(section, dict) and isinstance(value, dict) else value
    return merged


def settings_from_plain(kind: Any, value: Any, where: str = "") -> Any:
    """Make the dataclass, tuple, literal or scalar `kind` of plain values; messages call the value `where`.

    Fields that the values leave out have their defaults.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            place = f"below {where}" if where else "by their names, such as `out: dataset`"
            raise UserError(f"Expected settings {place}, found {value!r}.")
        kinds = typing.get_type_hints(kind)
        names = [item.name for item in dataclasses.fields(kind)]
        for key in value:
            if key not in names:
                dotted = f"{where}.{key}".lstrip(".")
                known = f"{', '.join(names)}{did_you_mean(str(key), names)}"
                raise UserError(f"Unknown setting {dotted}; expected one of {known}")
        return typing.cast(Any, kind)(
            **{key: settings_from_plain(kinds[key], item, f"{where}.{key}".lstrip(".")) for key, item in value.items()}
        )
    if origin in (typing.Union, types.UnionType):
        # The exact type first: True is an int for Python, but has to stay a bool where a bool is allowed.
        if type(value) in arguments:
            return value
        kinds = [item for item in arguments if item is not type(None)]
        if len(kinds) == 1:
            return settings_from_plain(kinds[0], value, where)
        expected = ", ".join(item.__name__ for item in kinds)
        raise UserError(f"Expected {where} to be one of {expected}, found {value!r}.")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"Expected a list for {where}, found {value!r}.")
        return tuple(settings_from_plain(arguments[0], item, where) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"Expected names and values for {where}, found {value!r}.")
        return {str(key): settings_from_plain(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"Expected {where} to be one of {', '.join(map(str, arguments))}, found {value!r}.")
        return value
    # A whole number is a number.
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):  # YAML reads 3e-3, which lacks a point, as text
            return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"Expected {where} to be {kind.__name__}, found {value!r}.")
    return value

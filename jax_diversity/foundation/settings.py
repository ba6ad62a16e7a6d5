"""Settings as dataclasses, made from the plain nested values of a YAML file or a manifest."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

from jax_diversity.foundation.errors import UserError, did_you_mean, in_one_line, quoted

_Settings = TypeVar("_Settings")
BASE = "base"
"""The setting that names the values with which a section begins, such as `objective: {base: f3, form: norms}`."""
_MOST_BYTES = 2**20
_MOST_LEVELS = 16
"""The largest number of nested levels in a settings file; the settings themselves have four."""


def read_settings(path: str | Path, base: _Settings) -> _Settings:
    """Read settings from a YAML file.

    Args:
        path: the file; its keys are the field names of `base`, nested in the same way.
        base: a dataclass with the values of fields that the file omits.

    Raises:
        UserError: the file does not exist or is not valid YAML; a key is unknown or repeated; a value has the wrong
            type; the file has aliases, more than a megabyte, or more than 16 levels. The message names the file.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(f"Expected a configuration file at {path}, found none.") from None
    if len(content) > _MOST_BYTES:
        raise UserError(f"Expected a configuration file of at most {_MOST_BYTES} bytes at {path}, found a larger one.")
    try:
        values = parse_yaml(content.decode("utf-8-sig"))
        values = {} if values is None else values  # an empty file
        if isinstance(values, dict):
            values = _overlaid(plain_values(base, kept=values), values)
        return settings_from_plain(type(base), values)
    except UnicodeDecodeError:
        raise UserError(f"Expected YAML in {path}, found bytes that are not text; name another file.") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def plain_values(settings: Any, kept: Collection[str]) -> dict[str, Any]:
    """Return the nested plain values of settings, without the defaults of fields that are not in `kept`.

    A default that nobody gave may depend on another value: the settings themselves decide it when they are made.
    """
    plain = dataclasses.asdict(settings)
    for field in dataclasses.fields(settings):
        if field.name not in kept and getattr(settings, field.name) is field.default:
            del plain[field.name]
    return plain


def adopt_settings(section: str, given: _Settings, other: _Settings, own: Collection[str] = ()) -> _Settings:
    """Return the settings of another dataset; the fields in `own` keep their given values.

    Settings do not record whether the user gave a value, so defaults are replaced without an error.

    Raises:
        UserError: a value differs from both the default and the other dataset's value; messages name the `section`.
    """
    usual = type(given)()
    kept = {name: getattr(given, name) for name in own}
    for name in [item.name for item in dataclasses.fields(typing.cast(Any, given)) if item.name not in kept]:
        value, taken = getattr(given, name), getattr(other, name)
        # A given mapping may contain only some of the other dataset's options.
        fits = value.items() <= taken.items() if isinstance(value, dict) else value in (taken, getattr(usual, name))
        if not fits:
            raise UserError(
                f"Expected {section}.{name} as in the dataset of features_from ({quoted(taken)}), found "
                f"{quoted(value)}; omit the setting, because that dataset defines it."
            )
    return dataclasses.replace(typing.cast(Any, other), **kept)


def parse_yaml(text: str) -> Any:
    """The plain values of a YAML text; if it is not valid, the `UserError` names the first wrong line."""
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML with few levels and unique keys, and without aliases, which could expand to any size."""

        num_levels = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            mark = self.peek_event().start_mark
            if self.check_event(yaml.AliasEvent):
                raise _wrong_line(mark, "is an alias, which settings cannot hold; write the values themselves")
            if self.num_levels == _MOST_LEVELS:
                raise _wrong_line(mark, f"is nested more than {_MOST_LEVELS} levels deep, which no setting is")
            self.num_levels += 1
            node = super().compose_node(parent, index)
            self.num_levels -= 1
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in keys:
                    raise _wrong_line(key.start_mark, f"has {quoted(key.value)} again; keep one of the two")
                keys.add(key.value)
            return node

    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark is None:  # a character that YAML does not allow
            raise UserError(f"expected YAML, found: {in_one_line(error)}.") from None
        raise _wrong_line(mark, f"is not YAML: {in_one_line(getattr(error, 'problem', error))}") from None
    except UserError:
        raise
    # The YAML library does not check all values: for example dates that do not exist, numbers with thousands of digits,
    # and tags that do not match their value.
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise UserError(f"expected YAML with values that exist, found: {in_one_line(error)}.") from None


def _wrong_line(mark: Any, what: str) -> UserError:
    return UserError(f"line {mark.line + 1}, column {mark.column + 1} {what}.")


def _overlaid(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Merge nested settings into others: lists and single values replace the old values, sections are merged."""
    merged = dict(base)
    for key, value in values.items():
        section = merged.get(key)
        if isinstance(section, dict) and isinstance(value, dict) and BASE not in value:
            value = _overlaid(section, value)
        merged[key] = value
    return merged


def settings_from_plain(kind: Any, value: Any, where: str = "") -> Any:
    """Convert plain values to the dataclass, tuple, literal or scalar `kind`; `where` is the name in messages.

    Missing fields get their defaults.
    """
    _check_storable(value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        bases = getattr(kind, "BASES", ())
        if isinstance(value, str) and bases:  # the name of a base alone
            value = {BASE: value}
        if not isinstance(value, dict):
            place = f"below {where}" if where else "as names and values, such as `out: dataset`"
            raise UserError(f"Expected settings {place}, found {quoted(value)}.")
        kinds = typing.get_type_hints(kind)
        names = [*([BASE] if bases else []), *(item.name for item in dataclasses.fields(kind))]
        for key in value:
            if key not in names:
                dotted = f"{where}.{key}".lstrip(".")
                choices = f"{', '.join(names)}{did_you_mean(str(key), names)}"
                raise UserError(f"Unknown setting {dotted}; expected one of {choices}")
        if bases:
            kinds[BASE] = Literal[bases]
        entries = {
            key: settings_from_plain(kinds[key], entry, f"{where}.{key}".lstrip(".")) for key, entry in value.items()
        }
        base = entries.pop(BASE, None) if bases else None
        settings_class = typing.cast(Any, kind)
        try:
            return settings_class(**entries) if base is None else settings_class.based_on(base, entries)
        except UserError as error:
            raise UserError(f"{where}: {error}" if where else str(error)) from None
    if origin in (typing.Union, types.UnionType):
        # The exact type is checked first: True is an int in Python, but must stay a bool if a bool is allowed.
        words = [word for item in arguments if typing.get_origin(item) is Literal for word in typing.get_args(item)]
        if type(value) in arguments or value in words:
            return value
        # `X | Any`: settings contain X, and Python accepts further types.
        kinds = [item for item in arguments if item not in (type(None), Any) and typing.get_origin(item) is not Literal]
        if isinstance(value, dict):  # a dataclass, if the names are its fields
            kinds = [item for item in kinds if _has_fields(item, value)] or kinds
        # If both a mapping and a list are allowed, the type of the given value decides.
        form = {dict: dict, list: tuple, tuple: tuple}.get(type(value))
        kinds = [item for item in kinds if typing.get_origin(item) is form is not None] or kinds
        if len(kinds) == 1 and not (words and isinstance(value, str)):
            return settings_from_plain(kinds[0], value, where)
        kind_words = {dict: "names and values", tuple: "a list"}
        names = (kind_words.get(typing.get_origin(item), getattr(item, "__name__", "")) for item in kinds)
        expected = ", ".join([*words, *names])
        raise UserError(f"Expected {where} to be one of {expected}, found {quoted(value)}.")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UserError(f"Expected a list for {where}, found {quoted(value)}.")
        is_listed = dataclasses.is_dataclass(arguments[0])
        places = [f"{where}[{index}]" if is_listed else where for index in range(len(value))]
        return tuple(settings_from_plain(arguments[0], *pair) for pair in zip(value, places, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise UserError(f"Expected names and values for {where}, found {quoted(value)}.")
        return {str(key): settings_from_plain(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"Expected {where} to be one of {', '.join(map(str, arguments))}, found {quoted(value)}.")
        return value
    # Whole numbers are also accepted for float.
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):  # YAML reads 3e-3 as text, because it has no decimal point
            return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"Expected {where} to be {kind.__name__}, found {quoted(value)}.")
    return value


def _has_fields(kind: Any, names: Collection[str]) -> bool:
    return dataclasses.is_dataclass(kind) and {item.name for item in dataclasses.fields(kind)}.issuperset(names)


def _check_storable(value: Any, where: str) -> None:
    """Refuse numbers beyond 64 bits, and texts with lone surrogates, which would fail in a later stage."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise UserError(f"Expected {where} to be a whole number of at most 64 bits, found {quoted(value)}.")
    if isinstance(value, str):
        try:
            # Python represents bytes of a file name that are not UTF-8 by lone surrogates, and accepts them again.
            fits = b"\0" not in value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise UserError(f"Expected {where} to be a text that can name a file, found {quoted(value)}.")

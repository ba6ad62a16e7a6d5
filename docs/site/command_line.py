"""The page of the command line, made from the settings that the verbs really parse."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

from jax_diversity import cli
from jax_diversity.cli.options import _field_texts as meanings

BAR = "\\|"
WORDS = {int: "whole number", float: "number", str: "text", bool: "switch"}
LISTS = {int: "whole numbers", float: "numbers", str: "words"}


class Parsed(NamedTuple):
    """What a verb hands to the parser."""

    kind: type
    default: Any
    flat: bool
    hidden: frozenset[str]


class Option(NamedTuple):
    """One option of a verb."""

    name: str
    kind: str
    default: str
    meaning: str


def page() -> str:
    """The Markdown."""
    build = parsed("build")
    parts = [_overview()]
    for verb in cli._VERBS:
        taken = parsed(verb)
        parts.append(f"## {verb}\n\n{_sentence(verb)}\n")
        if verb == "demo":
            parts.append(f"Options: those of [`build`](#build), with other defaults:\n\n{_differences(build, taken)}")
            continue
        parts.append(_stage_tables(verb) if taken.hidden else _tables(options(verb), verb))
    return "\n".join(parts)


@cache
def parsed(verb: str) -> Parsed:
    """Run a verb up to where it parses its options."""
    caught: list[Parsed] = []

    def catch(
        kind: type, verb: str, arguments: list[str], description: str, *, default: Any = None, **how: Any
    ) -> None:
        hidden = frozenset(how.get("hidden", ()))
        caught.append(Parsed(kind, kind() if default is None else default, how.get("flat", False), hidden))
        raise SystemExit(0)

    with mock.patch.object(cli, "parse_options", catch), contextlib.suppress(SystemExit):
        cli._VERBS[verb](["--help"])
    return caught[0]


def options(verb: str) -> Iterator[tuple[str, list[Option]]]:
    """Section -> its options, as the verb parses them; the verb's own come first, under an empty name."""
    taken = parsed(verb)
    sections: dict[str, list[Option]] = {"": []}
    for section, option in _walk(taken.default, "", taken.flat, taken.hidden):
        sections.setdefault(section, []).append(option)
    yield from ((name, found) for name, found in sections.items() if found)


def _walk(
    value: Any, prefix: str = "", flat: bool = False, hidden: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Option]]:
    hints, texts = typing.get_type_hints(type(value)), meanings(type(value))
    for field in dataclasses.fields(value):
        held, name = getattr(value, field.name), f"{prefix}{field.name}"
        if name in hidden:
            continue
        if dataclasses.is_dataclass(held):
            yield from _walk(held, f"{name}.", flat)
            continue
        shown = field.name if flat else name
        yield (
            prefix.rstrip("."),
            Option(
                f"--{shown.replace('_', '-')}",
                _kind(hints[field.name], held),
                _default(held),
                texts.get(field.name, ""),
            ),
        )


def _kind(hint: Any, held: Any) -> str:
    """A type in words."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    choices = [choice for part in parts for choice in _choices(part)]
    if choices:
        return " · ".join(choices)
    if isinstance(held, tuple) and held and dataclasses.is_dataclass(held[0]):
        return "a list, in YAML"
    if typing.get_origin(hint) is tuple:
        (element, *_) = typing.get_args(hint)
        return f"any of {' · '.join(_choices(element))}" if _choices(element) else LISTS[element]
    if typing.get_origin(hint) is dict:
        return "`KEY VALUE` ..."
    return " or ".join(WORDS.get(part, "`None`") for part in parts)


def _choices(hint: Any) -> list[str]:
    """The values of a literal type."""
    return [f"`{value}`" for value in typing.get_args(hint)] if typing.get_origin(hint) is typing.Literal else []


def _default(held: Any) -> str:
    if isinstance(held, tuple) and held and dataclasses.is_dataclass(held[0]):
        return ", ".join(f"`{order.method}`" for order in held)
    if held in ((), {}) or held == "":
        return "none"
    if isinstance(held, tuple):
        return f"`{' '.join(map(str, held))}`"
    return {True: "on", False: "off"}[held] if isinstance(held, bool) else f"`{held}`"


def _overview() -> str:
    lines = [f"| [`{verb}`](#{verb}) | {_sentence(verb)} |" for verb in cli._VERBS]
    return "\n".join(["| verb | |", "|---|---|", *lines, ""])


def _sentence(verb: str) -> str:
    return " ".join((cli._VERBS[verb].__doc__ or "").split())


def _stage_tables(verb: str) -> str:
    """The options that stand above the sections, and a link to the section, which `build` has too."""
    own = list(options(verb))
    named = " and ".join(f"[build: {section}](#build-{section})" for section, _ in own if section)
    return _tables(own[:1], verb) + (f"\nAnd those of {named}.\n" if named else "")


def _tables(sections: Iterable[tuple[str, list[Option]]], verb: str) -> str:
    parts = []
    for section, found in sections:
        lines = [_row(f"`{one.name}`", one.kind, one.default, one.meaning) for one in found]
        title = f"### {verb}: {section}\n\n" if section and not parsed(verb).flat else ""
        parts.append(title + "\n".join(["| option | takes | default | |", "|---|---|---|---|", *lines, ""]))
    return "\n".join(parts)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _differences(build: Parsed, demo: Parsed) -> str:
    standard = {option.name: option for _, option in _walk(build.default)}
    lines = [
        _row(f"`{option.name}`", option.default, standard[option.name].default)
        for _, option in _walk(demo.default)
        if option.default != standard[option.name].default
    ]
    return "\n".join(["| option | demo | build |", "|---|---|---|", *lines, ""])

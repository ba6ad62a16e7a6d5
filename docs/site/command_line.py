"""The page of the command line, made from the verbs and their settings."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import Any, NamedTuple

from jax_diversity.cli.main import all_verbs
from jax_diversity.cli.options import ALIASES, list_options
from jax_diversity.pipeline.settings import BuildConfig

BAR = "\\|"
WORDS = {int: "whole number", float: "number", str: "text", bool: "switch"}
LISTS = {int: "whole numbers", float: "numbers", str: "words"}


class Option(NamedTuple):
    """One option of a verb."""

    name: str
    kind: str
    default: str
    meaning: str


def page() -> str:
    """The Markdown."""
    verbs = all_verbs()
    # The anchor of a heading has hyphens in place of spaces, as in `lab-run`.
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {verb.help} |" for name, verb in verbs.items()]
    short = "; ".join(f"`{name}` for `{full}`" for name, full in ALIASES.items())
    parts = ["\n".join(["| verb | |", "|---|---|", *rows, ""]), f"Some options have a short name: {short}.\n"]
    for name, verb in verbs.items():
        parts.append(f"## {name}\n\n{verb.help}\n")
        if name == "demo":
            parts.append(f"Options: those of [`build`](#build), with other defaults:\n\n{_differences()}")
        else:
            parts.append(_stage_tables(name, verb.sections) if verb.sections else _tables(name))
    return "\n".join(parts)


def options(name: str) -> list[tuple[str, list[Option]]]:
    """A verb's options by section, a stage's verb without the other stages'; the first section has no name."""
    verb = all_verbs()[name]
    found: dict[str, list[Option]] = {"": []}
    for option, kind, held, meaning in list_options(verb.options):
        section, _, field = option[2:].replace("-", "_").rpartition(".")
        is_build = section or field in {each.name for each in dataclasses.fields(BuildConfig)}
        if verb.sections and is_build and not {section.partition(".")[0], field} & {*verb.sections, "out"}:
            continue
        if not section.startswith("orders."):
            found.setdefault(section, []).append(Option(option, _kind(kind, held), _default(held), meaning))
        elif option == "--orders.0.method":  # one line for the whole list
            found[""].append(_orders(verb.options))
    return list(found.items())


def _orders(settings: Any) -> Option:
    default = ", ".join(f"`{order.method}`" for order in settings.orders)
    return Option("--orders", "a list, in YAML", default, "The orderings to make.")


def _kind(hint: Any, held: Any) -> str:
    """A type in words."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    choices = [choice for part in parts for choice in _choices(part)]
    if choices:
        return " · ".join(choices)
    if typing.get_origin(hint) is tuple and dataclasses.is_dataclass(typing.get_args(hint)[0]):
        return "a list, in YAML"
    if typing.get_origin(hint) is tuple:
        (element, *_) = typing.get_args(hint)
        parts = typing.get_args(element) if isinstance(element, types.UnionType) else (element,)
        return f"any of {' · '.join(_choices(element))}" if _choices(element) else " or ".join(map(LISTS.get, parts))
    if typing.get_origin(hint) is dict:
        return "YAML" if typing.get_origin(typing.get_args(hint)[1]) is tuple else "`KEY VALUE` ..."
    return " or ".join(WORDS.get(part, "`None`") for part in parts)


def _choices(hint: Any) -> list[str]:
    """The values of a literal type."""
    return [f"`{value}`" for value in typing.get_args(hint)] if typing.get_origin(hint) is typing.Literal else []


def _default(held: Any) -> str:
    if held in ((), {}) or held == "":
        return "none"
    if isinstance(held, tuple):
        return f"`{' '.join(map(str, held))}`"
    return {True: "on", False: "off"}[held] if isinstance(held, bool) else f"`{held}`"


def _stage_tables(name: str, sections: Iterable[str]) -> str:
    """The options that stand above the sections, and links to the sections, which `build` has too."""
    found = dict(options(name))
    own = found.pop("")
    links = " and ".join(f"[build: {section}](#build-{section})" for section in sections)
    return _rows(own) + (f"\nAnd the options of {links}.\n" if found else "")


def _tables(name: str) -> str:
    parts = [(f"### {name}: {section}\n\n" if section else "") + _rows(found) for section, found in options(name)]
    return "\n".join(parts)


def _rows(found: Iterable[Option]) -> str:
    lines = [_row(f"`{one.name}`", one.kind, one.default, one.meaning) for one in found]
    return "\n".join(["| option | takes | default | |", "|---|---|---|---|", *lines, ""])


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _differences() -> str:
    standard = {one.name: one.default for _, found in options("build") for one in found}
    changed = [one for _, found in options("demo") for one in found if one.default != standard[one.name]]
    lines = [_row(f"`{one.name}`", one.default, standard[one.name]) for one in changed]
    return "\n".join(["| option | demo | build |", "|---|---|---|", *lines, ""])

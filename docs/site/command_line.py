"""The page of the command line, made from the verbs and their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from jax_diversity.cli.main import all_verbs
from jax_diversity.cli.parsing import SHORT, list_options, type_of
from jax_diversity.pipeline.settings import BuildConfig

BAR = "\\|"


class Option(NamedTuple):
    """One option of a verb."""

    name: str
    kind: str
    default: str
    meaning: str


def page() -> str:
    """The Markdown."""
    verbs = all_verbs()
    # The anchor of a heading has hyphens in place of spaces, as in `lab-explain`.
    rows = [f"| [`{name}`](#{name.replace(' ', '-')}) | {verb.help} |" for name, verb in verbs.items()]
    short = "; ".join(f"`{name}` for `{full}`" for name, full in SHORT.items())
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
        takes = "switch" if kind is bool else f"`{type_of(kind)}`"
        found.setdefault(section, []).append(Option(option, takes, _default(held), meaning))
    return list(found.items())


def _default(held: Any) -> str:
    if held in ((), {}) or held == "":
        return "none"
    if isinstance(held, tuple):
        return f"`{' '.join(str(getattr(each, 'file_name', each)) for each in held)}`"
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

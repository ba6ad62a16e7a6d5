"""The tables of docs/preparation.md and the page of all steps, made from docstrings, recipes and measurements.

python docs/site/steps.py          write the tables into docs/preparation.md
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jax_diversity.preparation.passes.settings import RECIPES, PreparationConfig
from jax_diversity.preparation.steps.base import METHODS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "preparation.md"
_RESULTS = ROOT / "benchmarks" / "results"


def docstring(name: str) -> str:
    """The docstring of a step's class, read from the source: some steps import large libraries."""
    source = Path(str(find_spec(f"{METHODS.package}.{METHODS[name]}").origin))  # type: ignore[union-attr]
    wanted = name.replace("_", "")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name.lower() == wanted:
            return ast.get_docstring(node) or ""
    raise LookupError(name)


def table() -> str:
    """Every step: what it does (the beginning of its docstring), and what was measured on `mixed`."""
    measured = _results("preparation")
    steps: Mapping[str, Any] = measured["steps"] | _results("preparation_scores").get("steps", {})
    lines = ["| step | | removes | documents/s |", "|---|---|---|---|"]
    for name in METHODS:
        found = steps.get(name, {})
        removed = sum(found.get("removed", {}).values())
        share = f"{100 * removed / measured['documents']:.1f} %" if removed else ""
        rate = f"{found['documents_per_second']:,}" if found else ""
        link = f"[`{name}`](../jax_diversity/preparation/steps/{METHODS[name]}.py)"
        lines.append(f"| {link} | {' '.join(docstring(name).partition(chr(10) * 2)[0].split())} | {share} | {rate} |")
    return "\n".join(lines)


def recipes() -> str:
    """Every recipe with its steps and their options."""
    lines = ["| recipe | steps |", "|---|---|"]
    for path in sorted(RECIPES.glob("*.yaml")):
        steps = [f"`{each.step}`{_options(each.options)}" for each in PreparationConfig(recipe=path.stem).listed()]
        lines.append(f"| [`{path.stem}`](../jax_diversity/preparation/recipes/{path.name}) | {', '.join(steps)} |")
    return "\n".join(lines)


def page() -> str:
    """The page of all steps: docstrings in full, and the options with their defaults."""
    parts = []
    for name in METHODS:
        _, options = METHODS.describe(name)
        rows = [f"| `{option}` | {f'`{default}`' if default else 'required'} |" for option, default in options.items()]
        listed = "\n".join(["| option | default |", "|---|---|", *rows]) if rows else ""
        parts.append(f"## {name}\n\n{docstring(name)}\n\n{listed}\n")
    return "\n".join(parts)


def renewed(text: str) -> str:
    """The text of docs/preparation.md with its tables made anew."""
    for name, made in (("steps", table()), ("recipes", recipes())):
        block = re.compile(rf"(<!-- {name}: python docs/site/steps.py -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
        text = block.sub(lambda match, made=made: match[1] + made + match[2], text)
    return text


def _options(options: Mapping[str, Any]) -> str:
    shown = [f"{name}: {_plain(value)}" for name, value in options.items()]
    return f" ({', '.join(shown)})" if shown else ""


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_plain(each)}" for key, each in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _results(name: str) -> dict[str, Any]:
    return json.loads((_RESULTS / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""What pages say of the code, made from the code: the command line's options, the Python names' docstrings.

A page holds a block that GitHub shows as it stands and the site replaces:

    ```{commands}                 every verb with its options

    ```{public names}             all of `jax_diversity.__all__`, a line on each

    ```{steps}                    every step of preparation with its docstring and its options

    ```{python names}             the signatures and docstrings of the names in the block, one a line
    order
    ordering.base.Method
    evidence.statistics           a module beside the package has its full name
    ```
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import command_line
import steps
from sphinx.application import Sphinx
from sphinx.domains.python._object import PyObject

import jax_diversity as jd

BLOCK = re.compile(r"```\{(commands|public names|python names|steps)\}\n(.*?)```\n", flags=re.DOTALL)
LINK_OUT = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]*)\)")
REFERENCE = Path(__file__).parent.parent / "reference"


def setup(app: Sphinx) -> dict[str, Any]:
    """Replace the blocks when a page is read."""
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _mend, priority=400)  # before the sections are parsed, at 500
    app.connect("autodoc-process-signature", _parsable)
    app.connect("autodoc-skip-member", _skip)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill the blocks in; links to folders outside docs/ become their text, for a site has no page of a folder."""
    source[0] = BLOCK.sub(_made, source[0])
    folder = Path(app.srcdir, docname).parent

    def pointed(match: re.Match[str]) -> str:
        return match[1] if (folder / match[2]).is_dir() else match[0]

    source[0] = LINK_OUT.sub(pointed, source[0])


def _made(block: re.Match[str]) -> str:
    if block[1] == "commands":
        return command_line.page()
    if block[1] == "steps":
        return steps.page()
    if block[1] == "public names":
        return public_names()
    described = "\n\n".join(map(_described, block[2].split()))
    return f"```{{eval-rst}}\n{described}\n```\n"


def homes() -> dict[str, str]:
    """Name, without the package's -> the page of the reference that describes it."""
    found = {}
    for path in sorted(REFERENCE.glob("*.md")):
        for block in BLOCK.finditer(path.read_text(encoding="utf-8")):
            found |= dict.fromkeys(block[2].split(), path.stem)
    return found


def public_names() -> str:
    """All names of the package, and the first sentence on each."""
    lines = ["| name | |", "|---|---|"]
    for name in jd.__all__:
        sentence = " ".join((getattr(jd, name).__doc__ or "").strip().split("\n\n")[0].split()).replace("|", "\\|")
        lines.append(f"| {{py:obj}}`jd.{name} <jax_diversity.{name}>` | {sentence} |")
    return "\n".join(lines) + "\n"


def _described(name: str) -> str:
    """The autodoc directive that fits the object."""
    found = _find(name)
    if inspect.ismodule(found):
        public = [member for member, value in vars(found).items() if _is_own(found, member, value)]
        members = f"\n   :members: {', '.join(public)}" if public else ""
        return f".. automodule:: {_full(name)}{members}"
    kind = "class" if inspect.isclass(found) else "function"
    return f".. auto{kind}:: {_full(name)}" + ("\n   :members:" if kind == "class" else "")


def _is_own(module: Any, name: str, value: Any) -> bool:
    own = getattr(value, "__module__", None) == module.__name__
    return own and not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value))


def _full(name: str) -> str:
    return name if name.startswith("evidence.") else f"jax_diversity.{name}"


def _find(name: str) -> Any:
    """An object by its path below the package."""
    try:
        return importlib.import_module(_full(name)) if name not in jd.__all__ else getattr(jd, name)
    except ModuleNotFoundError:
        home, _, last = name.rpartition(".")
        return getattr(importlib.import_module(f"jax_diversity.{home}"), last)


def _parsable(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, result: str) -> Any:
    """Defaults that are made anew for every object, in a form that is Python."""
    return (signature.replace("<factory>", "..."), result) if signature else None


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """A named tuple's fields stand in its docstring; what Python says of them says nothing."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field number") else None


def _mend(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Marks that mean something else in docstrings than in an editor: bars are bars, backticks are code."""
    code = re.compile(r"(`+[^`]*`+)")
    parts = code.split("\n".join(lines))
    parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
    # A letter may not follow code at once, as in `Array`s: an escaped blank parts them and leaves no trace.
    parts[2::2] = ["\\ " + part if part[:1].isalnum() else part for part in parts[2::2]]
    lines[:] = "".join(parts).split("\n")
    if what in ("attribute", "property"):
        lines.insert(0, "\\")  # an escaped line break: else what stands before a colon would be taken for a type

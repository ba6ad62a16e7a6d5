"""Write MathML as a line of text: its TeX if the page has it, otherwise with `^`, `_`, `/` and `sqrt`."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import NamedTuple

from jax_diversity.foundation.text.entities import unescaped

_MOST_LEVELS = 100
_ALTTEXT = re.compile(r"\balttext=(?:\"([^\"]*)\"|'([^']*)')", re.IGNORECASE)
_DISPLAYED = re.compile(r"\{\\(?:display|text)style\s*(.*)\}\s*\Z", re.DOTALL)
_TEX = ("application/x-tex", "application/x-latex", "tex", "latex")


class _Node(NamedTuple):
    """An element with its children: elements and texts."""

    tag: str
    children: list[_Node | str]


def marked_tex(tex: str) -> str:
    """Return TeX between dollar signs, in one line and without the style that MediaWiki puts around it.

    Example:
        >>> marked_tex(r"{\\displaystyle x^{2}}")
        '$x^{2}$'
    """
    line = " ".join(tex.split()).strip("$ ")
    displayed = _DISPLAYED.match(line)
    line = displayed[1].strip() if displayed else line
    return f"${line}$" if line else ""


def formula_text(tag: str, content: str) -> str:
    """Return a formula as text.

    Args:
        tag: the opening tag `<math ...>`.
        content: the markup up to `</math>`.

    Example:
        >>> formula_text("<math>", "<msup><mi>x</mi><mn>2</mn></msup><mo>=</mo><mfrac><mn>1</mn><mn>4</mn></mfrac>")
        'x^2=1/4'
    """
    match = _ALTTEXT.search(tag)
    if match:
        return marked_tex(unescaped(match[1] or match[2] or ""))
    reader = _Reader()
    reader.feed(content)
    reader.close()
    if reader.tex.strip():
        return marked_tex(reader.tex)
    if reader.is_deep:
        return " ".join("".join(reader.texts).split())
    return " ".join(_written(reader.root).split())


class _Reader(HTMLParser):
    """Reads the elements of a formula, and the TeX of an annotation."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = _Node("math", [])
        self.tex, self.is_deep = "", False
        self.texts: list[str] = []
        self._open = [self.root]
        self._annotation: bool | None = None  # inside an annotation: whether it is TeX

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag.startswith("annotation"):
            self._annotation = (dict(attrs).get("encoding") or "").lower() in _TEX
        if self._annotation is not None:
            return
        node = _Node(tag.rpartition(":")[2], [])
        self._open[-1].children.append(node)
        self._open.append(node)
        self.is_deep |= len(self._open) > _MOST_LEVELS

    def handle_endtag(self, tag: str) -> None:
        if self._annotation is not None:
            self._annotation = None if tag.startswith("annotation") else self._annotation
        elif len(self._open) > 1 and self._open[-1].tag == tag.rpartition(":")[2]:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._annotation is None:
            self._open[-1].children.append(data)
            self.texts.append(data)
        elif self._annotation:
            self.tex += data


def _written(node: _Node | str) -> str:
    if isinstance(node, str):
        return node if node.strip() else ""
    parts = [written for child in node.children if (written := _written(child))]
    match node.tag, parts:
        case "mfrac", [above, below]:
            return f"{_grouped(above)}/{_grouped(below)}"
        case "msqrt", _:
            return f"sqrt({''.join(parts)})"
        case "mroot", [base, degree]:
            return f"root({base}, {degree})"
        case "msup" | "mover", [base, above]:
            return f"{base}^{_grouped(above)}"
        case "msub" | "munder", [base, below]:
            return f"{base}_{_grouped(below)}"
        case "msubsup" | "munderover", [base, below, above]:
            return f"{base}_{_grouped(below)}^{_grouped(above)}"
        case "mtext", _:
            return f" {''.join(parts)} "
        case "mtr", _:
            return f"{', '.join(parts)}; "
    return "".join(parts)


def _grouped(written: str) -> str:
    """Return the part of a fraction or an exponent, in brackets if it has several signs."""
    written = written.strip()
    return written if written.isalnum() or len(written) == 1 else f"({written})"

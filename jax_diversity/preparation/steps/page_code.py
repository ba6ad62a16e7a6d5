"""Blocks of code in web pages: their lines and indentation stay, numbers of lines go.

Extractors join lines that end with `<br>`, drop blank lines, and make a table of code with numbers a table. So the text
of every block is found here. It goes through the extractor between marks, and is put back afterwards.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from html import escape
from textwrap import dedent

from jax_diversity.foundation.text.entities import unescaped
from jax_diversity.preparation.steps.raised import with_raised

_LONGEST_TAG, _LONGEST_BLOCK, _LONGEST_NUMBERS = 2000, 200_000, 50_000
_MOST_LEVELS = {"table": 3, "div": 100_000}
_FIGURE = re.compile(rf"<figure([^<>]{{0,{_LONGEST_TAG}}}+)>")
_OPEN = {
    names: re.compile(rf"<({names})(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>")
    for names in ("pre|table", "pre|table|code", "pre|table|div", "pre|table|code|div")
}
# Editors and sites of repositories have a `div` for each line within one of these elements.
_EDITOR = re.compile(r"<div\s[^<>]{0,300}?class=[\"'](?:fragment|codemirror-code|cm-content|react-code-lines)[\"' ]")
# Most `code` elements are words within a line. One with `<br>` is a block.
_CODE_WITH_BREAK = re.compile(rf"<code(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>[^<]{{0,500}}<br")
_TAG = re.compile(rf"<(/?)([a-z][a-z0-9]*)([^<>]{{0,{_LONGEST_TAG}}}+)>", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NUMBER_CLASS = re.compile(
    r"\bclass\s*+=\s*+[\"']?[^\"'<>]{0,300}(?<![\w])(?:gutter|rouge-gutter|line-?nos?|line-?nu(?:m|mber)s?|num|ln|lnt|lntd|blob-num|lines-num|cm-gutter\w*|linenumbers"
    r"|hljs-ln-numbers|linenodiv|code-line-number|crayon-nums)(?![\w])",
    re.IGNORECASE,
)
_LINE_CLASS = re.compile(
    r"\bclass\s*+=\s*+[\"']?(?:[^\"'<>]{0,300}\s)?(?:line|code-line|view-line|crayon-line|cl|row)(?![\w-])",
    re.IGNORECASE,
)
_CODE_CELL = re.compile(
    r"<pre(?![\w-])|blob-code|hljs-ln-code|code-line|lines-code|crayon-code|class=[\"']?(?:code|lntd)\b"
)
_SIGNS_OF_CODE = ("<pre", "-code", "code-line", "syntaxhighlighter")
_SIGNS_OF_EDITORS = ("codemirror", "cm-content", "react-code", 'class="fragment"')
_SIGNS_OF_NUMBERS = ("line-n", "linen", "cm-gutter")
_NUMBER = re.compile(rf"<(a|div|span)\s(?=[^<>]*{_NUMBER_CLASS.pattern})[^<>]*>[\s\d]*</\1\s*>", re.IGNORECASE)
_BREAK_AT_END = re.compile(r"(<br[^<>]{0,20}>)\r?\n", re.IGNORECASE)
_BETWEEN_LINES = re.compile(r">[^\S\n]*\n\s*<")
_BLANK_LINE = re.compile(r"^[ \t]+$", re.MULTILINE)
_OF_NUMBERS = re.compile(r"[\s\d]*")
_BLOCKS = frozenset(("div", "p", "li", "tr", "td", "pre", "ol", "ul", "table"))
# Letters of Linear A, which are in no page and which extractors keep as letters.
_BEGIN, _MIDDLE, _END = "\U00010630", "\U00010631", "\U00010632"
_CARRIED = re.compile(rf"\s*{_BEGIN}(\d{{1,6}}){_MIDDLE}[^{_BEGIN}{_END}]*{_END}\s*")
_MARK = re.compile(rf"{_BEGIN}\d{{1,6}}{_MIDDLE}|{_END}")


class Elements:
    """The tags of one name in a page.

    Args:
        lowered: the page in small letters.
        name: the name of the elements.
    """

    def __init__(self, lowered: str, name: str) -> None:
        self._begins = [match.start() for match in re.finditer(rf"<{name}(?![\w-])", lowered)]
        self._ends = [match.start() for match in re.finditer(f"</{name}", lowered)]

    def closing(self, start: int, longest: int, most_levels: int) -> int:
        """Return where the closing tag of an element begins.

        Args:
            start: the place after the opening tag.
            longest: the largest number of characters of the content.
            most_levels: one more than the largest number of elements of the same name inside.

        Returns:
            The place; -1 if there is no closing tag, or if too many elements are inside.
        """
        first, opened = bisect_left(self._ends, start), bisect_left(self._begins, start)
        for level, end in enumerate(self._ends[first : first + most_levels]):
            if end > start + longest:
                break
            if bisect_left(self._begins, end) - opened <= level:
                return end
        return -1


def with_marked_code(page: str, lowered: str) -> tuple[str, list[str]]:
    """Return the page with its blocks of code between marks, and the texts of the blocks.

    Args:
        page: the page.
        lowered: the page in small letters.
    """
    codes: list[str] = []
    has_breaks = "<code" in lowered and "<br" in lowered and _CODE_WITH_BREAK.search(lowered) is not None
    has_editors = any(map(lowered.__contains__, _SIGNS_OF_EDITORS)) and _EDITOR.search(lowered) is not None
    has_code = has_breaks or has_editors or any(map(lowered.__contains__, _SIGNS_OF_CODE))
    if not has_code or _BEGIN in page:
        return page, codes
    names = ["pre", "table", *["code"] * has_breaks, *["div"] * has_editors]
    elements = dict[str, Elements]()
    parts, position = list[str](), 0
    opening = _OPEN["|".join(names)]
    while match := opening.search(lowered, position):
        is_editor = match[1] == "div" and _EDITOR.match(lowered, match.start()) is not None
        end = -1
        if match[1] != "div" or is_editor:
            tags = elements.get(match[1]) or elements.setdefault(match[1], Elements(lowered, match[1]))
            end = tags.closing(match.end(), _LONGEST_BLOCK, _MOST_LEVELS.get(match[1], 1))
        content = page[match.end() : end] if end >= 0 else ""
        is_table = match[1] == "table"
        if is_table:
            is_code = bool(_NUMBER_CLASS.search(content) and _CODE_CELL.search(lowered, match.end(), max(end, 0)))
        else:
            is_code = match[1] == "pre" or is_editor or "<br" in content.lower()  # code in a line stays there
        if end < 0 or not is_code:
            parts.append(page[position : match.end()])
            position = match.end()
            continue
        row = "tr"
        if is_editor:
            content, row = _BETWEEN_LINES.sub("><", content), "pre" if "<pre" in content else "div"
        code = _code(_BREAK_AT_END.sub(r"\1", content) if match[1] == "code" else content, is_table, row)
        parts.append(page[position : match.start()])
        position = lowered.index(">", end) + 1
        if not _OF_NUMBERS.fullmatch(code) or not _NUMBER_CLASS.search(page, max(match.start() - 200, 0), match.end()):
            parts.append(f"<pre>{_BEGIN}{len(codes)}{_MIDDLE}{escape(code, quote=False)}{_END}</pre>")
            codes.append(code)
    if not position:
        return page, codes
    page = "".join([*parts, page[position:]])
    if codes and any(map(lowered.__contains__, _SIGNS_OF_NUMBERS)):  # numbers beside the block
        page = _NUMBER.sub("", page)
    return (_without_figures(page) if codes and "<figure" in page else page), codes


def with_code(text: str, codes: Sequence[str]) -> str:
    """Return an extracted text with the texts of its blocks of code in place of what lies between the marks."""
    if not codes:
        return text
    text = _CARRIED.sub(lambda match: f"\n{codes[int(match[1])]}\n" if int(match[1]) < len(codes) else "\n", text)
    return _MARK.sub("", text).strip("\n")


def _code(content: str, is_table: bool, row_name: str) -> str:
    """Return the text of a block, with a line for every line that a browser shows, also for an empty `row_name`."""
    pieces, hidden, in_cell, position, row = [""], "", not is_table, 0, 0
    content, has_numbers = with_raised(_COMMENT.sub("", content)), False
    for tag in (*_TAG.finditer(content), None):
        if in_cell and not hidden:
            pieces.append(unescaped(content[position : tag.start() if tag else None]))
        if tag is None:
            break
        position = tag.end()
        is_end, name, attributes = tag[1] == "/", tag[2].lower(), tag[3]
        if is_table and name == "td":
            in_cell = not is_end
        if hidden:
            hidden = "" if is_end and name == hidden else hidden
            continue
        if name == "br":
            pieces.append("\n")
        elif name in _BLOCKS or (not is_end and name == "span" and _LINE_CLASS.search(attributes)):
            last = next((piece for piece in reversed(pieces) if piece), "\n")
            pieces.append("" if last.endswith("\n") else "\n")
            if name == row_name:
                pieces.append("\n" if is_end and row and not "".join(pieces[row:]) else "")
                row = 0 if is_end else len(pieces)
        if not is_end and _NUMBER_CLASS.search(attributes):
            closing = content.find(f"</{name}", position, position + _LONGEST_NUMBERS)
            if closing >= 0 and _OF_NUMBERS.fullmatch(unescaped(_TAG.sub("", content[position:closing]))):
                hidden, has_numbers = name, True
    code = "".join(pieces).replace("\r\n", "\n").replace("\xa0", " ")
    code = _BLANK_LINE.sub("", code).strip("\n").rstrip()
    return dedent(code) if has_numbers else code  # a space follows each number


def _without_figures(page: str) -> str:
    """Return the page with blocks in place of figures of code, which extractors take for pictures."""
    parts, position = list[str](), 0
    while match := _FIGURE.search(page, position):
        end = page.find("</figure", match.end(), match.end() + _LONGEST_BLOCK)
        is_code = end >= 0 and _BEGIN in page[match.end() : end]
        parts += page[position : match.start()], f"<div{match[1]}>" if is_code else match[0]
        position = match.end()
        if is_code:
            parts += page[position:end], "</div>"
            position = page.find(">", end) + 1 or len(page)
    return "".join([*parts, page[position:]])

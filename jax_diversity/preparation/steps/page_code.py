"""Blocks of code in web pages: their lines and indentation stay, numbers of lines go.

Extractors join lines that end with `<br>`, drop blank lines, and make a table of code with numbers a table. So the text
of every block is found here. It goes through the extractor between marks, and is put back afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from itertools import pairwise
from textwrap import dedent

from jax_diversity.foundation.text.entities import unescaped
from jax_diversity.preparation.steps.elements import replaced
from jax_diversity.preparation.steps.raised import with_raised

_LONGEST_TAG, _LONGEST_BLOCK, _LONGEST_NUMBERS = 2000, 200_000, 50_000
_MOST_LEVELS = {"figure": 4, "table": 3, "div": 100_000}
_FIGURE = re.compile(rf"<(figure)([^<>]{{0,{_LONGEST_TAG}}}+)>", re.IGNORECASE)
# Editors and sites of repositories have a `div` for each line within one of these elements.
# Doxygen, gitweb and EnlighterJS have one too; slides have the class of Doxygen's blocks.
_EDITOR = re.compile(
    r"<div\s[^<>]{0,300}?class=[\"'](?:(?:codemirror-code|cm-content|react-code-lines|enlighter)[\"' ]"
    r"|(?:fragment|page_body)[\"'][^<>]{0,300}>\s{0,9}<div class=[\"'](?:line|pre)[\"'])",
    re.IGNORECASE,
)
_OPEN = {
    (has_breaks, has_editors): re.compile(
        rf"{f'(?:(?!<div)|(?={_EDITOR.pattern}))' * has_editors}"
        rf"<(pre|table{'|code' * has_breaks}{'|div' * has_editors})(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>",
        re.IGNORECASE,
    )
    for has_breaks in (False, True)
    for has_editors in (False, True)
}
# Most `code` elements are words within a line. One with `<br>` is a block.
_CODE_WITH_BREAK = re.compile(rf"<code(?![\w-])[^<>]{{0,{_LONGEST_TAG}}}+>[^<]{{0,500}}+<br", re.IGNORECASE)
_TAG = re.compile(rf"<(/?)([a-z][a-z0-9]*)([^<>]{{0,{_LONGEST_TAG}}}+)>", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CLASS = r"\bclass\s*+=\s*+[\"']?[^\"'<>]{{0,300}}(?<![\w])(?:{})(?![\w])"
_OF_LINES = (
    r"rouge-gutter|line-?nos?|line-?nu(?:m|mber)s?|linenumbers|linenr|lines-num|blob-num|cm-gutter\w*|hljs-ln-numbers|linenodiv"
    r"|code-line-number|crayon-nums|lntd?"
)
_NUMBER_CLASS = re.compile(_CLASS.format(f"{_OF_LINES}|gutter"), re.IGNORECASE)
# Literals in code and cells of tables have the last two classes, too.
_ANY_NUMBER_CLASS = re.compile(_CLASS.format(f"{_OF_LINES}|gutter|num|ln"), re.IGNORECASE)
_ANY_NUMBER = re.compile(rf"<([a-z]+)\s(?=[^<>]*{_CLASS.format('num|ln')})[^<>]*>([\s\d]*)</\1\s*>", re.IGNORECASE)
_LINE_CLASS = re.compile(
    r"\bclass\s*+=\s*+[\"']?(?:[^\"'<>]{0,300}\s)?(?:line|code-line|view-line|crayon-line|cl|row)(?![\w-])",
    re.IGNORECASE,
)
_CODE_CELL = re.compile(
    r"<pre(?![\w-])|blob-code|hljs-ln-code|code-line|lines-code|crayon-code|class=[\"']?(?:code|lntd)\b", re.IGNORECASE
)
_SIGNS_OF_CODE = (b"<pre", b"-code", b"code-line", b"syntaxhighlighter")
_SIGNS_OF_EDITORS = (b"-code", b"cm-content", b'class="fragment"', b'class="page_body"')
_SIGNS_OF_NUMBERS = (b"line-n", b"linen")
_NUMBERS_BESIDE = re.compile(
    rf"(?:<(?:a|div|span)\s(?=[^<>]*{_CLASS.format(_OF_LINES)})[^<>]*>[\s\d]*</(?:a|div|span)\s*>\s*)+", re.IGNORECASE
)
_BREAK_AT_END = re.compile(r"(<br[^<>]{0,20}>)\r?\n", re.IGNORECASE)
_BETWEEN_LINES = re.compile(r">[^\S\n]*\n\s*<")
_BLANK_LINE = re.compile(r"^[ \t]+$", re.MULTILINE)
_OF_NUMBERS, _MOST_DIGITS = re.compile(r"[\s\d]*"), 9
_BLOCKS = frozenset(("div", "p", "li", "tr", "td", "pre", "ol", "ul", "table"))
# Letters of Linear A, which are in no page and which extractors keep as letters.
_BEGIN, _MIDDLE, _END = "\U00010630", "\U00010631", "\U00010632"
_CARRIED = re.compile(rf"{_BEGIN}(\d{{1,6}}){_MIDDLE}[^{_BEGIN}{_END}]*{_END}\s*")
_MARK = re.compile(rf"{_BEGIN}\d{{1,6}}{_MIDDLE}|{_END}")


def with_marked_code(page: str, lowered: bytes) -> tuple[str, list[str]]:
    """Return the page with its blocks of code between marks, and the texts of the blocks.

    Args:
        page: the page.
        lowered: the page's bytes in small letters.
    """
    codes: list[str] = []
    has_breaks = b"<code" in lowered and b"<br" in lowered and _CODE_WITH_BREAK.search(page) is not None
    has_editors = any(map(lowered.__contains__, _SIGNS_OF_EDITORS)) and _EDITOR.search(page) is not None
    has_code = has_breaks or has_editors or any(map(lowered.__contains__, _SIGNS_OF_CODE))
    if not has_code or _BEGIN in page:
        return page, codes

    def marked(tag: re.Match[str], content: str) -> str | None:
        name, row = tag[1].lower(), "tr"
        if name == "table" and not (_class_of_numbers(content).search(content) and _CODE_CELL.search(content)):
            return None
        if name == "code":
            if "<br" not in content.lower():  # code in a line stays there
                return None
            content = _BREAK_AT_END.sub(r"\1", content)
        if name == "div":
            content, row = _BETWEEN_LINES.sub("><", content), "pre" if "<pre" in content else "div"
        code = _code(content, name == "table", row)
        is_of_numbers = _OF_NUMBERS.fullmatch(code) and _are_consecutive(code.split())
        if is_of_numbers and _ANY_NUMBER_CLASS.search(page, max(tag.start() - 200, 0), tag.end()):
            return ""
        codes.append(code)
        return f"<pre>{_BEGIN}{len(codes) - 1}{_MIDDLE}{escape(code, quote=False)}{_END}</pre>"

    new = replaced(page, _OPEN[has_breaks, has_editors], _LONGEST_BLOCK, marked, _MOST_LEVELS)
    if codes and (has_editors or any(map(lowered.__contains__, _SIGNS_OF_NUMBERS))):  # numbers beside the block
        new = _NUMBERS_BESIDE.sub(_without_numbers, new)
    if codes and b"<figure" in lowered:  # extractors take figures of code for pictures
        new = _without_figures(new)
    return new, codes


def _without_figures(page: str) -> str:
    """Turn figures with code into divisions, also those within other figures."""
    return replaced(page, _FIGURE, _LONGEST_BLOCK, _without_figure, _MOST_LEVELS)


def _without_figure(tag: re.Match[str], content: str) -> str | None:
    return f"<div{tag[2]}>{_without_figures(content)}</div>" if _BEGIN in content else None


def with_code(text: str, codes: Sequence[str]) -> str:
    """Return an extracted text with the texts of its blocks of code in place of what lies between the marks."""
    if not codes:
        return text
    texts = _CARRIED.split(text)  # between them are the numbers of the blocks
    blocks = [f"\n{codes[int(number)]}\n" if int(number) < len(codes) else "\n" for number in texts[1::2]]
    joined = [f"{before.rstrip()}{block}" for before, block in zip(texts[:-1:2], blocks, strict=True)]
    return _MARK.sub("", "".join([*joined, texts[-1]])).strip("\n")


def _are_consecutive(numbers: Sequence[str]) -> bool:
    """Whether each number is one more than the number before."""
    if any(len(number) > _MOST_DIGITS for number in numbers):
        return False
    return all(int(after) == int(before) + 1 for before, after in pairwise(numbers))


@lru_cache(maxsize=1000)  # the tags of highlighted code have few different classes
def _is_in(attributes: str, class_name: re.Pattern[str]) -> bool:
    return class_name.search(attributes) is not None


def _class_of_numbers(content: str) -> re.Pattern[str]:
    """Return the classes of the numbers of lines in a block: the generic ones only for numbers of consecutive lines."""
    numbers = [number for match in _ANY_NUMBER.finditer(content) for number in match[2].split()]
    return _ANY_NUMBER_CLASS if len(numbers) > 1 and _are_consecutive(numbers) else _NUMBER_CLASS


def _without_numbers(match: re.Match[str]) -> str:
    """Return nothing in place of the numbers of consecutive lines, and other numbers as they are."""
    numbers = re.findall(r"\d+", _TAG.sub(" ", match[0]))
    # CodeMirror begins with a hidden number, which has the width of the largest one.
    is_of_lines = len(numbers) > 1 and (_are_consecutive(numbers) or _are_consecutive(numbers[1:]))
    return "" if is_of_lines or numbers in ([], ["1"]) else match[0]


def _code(content: str, is_table: bool, row_name: str) -> str:
    """Return the text of a block, with a line for every line that a browser shows, also for an empty `row_name`."""
    pieces, hidden, in_cell, position, row = [""], "", not is_table, 0, 0
    content, has_numbers = with_raised(_COMMENT.sub("", content)), False
    number_class = _class_of_numbers(content)
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
        elif name in _BLOCKS or (not is_end and name == "span" and _is_in(attributes, _LINE_CLASS)):
            last = next((piece for piece in reversed(pieces) if piece), "\n")
            pieces.append("" if last.endswith("\n") else "\n")
            if name == row_name:
                pieces.append("\n" if is_end and row and not "".join(pieces[row:]) else "")
                row = 0 if is_end else len(pieces)
        if not is_end and _is_in(attributes, number_class):
            closing = content.find(f"</{name}", position, position + _LONGEST_NUMBERS)
            if closing >= 0 and _OF_NUMBERS.fullmatch(unescaped(_TAG.sub("", content[position:closing]))):
                hidden, has_numbers = name, True
    code = "".join(pieces).replace("\r\n", "\n").replace("\xa0", " ")
    code = _BLANK_LINE.sub("", code).strip("\n").rstrip()
    return dedent(code) if has_numbers else code  # a space follows each number

"""Text tables of at most 80 columns, and the same tables in Markdown."""

from __future__ import annotations

import html
import re
import textwrap

Cells = list[list[str]]
"""Lines of cells; the first line is the header, the first column has the names."""
WIDTH = 80
_NAME_WIDTH = 32


def aligned(cells: Cells) -> str:
    """Align columns up to the width; further columns follow below, in parts that repeat the names."""
    cells = [[cut(name, _NAME_WIDTH), *numbers] for name, *numbers in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    parts: list[list[int]] = [[]]  # column numbers; every part begins with column 0, the names
    for column, width in enumerate(widths[1:], start=1):
        if parts[-1] and sum(widths[each] + 2 for each in [0, *parts[-1]]) + width > WIDTH:
            parts.append([])
        parts[-1].append(column)
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(line[column].rjust(widths[column]) for column in columns)])
        for columns in parts
        for line in cells
    )


def wrapped(text: str) -> str:
    """Break a text into lines of at most 80 columns."""
    return textwrap.fill(text, width=WIDTH, break_on_hyphens=False, break_long_words=False)


def cut(text: str, width: int) -> str:
    """Shorten a text to `width` characters: keep its beginning and its end, because names often differ at the end."""
    tail = width // 2  # three of the other characters are dots
    return text if len(text) <= width else f"{text[: width - tail - 3]}...{text[-tail:]}"


def piped(cells: Cells) -> str:
    """Return a table in Markdown."""
    header, *lines = [[cell.replace("|", "\\|") for cell in line] for line in cells]
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def as_html(sentence: str, cells: Cells) -> str:
    """Return a sentence and a table for a notebook; `words` of the sentence are shown as code.

    If the first line has only empty cells, it is not shown, and the cells are texts, which begin at the left edge.
    """
    header, *lines = cells
    side = "right" if any(header) else "left"

    def line(tag: str, texts: list[str]) -> str:
        name, *others = (html.escape(text) for text in texts)
        rest = "".join(f'<{tag} style="text-align:{side}">{other}</{tag}>' for other in others)
        return f'<tr><th style="text-align:left">{name}</th>{rest}</tr>'

    body = "".join(line("td", each) for each in lines)
    head = f"<thead>{line('th', header)}</thead>" if any(header) else ""
    words = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(sentence))
    return f"<p>{words}</p><table>{head}<tbody>{body}</tbody></table>"

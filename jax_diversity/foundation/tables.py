"""Text tables of at most 80 columns, the same tables in Markdown, and a sentence with tables for a notebook."""

from __future__ import annotations

import codecs
import html
import io
import os
import re
import sys
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

Cells = list[list[str]]
"""Lines of cells; the first line is the header, the first column has the names."""
WIDTH = 80
_NAME_WIDTH = 36


def aligned(cells: Cells) -> str:
    """Align columns up to the width; further columns follow below, in parts that repeat the names."""
    cells = [[cut(name, _NAME_WIDTH), *numbers] for name, *numbers in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    parts: list[list[int]] = [[]]  # column numbers; every part begins with column 0, the names
    for column, width in enumerate(widths[1:], start=1):
        if parts[-1] and sum(widths[column] + 2 for column in [0, *parts[-1]]) + width > WIDTH:
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


@dataclass(frozen=True)
class Display:
    """A sentence and tables, for a terminal and for a notebook.

    Attributes:
        sentence: what the tables show; `words` in it are shown as code in a notebook.
        tables: the title of every table, which may be empty, and its cells. If the first line of the cells has only
            empty cells, a notebook does not show it, and the other cells are texts, which begin at the left edge.
    """

    sentence: str
    tables: Sequence[tuple[str, Cells]]

    @property
    def text(self) -> str:
        """The sentence and the tables, at most 80 columns wide."""
        return "\n\n".join([wrapped(self.sentence), *([self.table] if self.tables else [])])

    @property
    def table(self) -> str:
        """The tables, at most 80 columns wide."""
        titles = (f"{cut(title, WIDTH)}\n" if title else "" for title, _ in self.tables)
        return "\n\n".join(title + aligned(cells) for title, (_, cells) in zip(titles, self.tables, strict=True))

    @property
    def html(self) -> str:
        """The sentence and the tables."""
        words = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self.sentence))
        titles = (f"<p><b>{html.escape(title)}</b></p>" if title else "" for title, _ in self.tables)
        tables = (title + _html_table(cells) for title, (_, cells) in zip(titles, self.tables, strict=True))
        return "".join([f"<p>{words}</p>", *tables])


class Displayed:
    """A value that a notebook shows as a sentence and tables; a subclass says which."""

    def _display(self) -> Display:
        """Return the sentence and the tables."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return self._display().html


def _html_table(cells: Cells) -> str:
    header, *lines = cells
    side = "right" if any(header) else "left"

    def line(tag: str, texts: list[str]) -> str:
        name, *cells = (html.escape(text) for text in texts)
        rest = "".join(f'<{tag} style="text-align:{side}">{other}</{tag}>' for other in cells)
        return f'<tr><th style="text-align:left">{name}</th>{rest}</tr>'

    body = "".join(line("td", line_texts) for line_texts in lines)
    head = f"<thead>{line('th', header)}</thead>" if any(header) else ""
    return f"<table>{head}<tbody>{body}</tbody></table>"


def plain_table(*columns: str, numbers: Collection[str] = (), no_wrap: bool = False) -> Table:
    """A table without lines; the columns `numbers` are aligned to the right."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", no_wrap=no_wrap)
    return table


def printed(table: Table) -> str:
    """A table as plain text without colours, also suitable for files."""
    from rich.console import Console

    target = io.StringIO()
    console = Console(
        file=target, width=80, highlight=False, markup=False, emoji=False, color_system=None, force_terminal=False
    )
    console.print(table)
    text = "\n".join(line.rstrip() for line in target.getvalue().rstrip().splitlines())
    return text if speaks_unicode() else text.replace("…", "~")  # rich has shortened a cell here


def end_of(text: str, width: int) -> str:
    """The end of a text in at most `width` characters, because paths and addresses differ at their ends."""
    return text if len(text) <= width else f"...{text[len(text) - width + 3 :]}"


def speaks_unicode() -> bool:
    """Tell whether standard output can show more than ASCII."""
    encoding = codecs.lookup(sys.stdout.encoding or "ascii").name
    return encoding.startswith("utf") and os.environ.get("TERM") != "dumb"

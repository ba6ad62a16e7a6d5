"""Books of Project Gutenberg without the header, the names of volunteers and the licence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jax_diversity.preparation.steps.base import Candidate, Measured, Step

# A header ends with the line that begins the book; before 2003 it ends with the small print. Titles may span lines.
_MARK = re.compile(
    r"^[ \t]*(?:"
    r"(?P<header>\*{3}[ \t]*START OF (?:THE |THIS )?PROJECT GUTENBERG(?:[^*\n]*(?:\n[^*\n]+){0,3}\*{3}|[^*\n]*)"
    r"|\*END[ *]+THE SMALL PRINT[^\n]*)"
    r"|\*{3}[ \t]*END OF (?:THE |THIS )?PROJECT GUTENBERG"
    r"|End of (?:the |this )?Project Gutenberg)",
    re.MULTILINE | re.IGNORECASE,
)
_CREDITS = re.compile(
    r"\s*(?:(?:(?:this )?e-?(?:text|book) (?:was )?)?(?:produced|prepared|transcribed|scanned|digitized|created)\b"
    r"|proofread)(?:[^\n]+\n){1,12}?\s*\n",
    re.IGNORECASE,
)
_LONGEST_HEADER = 50_000


@dataclass
class Gutenberg(Step):
    """Removes the header, the names of volunteers and the licence that Project Gutenberg adds to a book.

    A book is the text between the lines that mark its beginning and its end. A text may contain several books.
    Documents without such lines pass.
    """

    is_filter = False

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Collect the books."""
        text, books = candidate.text, list[str]()
        start: int | None = 0  # of the book; None after its end
        for match in _MARK.finditer(text):
            if match["header"]:
                if start is None or match.start() - start <= _LONGEST_HEADER:
                    candidate.found["headers"] += 1
                    credits = _CREDITS.match(text, match.end())
                    start = credits.end() if credits else match.end()
            elif start is not None:
                candidate.found["footers"] += 1
                books.append(text[start : match.start()])
                start = None
        if candidate.has_found:
            if start is not None:
                books.append(text[start:])
            candidate.text = "\n\n".join(filter(None, map(str.strip, books)))
        yield from ()  # an empty document is removed

"""What Project Gutenberg adds to a book: its header, the names of volunteers, its licence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules

# A header ends with the line that begins the book, in books of before 2003 with the small print; titles may take lines.
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


def gutenberg() -> Rules:
    """Removes what Project Gutenberg adds to a book: header, names of volunteers, licence.

    The book is what is between the lines that mark its beginning and its end; of several books in a text, all are
    kept. Documents without such lines pass.
    """

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text, books = candidate.text, list[str]()
        start: int | None = 0  # of the book; None behind its end
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
        if not candidate.has_found:
            return
        if start is not None:
            books.append(text[start:])
        candidate.text = "\n\n".join(filter(None, map(str.strip, books)))
        yield from ()  # an empty one is removed

    return rules

"""Filter source code by LLaMA's rules (Touvron et al. 2023, arXiv:2302.13971, section 2.1).

The thresholds are those of RedPajama.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.foundation.text.licences import header_comments
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least, at_most, entries

_NOTICE = re.compile(
    r"copyright|\(c\) *\d{4}|©|all rights reserved|spdx-license"
    r"|licen[cs]ed? (?:under|to you|agreement|information|terms)"
    r"|under the (?:terms|[\w-]+ licen[cs]e)|permission is hereby|redistribution and use|general public licen[cs]e"
    r"|without warranty|@licen[cs]e\b|\A/\*!.{0,500}?\(c\)",
    re.IGNORECASE | re.DOTALL,
)
# Fields of the docstring at the beginning of a Python module, with their further lines.
_DOCSTRING = re.compile(r"\s*[ru]?(\"\"\"|\'\'\')", re.IGNORECASE)
_FIELDS = re.compile(
    r"^([ \t]*):(?:copyright|licen[cs]e):[^\n]*(?:\n\1[ \t]+\S[^\n]*)*\n?", re.IGNORECASE | re.MULTILINE
)
_LONGEST_DOCSTRING = 20_000
_GENERATED = re.compile(
    r"@generated\b|<auto-?generated|\bauto(?:matically)?[- ]?generated\b"
    r"|\bgenerated (?:by|from|with)\b.{0,80}\bdo not (?:edit|modify)|\bdo not edit\b",
    re.IGNORECASE | re.DOTALL,
)
_NUM_FIRST_LINES = 10
_LETTERS_AND_DIGITS = bytes(code for code in range(128) if chr(code).isalnum())
_MINIFIED = re.compile(r"[.-]min\.[a-z]+$")


@dataclass
class Code(Step):
    """Removes generated source files, and files with long lines or few letters and digits. Cuts out notices.

    The thresholds are the mean and the largest number of characters in a line, and the share of letters and digits. A
    file is removed as generated if one of its first ten lines says so, or if its name says that it is minified.
    Comments with a notice of copyright or licence at the beginning are cut out, and so are the fields `:copyright:`
    and `:license:` of a docstring at the beginning. Lines that name the interpreter or the encoding stay. If the
    language of a document does not begin with `code:`, the document passes, except with `always`.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "generated": "generated or minified file",
        "most_mean_line": "lines too long on average",
        "longest_line": "a line that is too long",
        "least_alphanumeric": "too few letters and digits",
    }
    thresholds: Mapping[str, float] = entries(most_mean_line=100, longest_line=1000, least_alphanumeric=0.25)
    always: bool = False

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Cut out the notices, then measure lines and characters."""
        if not self.always and not (candidate.language or "").startswith("code:"):
            return
        yield at_most("generated", int(_is_generated(candidate, candidate.text)), 0)
        text, number = _without_notices(candidate.text)
        if number:
            candidate.found["headers"] += number
        lengths = list(map(len, text.splitlines() or [""]))
        limits = self.thresholds
        yield at_most("most_mean_line", sum(lengths) / len(lengths), limits["most_mean_line"])
        yield at_most("longest_line", max(lengths), limits["longest_line"])
        yield at_least("least_alphanumeric", _alphanumeric(text), limits["least_alphanumeric"])
        candidate.text = text


def _is_generated(candidate: Candidate, text: str) -> bool:
    names = candidate.document.id, candidate.document.title or ""
    first_lines = "\n".join(text.split("\n", _NUM_FIRST_LINES)[:_NUM_FIRST_LINES])
    return any(map(_MINIFIED.search, names)) or _GENERATED.search(first_lines) is not None


def _without_notices(text: str) -> tuple[str, int]:
    """Return the text without notices in the comments at its beginning, and the number of notices."""
    parts: list[str] = []
    number = position = last = 0
    for start, last in header_comments(text):
        end = last
        if _NOTICE.search(text[start:end]):
            parts.append(text[position:start].rstrip(" \t"))
            position = end + len(text[end : end + 100]) - len(text[end : end + 100].lstrip("\n"))
            number += 1
    rest, num_fields = _without_fields(text[position:], max(last - position, 0))
    return "".join(parts) + rest, number + num_fields


def _without_fields(text: str, start: int) -> tuple[str, int]:
    """Return the text without fields of copyright and licence in the docstring at `start`, and their number."""
    opening = _DOCSTRING.match(text, start)
    end = text.find(opening[1], opening.end(), opening.end() + _LONGEST_DOCSTRING) if opening else -1
    if opening is None or end < 0:
        return text, 0
    docstring, number = _FIELDS.subn("", text[opening.end() : end])
    return (text[: opening.end()] + docstring.rstrip(" \t") + text[end:], number) if number else (text, 0)


def _alphanumeric(text: str) -> float:
    if not text.isascii():
        return sum(map(str.isalnum, text)) / len(text)
    return 1 - len(text.encode().translate(None, _LETTERS_AND_DIGITS)) / max(len(text), 1)

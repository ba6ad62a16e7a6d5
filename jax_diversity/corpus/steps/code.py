"""Source code by LLaMA's rules (Touvron et al. 2023, arXiv:2302.13971, section 2.1); thresholds are RedPajama's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least, at_most
from jax_diversity.text.licences import header_comments

_NOTICE = re.compile(
    r"copyright|\(c\) *\d{4}|©|all rights reserved|spdx-license"
    r"|licen[cs]ed? (?:under|to you|agreement|information|terms)"
    r"|under the (?:terms|[\w-]+ licen[cs]e)|permission is hereby|redistribution and use|general public licen[cs]e"
    r"|without warranty",
    re.IGNORECASE,
)
_GENERATED = re.compile(
    r"@generated\b|<auto-?generated|\bauto(?:matically)?[- ]?generated\b"
    r"|\bgenerated (?:by|from|with)\b.{0,80}\bdo not (?:edit|modify)|\bdo not edit\b",
    re.IGNORECASE | re.DOTALL,
)
_NUM_FIRST_LINES = 10
_LETTERS_AND_DIGITS = bytes(code for code in range(128) if chr(code).isalnum())
_MINIFIED = re.compile(r"[.-]min\.[a-z]+$")


def code(
    *,
    most_mean_line: float = 100,
    longest_line: int = 1000,
    least_alphanumeric: float = 0.25,
    generated: bool = False,
    headers: bool = False,
    always: bool = False,
) -> Rules:
    """Removes source files of long lines, of few letters and digits, generated ones; and notices at their beginning.

    Lines are measured by mean and longest, letters and digits by their share of the characters. A file counts as
    generated if one of its first ten lines says so, or if its name says that it is minified. Comments at the beginning
    that hold a notice of copyright or licence are cut out, but not the lines that name interpreter and encoding.
    `generated` and `headers` keep what these rules remove. Documents whose language is no `code:` pass, unless
    `always`.
    """

    def rules(candidate: Candidate) -> Iterator[Measured]:
        if not always and not (candidate.language or "").startswith("code:"):
            return
        text = candidate.text
        if not generated:
            yield at_most("generated", int(_is_generated(candidate, text)), 0)
        if not headers:
            text, number = _without_notices(text)
            if number:
                candidate.found["headers"] += number
        lines = text.splitlines() or [""]
        lengths = list(map(len, lines))
        yield at_most("most_mean_line", sum(lengths) / len(lengths), most_mean_line)
        yield at_most("longest_line", max(lengths), longest_line)
        yield at_least("least_alphanumeric", _alphanumeric(text), least_alphanumeric)
        candidate.text = text

    return rules


def _is_generated(candidate: Candidate, text: str) -> bool:
    names = candidate.document.id, candidate.document.title or ""
    first_lines = "\n".join(text.split("\n", _NUM_FIRST_LINES)[:_NUM_FIRST_LINES])
    return any(map(_MINIFIED.search, names)) or _GENERATED.search(first_lines) is not None


def _without_notices(text: str) -> tuple[str, int]:
    """The text without the comments at its beginning that hold a notice, and how many they were."""
    parts: list[str] = []
    number = position = 0
    for start, end in header_comments(text):
        if _NOTICE.search(text, start, end):
            parts.append(text[position:start].rstrip(" \t"))
            position = end + len(text[end : end + 100]) - len(text[end : end + 100].lstrip("\n"))
            number += 1
    return "".join(parts) + text[position:], number


def _alphanumeric(text: str) -> float:
    if not text.isascii():
        return sum(map(str.isalnum, text)) / len(text)
    return 1 - len(text.encode().translate(None, _LETTERS_AND_DIGITS)) / max(len(text), 1)

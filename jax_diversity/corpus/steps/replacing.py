"""Finding and replacing spans of a text: what all kinds of personal data have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from jax_diversity.corpus.steps.base import Span

Find = Callable[[str], Iterable[Span]]
"""Text -> the spans of one kind, in their order."""


def by_pattern(pattern: re.Pattern, is_one: Callable[[re.Match], bool] | None = None, marks: str = "") -> Find:
    """Finds the matches of a pattern, or their group `value`.

    Args:
        pattern: the form.
        is_one: a further check of a match, such as a checksum.
        marks: words between spaces; a text without any of them is not searched.
    """
    words = marks.split() or [""]
    group = "value" if "value" in pattern.groupindex else 0

    def find(text: str) -> Iterable[Span]:
        if not any(word in text for word in words):
            return ()
        return (match.span(group) for match in pattern.finditer(text) if is_one is None or is_one(match))

    return find


def holding(may_match: Callable[[str], object], find: Find) -> Find:
    """Searches only texts that pass a fast check."""
    return lambda text: find(text) if may_match(text) else ()


def before(match: re.Match, characters: int) -> str:
    """The characters before a match, at most so many."""
    return match.string[max(match.start() - characters, 0) : match.start()]


def replaced(text: str, find: Find, placeholder: str) -> tuple[str, int]:
    """The text with a placeholder in place of every found span, and the number of spans.

    Example:
        >>> replaced("call 911 or 112", by_pattern(re.compile(r"\\d+")), "<number>")
        ('call <number> or <number>', 2)
    """
    parts, end, number = [], 0, 0
    for start, stop in find(text):
        parts += [text[end:start], placeholder]
        end, number = stop, number + 1
    return ("".join([*parts, text[end:]]), number) if number else (text, 0)

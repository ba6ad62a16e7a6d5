"""Places in a text that are found and replaced: what all kinds of personal data have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

Span = tuple[int, int]
"""Where something begins in a text, and where it ends."""
Find = Callable[[str], Iterable[Span]]
"""The places of one kind in a text, in their order."""


def by_pattern(pattern: re.Pattern, is_one: Callable[[re.Match], bool] | None = None, marks: str = "") -> Find:
    """Finds what a pattern matches, or its group `value` alone, where `is_one` says that it is of the kind.

    Args:
        pattern: what it looks like.
        is_one: what a pattern cannot say, such as a checksum; None for a pattern that says it all.
        marks: words of which a text must hold one to be searched at all.
    """
    words = marks.split() or [""]
    group = "value" if "value" in pattern.groupindex else 0

    def find(text: str) -> Iterable[Span]:
        if not any(word in text for word in words):
            return ()
        return (match.span(group) for match in pattern.finditer(text) if is_one is None or is_one(match))

    return find


def holding(is_worth_it: Callable[[str], object], find: Find) -> Find:
    """Looks only into texts of which it is known that something may be there."""
    return lambda text: find(text) if is_worth_it(text) else ()


def before(match: re.Match, characters: int) -> str:
    """What stands before a match, at most so many characters of it."""
    return match.string[max(match.start() - characters, 0) : match.start()]


def replaced(text: str, find: Find, placeholder: str) -> tuple[str, int]:
    """The text with a placeholder in every place that is found, and the number of places.

    Example:
        >>> replaced("call 911 or 112", by_pattern(re.compile(r"\\d+")), "<number>")
        ('call <number> or <number>', 2)
    """
    parts, end, number = [], 0, 0
    for start, stop in find(text):
        parts += [text[end:start], placeholder]
        end, number = stop, number + 1
    return ("".join([*parts, text[end:]]), number) if number else (text, 0)

"""Replace elements of a page by texts, in time proportional to the page."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping


def replaced(
    page: str,
    opening: re.Pattern[str],
    longest: int,
    make: Callable[[re.Match[str], str], str | None],
    most_levels: Mapping[str, int],
) -> str:
    """Replace elements from their opening to their closing tag.

    Args:
        page: the page.
        opening: the opening tags; the first group is the element's name.
        longest: the largest number of characters of an element's content.
        make: opening tag, content -> the text in place of the element; None keeps the tag and looks into the element.
        most_levels: one more than the largest number of elements of the same name in an element, by name; 1 for others.
    """
    parts, position = list[str](), 0
    elements = dict[str, _Elements]()
    while tag := opening.search(page, position):
        name = tag[1].lower()
        tags = elements.get(name) or elements.setdefault(name, _Elements(page, name))
        end = tags.closing(tag.end(), longest, most_levels.get(name, 1))
        new = None if end < 0 else make(tag, page[tag.end() : end])
        if new is None:
            parts.append(page[position : tag.end()])
            position = tag.end()
        else:
            parts += page[position : tag.start()], new
            position = page.find(">", end) + 1 or len(page)
    return "".join([*parts, page[position:]]) if parts else page


class _Elements:
    """The tags of one name in a page."""

    def __init__(self, page: str, name: str) -> None:
        self._begins, self._ends = list[int](), list[int]()
        for tag in re.finditer(rf"<(/?){name}(?![\w-])", page, re.IGNORECASE):
            (self._ends if tag[1] else self._begins).append(tag.start())

    def closing(self, start: int, longest: int, most_levels: int) -> int:
        """Return where the closing tag of an element begins whose content begins at `start`; -1 without one."""
        first, opened = bisect_left(self._ends, start), bisect_left(self._begins, start)
        for level in range(min(most_levels, len(self._ends) - first)):
            end = self._ends[first + level]
            if end > start + longest:
                break
            if bisect_left(self._begins, end) - opened <= level:
                return end
        return -1

"""Remove lines of web pages that are not text: buttons, counters, headings in capitals.

Text extraction leaves some of these lines. The rules follow RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix
G.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.foundation.text.words import split_spaced
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_most

_COUNTER = re.compile(
    r"\W*+\d[\d.,]*+\s*+[km]?\+?\s*+(?:likes?|shares?|comments?|replies|reply|views?|retweets?|tweets?|followers?|following"
    r"|reactions?|votes?|points?|downloads?|stars?|reviews?|ratings?|subscribers?|posts?|minutes? read|min read"
    r"|(?:minute|hour|day|week|month|year)s? ago)\W*+",
    re.IGNORECASE,
)
_SHORT = 10
"""Lines with at most this number of words are searched for the words of buttons."""
_MOST_CAPITALS = 0.5
_MOST_EDITED = 0.05
"""Largest allowed share of a document's words in removed lines."""
_BEGINS = re.compile(r"^\W*+(?:sign[- ]?(?:in|up)|log[- ]?(?:in|out)|subscribe|register|menu|skip to)\b", re.IGNORECASE)
_ENDS = re.compile(r"\b(?:read more|show more|see more|load more|learn more|click here|view all)\W*+$", re.IGNORECASE)
_HOLDS = re.compile(r"items? in cart|add to cart|all rights reserved|share (?:this|on)|cookie policy", re.IGNORECASE)


@dataclass
class LineCorrections(Step):
    """Removes or edits lines that are not text, and removes documents that would lose more than 5 % of their words.

    A line is removed if more than half of its letters are capitals, or if it is a number, a counter such as `3 likes`,
    or a single word. The words of a button, such as `sign in` or `read more`, are cut out of a line of at most ten
    words; the line is removed if at most one other word is left.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "edited_words": "would lose too many words",
    }

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Correct the lines, then measure the share of the words that are lost."""
        lines = candidate.text.split("\n")
        split = split_spaced if candidate.is_unspaced else str.split
        counts = [len(split(line)) for line in lines]
        # Empty lines stay because they separate paragraphs.
        corrected = [_corrected(line, count) if count else line for line, count in zip(lines, counts, strict=True)]
        changed = [place for place, line in enumerate(corrected) if line is not lines[place]]
        if not changed:
            return
        left = {place: len(split(corrected[place] or "")) for place in changed}
        for place in changed:
            if left[place] <= 1:
                corrected[place], left[place] = None, 0
        gone = sum(counts[place] - left[place] for place in changed)
        yield at_most("edited_words", gone / sum(counts), _MOST_EDITED)
        candidate.found["lines"] += len(changed)
        text = "\n".join(line for line in corrected if line is not None)
        candidate.text = re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def _corrected(line: str, num_words: int) -> str | None:
    """Return a line without the words of a button; None for a line that is not text."""
    if num_words == 1:
        return None
    letters = sum(map(str.isalpha, line))
    if not letters:
        return None if any(map(str.isdigit, line)) else line
    if sum(map(str.isupper, line)) > _MOST_CAPITALS * letters:
        return None
    if num_words > _SHORT:
        return line
    if _COUNTER.fullmatch(line.strip()):
        return None
    for pattern in (_BEGINS, _ENDS, _HOLDS):
        if pattern.search(line):
            line = pattern.sub("", line, count=1).strip()
    return line

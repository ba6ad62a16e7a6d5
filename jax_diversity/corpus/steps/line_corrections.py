"""Remove lines of web pages that are not text: buttons, counters, headings in capitals.

Text extraction leaves some of these lines. The rules follow RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix
G.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from jax_diversity.corpus.steps.base import Candidate, Measured, Step, at_most
from jax_diversity.text.words import split_spaced

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
_BEGINS = re.compile(r"\W*+(?:sign[- ]?(?:in|up)|log[- ]?(?:in|out)|subscribe|register|menu|skip to)\b", re.IGNORECASE)
_ENDS = re.compile(r"\b(?:read more|show more|see more|load more|learn more|click here|view all)\W*+$", re.IGNORECASE)
_HOLDS = re.compile(r"items? in cart|add to cart|all rights reserved|share (?:this|on)|cookie policy", re.IGNORECASE)


@dataclass
class LineCorrections(Step):
    """Removes lines that are not text, and documents in which such lines contain more than 5 % of the words.

    A line is removed if more than half of its letters are capitals, if it is a number, a counter such as `3 likes` or a
    single word, or if it is short and has the words of a button, such as `sign in` or `read more`.
    """

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Choose the lines, then measure their share of the words."""
        lines = candidate.text.split("\n")
        split = split_spaced if candidate.is_unspaced else str.split
        counts = [len(split(line)) for line in lines]
        # Empty lines stay because they separate paragraphs.
        pairs = zip(lines, counts, strict=True)
        kept = [not count or not _is_boilerplate(line, count) for line, count in pairs]
        if all(kept):
            return
        gone = sum(count for count, keeps in zip(counts, kept, strict=True) if not keeps)
        yield at_most("edited_words", gone / sum(counts), _MOST_EDITED)
        left = "\n".join(line for line, keeps in zip(lines, kept, strict=True) if keeps)
        candidate.found["lines"] += len(kept) - sum(kept)
        candidate.text = re.sub(r"\n{3,}", "\n\n", left).strip("\n")


def _is_boilerplate(line: str, num_words: int) -> bool:
    if num_words == 1:
        return True
    letters = sum(map(str.isalpha, line))
    if not letters:
        return any(map(str.isdigit, line))
    if sum(map(str.isupper, line)) > _MOST_CAPITALS * letters:
        return True
    if num_words > _SHORT:
        return False
    return bool(_COUNTER.fullmatch(line.strip()) or _BEGINS.match(line) or _ENDS.search(line) or _HOLDS.search(line))

"""Lines of web pages that are no text: buttons, counters, headings in capitals; taken out one by one.

After RefinedWeb (Penedo et al. 2023, arXiv:2306.01116, appendix G.2): no extraction of text takes all of them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_most
from jax_diversity.foundation.errors import UserError

_COUNTER = re.compile(
    r"\W*\d[\d.,]*\s*[km]?\+?\s*(?:likes?|shares?|comments?|replies|reply|views?|retweets?|tweets?|followers?|following"
    r"|reactions?|votes?|points?|downloads?|stars?|reviews?|ratings?|subscribers?|posts?|minutes? read|min read"
    r"|(?:minute|hour|day|week|month|year)s? ago)\W*",
    re.IGNORECASE,
)
_SHORT = 10
"""Most words of a line that is looked through for what stands on buttons."""
_BEGINS = re.compile(r"\W*(?:sign[- ]?(?:in|up)|log[- ]?(?:in|out)|subscribe|register|menu|skip to)\b", re.IGNORECASE)
_ENDS = re.compile(r"\b(?:read more|show more|see more|load more|learn more|click here|view all)\s*\W*$", re.IGNORECASE)
_HOLDS = re.compile(r"items? in cart|add to cart|all rights reserved|share (?:this|on)|cookie policy", re.IGNORECASE)


def line_corrections(*, most_edited: float = 0.05, most_capitals: float = 0.5) -> Rules:
    """Takes lines out that are no text, and removes documents of which they are more than `most_edited` of the words.

    These lines go: mostly capitals (more than `most_capitals` of the letters), numbers alone, counters such as
    `3 likes`, one word, and short lines with the words of buttons, such as `sign in` or `read more`.
    """
    for name, value in (("most_edited", most_edited), ("most_capitals", most_capitals)):
        if not 0 <= value <= 1:
            raise UserError(f"Expected {name} of 0 to 1, found {value}.")

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text = candidate.text
        lines = text.split("\n")
        counts = [len(line.split()) for line in lines]
        # Empty lines stay: they divide paragraphs.
        pairs = zip(lines, counts, strict=True)
        kept = [not count or not _is_no_text(line, count, most_capitals) for line, count in pairs]
        if all(kept):
            return
        gone = sum(count for count, keeps in zip(counts, kept, strict=True) if not keeps)
        yield at_most("edited_words", gone / sum(counts), most_edited)
        left = "\n".join(line for line, keeps in zip(lines, kept, strict=True) if keeps)
        candidate.found["lines"] += len(kept) - sum(kept)
        candidate.text = re.sub(r"\n{3,}", "\n\n", left).strip("\n")

    return rules


def _is_no_text(line: str, num_words: int, most_capitals: float) -> bool:
    if num_words == 1:
        return True
    letters = sum(map(str.isalpha, line))
    if not letters:
        return any(map(str.isdigit, line))
    if sum(map(str.isupper, line)) > most_capitals * letters:
        return True
    if num_words > _SHORT:
        return False
    return bool(_COUNTER.fullmatch(line.strip()) or _BEGINS.match(line) or _ENDS.search(line) or _HOLDS.search(line))

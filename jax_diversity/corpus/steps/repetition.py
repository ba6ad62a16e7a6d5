"""Gopher's rules of repetition (Rae et al. 2021, arXiv:2112.11446, table A1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_most

_PARAGRAPH_END = re.compile(r"\n{2,}")
_LINE_END = re.compile(r"\n+")


def repetition(
    *,
    paragraphs: float = 0.3,
    paragraph_characters: float = 0.2,
    lines: float = 0.3,
    line_characters: float = 0.2,
    top_2: float = 0.2,
    top_3: float = 0.18,
    top_4: float = 0.16,
    repeated_5: float = 0.15,
    repeated_6: float = 0.14,
    repeated_7: float = 0.13,
    repeated_8: float = 0.12,
    repeated_9: float = 0.11,
    repeated_10: float = 0.1,
) -> Rules:
    """Removes documents that repeat themselves in lines, paragraphs or runs of words.

    Every threshold is the largest share that is kept. `paragraphs` and `lines`: of those that have come before;
    `paragraph_characters` and `line_characters`: of their characters in the text; `top_n`: of the characters of the
    most frequent run of n words; `repeated_n`: of the characters of runs of n words that have come before, none counted
    twice.
    """
    top = {2: top_2, 3: top_3, 4: top_4}
    repeated = {5: repeated_5, 6: repeated_6, 7: repeated_7, 8: repeated_8, 9: repeated_9, 10: repeated_10}

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text, words = candidate.text, candidate.words
        num_characters = max(len(text), 1)
        parts = _PARAGRAPH_END.split(text.strip())
        number, characters = duplicates(parts)
        yield at_most("paragraphs", number / len(parts), paragraphs)
        yield at_most("paragraph_characters", characters / num_characters, paragraph_characters)
        parts = _LINE_END.split(text)
        number, characters = duplicates(parts)
        yield at_most("lines", number / len(parts), lines)
        yield at_most("line_characters", characters / num_characters, line_characters)
        for n, runs in zip(range(2, 11), _repeated_runs(words), strict=False):
            if n in top:
                yield at_most(f"top_{n}", (runs.top_characters + n - 1) * runs.top_count / num_characters, top[n])
            else:
                yield at_most(f"repeated_{n}", _repeated_characters(runs) / num_characters, repeated[n])

    return rules


def duplicates(parts: list[str]) -> tuple[int, int]:
    """The number of parts that have come before, and their characters."""
    different = set(parts)
    if len(different) == len(parts):
        return 0, 0
    return len(parts) - len(different), sum(map(len, parts)) - sum(map(len, different))


class _Runs(NamedTuple):
    """The runs of n words that come more than once, and the most frequent, of several the first in the text."""

    length: int
    starts: list[int]
    names: list[int]
    characters: list[int]
    top_characters: int
    top_count: int


def _repeated_runs(words: list[str]) -> Iterator[_Runs]:
    """For n = 2, 3 ... while the text has so many words: equal names for equal runs, by their places in the text."""
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(word, len(known)) for word in words], np.int64)
    ends = np.cumsum([0, *map(len, words)])
    starts, names = np.arange(len(words)), codes
    for n in range(2, len(words) + 1):
        # Where a run of n words comes again, so does the run of its first n - 1: only those places are looked at. The
        # run's name and the next word's code make the name of the longer run.
        inside = np.searchsorted(starts, len(words) - n, side="right")
        starts, keys = starts[:inside], names[:inside] * len(known) + codes[starts[:inside] + n - 1]
        _, first, names, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        count = int(counts.max(initial=1))
        # Without repetition the first run of all counts.
        top = int(starts[first[counts == count].min()]) if count > 1 else 0
        again = counts[names] > 1
        starts, names = starts[again], names[again]
        characters = ends[starts + n] - ends[starts]
        yield _Runs(n, starts.tolist(), names.tolist(), characters.tolist(), int(ends[top + n] - ends[top]), count)


def _repeated_characters(runs: _Runs) -> int:
    """Characters of the runs that have come before, from the start of the text on: a run that counts is left whole."""
    total, free = 0, 0
    seen: set[int] = set()
    for start, name, characters in zip(runs.starts, runs.names, runs.characters, strict=True):
        if start < free:
            continue
        if name in seen:
            total += characters
            free = start + runs.length
        else:
            seen.add(name)
    return total

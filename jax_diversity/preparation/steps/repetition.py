"""Gopher's rules of repetition (Rae et al. 2021, arXiv:2112.11446, table A1)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from jax_diversity.preparation.steps.base import Candidate, Measured, at_most, entries, unknown
from jax_diversity.preparation.steps.published import CHARACTERS_PER_WORD, LanguageStep

_PARAGRAPH_END = re.compile(r"\n{2,}")
_LINE_END = re.compile(r"\n+")


@dataclass
class Repetition(LanguageStep):
    """Removes documents that repeat their lines, paragraphs or runs of words.

    Every threshold is the largest allowed share. `paragraphs` and `lines` limit the share of paragraphs or lines that
    repeat an earlier paragraph or line. `paragraph_characters` and `line_characters` limit the share of characters in
    them. `top_N` limits the share of characters in the most frequent run of N words. `repeated_N` limits the share of
    characters in repeated runs of N words; each character is counted once. Documents in 33 languages other than English
    are judged by FineWeb2's thresholds, except thresholds that you change. In Japanese, two characters count as a word
    of a run, in Lao, Khmer and Burmese three, in Thai four. Other documents in scripts without spaces are not judged by
    the rules about runs of words. `by_language: false` uses the same thresholds for all documents.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "paragraphs": "too many repeated paragraphs",
        "paragraph_characters": "too much text in repeated paragraphs",
        "lines": "too many repeated lines",
        "line_characters": "too much text in repeated lines",
        **{f"top_{n}": f"too much text in the most frequent run of {n} words" for n in range(2, 5)},
        **{f"repeated_{n}": f"too much text in repeated runs of {n} words" for n in range(5, 11)},
    }
    thresholds: Mapping[str, float] = entries(
        paragraphs=0.3,
        paragraph_characters=0.2,
        lines=0.3,
        line_characters=0.2,
        top_2=0.2,
        top_3=0.18,
        top_4=0.16,
        repeated_5=0.15,
        repeated_6=0.14,
        repeated_7=0.13,
        repeated_8=0.12,
        repeated_9=0.11,
        repeated_10=0.1,
    )
    by_language: bool = True

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Measure paragraphs, lines and runs of words."""
        limits = self.limits(candidate)
        # The default thresholds are for words of several characters.
        knows_runs = limits is not self.thresholds or not (self.by_language and candidate.is_unspaced)
        in_characters = self.by_language and candidate.is_unspaced
        width = CHARACTERS_PER_WORD.get(candidate.main_language, 1) if in_characters else 1
        words = candidate.words if knows_runs else []
        for rule, share in _shares(candidate.text, words, separator=0 if in_characters else 1, width=width):
            yield at_most(rule, share, limits[rule])
        if not knows_runs:
            yield from map(unknown, [rule for rule in limits if rule.startswith(("top_", "repeated_"))])


def _shares(text: str, words: list[str], separator: int, width: int) -> Iterator[tuple[str, float]]:
    num_characters = max(len(text), 1)
    for part, parts in (("paragraph", _PARAGRAPH_END.split(text.strip())), ("line", _LINE_END.split(text))):
        number, characters = duplicates(parts)
        yield f"{part}s", number / len(parts)
        yield f"{part}_characters", characters / num_characters
    for length, runs in zip(range(2, 10 * width + 1), _repeated_runs(words), strict=False):
        n, rest = divmod(length, width)
        if rest or n == 1:
            continue
        if n < 5:
            yield f"top_{n}", (runs.top_characters + (n - 1) * separator) * runs.top_count / num_characters
        else:
            yield f"repeated_{n}", _repeated_characters(runs) / num_characters


def duplicates(parts: list[str]) -> tuple[int, int]:
    """Return the number of parts that repeat an earlier part, and the number of characters in these parts."""
    different = set(parts)
    if len(different) == len(parts):
        return 0, 0
    return len(parts) - len(different), sum(map(len, parts)) - sum(map(len, different))


class _Runs(NamedTuple):
    """The repeated runs of n words, and the most frequent run (the first of equally frequent runs)."""

    length: int
    starts: list[int]
    names: list[int]
    characters: list[int]
    top_characters: int
    top_count: int


def _repeated_runs(words: list[str]) -> Iterator[_Runs]:
    """Yield the repeated runs of n words for n = 2, 3, ... up to the number of words; equal runs have equal names."""
    places: dict[str, int] = {}
    codes = np.array([places.setdefault(word, len(places)) for word in words], np.int64)
    ends = np.cumsum([0, *map(len, words)])
    starts, names = np.arange(len(words)), codes
    for n in range(2, len(words) + 1):
        # If a run of n words is repeated, the run of its first n - 1 words is repeated too: only places of repeated
        # shorter runs are searched. The name of the shorter run and the code of the next word name the longer run.
        inside = np.searchsorted(starts, len(words) - n, side="right")
        starts, keys = starts[:inside], names[:inside] * len(places) + codes[starts[:inside] + n - 1]
        _, first, names, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        count = int(counts.max(initial=1))
        # If no run is repeated, the first run of the text is used as the most frequent run.
        top = int(starts[first[counts == count].min()]) if count > 1 else 0
        again = counts[names] > 1
        starts, names = starts[again], names[again]
        characters = ends[starts + n] - ends[starts]
        yield _Runs(n, starts.tolist(), names.tolist(), characters.tolist(), int(ends[top + n] - ends[top]), count)


def _repeated_characters(runs: _Runs) -> int:
    """Count the characters in repeated runs from left to right; a run that overlaps a counted run is skipped."""
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

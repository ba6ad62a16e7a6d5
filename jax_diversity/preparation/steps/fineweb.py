"""FineWeb's own rules (Penedo et al. 2024, arXiv:2406.17557, section 3.6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.text.sentences import TERMINALS
from jax_diversity.preparation.steps.base import Candidate, Measured, at_least, at_most, entries
from jax_diversity.preparation.steps.published import LanguageStep
from jax_diversity.preparation.steps.repetition import duplicates

_SHORT_LINE = 30
"""The largest number of characters of a short line."""

_DUPLICATES_IN_CODE, _DUPLICATES_IN_PAPER = 0.01, 0.1


@dataclass
class Fineweb(LanguageStep):
    """Removes lists and menus: few lines end a sentence, or there are many short lines, repeated lines or line ends.

    Blank lines are ignored, except that all line ends are counted. A short line has at most 30 characters. Documents in
    33 languages other than English are judged by FineWeb2's thresholds, except thresholds that you change; FineWeb2
    keeps short lines. `by_language: false` uses the same thresholds for all documents.

    The form `datatrove` has the thresholds of FineWeb's code, which made the published corpus. The form `paper` allows
    .1 of the characters in repeated lines, and has no rule about line ends.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "least_punctuated_lines": "too few lines that end a sentence",
        "most_short_lines": "too many short lines",
        "most_duplicate_characters": "too much text in repeated lines",
        "most_line_ends_per_word": "too many line ends per word",
    }
    thresholds: Mapping[str, float] = entries(
        least_punctuated_lines=0.12,
        most_short_lines=0.67,
        most_duplicate_characters=0.01,
        most_line_ends_per_word=0.3,
    )
    by_language: bool = True
    form: Literal["datatrove", "paper"] = "datatrove"

    def __post_init__(self) -> None:
        check_one_of("form", self.form, ("datatrove", "paper"))

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Measure the shares of lines and the number of line ends per word."""
        limits, text = self.limits(candidate), candidate.text
        every = text.split("\n")
        lines = [line for line in every if line and not line.isspace()]
        num_lines, num_line_ends = max(len(lines), 1), len(every) - 1
        share_ended = sum(line[-1] in TERMINALS for line in lines) / num_lines
        yield at_least("least_punctuated_lines", share_ended, limits["least_punctuated_lines"])
        share_short = sum(len(line) <= _SHORT_LINE for line in lines) / num_lines
        yield at_most("most_short_lines", share_short, limits["most_short_lines"])
        share_duplicate = duplicates(lines)[1] / max(len(text) - num_line_ends, 1)
        most_duplicate = limits["most_duplicate_characters"]
        if self.form == "paper" and most_duplicate == _DUPLICATES_IN_CODE:
            most_duplicate = _DUPLICATES_IN_PAPER
        yield at_most("most_duplicate_characters", share_duplicate, most_duplicate)
        if self.form == "paper":
            return
        line_ends_per_word = num_line_ends / max(len(candidate.words), 1)
        yield at_most("most_line_ends_per_word", line_ends_per_word, limits["most_line_ends_per_word"])

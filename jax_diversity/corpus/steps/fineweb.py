"""FineWeb's own rules (Penedo et al. 2024, arXiv:2406.17557, section 3.6)."""

from __future__ import annotations

from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least, at_most
from jax_diversity.corpus.steps.repetition import duplicates
from jax_diversity.text.words import TERMINALS


def fineweb(
    *,
    least_punctuated_lines: float = 0.12,
    most_short_lines: float = 0.67,
    short_line: int = 30,
    most_duplicate_characters: float = 0.01,
    most_line_ends_per_word: float = 0.3,
) -> Rules:
    """Removes lists and menus: few lines that end a sentence, many short ones, lines that come again, line ends.

    Lines that are blank do not count. A short line has at most `short_line` characters.
    """

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text = candidate.text
        every = text.split("\n")
        lines = [line for line in every if line and not line.isspace()]
        num_lines = max(len(lines), 1)
        num_ended = sum(line[-1] in TERMINALS for line in lines)
        yield at_least("least_punctuated_lines", num_ended / num_lines, least_punctuated_lines)
        num_short = sum(len(line) <= short_line for line in lines)
        yield at_most("most_short_lines", num_short / num_lines, most_short_lines)
        num_line_ends = len(every) - 1
        num_characters = max(len(text) - num_line_ends, 1)
        yield at_most("most_duplicate_characters", duplicates(lines)[1] / num_characters, most_duplicate_characters)
        num_words = max(len(candidate.words), 1)
        yield at_most("most_line_ends_per_word", num_line_ends / num_words, most_line_ends_per_word)

    return rules

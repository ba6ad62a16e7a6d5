"""Gopher's rules of quality (Rae et al. 2021, arXiv:2112.11446, appendix A.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax_diversity.corpus.steps.base import Candidate, Measured, Step, at_least, at_most, entries

_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_ELLIPSES = ("...", "…")
_BULLETS = ("•", "-")


@dataclass
class Gopher(Step):
    """Removes texts that do not look like prose, by words, symbols, bullets, ellipses and stop words.

    The ratios count punctuation marks as words; the number and mean length of words do not include them. Shares of
    lines and words are shares of all lines and words of the document. Stop words are English, in lower case.
    """

    thresholds: Mapping[str, float] = entries(
        least_words=50,
        most_words=100_000,
        least_mean_length=3.0,
        most_mean_length=10.0,
        most_symbols_per_word=0.1,
        most_bullet_lines=0.9,
        most_ellipsis_lines=0.3,
        least_alphabetic_words=0.8,
        least_stop_words=2,
    )

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Measure words, then symbols, lines and stop words."""
        limits, text, every, proper = self.thresholds, candidate.text, candidate.words, candidate.proper_words
        yield at_least("least_words", len(proper), limits["least_words"])
        yield at_most("most_words", len(proper), limits["most_words"])
        mean_length = sum(map(len, proper)) / max(len(proper), 1)
        yield at_least("least_mean_length", mean_length, limits["least_mean_length"])
        yield at_most("most_mean_length", mean_length, limits["most_mean_length"])
        num_words, most_symbols = max(len(every), 1), limits["most_symbols_per_word"]
        yield at_most("most_hashes_per_word", text.count("#") / num_words, most_symbols)
        yield at_most("most_ellipses_per_word", sum(map(text.count, _ELLIPSES)) / num_words, most_symbols)
        lines = text.splitlines()
        num_lines = max(len(lines), 1)
        num_bullets = sum(line.lstrip().startswith(_BULLETS) for line in lines)
        yield at_most("most_bullet_lines", num_bullets / num_lines, limits["most_bullet_lines"])
        num_open = sum(line.rstrip().endswith(_ELLIPSES) for line in lines)
        yield at_most("most_ellipsis_lines", num_open / num_lines, limits["most_ellipsis_lines"])
        # `str.isalpha` of the whole word is the fast case: most words have letters only.
        num_alphabetic = sum(word.isalpha() or any(map(str.isalpha, word)) for word in every)
        yield at_least("least_alphabetic_words", num_alphabetic / num_words, limits["least_alphabetic_words"])
        yield at_least("least_stop_words", len(_STOP_WORDS.intersection(every)), limits["least_stop_words"])

"""Gopher's rules of quality (Rae et al. 2021, arXiv:2112.11446, appendix A.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.foundation.text.words import split_spaced
from jax_diversity.preparation.steps.base import Candidate, Measured, at_least, at_most, entries, unknown
from jax_diversity.preparation.steps.published import LanguageStep, stop_words

_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_ELLIPSES = ("...", "…")
_BULLETS = ("•", "-")


@dataclass
class Gopher(LanguageStep):
    """Removes texts that do not look like prose. The rules measure words, symbols, bullets, ellipses and stop words.

    In the ratios, a punctuation mark is a word too; in the number and the mean length of words, it is not. With
    `marks_are_words: false`, the share of alphabetic words is measured over the words between spaces. Shares of lines
    and words refer to all lines and words of the document. A document without a language is judged as English.
    Documents in 33 other languages are judged by FineWeb2's stop words and thresholds, except thresholds that you
    change. The rules of stop words and mean length keep documents in all other languages, and the rules of mean length
    also keep documents in scripts without spaces; the funnel counts them as not judged. `by_language: false` judges all
    documents as English.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "least_words": "too few words",
        "most_words": "too many words",
        "least_mean_length": "words too short on average",
        "most_mean_length": "words too long on average",
        "most_hashes_per_word": "too many hash signs per word",
        "most_ellipses_per_word": "too many ellipses per word",
        "most_bullet_lines": "too many lines with a bullet",
        "most_ellipsis_lines": "too many lines that end with an ellipsis",
        "least_alphabetic_words": "too few words with a letter",
        "least_stop_words": "too few stop words of its language",
    }
    thresholds: Mapping[str, float] = entries(
        least_words=50,
        most_words=100_000,
        least_mean_length=3.0,
        most_mean_length=10.0,
        most_hashes_per_word=0.1,
        most_ellipses_per_word=0.1,
        most_bullet_lines=0.9,
        most_ellipsis_lines=0.3,
        least_alphabetic_words=0.8,
        least_stop_words=2,
    )
    marks_are_words: bool = True
    by_language: bool = True

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Measure the words, then symbols, lines and stop words."""
        limits, text, every, proper = self.limits(candidate), candidate.text, candidate.words, candidate.proper_words
        yield at_least("least_words", len(proper), limits["least_words"])
        yield at_most("most_words", len(proper), limits["most_words"])
        language = candidate.main_language if self.by_language else ""
        words_of_language = _STOP_WORDS if language in ("", "en") else stop_words(language)
        if self.by_language and (words_of_language is None or candidate.is_unspaced):
            yield unknown("least_mean_length")
            yield unknown("most_mean_length")
        else:
            mean_length = sum(map(len, proper)) / max(len(proper), 1)
            yield at_least("least_mean_length", mean_length, limits["least_mean_length"])
            yield at_most("most_mean_length", mean_length, limits["most_mean_length"])
        num_words, num_ellipses = max(len(every), 1), sum(map(text.count, _ELLIPSES))
        yield at_most("most_hashes_per_word", text.count("#") / num_words, limits["most_hashes_per_word"])
        yield at_most("most_ellipses_per_word", num_ellipses / num_words, limits["most_ellipses_per_word"])
        lines = text.splitlines()
        num_lines = max(len(lines), 1)
        num_bullets = sum(line.lstrip().startswith(_BULLETS) for line in lines)
        yield at_most("most_bullet_lines", num_bullets / num_lines, limits["most_bullet_lines"])
        num_open = sum(line.rstrip().endswith(_ELLIPSES) for line in lines)
        yield at_most("most_ellipsis_lines", num_open / num_lines, limits["most_ellipsis_lines"])
        # `str.isalpha` of the whole word is the fast case: most words have letters only.
        words = every if self.marks_are_words else split_spaced(text)
        num_alphabetic = sum(word.isalpha() or any(map(str.isalpha, word)) for word in words)
        yield at_least("least_alphabetic_words", num_alphabetic / max(len(words), 1), limits["least_alphabetic_words"])
        if words_of_language is None:
            yield unknown("least_stop_words")
        else:
            # In a script without spaces, a stop word may have several characters.
            is_part = self.by_language and candidate.is_unspaced
            num_found = (
                sum(word in text for word in words_of_language)
                if is_part
                else len(words_of_language.intersection(every))
            )
            yield at_least("least_stop_words", num_found, limits["least_stop_words"])

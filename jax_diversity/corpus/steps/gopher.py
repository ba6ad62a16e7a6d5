"""Gopher's rules of quality (Rae et al. 2021, arXiv:2112.11446, appendix A.1.1)."""

from __future__ import annotations

from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least, at_most

_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_ELLIPSES = ("...", "…")
_BULLETS = ("•", "-")


def gopher(
    *,
    least_words: int = 50,
    most_words: int = 100_000,
    least_mean_length: float = 3.0,
    most_mean_length: float = 10.0,
    most_symbols_per_word: float = 0.1,
    most_bullet_lines: float = 0.9,
    most_ellipsis_lines: float = 0.3,
    least_alphabetic_words: float = 0.8,
    least_stop_words: int = 2,
) -> Rules:
    """Removes what does not look like prose: number and length of words, symbols, bullets, ellipses, stop words.

    Words of punctuation alone count as words in the ratios, but not in number and mean length. A share of lines or of
    words is one of all lines or words of the document; stop words are English, in lower case.
    """

    def rules(candidate: Candidate) -> Iterator[Measured]:
        text, every, proper = candidate.text, candidate.words, candidate.proper_words
        yield at_least("least_words", len(proper), least_words)
        yield at_most("most_words", len(proper), most_words)
        mean_length = sum(map(len, proper)) / max(len(proper), 1)
        yield at_least("least_mean_length", mean_length, least_mean_length)
        yield at_most("most_mean_length", mean_length, most_mean_length)
        num_words = max(len(every), 1)
        yield at_most("most_hashes_per_word", text.count("#") / num_words, most_symbols_per_word)
        num_ellipses = sum(map(text.count, _ELLIPSES))
        yield at_most("most_ellipses_per_word", num_ellipses / num_words, most_symbols_per_word)
        lines = text.splitlines()
        num_lines = max(len(lines), 1)
        num_bullets = sum(line.lstrip().startswith(_BULLETS) for line in lines)
        yield at_most("most_bullet_lines", num_bullets / num_lines, most_bullet_lines)
        num_open = sum(line.rstrip().endswith(_ELLIPSES) for line in lines)
        yield at_most("most_ellipsis_lines", num_open / num_lines, most_ellipsis_lines)
        # Most words are of letters alone, which Python tells at once.
        num_alphabetic = sum(word.isalpha() or any(map(str.isalpha, word)) for word in every)
        yield at_least("least_alphabetic_words", num_alphabetic / num_words, least_alphabetic_words)
        yield at_least("least_stop_words", len(_STOP_WORDS.intersection(every)), least_stop_words)

    return rules

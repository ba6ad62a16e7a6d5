"""Runs of sentences that come again (C4: Raffel et al. 2020, JMLR 21(140), section 2.2)."""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt64

from jax_diversity.corpus.steps.base import Candidate, Survey
from jax_diversity.corpus.steps.repeats import Repeats, Span, line_hashes, run_hashes
from jax_diversity.foundation.checks import whole_number
from jax_diversity.text.words import split_sentences


def sentences(*, run: int = 3, least_left: float = 0.0, mark: bool = False, precedence: str = "") -> Survey:
    """Removes sentences that belong to a run of `run` sentences that came before, here or in another document.

    Case, spaces and punctuation do not count, and all digits are equal. Documents of which a share of words below
    `least_left` is left are removed. Documents come in the order of reading, those of the sources named first in
    `precedence` before all others. `mark` changes no text: documents get the share of words in such sentences as the
    field `repeated_sentences_share`.
    """
    whole_number("run", run, 1, 10_000)
    return _Sentences(run, "sentences", least_left=least_left, mark=mark, precedence=precedence)


class _Sentences(Repeats):
    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " run"]:
        hashes = _hashes(split_sentences(candidate.text))
        return run_hashes(hashes[hashes != 0], self.run)

    def spans(self, text: str) -> list[Span]:
        spans: list[Span] = []
        every, end = split_sentences(text), 0
        for sentence, has_letters in zip(every, (_hashes(every) != 0).tolist(), strict=True):
            start = text.index(sentence, end)
            end = start + len(sentence)
            if has_letters:
                spans.append((start, end))
            elif spans:  # marks alone, which belong to the sentence before
                spans[-1] = spans[-1][0], end
        return spans


def _hashes(sentences: list[str]) -> UInt64[np.ndarray, " sentence"]:
    """A hash of every sentence; 0 for marks alone."""
    one_a_line = "\n".join([sentence.replace("\n", " ") for sentence in sentences])
    return line_hashes(one_a_line)[: len(sentences)]

"""Remove repeated runs of sentences (C4: Raffel et al. 2020, JMLR 21(140), section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from jax_diversity.corpus.steps.base import Candidate, Span
from jax_diversity.corpus.steps.repeats import Repeats, line_hashes, run_hashes
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.text.sentences import split_sentences


@dataclass
class Sentences(Repeats):
    """Removes sentences that belong to a run of `run` sentences that occurred before, in this or another document.

    Case, spaces and punctuation are ignored, and all digits are equal. Documents of which less than the share
    `least_left` of the words is left are removed. Documents come in the order of reading, after the documents of the
    sources named in `precedence`. `mark` changes no text: documents get the share of words in such sentences as the
    field `repeated_sentences_share`.
    """

    kind: ClassVar[str] = "sentences"
    run: int = 3
    least_left: float = 0.0
    mark: bool = False
    precedence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        as_whole_number("run", self.run, 1, 10_000)

    @property
    def run_length(self) -> int:
        """Number of sentences in a run."""
        return self.run

    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " run"]:
        """A hash of every run of sentences; sentences that contain only punctuation marks are ignored."""
        hashes = _hashes(split_sentences(candidate.text))
        return run_hashes(hashes[hashes != 0], self.run)

    def spans(self, text: str) -> list[Span]:
        """The sentences, each with the marks after it."""
        spans: list[Span] = []
        every, end = split_sentences(text), 0
        for sentence, has_letters in zip(every, (_hashes(every) != 0).tolist(), strict=True):
            start = text.index(sentence, end)
            end = start + len(sentence)
            if has_letters:
                spans.append((start, end))
            elif spans:  # punctuation marks without a word belong to the sentence before them
                spans[-1] = spans[-1][0], end
        return spans


def _hashes(sentences: list[str]) -> UInt64[np.ndarray, " sentence"]:
    """A hash of every sentence; 0 for a sentence that contains only punctuation marks."""
    one_a_line = "\n".join([sentence.replace("\n", " ") for sentence in sentences])
    return line_hashes(one_a_line)[: len(sentences)]

"""Remove repeated runs of sentences (C4: Raffel et al. 2020, JMLR 21(140), section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.text.sentences import split_sentences
from jax_diversity.preparation.steps.base import Candidate, Span
from jax_diversity.preparation.steps.repeats import HashedRepeats, line_hashes, run_hashes


@dataclass
class Sentences(HashedRepeats):
    """Removes runs of `run` neighbouring sentences that occur earlier, in the same document or another document.

    The comparison ignores case, spaces and punctuation, and all digits are equal. Sentences without letters and digits
    are ignored. The full stop after `Mr` also ends a sentence. A document is removed if less than the share
    `least_left` of its words is left. The documents of the sources named in `precedence` come first, then all others in
    the order of reading. With `mark`, no text changes: each document gets the field `repeated_sentences_share`, the
    share of its words in such runs.
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
        """Return a hash for every run of sentences; sentences that contain only punctuation marks are ignored."""
        hashes = _hashes(split_sentences(candidate.text))
        return run_hashes(hashes[hashes != 0], self.run)

    def spans(self, text: str) -> list[Span]:
        """Return the sentences, each with the punctuation marks after it."""
        return sentence_spans(text)


def sentence_spans(text: str) -> list[Span]:
    """Return the sentences with letters or digits, each with the punctuation marks after it."""
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
    """Return a hash for every sentence; 0 if it contains only punctuation marks."""
    one_per_line = "\n".join([sentence.replace("\n", " ") for sentence in sentences])
    return line_hashes(one_per_line)[: len(sentences)]

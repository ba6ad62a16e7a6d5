"""Documents of enough words."""

from __future__ import annotations

from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least


def words(*, least: int = 50) -> Rules:
    """Keeps documents of at least `least` words, punctuation not counted; the number becomes the field `words`.

    50 words: as in studies of packing that drop the short articles of WikiText (Merity et al. 2016).
    """

    def rules(candidate: Candidate) -> Iterator[Measured]:
        candidate.scores["words"] = num_words = len(candidate.proper_words)
        yield at_least("words", num_words, least)

    return rules

"""Remove documents with too few words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least


@dataclass
class Words(Step):
    """Keeps documents with at least `least` words, without punctuation. The number is stored in the field `words`.

    The default of 50 is from studies of packing that leave out the short articles of WikiText (Merity et al. 2016).
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "words": "too few words",
    }
    least: int = 50

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Count the words."""
        candidate.scores["words"] = num_words = len(candidate.proper_words)
        yield at_least("words", num_words, self.least)

"""Remove repeated long substrings (Lee et al. 2022, arXiv:2107.06499, section 4.1; cut out as in RefinedWeb).

A word belongs to a repeated substring of at least n words if and only if it belongs to a repeated run of n words. The
runs are hashed and sorted in blocks, so we do not need a suffix array, which would have to fit into memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import xxhash
from jaxtyping import UInt64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.text.words import word_spans
from jax_diversity.preparation.steps.base import Candidate, Span
from jax_diversity.preparation.steps.repeats import HashedRepeats, run_hashes


@dataclass
class Substrings(HashedRepeats):
    """Cuts out substrings of at least `length` words that occurred before, in this or another document.

    Punctuation marks are words here. Words must be equal in every letter; spaces are ignored. If a text repeats itself,
    its first occurrence stays. The result is the same as with a suffix array. A document is removed if the remaining
    share of its words is below `least_left`; with 1, every document with such a substring is removed. Documents of the
    sources in `precedence` come first, then all others, in the order of reading. `mark` changes no text: documents get
    the share of words in such substrings as the field `repeated_substrings_share`.
    """

    kind: ClassVar[str] = "words"
    length: int = 50
    least_left: float = 0.0
    mark: bool = False
    precedence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        as_whole_number("length", self.length, 1, 10_000)

    @property
    def run_length(self) -> int:
        """Number of words in a run."""
        return self.length

    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " run"]:
        """Compute a hash of every run of words."""
        words = "\n".join(candidate.words).encode(errors="surrogatepass").split(b"\n")
        return run_hashes(np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, words)), np.uint64), self.length)

    def spans(self, text: str) -> list[Span]:
        """Return the places of the words."""
        return word_spans(text)

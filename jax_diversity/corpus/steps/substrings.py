"""Long substrings that come again (Lee et al. 2022, arXiv:2107.06499, section 4.1; cut out as by RefinedWeb).

A word belongs to a substring of at least n words that came before just where it belongs to one of n words that did.
So no suffix array is needed, which must be in memory as a whole: the runs of n words are hashed and sorted in blocks.
"""

from __future__ import annotations

import numpy as np
import xxhash
from jaxtyping import UInt64

from jax_diversity.corpus.steps.base import Candidate, Survey
from jax_diversity.corpus.steps.repeats import Repeats, Span, run_hashes
from jax_diversity.foundation.checks import whole_number
from jax_diversity.text.words import word_spans


def substrings(*, length: int = 50, least_left: float = 0.0, mark: bool = False, precedence: str = "") -> Survey:
    """Cuts out substrings of `length` words or more that came before, here or in another document.

    Words are those of `words`, and marks; they must be equal to the letter, spaces do not count. Documents of which a
    share of words below `least_left` is left are removed: 1 removes all in which there is such a substring. Documents
    come in the order of reading, those of the sources named first in `precedence` before all others. `mark` changes no
    text: documents get the share of words in such substrings as the field `repeated_substrings_share`.
    """
    whole_number("length", length, 1, 10_000)
    return _Substrings(length, "words", least_left=least_left, mark=mark, precedence=precedence)


class _Substrings(Repeats):
    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " run"]:
        words = "\n".join(candidate.words).encode(errors="surrogatepass").split(b"\n")
        return run_hashes(np.frombuffer(b"".join(map(xxhash.xxh3_64_digest, words)), np.uint64), self.run)

    def spans(self, text: str) -> list[Span]:
        return word_spans(text)

"""Lines that come in several documents (Wenzek et al. 2020, *CCNet*, LREC, section 3.2)."""

from __future__ import annotations

import re

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from jax_diversity.corpus.steps.base import Candidate, Survey
from jax_diversity.corpus.steps.repeats import Repeats, Span, line_hashes
from jax_diversity.foundation.checks import whole_number

_LINE = re.compile(r"^[^\S\n]*\S.*", re.MULTILINE)
"""A line that is not blank."""


def lines(
    *,
    documents: int = 2,
    keep_first: bool = True,
    within: bool = False,
    least_letters: int = 0,
    least_left: float = 0.0,
    mark: bool = False,
    precedence: str = "",
) -> Survey:
    """Removes lines that come in at least `documents` documents, but in the first of them.

    Case, spaces and punctuation do not count, and all digits are equal. Lines of fewer than `least_letters` letters
    and digits stay. With `keep_first` false lines go from the first document too, and `within` removes a line also
    where it came before in the same document; CCNet does both. Documents of which a share of words below `least_left`
    is left are removed. The first document is the one read first, or one of the sources named first in `precedence`.
    `mark` changes no text: documents get the share of words in such lines as the field `repeated_lines_share`.
    """
    whole_number("documents", documents, 2)
    whole_number("least_letters", least_letters)
    return _Lines(documents, keep_first, within, least_letters, least_left=least_left, mark=mark, precedence=precedence)


class _Lines(Repeats):
    def __init__(
        self,
        documents: int,
        keep_first: bool,
        within: bool,
        least_letters: int,
        *,
        least_left: float,
        mark: bool,
        precedence: str,
    ) -> None:
        super().__init__(1, "lines", least_left=least_left, mark=mark, precedence=precedence)
        self._documents, self._keep_first, self._within = documents, keep_first, within
        self._least_letters = least_letters

    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " line"]:
        return line_hashes("\n".join(_LINE.findall(candidate.text)), self._least_letters)

    def spans(self, text: str) -> list[Span]:
        return [match.span() for match in _LINE.finditer(text)]

    def again(
        self, begins: Bool[np.ndarray, " place"], documents: Int64[np.ndarray, " place"]
    ) -> Bool[np.ndarray, " place"]:
        # A document's places in a group are neighbours.
        is_new = begins | (np.diff(documents, prepend=-1) != 0)
        group, firsts = np.cumsum(begins) - 1, np.flatnonzero(begins)
        again = (np.bincount(group, is_new) >= self._documents)[group]
        if self._keep_first:
            again &= documents != documents[firsts][group]
        return again | ~is_new if self._within else again

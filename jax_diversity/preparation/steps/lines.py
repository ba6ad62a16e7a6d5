"""Lines that occur in several documents (Wenzek et al. 2020, *CCNet*, LREC, section 3.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int64, UInt64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.preparation.steps.base import Candidate, Span
from jax_diversity.preparation.steps.repeats import HashedRepeats, line_hashes

_LINE = re.compile(r"^[^\S\n]*\S.*", re.MULTILINE)
"""A line that is not blank."""


@dataclass
class Lines(HashedRepeats):
    """Removes lines that occur in at least two documents, except from the first of these documents.

    Case, spaces and punctuation are ignored, and all digits are equal. With `keep_marks`, spaces within a line and
    ASCII punctuation marks count, as in CCNet's code. Lines with fewer than `least_letters` letters and digits stay: in
    code, plays and lists, repeated short lines such as `import math` are not boilerplate, and `least_letters: 20` keeps
    them. With `everywhere`, as in CCNet, lines are also removed from the first document, and repeated lines within one
    document are removed. A document is removed if the remaining share of its words is below `least_left`. The first
    document is from the source that comes first in `precedence`; otherwise it is the document that was read first.
    `mark` changes no text: documents get the share of words in such lines as the field `repeated_lines_share`.
    """

    kind: ClassVar[str] = "lines"
    everywhere: bool = False
    keep_marks: bool = False
    least_letters: int = 0
    least_left: float = 0.0
    mark: bool = False
    precedence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        as_whole_number("least_letters", self.least_letters)

    def hashes(self, candidate: Candidate) -> UInt64[np.ndarray, " line"]:
        """Compute a hash of every line."""
        return line_hashes("\n".join(_LINE.findall(candidate.text)), self.least_letters, self.keep_marks)

    def spans(self, text: str) -> list[Span]:
        """Return the places of the lines."""
        return [match.span() for match in _LINE.finditer(text)]

    def repeated(
        self, begins: Bool[np.ndarray, " place"], documents: Int64[np.ndarray, " place"]
    ) -> Bool[np.ndarray, " place"]:
        """Return which lines are repeated in several documents."""
        # Within a group of equal lines, the places of one document are neighbours.
        is_new = begins | (np.diff(documents, prepend=-1) != 0)
        group, firsts = np.cumsum(begins) - 1, np.flatnonzero(begins)
        repeated = (np.bincount(group, is_new) >= 2)[group]
        if self.everywhere:
            return repeated | ~is_new
        return repeated & (documents != documents[firsts][group])

"""Find documents with the same meaning (SemDeDup: Abbas et al. 2023, arXiv:2303.09540).

A note has 4 bytes for every different term, about 560 bytes per document, or the bytes of the vector. Notes are read
from disk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.text.terms import split_terms
from jax_diversity.preparation.passes.notes import Notes
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.preparation.steps.duplicates import Groups
from jax_diversity.preparation.steps.similarity import (
    DenseVectors,
    TermVectors,
    check_similarity,
    counted_terms,
    identity,
    leaders,
    one_thread,
)

_MOST_WORDS = 1024
"""Number of words at the start of a text whose terms are compared."""


@dataclass
class Semantic(Groups):
    """Keeps one of the documents whose vectors have a cosine of at least `similarity`.

    `vectors` names the metadata field with a document's vector, a list of numbers; without it the terms of the first
    1,024 words are compared. Documents are compared within clusters of about a thousand documents. The kept document is
    from the source that comes first in `precedence`; otherwise it is the document that is farthest from the centre of
    its cluster. Every removed document is similar to a kept document. `mark` removes no document and sets the field
    `semantic_group`.

    Terms find editions of a poem that differ in some characters, but also texts that differ only in a name;
    `similarity: 0.8` also finds lists of the same pattern. The step removes 761 documents of `mixed`; `minhash`
    does not find half of them. Use `mark` first, and look at the groups.
    """

    similarity: float = 0.9
    vectors: str = ""
    mark: bool = False
    precedence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_similarity(self.similarity)

    def identity(self) -> str:
        """Return the version of the library that finds the clusters."""
        return identity()

    def note(self, candidate: Candidate) -> bytes:
        """Return the vector, or the terms with their counts."""
        return self._vector(candidate) if self.vectors else counted_terms(split_terms(candidate.text, _MOST_WORDS))

    def _vector(self, candidate: Candidate) -> bytes:
        value = candidate.document.metadata.get(self.vectors)
        try:
            vector = np.asarray(value, np.float32)
        except (TypeError, ValueError):
            vector = np.zeros(0, np.float32)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise DocumentError(f"the field {self.vectors!r} is not a list of numbers")
        length = np.linalg.norm(vector)
        return (vector / length).tobytes() if length else b""

    def kept(self, notes: Notes, ranks: Int64[np.ndarray, " noted"]) -> Int64[np.ndarray, " noted"]:
        """In each cluster, by precedence and distance from the centre, the documents that are similar to no other."""
        noted = notes.noted
        if len(noted) < 2:
            return noted
        with one_thread():
            vectors = _vectors(notes) if self.vectors else _terms(notes)
            return noted[leaders(vectors, self.similarity, ranks, farthest_first=True)]


def _vectors(notes: Notes) -> DenseVectors:
    lengths = np.unique(notes.lengths[notes.noted]) // 4
    if len(lengths) > 1:
        raise UserError(f"Expected vectors with equal numbers of entries, found {lengths[0]} and {lengths[-1]}.")
    return DenseVectors(notes.data.view(np.float32).reshape(-1, lengths[0]))


def _terms(notes: Notes) -> TermVectors:
    ends = notes.ends[notes.noted] // 4
    return TermVectors(notes.data.view(np.uint32), ends - notes.lengths[notes.noted] // 4, ends)

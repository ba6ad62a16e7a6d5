"""Remove sentences that say what an earlier sentence says (as in Skywork: Wei et al. 2023, arXiv:2310.19341).

Sentences are compared as `semantic` compares documents. A note has 4 bytes for every different term of every sentence,
and 4 bytes for the end of a sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from jax_diversity.preparation.passes.notes import Notes
from jax_diversity.preparation.steps.base import Candidate, Span
from jax_diversity.preparation.steps.repeats import Repeats
from jax_diversity.preparation.steps.sentences import sentence_spans
from jax_diversity.preparation.steps.similarity import (
    TermVectors,
    check_similarity,
    counted_terms,
    leaders,
    one_thread,
)

_LEAST_TERMS = 6
_END = bytes(4)
"""The end of a sentence in a note: no term with its count is 0."""


@dataclass
class SimilarSentences(Repeats):
    """Removes sentences that have the terms of an earlier sentence, in this or another document.

    The cosine of the terms is at least `similarity`. Sentences with fewer than six different terms stay, because short
    sentences of dialogues and lists are often equal. A rare word has much weight, so that sentences that differ in a
    name or a date usually stay. But a term has at least two letters or digits: formulas and code that differ in `x` and
    `y` alone have equal terms, so name the sources or languages of prose in `only`. Sentences are compared within
    clusters of about a thousand sentences. Every removed sentence is similar to a sentence that stays. A document is
    removed if less than the share `least_left` of its words is left. The documents of the sources named in `precedence`
    come first, then all others in the order of reading. With `mark`, no text changes: each document gets the field
    `repeated_similar_sentences_share`, the share of its words in such sentences.

    Of the 445,000 sentences of `mixed` with six terms, 41,295 are removed: 34,464 of them are equal to an earlier
    sentence except for case, spaces, punctuation and digits.
    """

    kind: ClassVar[str] = "sentences"
    similarity: float = 0.9
    least_left: float = 0.0
    mark: bool = False
    precedence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_similarity(self.similarity)

    def spans(self, text: str) -> list[Span]:
        """Return the sentences, each with the punctuation marks after it."""
        return sentence_spans(text)

    def note(self, candidate: Candidate) -> bytes:
        """Return the terms of every sentence with their counts, and a zero after each sentence."""
        text = candidate.text
        sentences = (counted_terms(text[start:end]) for start, end in sentence_spans(text))
        return b"".join([(terms if len(terms) >= 4 * _LEAST_TERMS else b"") + _END for terms in sentences])

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write for each sentence whether it is cut out, and for each document the index after its last sentence."""
        terms = notes.data.view(np.uint32)
        ends = np.flatnonzero(terms == 0)
        starts = np.concatenate([[0], ends + 1])[:-1]
        document_ends = np.searchsorted(ends, notes.ends // 4)
        again = np.zeros(len(ends), bool)
        compared = np.flatnonzero(ends > starts)
        if len(compared) > 1:
            documents = np.searchsorted(document_ends, compared, side="right")
            with one_thread():
                vectors = TermVectors(terms, starts[compared], ends[compared])
                leader = leaders(vectors, self.similarity, notes.ranks(self.precedence)[documents])
            again[compared] = leader != np.arange(len(compared))
        np.save(folder / "again.npy", again)
        np.save(folder / "ends.npy", document_ends)

"""Remove sentences that say what an earlier sentence says (as in Skywork: Wei et al. 2023, arXiv:2310.19341).

Sentences are compared in clusters by the cosines of their terms, as `semantic` compares documents. A note has 4 bytes
for every different term of a sentence, and 4 bytes for the end of every sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from jax_diversity.foundation.text.terms import split_terms
from jax_diversity.foundation.text.words import SYMBOLS, split_words
from jax_diversity.preparation.passes.notes import Notes
from jax_diversity.preparation.steps.base import Candidate, Span
from jax_diversity.preparation.steps.repeats import Repeats
from jax_diversity.preparation.steps.sentences import sentence_spans
from jax_diversity.preparation.steps.similarity import (
    TermVectors,
    check_similarity,
    counted_terms,
    identity,
    leaders,
    one_thread,
)

_LEAST_WORDS = 8
_MOST_WORDS = 1000
_END = bytes(4)
"""The end of a sentence in a note: no term with its count is 0."""


@dataclass
class SimilarSentences(Repeats):
    """Removes sentences that have the words of an earlier sentence, in this or another document.

    The cosine of the words and marks is at least `similarity`; their order does not count. Rare words have much weight,
    so that sentences that differ in a name, a date, a number or the letter of a formula usually stay. Sentences with
    fewer than eight different words stay, because short sentences of dialogues and lists are often equal, and so do
    sentences with more than a thousand words and marks, such as lists without full stops. Sentences are compared within
    clusters of about a thousand sentences. The first of similar sentences stays; if `least_left` removes its document,
    the others are removed too. A document is removed if less than the share `least_left` of its words is left. The
    documents of the sources named in `precedence` come first, then all others in the order of reading. With `mark`, no
    text changes: each document gets the field `repeated_similar_sentences_share`, the share of its words in such
    sentences.
    """

    kind: ClassVar[str] = "sentences"
    similarity: float = 0.9
    least_left: float = 0.0
    mark: bool = False
    precedence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_similarity(self.similarity)

    def identity(self) -> str:
        """Return the version of the library that finds the clusters."""
        return identity()

    def spans(self, text: str) -> list[Span]:
        """Return the sentences, each with the punctuation marks after it."""
        return sentence_spans(text)

    def note(self, candidate: Candidate) -> bytes:
        """Return the terms of every sentence with their counts, and a zero after each sentence."""
        text = candidate.text
        sentences = (counted_terms(_terms(text[start:end])) for start, end in sentence_spans(text))
        return b"".join([terms + _END for terms in sentences])

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


def _terms(sentence: str) -> list[str]:
    """The words and marks of a sentence, and the neighbours of scripts without spaces; empty if it always stays."""
    words = split_words(sentence.lower())
    different = set(words)
    if len(words) > _MOST_WORDS or len(different - SYMBOLS) < _LEAST_WORDS:
        return []
    # In scripts without spaces, a word is a character: pairs of neighbours tell sentences of equal characters apart.
    return words + [term for term in split_terms(sentence) if term not in different]

"""Documents -> vectors without fitting: hashed counts, projected to a few dimensions by random signs.

It counts the beginnings of words, single characters of scripts without spaces between words, and punctuation
marks, which distinguish prose, code, verse, lists and letters. Counts are hashed to buckets (Weinberger et al. 2009), a
count c weighs 1 + ln c, and each bucket has a direction of random signs, which keeps angles approximately
(Achlioptas 2003). A vector depends on its text and the settings alone, so later documents and documents of other
corpora are in the same space. But the method does not weigh rare words more, so it separates topics less well than
`tfidf_svd`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from jax_diversity.embedding.base import MOST_DIMENSIONS
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.text.scripts import MARKS, UNSPACED

NUM_BUCKETS = 2**16
"""Buckets for terms. Two documents of 100 terms share a bucket by chance in one of seven pairs: this is far less than
the projection's own noise, 1 / √dimensions."""
PREFIX_CHARACTERS = 5
"""First characters of a word that are hashed: one bucket for the word and its inflections."""
_BLOCK_DOCUMENTS = 1024

_ASCII = re.compile(r"[^\W_]{2,}|[^\w\s]|_")
_ANY = re.compile(rf"[{UNSPACED}]|(?:[^\W_{UNSPACED}]|[{MARKS}]){{2,}}|[^\w\s]|_")


def hashing(*, seed: int = 0, max_tokens: int = 1024, dimensions: int = 128) -> HashingEmbedder:
    """Hashed beginnings of words and punctuation marks, projected by random signs, without fitting.

    Args:
        seed: the seed of the signs.
        max_tokens: the number of first words, characters and punctuation marks of a text to read.
        dimensions: width of the vectors, at most 8192.

    Raises:
        UserError: an impossible width.

    Example:
        >>> hashing(dimensions=64).embed(["wind and sail", "1 2 3"]).shape
        (2, 64)
    """
    return HashingEmbedder(as_whole_number("dimensions", dimensions, 1, MOST_DIMENSIONS), seed, max_tokens)


class HashingEmbedder:
    """The embedder. It has no state: a document's vector depends only on that document."""

    def __init__(self, dimensions: int, seed: int, max_tokens: int) -> None:
        self.dimensions, self._seed, self._max_tokens = dimensions, seed, max_tokens

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """Vectors of length one, a row per text; zeros for a text without a term."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for start in range(0, len(texts), _BLOCK_DOCUMENTS):
            counts = csr_array(make_vectorizer(self._max_tokens).transform(texts[start : start + _BLOCK_DOCUMENTS]))
            # Ten occurrences of a word are stronger evidence of the topic than one, but not ten times as strong.
            counts.data = 1 + np.log(counts.data)
            projected = counts @ self._signs
            lengths = np.sqrt(np.square(projected).sum(axis=1, keepdims=True))
            np.divide(projected, lengths, out=vectors[start : start + _BLOCK_DOCUMENTS], where=lengths > 0)
        return vectors

    # Made at the first use: settings are checked by making an embedder, which should take no time.
    @cached_property
    def _signs(self) -> Float32[np.ndarray, "bucket feature"]:
        return make_signs(self.dimensions, self._seed)


@cache
def make_vectorizer(max_tokens: int | None = None) -> Any:
    """Scikit-learn's `HashingVectorizer` that counts `split_marks` in buckets, all or a text's first ones."""
    from sklearn.feature_extraction.text import HashingVectorizer

    analyzer = partial(split_marks, most=max_tokens)
    settings: Any = {"analyzer": analyzer, "n_features": NUM_BUCKETS, "norm": None, "dtype": np.float32}
    # Without alternating signs: the projection has signs, and opposite counts of one bucket would cancel.
    return HashingVectorizer(alternate_sign=False, **settings)


def make_signs(dimensions: int, seed: int) -> Float32[np.ndarray, "bucket {dimensions}"]:
    """A direction of +1 and -1 for every bucket, drawn by the seed."""
    # Drawn as bytes: the random numbers, and so every vector, depend on the type.
    bits = np.random.default_rng(seed).integers(0, 2, (NUM_BUCKETS, dimensions), np.int8)
    return (2 * bits - 1).astype(np.float32)


def split_marks(text: str, most: int | None = None) -> list[str]:
    """The first `most` terms of a text, with repeats: "Recipes: 明月!" gives recip, :, 明, 月, !."""
    text = text.lower()
    # Most texts are ASCII, for which the simpler pattern gives the same terms in a fraction of the time.
    found = (_ASCII if text.isascii() else _ANY).findall(text)
    return [term[:PREFIX_CHARACTERS] for term in found[:most]]

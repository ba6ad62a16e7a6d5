"""Vectors of documents without fitting: hashed counts, projected to a few dimensions by random signs.

The method counts the beginnings of words, single characters of scripts without spaces between words, and punctuation
marks. Punctuation marks distinguish prose, code, verse, lists and letters. Counts are hashed to buckets (Weinberger et
al. 2009). A count c has the weight 1 + ln c, and each bucket has a direction of random signs; this projection keeps
angles approximately (Achlioptas 2003). A vector depends only on its text and the settings, so later documents and
documents of other corpora are in the same space. But rare words do not get a higher weight, so the method separates
topics less well than `tfidf_svd`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.text.scripts import MARKS, UNSPACED
from jax_diversity.sequences.embedding.base import MOST_DIMENSIONS

NUM_BUCKETS = 2**16
"""Number of buckets for terms. Of seven pairs of documents with 100 terms each, about one pair has a common bucket by
chance. This is far less than the noise of the projection, 1 / √dimensions."""
PREFIX_CHARACTERS = 5
"""Number of characters that are hashed from the beginning of a word, so that a word and its inflections have one
bucket."""
_BLOCK_DOCUMENTS = 1024

_ASCII = re.compile(r"[^\W_]{2,}|[^\w\s]|_")
_ANY = re.compile(rf"[{UNSPACED}]|(?:[^\W_{UNSPACED}]|[{MARKS}]){{2,}}|[^\w\s]|_")


def hashing(*, seed: int = 0, max_tokens: int = 1024, dimensions: int = 128) -> HashingEmbedder:
    """Make an embedder that hashes beginnings of words and punctuation marks and projects them by random signs.

    Args:
        seed: the seed of the signs.
        max_tokens: how many words, characters and punctuation marks to read from the beginning of a text.
        dimensions: number of features of a vector, at most 8192.

    Raises:
        UserError: `dimensions` is out of range.

    Example:
        >>> hashing(dimensions=64).embed(["wind and sail", "1 2 3"]).shape
        (2, 64)
    """
    return HashingEmbedder(as_whole_number("dimensions", dimensions, 1, MOST_DIMENSIONS), seed, max_tokens)


class HashingEmbedder:
    """The embedder of `hashing`. It has no state: the vector of a document depends only on this document."""

    def __init__(self, dimensions: int, seed: int, max_tokens: int) -> None:
        self.dimensions, self._seed, self._max_tokens = dimensions, seed, max_tokens

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """Return vectors of length one, a row per text; zeros for a text without a term."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for start in range(0, len(texts), _BLOCK_DOCUMENTS):
            counts = csr_array(make_vectorizer(self._max_tokens).transform(texts[start : start + _BLOCK_DOCUMENTS]))
            # Ten occurrences of a word are stronger evidence of the topic than one, but not ten times as strong.
            counts.data = 1 + np.log(counts.data)
            projected = counts @ self._signs
            lengths = np.sqrt(np.square(projected).sum(axis=1, keepdims=True))
            np.divide(projected, lengths, out=vectors[start : start + _BLOCK_DOCUMENTS], where=lengths > 0)
        return vectors

    # The signs are made at the first use: settings are checked by making an embedder, and this should take no time.
    @cached_property
    def _signs(self) -> Float32[np.ndarray, "bucket feature"]:
        return make_signs(self.dimensions, self._seed)


@cache
def make_vectorizer(max_tokens: int | None = None) -> Any:
    """Make scikit-learn's `HashingVectorizer`, which counts the terms of `split_marks` in buckets."""
    from sklearn.feature_extraction.text import HashingVectorizer

    analyzer = partial(split_marks, most=max_tokens)
    settings: Any = {"analyzer": analyzer, "n_features": NUM_BUCKETS, "norm": None, "dtype": np.float32}
    # We use no alternating signs: the projection has signs, and opposite counts in one bucket would cancel out.
    return HashingVectorizer(alternate_sign=False, **settings)


def make_signs(dimensions: int, seed: int) -> Float32[np.ndarray, "bucket {dimensions}"]:
    """Draw a direction of +1 and -1 for every bucket, with the seed."""
    # We draw int8: the random numbers, and so all vectors, depend on the type.
    bits = np.random.default_rng(seed).integers(0, 2, (NUM_BUCKETS, dimensions), np.int8)
    return (2 * bits - 1).astype(np.float32)


def split_marks(text: str, most: int | None = None) -> list[str]:
    """Return the first `most` terms of a text, with repeats: "Recipes: 明月!" gives recip, :, 明, 月, !."""
    text = text.lower()
    # Most texts are ASCII; for them the simpler pattern gives the same terms in a fraction of the time.
    words = (_ASCII if text.isascii() else _ANY).findall(text)
    return [term[:PREFIX_CHARACTERS] for term in words[:most]]

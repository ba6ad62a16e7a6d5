"""Vectors of documents by TF-IDF and truncated SVD: similar topics are near each other. It needs no downloaded weights.

This is latent semantic analysis (Deerwester et al. 1990). It is fitted on a part of the corpus and then applied to any
number of documents in a stream. Once fitted, the vector of a document depends only on this document.

`jax_diversity.foundation.text.terms` defines the terms. No list of stop words is needed. The weight of a term is
`ln((1 + documents) / documents with the term)`. It is nearly zero if almost every document contains the term.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.text.terms import split_terms
from jax_diversity.sequences.embedding.base import MOST_DIMENSIONS

FEWEST_DOCUMENTS = 2
"""Terms in fewer fitted documents than this are dropped; if no term would be left, all terms are kept."""
MAX_TERMS = 50_000
"""Largest number of terms that are kept; the most frequent terms are kept."""
MOST_CANDIDATES = 2_000_000
"""Largest number of distinct terms that are counted while fitting; it limits memory for corpora full of random
strings."""
_POWER_ITERATIONS = 5
"""Iterations of the randomised SVD: two reach at most .985 of the best variance, five at least .992, in about the same
time."""
_BLOCK_DOCUMENTS = 1024
_ROUNDING = 1e-6
"""A value is only a rounding error if it is below this share of a unit vector, or of the largest singular value."""


def tfidf_svd(
    *,
    texts: Callable[[], Sequence[str]],
    stored: Path | None = None,
    seed: int = 0,
    max_tokens: int = 1024,
    dimensions: int = 128,
) -> TfidfSvd:
    """Make an embedder: term weights fitted to a part of the corpus, projected to a few dimensions by an SVD.

    Args:
        texts: returns the documents to fit on; called if `stored` does not exist yet.
        stored: the file of the embedding. If it exists, it is loaded; otherwise it is written. None means no file.
        seed: the seed of the randomised SVD.
        max_tokens: how many words to read from the beginning of a text; in scripts without spaces, characters.
        dimensions: number of features of a vector, at most 8192; with a small corpus, the last features are zeros.

    Raises:
        UserError: `dimensions` is out of range, or the stored file does not contain an embedding.

    Example:
        >>> texts = ["sea and ship", "ship and sail", "bread and butter", "butter and flour"]
        >>> embedding = tfidf_svd(texts=lambda: texts, dimensions=2)
        >>> embedding.embed(["the ship", "1 2 3"]).shape
        (2, 2)
    """
    as_whole_number("dimensions", dimensions, 1, MOST_DIMENSIONS)
    if stored is not None and stored.exists():
        return TfidfSvd.load(stored)
    embedder = TfidfSvd.fit(texts(), seed, dimensions, max_tokens)
    if stored is not None:
        embedder.save(stored)
    return embedder


@dataclass(frozen=True, eq=False)
class TfidfSvd:
    """A fitted embedding: terms, their weights, and the directions of the SVD.

    Attributes:
        terms: the vocabulary, the most frequent first; empty if the fitted texts have no terms.
        weights: the inverse document frequency of every term.
        components: orthonormal directions, sorted by singular value, the largest first. If the fitted texts span fewer
            dimensions, the last rows are zeros, so that vectors always have the given number of features.
        max_tokens: the number of words of a text that are read.
    """

    terms: tuple[str, ...] = field(repr=False)
    weights: Float32[np.ndarray, " term"] = field(repr=False)
    components: Float32[np.ndarray, "dimension term"] = field(repr=False)
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        for array in (self.weights, self.components):
            array.setflags(write=False)  # one embedding is used for all files of documents

    @classmethod
    def fit(cls, texts: Sequence[str], seed: int, dimensions: int, max_tokens: int = 1024) -> TfidfSvd:
        """Learn terms, weights and directions.

        The same texts and settings give the same bits for any number of processor cores.
        """
        # We shuffle the texts: if there are more terms than can be counted, the terms of the first files should not be
        # preferred.
        texts = [texts[int(place)] for place in np.random.default_rng(seed).permutation(len(texts))]
        places = _Places()
        places.most = MOST_CANDIDATES  # the `_places` of a fitted embedding have `most` 0: they learn no terms
        counts = _count_terms(texts, places, max_tokens)
        frequency = np.bincount(counts.indices, minlength=len(places))
        # A term that only one document contains does not connect documents; for the SVD it is noise.
        kept = np.flatnonzero(frequency >= FEWEST_DOCUMENTS)
        if len(kept) == 0:
            kept = np.flatnonzero(frequency)
        kept = kept[np.argsort(-frequency[kept], kind="stable")][:MAX_TERMS]
        names = list(places)
        weights = np.log((1 + len(texts)) / frequency[kept]).astype(np.float32)
        components = _principal_directions(_weighted_rows(counts[:, kept], weights), len(kept), dimensions, seed)
        return cls(tuple(names[term] for term in kept), weights, components, max_tokens)

    @property
    def dimensions(self) -> int:
        """Number of features of a vector."""
        return len(self.components)

    @cached_property
    def _places(self) -> _Places:
        return _Places((term, place) for place, term in enumerate(self.terms))

    @cached_property
    def _directions(self) -> np.ndarray:
        return np.ascontiguousarray(self.components.T)

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """Return vectors of length one, a row per text.

        A text without any known term (an empty text, or only unknown words) gets a row of zeros. Such texts are equal
        and are in one cluster.
        """
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        if not self.terms:
            return vectors
        for start in range(0, len(texts), _BLOCK_DOCUMENTS):
            block = texts[start : start + _BLOCK_DOCUMENTS]
            rows = _weighted_rows(_count_terms(block, self._places, self.max_tokens), self.weights)
            projected = rows @ self._directions
            lengths = np.sqrt(np.square(projected).sum(axis=1, keepdims=True))
            # If a text is outside the span of the directions, its projection consists of rounding errors; it becomes
            # zeros.
            has_terms = lengths > _ROUNDING
            np.divide(projected, lengths, out=vectors[start : start + len(block)], where=has_terms)
        return vectors

    def save(self, path: str | Path) -> None:
        """Write one .npz with the arrays, and the terms as lines of UTF-8; the same embedding gives the same bytes."""
        # Terms contain no line breaks. Texts may contain lone surrogates, which plain UTF-8 cannot encode.
        lines = "\n".join(self.terms).encode("utf-8", "surrogatepass")
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
            terms = np.frombuffer(lines, np.uint8)
            values = {"weights": self.weights, "components": self.components, "max_tokens": np.int64(self.max_tokens)}
            np.savez(file, terms=terms, **values)

    @classmethod
    def load(cls, path: str | Path) -> TfidfSvd:
        """Read the file of `save`; a `UserError` if it does not exist or does not contain an embedding."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                lines = bytes(stored["terms"]).decode("utf-8", "surrogatepass")
                weights, components = stored["weights"], stored["components"]
                max_tokens = int(stored["max_tokens"])
        except FileNotFoundError:
            raise UserError(f"Expected an embedding at {path}, found no such file; fit one first.") from None
        except Exception as error:  # broken archives make zipfile and NumPy raise various errors
            reason = in_one_line(error)
            raise UserError(f"Expected a saved embedding at {path}, found: {reason}; fit it again.") from None
        terms = tuple(lines.split("\n")) if lines else ()
        agree = weights.shape == (len(terms),) and components.ndim == 2 and components.shape[1] == len(terms)
        if not agree or not weights.dtype == components.dtype == np.float32:
            raise UserError(
                f"Expected a saved embedding at {path} with one weight and one column per term, found {len(terms)} "
                f"terms, weights {weights.shape} and components {components.shape}; fit it again."
            )
        return cls(terms, weights, components, max_tokens)


class _Places(dict[str, int]):
    """Maps a term to its number, in the order of first use; if there are already `most` terms, a new term gets -1."""

    most = 0

    def __missing__(self, term: str) -> int:
        if len(self) >= self.most:
            return -1
        self[term] = place = len(self)
        return place


def _count_terms(texts: Sequence[str], places: _Places, max_tokens: int) -> csr_array:
    """Count the known terms in the beginnings of texts: sparse (document, term), with ascending columns in each row."""
    parts = [np.empty(0, np.int32)]
    for text in texts:
        terms = split_terms(text, max_tokens)
        columns = np.fromiter(map(places.__getitem__, terms), np.int32, len(terms))
        parts.append(columns[columns >= 0])
    starts, indices = np.cumsum([len(part) for part in parts]), np.concatenate(parts)
    counts = csr_array((np.ones(len(indices), np.float32), indices, starts), shape=(len(texts), len(places)))
    # This adds up the ones of a term that occurs several times, and sorts each row, so that later sums have one order.
    counts.sum_duplicates()
    return counts


def _weighted_rows(counts: csr_array, weights: np.ndarray) -> csr_array:
    """Compute rows of `(1 + ln count) * weight`, scaled to length one (or zero)."""
    rows = csr_array(counts)
    # We compute only with the stored values: zeros are not stored, so the logarithm is finite.
    rows.data = (1 + np.log(rows.data)) * weights[rows.indices]
    # We do not use `rows.power(2)`: it first sorts the columns of each row, and sums in another order have other last
    # bits.
    squares = csr_array((np.square(rows.data), rows.indices, rows.indptr), shape=rows.shape)
    lengths = np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
    rows.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))
    return rows


def _principal_directions(
    rows: csr_array, num_terms: int, dimensions: int, seed: int
) -> Float32[np.ndarray, "dimension term"]:
    """Compute the leading right singular vectors (randomised SVD, Halko et al. 2011), padded with zero rows."""
    directions = np.zeros((dimensions, num_terms), np.float32)
    rank = min(dimensions, len(rows.indptr) - 1, num_terms)
    if rank == 0 or rows.nnz == 0:
        return directions
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    # With several threads, sums are added in another order and the last bits differ; one thread is enough, because the
    # dense part is small.
    with threadpool_limits(1, user_api="blas"):
        options: Any = {"n_iter": _POWER_ITERATIONS, "random_state": seed}
        _, values, components = randomized_svd(rows, rank, **options)
    # Directions beyond the rank of the texts are arbitrary: fitted texts have the value zero there, other texts have
    # noise.
    directions[:rank] = np.where(values[:, None] > _ROUNDING * values[0], components, 0)
    return directions

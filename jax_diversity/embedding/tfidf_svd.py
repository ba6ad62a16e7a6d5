"""Documents -> vectors that put topics near each other: TF-IDF and truncated SVD, no weights to download.

This is latent semantic analysis (Deerwester et al. 1990). It is fitted on a part of the corpus and then applied to
any number of documents in a stream; a document's vector depends on that document alone.

`jax_diversity.text.terms` defines the terms. Stop words need no list: a term's weight is
`ln((1 + documents) / documents with it)`, which is nearly zero for a term of almost every document.
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

from jax_diversity.embedding.base import MOST_DIMENSIONS
from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.text.terms import split_terms

FEWEST_DOCUMENTS = 2
"""Terms of fewer fitted documents are dropped (all are kept if none is left)."""
MAX_TERMS = 50_000
"""Terms kept, the most frequent first."""
MOST_CANDIDATES = 2_000_000
"""Distinct terms counted while fitting: a limit of memory for corpora full of random strings."""
_POWER_ITERATIONS = 5
"""Iterations of the randomised SVD: two reach at most .985 of the best variance, five at least .992, in about the same
time."""
_BLOCK_DOCUMENTS = 1024
_ROUNDING = 1e-6
"""Share of a unit vector, or of the largest singular value, below which a value is only rounding error."""


def tfidf_svd(
    *,
    texts: Callable[[], Sequence[str]],
    stored: Path | None = None,
    seed: int = 0,
    max_tokens: int = 1024,
    dimensions: int = 128,
) -> TfidfSvd:
    """Term weights fitted to a part of the corpus, projected to a few dimensions by an SVD.

    Args:
        texts: returns the documents to fit on; called if `stored` does not exist yet.
        stored: the file of the embedding, loaded if it exists and written otherwise. None does not store it.
        seed: the seed of the randomised SVD.
        max_tokens: the number of first words of a text to read; in scripts without spaces, characters.
        dimensions: width of the vectors, at most 8192; a small corpus gets zeros at the end.

    Raises:
        UserError: an impossible number; a stored file without an embedding.

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
        weights: inverse document frequency of every term.
        components: orthonormal directions, the heaviest first; zero rows if the fitted texts span fewer
            dimensions, so that vectors always have the given width.
        max_tokens: words of a text that are read.
    """

    terms: tuple[str, ...] = field(repr=False)
    weights: Float32[np.ndarray, " term"] = field(repr=False)
    components: Float32[np.ndarray, "dimension term"] = field(repr=False)
    max_tokens: int = 1024

    def __post_init__(self) -> None:
        for array in (self.weights, self.components):
            array.setflags(write=False)  # one embedding serves all files of documents

    @classmethod
    def fit(cls, texts: Sequence[str], seed: int, dimensions: int, max_tokens: int = 1024) -> TfidfSvd:
        """Learn terms, weights and directions.

        The same texts and settings give the same bits for any number of processor cores.
        """
        # Shuffled: if there are more terms than can be counted, the first files' terms should not be preferred.
        texts = [texts[int(place)] for place in np.random.default_rng(seed).permutation(len(texts))]
        found = _Places()
        found.most = MOST_CANDIDATES  # a fitted embedding's `_places` has `most` 0: it learns no terms
        counts = _count_terms(texts, found, max_tokens)
        frequency = np.bincount(counts.indices, minlength=len(found))
        # A term of only one document does not connect documents: it is noise to the SVD.
        kept = np.flatnonzero(frequency >= FEWEST_DOCUMENTS)
        if len(kept) == 0:
            kept = np.flatnonzero(frequency)
        kept = kept[np.argsort(-frequency[kept], kind="stable")][:MAX_TERMS]
        names = list(found)
        weights = np.log((1 + len(texts)) / frequency[kept]).astype(np.float32)
        components = _principal_directions(_weighted_rows(counts[:, kept], weights), len(kept), dimensions, seed)
        return cls(tuple(names[term] for term in kept), weights, components, max_tokens)

    @property
    def dimensions(self) -> int:
        """Width of the vectors."""
        return len(self.components)

    @cached_property
    def _places(self) -> _Places:
        return _Places((term, place) for place, term in enumerate(self.terms))

    @cached_property
    def _directions(self) -> np.ndarray:
        return np.ascontiguousarray(self.components.T)

    def embed(self, texts: Sequence[str]) -> Float32[np.ndarray, "document feature"]:
        """Vectors of length one, a row per text.

        A text without any known term (empty, or of words never seen) gets a row of zeros: such texts are equal
        and belong to one cluster.
        """
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        if not self.terms:
            return vectors
        for start in range(0, len(texts), _BLOCK_DOCUMENTS):
            block = texts[start : start + _BLOCK_DOCUMENTS]
            rows = _weighted_rows(_count_terms(block, self._places, self.max_tokens), self.weights)
            projected = rows @ self._directions
            lengths = np.sqrt(np.square(projected).sum(axis=1, keepdims=True))
            # The projection of a text outside the directions' span consists of rounding errors: it becomes zeros.
            known = lengths > _ROUNDING
            np.divide(projected, lengths, out=vectors[start : start + len(block)], where=known)
        return vectors

    def save(self, path: str | Path) -> None:
        """Write one .npz: arrays, and the terms as lines of UTF-8; the same embedding gives the same bytes."""
        # Terms hold no line breaks. Texts may hold lone surrogates, which plain UTF-8 refuses.
        lines = "\n".join(self.terms).encode("utf-8", "surrogatepass")
        with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
            terms = np.frombuffer(lines, np.uint8)
            about = {"weights": self.weights, "components": self.components, "max_tokens": np.int64(self.max_tokens)}
            np.savez(file, terms=terms, **about)

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
    """Term -> place in the order of first sight; a new term is unknown (-1) if there are `most` terms already."""

    most = 0

    def __missing__(self, term: str) -> int:
        if len(self) >= self.most:
            return -1
        self[term] = place = len(self)
        return place


def _count_terms(texts: Sequence[str], places: _Places, max_tokens: int) -> csr_array:
    """Sparse counts (document, term) of the texts' beginnings, columns of a row ascending, without unknown terms."""
    parts = [np.empty(0, np.int32)]
    for text in texts:
        terms = split_terms(text, max_tokens)
        found = np.fromiter(map(places.__getitem__, terms), np.int32, len(terms))
        parts.append(found[found >= 0])
    starts, indices = np.cumsum([len(part) for part in parts]), np.concatenate(parts)
    counts = csr_array((np.ones(len(indices), np.float32), indices, starts), shape=(len(texts), len(places)))
    # Adds up the ones of a term that occurs several times, and sorts each row: the sums below have one order.
    counts.sum_duplicates()
    return counts


def _weighted_rows(counts: csr_array, weights: np.ndarray) -> csr_array:
    """Rows of `(1 + ln count) * weight`, of length one (or zero)."""
    rows = csr_array(counts)
    # Only on the stored values: zeros are not stored, so the logarithm is finite.
    rows.data = (1 + np.log(rows.data)) * weights[rows.indices]
    # Not `rows.power(2)`: it sorts each row's columns first, and sums in another order have other last bits.
    squares = csr_array((np.square(rows.data), rows.indices, rows.indptr), shape=rows.shape)
    lengths = np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
    rows.data /= np.repeat(np.where(lengths > 0, lengths, 1), np.diff(rows.indptr))
    return rows


def _principal_directions(
    rows: csr_array, num_terms: int, dimensions: int, seed: int
) -> Float32[np.ndarray, "dimension term"]:
    """The leading right singular vectors (randomised SVD, Halko et al. 2011), padded with zero rows."""
    directions = np.zeros((dimensions, num_terms), np.float32)
    rank = min(dimensions, len(rows.indptr) - 1, num_terms)
    if rank == 0 or rows.nnz == 0:
        return directions
    from sklearn.utils.extmath import randomized_svd
    from threadpoolctl import threadpool_limits

    # With several threads sums are added in another order, and the last bits differ; the dense part is small.
    with threadpool_limits(1, user_api="blas"):
        options: Any = {"n_iter": _POWER_ITERATIONS, "random_state": seed}
        _, values, found = randomized_svd(rows, rank, **options)
    # Directions beyond the rank of the texts are arbitrary: zero for the fitted texts, noise for any other.
    directions[:rank] = np.where(values[:, None] > _ROUNDING * values[0], found, 0)
    return directions

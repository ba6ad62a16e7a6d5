"""Documents that say the same (SemDeDup: Abbas et al. 2023, arXiv:2303.09540).

Vectors are divided into clusters by k-means, and documents are compared with those of their cluster alone. Without
vectors that come with the documents, their terms are compared, whatever their order: each is one of 2^18 numbers, a
hash, and weighs `(1 + ln count) ln((1 + documents) / documents with it)`. In the few dimensions of a truncated SVD,
which are enough to find clusters, whole topics have cosines above .95; cosines are those of the terms themselves.

A note takes 4 bytes for every different term, some 560 a document, or those of the vector; it is read from disk. The
memory is 256 bytes a document for the clusters' dimensions, or a vector's bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Float32, Int64, UInt32
from scipy.sparse import csr_array

from jax_diversity.corpus.passes.notes import Notes
from jax_diversity.corpus.steps.base import Candidate, Survey
from jax_diversity.corpus.steps.duplicates import Groups
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.text.terms import split_terms

_HASH_BITS = 18
_COUNT_BITS = 32 - _HASH_BITS
_DIMENSIONS = 64
"""In which clusters of terms are found."""
_FITTED = 16_384
"""Documents of which the dimensions are learned, and eight times as many of which the clusters are."""
_BLOCK = 1024
_CLUSTER = 1000
"""Documents of a cluster, on average."""
_ROUNDING = 1e-6


def semantic(
    *,
    similarity: float = 0.9,
    vectors: str = "",
    words: int = 1024,
    clusters: int = 0,
    seed: int = 0,
    mark: bool = False,
    precedence: str = "",
) -> Survey:
    """Keeps one of the documents whose vectors have a cosine of at least `similarity`.

    `vectors` names the field of the metadata that holds a document's vector, a list of numbers; without it, the terms
    of its first `words` words are compared. Documents are compared within `clusters` clusters (0: one for a thousand
    documents). The one farthest from the cluster's centre is kept, or one of the sources named first in `precedence`;
    every document that goes is similar to one that is kept. `mark` removes none and gives those of a group the field
    `semantic_group`.
    """
    if not 0 < similarity <= 1:
        raise UserError(f"Expected similarity above 0 and at most 1, found {similarity}.")
    whole_number("words", words, 1)
    whole_number("clusters", clusters)
    whole_number("seed", seed, 0, 2**32 - 1)
    return _Semantic(similarity, vectors, words, clusters, seed, mark=mark, precedence=precedence)


class _Semantic(Groups):
    def __init__(
        self, similarity: float, field: str, words: int, clusters: int, seed: int, *, mark: bool, precedence: str
    ) -> None:
        super().__init__(mark=mark, precedence=precedence)
        self._similarity, self._field, self._words = similarity, field, words
        self._clusters, self._seed = clusters, seed

    def note(self, candidate: Candidate) -> bytes:
        """Its vector, or its terms."""
        if self._field:
            return self._vector(candidate)
        counts = Counter(split_terms(candidate.text, self._words))
        hashes = b"".join([xxhash.xxh3_64_digest(term.encode(errors="surrogatepass")) for term in counts])
        codes = np.frombuffer(hashes, np.uint64) >> np.uint64(64 - _HASH_BITS)
        numbers = np.fromiter(counts.values(), np.int64, len(counts)).clip(max=2**_COUNT_BITS - 1)
        return ((codes.astype(np.uint32) << np.uint32(_COUNT_BITS)) | numbers.astype(np.uint32)).tobytes()

    def _vector(self, candidate: Candidate) -> bytes:
        found = candidate.document.metadata.get(self._field)
        try:
            vector = np.asarray(found, np.float32)
        except (TypeError, ValueError):
            vector = np.zeros(0, np.float32)
        if vector.ndim != 1 or not vector.size or not np.isfinite(vector).all():
            raise UserError(
                f"Expected the field {self._field!r} of every document to be a list of numbers, found "
                f"{quoted(found)} in document {candidate.document.id}."
            )
        length = np.linalg.norm(vector)
        return (vector / length).tobytes() if length else b""

    def kept(self, notes: Notes, ranks: Int64[np.ndarray, " noted"]) -> Int64[np.ndarray, " noted"]:
        """Within each cluster, in the order of precedence and distance from its centre, who is similar to no other."""
        from threadpoolctl import threadpool_limits

        kept = notes.noted.copy()
        if len(kept) < 2:
            return kept
        # With several threads sums are added in another order, and documents near a threshold fall differently.
        with threadpool_limits(1):
            rows = _Vectors(notes) if self._field else _Terms(notes, self._seed)
            points = rows.points
            cluster, distance = _clustered(points, self._clusters or -(-len(points) // _CLUSTER), self._seed)
            order = np.lexsort((-distance, ranks, cluster))
            for members in np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1):
                kept[members] = notes.noted[members[_leaders(rows[members], self._similarity)]]
        return kept


class _Vectors:
    """The vectors that come with the documents, of length one."""

    def __init__(self, notes: Notes) -> None:
        lengths = np.unique(notes.lengths[notes.noted]) // 4
        if len(lengths) > 1:
            raise UserError(f"Expected vectors of one length, found some of {lengths[0]} and of {lengths[-1]} numbers.")
        self.points = notes.data.view(np.float32).reshape(-1, lengths[0])

    def __getitem__(self, places: Int64[np.ndarray, " place"]) -> Float32[np.ndarray, "place feature"]:
        return self.points[places]


class _Terms:
    """The documents' terms as sparse vectors of length one, and their points in a few dimensions."""

    def __init__(self, notes: Notes, seed: int) -> None:
        self._terms = notes.data.view(np.uint32)
        self._ends = notes.ends[notes.noted] // 4
        self._starts = self._ends - notes.lengths[notes.noted] // 4
        number = len(self._ends)
        counts = np.zeros(2**_HASH_BITS, np.int64)
        for start in range(0, len(self._terms), 2**22):
            codes = self._terms[start : start + 2**22] >> np.uint32(_COUNT_BITS)
            counts += np.bincount(codes, minlength=2**_HASH_BITS)
        self._weights = np.log((1 + number) / counts.clip(1, number)).astype(np.float32)
        fitted = np.sort(np.random.default_rng(seed).permutation(number)[:_FITTED])
        directions = _directions(self[fitted], seed)
        self.points = np.empty((number, len(directions)), np.float32)
        for start in range(0, number, _BLOCK):
            block = self[np.arange(start, min(start + _BLOCK, number))] @ directions.T
            lengths = np.linalg.norm(block, axis=1, keepdims=True)
            self.points[start : start + _BLOCK] = block / lengths.clip(_ROUNDING)

    def __getitem__(self, places: Int64[np.ndarray, " place"]) -> csr_array:
        pairs = zip(self._starts[places].tolist(), self._ends[places].tolist(), strict=True)
        terms: UInt32[np.ndarray, " term"] = np.concatenate([self._terms[start:end] for start, end in pairs])
        codes = (terms >> np.uint32(_COUNT_BITS)).astype(np.int32)
        counts = (terms & np.uint32(2**_COUNT_BITS - 1)).astype(np.float32)
        lengths = (self._ends - self._starts)[places]
        rows = csr_array(
            ((1 + np.log(counts)) * self._weights[codes], codes, np.concatenate([[0], np.cumsum(lengths)])),
            shape=(len(places), 2**_HASH_BITS),
        )
        rows.sum_duplicates()
        sizes = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        rows.data /= np.repeat(sizes.clip(_ROUNDING), np.diff(rows.indptr))
        return rows


def _directions(rows: csr_array, seed: int) -> Float32[np.ndarray, "dimension term"]:
    """The leading right singular vectors; terms of one row, which connect it with no other one, are left out."""
    from sklearn.utils.extmath import randomized_svd

    shared = np.flatnonzero(np.bincount(rows.indices, minlength=2**_HASH_BITS) > 1)
    directions = np.zeros((min(_DIMENSIONS, rows.shape[0], max(len(shared), 1)), 2**_HASH_BITS), np.float32)
    if len(shared):
        options: Any = {"n_iter": 2, "random_state": seed}
        directions[:, shared] = randomized_svd(rows[:, shared], len(directions), **options)[2]
    return directions


def _clustered(
    points: Float32[np.ndarray, "noted feature"], number: int, seed: int
) -> tuple[Int64[np.ndarray, " noted"], Float32[np.ndarray, " noted"]]:
    """The cluster of every point, and how far it is from its centre."""
    from sklearn.cluster import MiniBatchKMeans

    fitted = np.sort(np.random.default_rng(seed).permutation(len(points))[: 8 * _FITTED])
    options: Any = {"batch_size": 4 * _BLOCK, "n_init": 1, "random_state": seed}
    kmeans = MiniBatchKMeans(min(number, len(fitted)), **options)
    kmeans.fit(points[fitted])
    cluster, distance = np.empty(len(points), np.int64), np.empty(len(points), np.float32)
    for start in range(0, len(points), _BLOCK):
        own = slice(start, start + _BLOCK)
        cluster[own] = kmeans.predict(points[own])
        distance[own] = np.linalg.norm(points[own] - kmeans.cluster_centers_[cluster[own]], axis=1)
    return cluster, distance


def _leaders(
    rows: csr_array | Float32[np.ndarray, "member feature"], similarity: float
) -> Int64[np.ndarray, " member"]:
    """Of every row the first before it that it is similar to and that leads itself; its own place without one."""
    number = rows.shape[0]
    leaders = np.full(number, -1)
    for start in range(0, number, _BLOCK):
        cosines = rows[start : start + _BLOCK] @ rows.T
        similar = (cosines if isinstance(cosines, np.ndarray) else cosines.toarray()) >= similarity - _ROUNDING
        for place, of_place in enumerate(similar, start):
            if leaders[place] < 0:
                leaders[place] = place
                leaders[of_place & (leaders < 0)] = place
    return leaders

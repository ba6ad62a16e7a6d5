"""Find documents with the same meaning (SemDeDup: Abbas et al. 2023, arXiv:2303.09540).

k-means divides the vectors into clusters, and documents are compared within their cluster. Documents without vectors
are compared by their terms, in any order. A term is hashed to one of 2^18 numbers and has the weight `(1 + ln count)
ln((1 + documents) / documents with the term)`. Clusters are found in the dimensions of a truncated SVD. In these few
dimensions, documents of a whole topic have cosines above .95. Therefore the cosines are computed from the terms.

A note has 4 bytes for every different term, about 560 bytes per document, or the bytes of the vector. Notes are read
from disk. The memory is 256 bytes per document for the clusters' dimensions, or the bytes of the vectors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Float32, Int64, UInt32
from scipy.sparse import csr_array

from jax_diversity.foundation.attempts import DocumentError
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.text.terms import split_terms
from jax_diversity.preparation.passes.notes import Notes
from jax_diversity.preparation.steps.base import Candidate
from jax_diversity.preparation.steps.duplicates import Groups

_HASH_BITS = 18
_COUNT_BITS = 32 - _HASH_BITS
_DIMENSIONS = 64
"""Number of dimensions in which clusters of terms are found."""
_FITTED = 16_384
"""Number of documents from which the dimensions are learned. Clusters are learned from eight times this number."""
_BLOCK = 1024
_CLUSTER = 1000
"""Mean number of documents of a cluster."""
_MOST_WORDS = 1024
"""Number of words at the start of a text whose terms are compared."""
_SEED = 0
_ROUNDING = 1e-6


@dataclass
class Semantic(Groups):
    """Keeps one of the documents whose vectors have a cosine of at least `similarity`.

    `vectors` names the metadata field with a document's vector, a list of numbers; without it the terms of the first
    1,024 words are compared. Documents are compared within clusters of about a thousand documents. The kept document is
    from the source that comes first in `precedence`; otherwise it is the document that is farthest from the centre of
    its cluster. Every removed document is similar to a kept document. `mark` removes no document and sets the field
    `semantic_group`.

    Terms find editions of a poem that differ in some characters, but also texts that differ only in a name;
    `similarity: 0.8` also finds lists of the same pattern. The step removes 760 documents of `mixed`, and `minhash`
    does not find 365 of them. Use `mark` first, and look at the groups.
    """

    similarity: float = 0.9
    vectors: str = ""
    mark: bool = False
    precedence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise UserError(f"Expected similarity above 0 and at most 1, found {self.similarity}.")

    def note(self, candidate: Candidate) -> bytes:
        """Return the vector, or the terms with their counts."""
        if self.vectors:
            return self._vector(candidate)
        counts = Counter(split_terms(candidate.text, _MOST_WORDS))
        hashes = b"".join([xxhash.xxh3_64_digest(term.encode(errors="surrogatepass")) for term in counts])
        codes = np.frombuffer(hashes, np.uint64) >> np.uint64(64 - _HASH_BITS)
        numbers = np.fromiter(counts.values(), np.int64, len(counts)).clip(max=2**_COUNT_BITS - 1)
        return ((codes.astype(np.uint32) << np.uint32(_COUNT_BITS)) | numbers.astype(np.uint32)).tobytes()

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
        from threadpoolctl import threadpool_limits

        kept = notes.noted.copy()
        if len(kept) < 2:
            return kept
        # Several threads would add numbers in another order: rounding would change the decisions near the threshold.
        with threadpool_limits(1):
            rows = _Vectors(notes) if self.vectors else _Terms(notes)
            cluster, distance = _clustered(rows.points)
            order = np.lexsort((-distance, ranks, cluster))
            for members in np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1):
                kept[members] = notes.noted[members[_leaders(rows[members], self.similarity)]]
        return kept


class _Vectors:
    """The vectors that the documents bring with them; each has length one."""

    def __init__(self, notes: Notes) -> None:
        lengths = np.unique(notes.lengths[notes.noted]) // 4
        if len(lengths) > 1:
            raise UserError(f"Expected vectors with equal numbers of entries, found {lengths[0]} and {lengths[-1]}.")
        self.points = notes.data.view(np.float32).reshape(-1, lengths[0])

    def __getitem__(self, places: Int64[np.ndarray, " place"]) -> Float32[np.ndarray, "place feature"]:
        return self.points[places]


class _Terms:
    """The documents' terms as sparse vectors of length one, and their projections to few dimensions (`points`)."""

    def __init__(self, notes: Notes) -> None:
        self._terms = notes.data.view(np.uint32)
        self._ends = notes.ends[notes.noted] // 4
        self._starts = self._ends - notes.lengths[notes.noted] // 4
        number = len(self._ends)
        counts = np.zeros(2**_HASH_BITS, np.int64)
        for start in range(0, len(self._terms), 2**22):
            codes = self._terms[start : start + 2**22] >> np.uint32(_COUNT_BITS)
            counts += np.bincount(codes, minlength=2**_HASH_BITS)
        self._weights = np.log((1 + number) / counts.clip(1, number)).astype(np.float32)
        fitted = np.sort(np.random.default_rng(_SEED).permutation(number)[:_FITTED])
        directions = _directions(self[fitted])
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


def _directions(rows: csr_array) -> Float32[np.ndarray, "dimension term"]:
    """The leading right singular vectors. Terms that occur in one row only are left out: they connect no rows."""
    from sklearn.utils.extmath import randomized_svd

    shared = np.flatnonzero(np.bincount(rows.indices, minlength=2**_HASH_BITS) > 1)
    directions = np.zeros((min(_DIMENSIONS, rows.shape[0], max(len(shared), 1)), 2**_HASH_BITS), np.float32)
    if len(shared):
        options: Any = {"n_iter": 2, "random_state": _SEED}
        directions[:, shared] = randomized_svd(rows[:, shared], len(directions), **options)[2]
    return directions


def _clustered(
    points: Float32[np.ndarray, "noted feature"],
) -> tuple[Int64[np.ndarray, " noted"], Float32[np.ndarray, " noted"]]:
    """The cluster of every point, and its distance from the cluster's centre."""
    from sklearn.cluster import MiniBatchKMeans

    fitted = np.sort(np.random.default_rng(_SEED).permutation(len(points))[: 8 * _FITTED])
    options: Any = {"batch_size": 4 * _BLOCK, "n_init": 1, "random_state": _SEED}
    kmeans = MiniBatchKMeans(min(-(-len(points) // _CLUSTER), len(fitted)), **options)
    kmeans.fit(points[fitted])
    cluster, distance = np.empty(len(points), np.int64), np.empty(len(points), np.float32)
    for start in range(0, len(points), _BLOCK):
        block = slice(start, start + _BLOCK)
        cluster[block] = kmeans.predict(points[block])
        distance[block] = np.linalg.norm(points[block] - kmeans.cluster_centers_[cluster[block]], axis=1)
    return cluster, distance


def _leaders(
    rows: csr_array | Float32[np.ndarray, "member feature"], similarity: float
) -> Int64[np.ndarray, " member"]:
    """For every row, its leader: the first earlier leader that is similar to it, or the row itself if there is none."""
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

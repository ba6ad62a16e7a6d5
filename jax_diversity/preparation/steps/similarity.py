"""Find similar vectors in clusters (SemDeDup: Abbas et al. 2023, arXiv:2303.09540).

k-means divides the vectors into clusters, and vectors are compared within their cluster. The time grows with the square
of the largest cluster. Texts without vectors are compared by their terms, in any order. A term is hashed to one of 2^18
numbers and has the weight `(1 + ln count) ln((1 + texts) / texts with the term)`. Clusters are found in the dimensions
of a truncated SVD. In these few dimensions, texts of a whole topic have cosines above .95. Therefore the cosines are
computed from the terms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

import numpy as np
import xxhash
from jaxtyping import Float32, Int64, UInt32
from scipy.sparse import csr_array

from jax_diversity.foundation.errors import UserError

_HASH_BITS = 18
_COUNT_BITS = 32 - _HASH_BITS
_DIMENSIONS = 64
"""Number of dimensions in which clusters of terms are found."""
_FITTED = 16_384
"""Number of texts from which the dimensions are learned. Clusters are learned from eight times this number."""
_BLOCK = 1024
_COSINES = 2**23
"""Largest number of cosines in memory, each with up to 16 bytes."""
_CLUSTER = 1000
"""Mean number of vectors of a cluster."""
_SEED = 0
_SMALLEST = 1e-6
"""Smallest divisor of a vector, so that vectors of zeros stay zeros."""
_TOLERANCE = 1e-5
"""Rounding of cosines in single precision, for texts of some thousand terms."""
_UNLEARNED = 1e-3
"""Scale of the random directions of terms without learned ones: a text's learned terms decide, if it has any."""

Rows = csr_array | Float32[np.ndarray, "vector feature"]


class Vectors(ABC):
    """Vectors of length one, or zeros; the cosine of two vectors is their product."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of vectors."""

    @abstractmethod
    def __getitem__(self, places: Int64[np.ndarray, " place"]) -> Rows:
        """Return the vectors at some places, as rows."""

    @abstractmethod
    def points(self, places: Int64[np.ndarray, " place"]) -> Float32[np.ndarray, "place feature"]:
        """Return the vectors in few dimensions, in which the clusters are found."""


class DenseVectors(Vectors):
    """Vectors that the documents bring with them."""

    def __init__(self, vectors: Float32[np.ndarray, "vector feature"]) -> None:
        self._vectors = vectors

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, places: Int64[np.ndarray, " place"]) -> Float32[np.ndarray, "place feature"]:
        return self._vectors[places]

    def points(self, places: Int64[np.ndarray, " place"]) -> Float32[np.ndarray, "place feature"]:
        """Return the vectors themselves."""
        return self._vectors[places]


def counted_terms(terms: Sequence[str]) -> bytes:
    """Return the different terms with their counts, 4 bytes for each of them, none of which are all zero."""
    counts = Counter(terms)
    hashes = b"".join([xxhash.xxh3_64_digest(term.encode(errors="surrogatepass")) for term in counts])
    codes = np.frombuffer(hashes, np.uint64) >> np.uint64(64 - _HASH_BITS)
    numbers = np.fromiter(counts.values(), np.int64, len(counts)).clip(max=2**_COUNT_BITS - 1)
    return ((codes.astype(np.uint32) << np.uint32(_COUNT_BITS)) | numbers.astype(np.uint32)).tobytes()


class TermVectors(Vectors):
    """The terms of texts as sparse vectors, and their projections to few dimensions.

    Args:
        terms: the results of `counted_terms` for all texts, in one array; zeros between them are ignored.
        starts: the place of every text's first term in `terms`.
        ends: the place after every text's last term.
    """

    def __init__(
        self, terms: UInt32[np.ndarray, " term"], starts: Int64[np.ndarray, " text"], ends: Int64[np.ndarray, " text"]
    ) -> None:
        # A plain array, because slices of a memory map take four times as long.
        self._terms, self._starts, self._ends = np.asarray(terms), starts, ends
        counts = np.zeros(2**_HASH_BITS, np.int64)
        for start in range(0, len(terms), 2**22):
            block = terms[start : start + 2**22]
            counts += np.bincount(block[block != 0] >> np.uint32(_COUNT_BITS), minlength=2**_HASH_BITS)
        self._weights = np.log((1 + len(self)) / counts.clip(1, len(self))).astype(np.float32)
        # Terms are rows, because SciPy would copy a transposed array for every product.
        self._directions = _directions(self[_sample(len(self), _FITTED)])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, places: Int64[np.ndarray, " place"]) -> csr_array:
        starts = self._starts[places]
        lengths = self._ends[places] - starts
        ends = np.cumsum(lengths)
        terms = self._terms[np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)]
        codes = (terms >> np.uint32(_COUNT_BITS)).astype(np.int32)
        counts = (terms & np.uint32(2**_COUNT_BITS - 1)).astype(np.float32)
        rows = csr_array(
            ((1 + np.log(counts)) * self._weights[codes], codes, np.append(0, ends)), shape=(len(places), 2**_HASH_BITS)
        )
        rows.sum_duplicates()
        sizes = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        rows.data /= np.repeat(sizes.clip(_SMALLEST), np.diff(rows.indptr))
        return rows

    def points(self, places: Int64[np.ndarray, " place"]) -> Float32[np.ndarray, "place dimension"]:
        """The projections, of length one."""
        points = self[places] @ self._directions
        return points / np.linalg.norm(points, axis=1, keepdims=True).clip(_SMALLEST)


def leaders(
    vectors: Vectors, similarity: float, ranks: Int64[np.ndarray, " vector"], *, farthest_first: bool = False
) -> Int64[np.ndarray, " vector"]:
    """For every vector, its leader: the first leader of its cluster that is similar to it, or the vector itself.

    Args:
        vectors: at least two vectors.
        similarity: the least cosine of similar vectors.
        ranks: vectors of lower rank come first.
        farthest_first: whether vectors of one rank come by their distance from the centre of their cluster, the
            farthest one first; otherwise they come in their own order.
    """
    cluster, distance = _clustered(vectors)
    order = np.lexsort((-distance, ranks, cluster) if farthest_first else (ranks, cluster))
    leader = np.empty(len(vectors), np.int64)
    for members in np.split(order, np.flatnonzero(np.diff(cluster[order])) + 1):
        leader[members] = members[_leaders_of_cluster(vectors[members], similarity)]
    return leader


def check_similarity(similarity: float) -> None:
    """Raise a UserError if no cosine can be the threshold."""
    if not 0 < similarity <= 1:
        raise UserError(f"Expected similarity above 0 and at most 1, found {similarity}.")


def one_thread() -> AbstractContextManager:
    """One thread for the libraries of linear algebra and of k-means.

    Several threads would add numbers in another order: rounding would change the decisions near the threshold.
    """
    import sklearn.cluster
    import sklearn.utils.extmath  # noqa: F401  # the limit holds for libraries that are loaded
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1)


def identity() -> str:
    """The version of the library that finds the clusters."""
    return version("scikit-learn")


def _clustered(vectors: Vectors) -> tuple[Int64[np.ndarray, " vector"], Float32[np.ndarray, " vector"]]:
    """The cluster of every vector, and its distance from the cluster's centre."""
    from sklearn.cluster import MiniBatchKMeans

    number = len(vectors)
    fitted = _sample(number, 8 * _FITTED)
    options: Any = {"batch_size": 4 * _BLOCK, "n_init": 1, "random_state": _SEED}
    kmeans = MiniBatchKMeans(min(-(-number // _CLUSTER), len(fitted)), **options)
    kmeans.fit(np.concatenate([vectors.points(block) for block in _blocks(fitted)]))
    cluster, distance = np.empty(number, np.int64), np.empty(number, np.float32)
    for block in _blocks(np.arange(number)):
        points = vectors.points(block)
        cluster[block] = kmeans.predict(points)
        distance[block] = np.linalg.norm(points - kmeans.cluster_centers_[cluster[block]], axis=1)
    return cluster, distance


def _leaders_of_cluster(rows: Rows, similarity: float) -> Int64[np.ndarray, " vector"]:
    """For every row, its leader: the first earlier leader that is similar to it, or the row itself."""
    leader = np.full(rows.shape[0], -1)
    while len(waiting := np.flatnonzero(leader < 0)):
        # Only rows without a leader are compared, so that a line that occurs very often costs one block.
        left = rows[waiting]
        size = max(min(_BLOCK, _COSINES // len(waiting)), 1)
        cosines = left[:size] @ left.T
        for row, place in enumerate(waiting[:size].tolist()):
            if leader[place] < 0:
                similar = waiting[_at_least(cosines, row, similarity - _TOLERANCE)]
                leader[similar[leader[similar] < 0]] = place
                leader[place] = place
    return leader


def _at_least(cosines: Rows, row: int, least: float) -> Int64[np.ndarray, " column"]:
    """The columns of a row with at least this value, which is above 0: sparse rows do not store zeros."""
    if isinstance(cosines, np.ndarray):
        return np.flatnonzero(cosines[row] >= least)
    of_row = slice(*cosines.indptr[row : row + 2])
    return cosines.indices[of_row][cosines.data[of_row] >= least].astype(np.int64)


def _sample(number: int, size: int) -> Int64[np.ndarray, " place"]:
    return np.sort(np.random.default_rng(_SEED).permutation(number)[:size])


def _blocks(places: Int64[np.ndarray, " place"]) -> list[Int64[np.ndarray, " place"]]:
    return np.split(places, range(_BLOCK, len(places), _BLOCK))


def _directions(rows: csr_array) -> Float32[np.ndarray, "term dimension"]:
    """The leading right singular vectors.

    Terms that occur in at most one row have short random directions: a text without any other term would have the same
    point as all such texts, and they would be one large cluster.
    """
    from sklearn.utils.extmath import randomized_svd

    shared = np.flatnonzero(np.bincount(rows.indices, minlength=2**_HASH_BITS) > 1)
    number = min(_DIMENSIONS, rows.shape[0], max(len(shared), 1))
    directions = _UNLEARNED * np.random.default_rng(_SEED).standard_normal((2**_HASH_BITS, number), np.float32)
    if len(shared):
        options: Any = {"n_iter": 2, "random_state": _SEED}
        directions[shared] = randomized_svd(rows[:, shared], number, **options)[2].T
    return directions

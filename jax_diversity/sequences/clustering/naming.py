"""Names for clusters, made from texts, not vectors: the terms that distinguish a few documents of each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Int64
from scipy.sparse import csr_array

from jax_diversity.foundation.text.terms import split_terms

DOCUMENTS_PER_CLUSTER = 50
"""The terms of at most this many documents of each cluster, nearest to its centroid, are counted."""
MOST_DOCUMENTS = 100_000
"""About the largest number of such documents in all clusters: naming 10,000 clusters costs no more than naming
2,000."""
TERMS_PER_DOCUMENT = 400
"""Number of different terms that are counted from the beginning of a document."""
TERMS_PER_NAME = 3
_MOST_TERMS = 2_000_000
_NEIGHBOURS = 10
_CANDIDATES = 60
_CONTRAST_POWER = 1.5
_DIGITS_OF_A_NUMBER = 4


@dataclass(frozen=True)
class ClusterNames:
    """The names of clusters.

    Attributes:
        names: a few terms for each cluster. If two clusters have the same terms, their names get numbers.
        top_terms: the terms that distinguish a cluster, the best first.
    """

    names: list[str]
    top_terms: list[list[str]]


def documents_per_cluster(num_clusters: int) -> int:
    """Return the number of documents of each cluster that its name is made from."""
    return max(3, min(DOCUMENTS_PER_CLUSTER, MOST_DOCUMENTS // max(num_clusters, 1)))


def name_clusters(
    counted: TermCounts, centroids: Float32[np.ndarray, "cluster feature"], num_terms: int = 8
) -> ClusterNames:
    """Name clusters by class-based TF-IDF (Grootendorst 2022) that counts documents with a term, not its occurrences.

    A term's score in a cluster is p c^1.5. Here p is the share of the cluster's documents that contain the term. The
    factor c compares p with the share elsewhere: it is the mean of `ln(p / share in all clusters)` and
    `ln(p / share in the nearest clusters)`. If we compared only with all clusters, the commonest words of a rare
    language would name each of its clusters. If we compared only with the nearest clusters, thirty clusters about films
    would all have names without the word "film". No language needs a list of stop words. Of two forms of one word, the
    form with the better score is kept.

    Args:
        counted: the terms of some documents near each centroid.
        centroids: the centroids of all clusters, which determine the nearest clusters of each cluster.
        num_terms: the maximum number of terms of a cluster.

    Example:
        >>> counted = TermCounts()
        >>> for cluster, text in [(0, "ship and sail"), (0, "the ship"), (1, "bread and butter"), (1, "the bread")]:
        ...     counted.add(cluster, text)
        >>> name_clusters(counted, np.eye(2, dtype=np.float32), num_terms=2).top_terms
        [['ship', 'sail'], ['bread', 'butter']]
    """
    scores = _scores(counted.shares(len(centroids)), _neighbours(centroids))
    top_terms = _distinct_terms(scores, list(counted.places), num_terms)
    return ClusterNames(_unlike_names(top_terms), top_terms)


@dataclass
class TermCounts:
    """Counts of the terms in documents of each cluster; texts are read once and not kept."""

    places: dict[str, int] = field(default_factory=dict)
    pairs: list[np.ndarray] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)

    def add(self, cluster: int, text: str) -> None:
        """Count the terms of a document; dates, message ids and similar terms are left out."""
        terms = [term for term in dict.fromkeys(split_terms(text)) if not _is_number(term)][:TERMS_PER_DOCUMENT]
        if len(self.places) >= _MOST_TERMS:
            terms = [term for term in terms if term in self.places]
        places = [self.places.setdefault(term, len(self.places)) for term in terms]
        self.pairs.append(np.array(places, np.int32))
        self.clusters.append(cluster)

    def shares(self, num_clusters: int) -> csr_array:
        """Return the share of each cluster's documents that contain each term: (cluster, term)."""
        columns, clusters = np.concatenate([np.empty(0, np.int32), *self.pairs]), np.array(self.clusters, np.int64)
        rows = np.repeat(clusters, np.array([len(pairs) for pairs in self.pairs], np.int64))
        counts = csr_array((np.ones(len(columns)), (rows, columns)), shape=(num_clusters, len(self.places)))
        counts.sum_duplicates()
        num_documents = np.bincount(clusters, minlength=num_clusters)
        # In a cluster of four documents or more, terms of a single document are dropped.
        many = np.repeat(num_documents >= 4, np.diff(counts.indptr))
        counts.data[(counts.data < 2) & many] = 0
        counts.eliminate_zeros()
        # We add two documents without any term to each cluster, because one document of three is weaker evidence than
        # ten of thirty.
        counts.data /= np.repeat(num_documents + 2.0, np.diff(counts.indptr))
        return counts


def _is_number(term: str) -> bool:
    return term.isdecimal() or sum(map(str.isdigit, term)) >= _DIGITS_OF_A_NUMBER


def _neighbours(centroids: np.ndarray) -> Int64[np.ndarray, "cluster neighbour"]:
    """Return the other clusters nearest to each cluster by cosine: ten, or about half of all if there are few."""
    num_clusters = len(centroids)
    count = min(_NEIGHBOURS, num_clusters // 2 - 1)
    if count < 1:
        return np.empty((num_clusters, 0), np.int64)
    lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
    rows = centroids / np.where(lengths > 0, lengths, 1)
    nearest = np.empty((num_clusters, count), np.int64)
    for start in range(0, num_clusters, 1024):
        likeness = rows[start : start + 1024] @ rows.T
        np.fill_diagonal(likeness[:, start:], -np.inf)
        nearest[start : start + 1024] = np.argpartition(-likeness, count - 1, axis=1)[:, :count]
    return np.sort(nearest, axis=1)


def _scores(shares: csr_array, neighbours: Int64[np.ndarray, "cluster neighbour"]) -> csr_array:
    """Return the score of every term in every cluster whose documents contain it."""
    num_clusters, num_terms = len(shares.indptr) - 1, int(shares.indices.max(initial=-1)) + 1
    everywhere = np.bincount(shares.indices, shares.data, minlength=num_terms) / max(num_clusters, 1)
    scores = shares.copy()
    beside = np.zeros(num_terms)
    for cluster in range(num_clusters):
        part = slice(shares.indptr[cluster], shares.indptr[cluster + 1])
        columns, own_shares = shares.indices[part], shares.data[part]
        contrast = np.log(own_shares / everywhere[columns])
        near = neighbours[cluster]
        if len(near):
            beside[:] = 0
            for other in near:
                part_of_other = slice(shares.indptr[other], shares.indptr[other + 1])
                beside[shares.indices[part_of_other]] += shares.data[part_of_other] / len(near)
            # The cluster itself is one more neighbour: otherwise a term that no neighbour contains would have an
            # infinite contrast.
            mixed = (beside[columns] * len(near) + own_shares) / (len(near) + 1)
            contrast = (contrast + np.log(own_shares / mixed)) / 2
        scores.data[part] = own_shares * np.maximum(contrast, 0) ** _CONTRAST_POWER
    return scores


def _distinct_terms(scores: csr_array, terms: Sequence[str], num_terms: int) -> list[list[str]]:
    """Return the best terms of every cluster without forms of better terms, independent of the order of documents."""
    chosen = []
    for cluster in range(len(scores.indptr) - 1):
        part = slice(scores.indptr[cluster], scores.indptr[cluster + 1])
        columns, values = scores.indices[part], scores.data[part]
        # The last bits of a sum depend on the order of documents, so scores that differ only in these bits are sorted
        # by the term. All terms with the same score as the last candidate are compared, because their columns also
        # depend on that order.
        values = np.round(values, 9)
        last = np.partition(values, -_CANDIDATES)[-_CANDIDATES] if len(values) > _CANDIDATES else 0.0
        likely = np.flatnonzero((values >= last) & (values > 0))
        best = sorted((-float(values[place]), terms[int(columns[place])]) for place in likely)[:_CANDIDATES]
        # A single character is less specific than the pairs that contain it.
        ranked = sorted((round(score / (1 + (len(term) == 1)), 9), term) for score, term in best)
        kept: list[str] = []
        for score, term in ranked:
            if len(kept) == num_terms or score == 0:
                break
            if not any(_are_alike(term, other) for other in kept):
                kept.append(term)
        chosen.append(kept)
    return chosen


def _are_alike(first: str, second: str) -> bool:
    """Return whether two terms are forms of one word: other endings, a character of a pair, two pairs that overlap."""
    short, long = (first, second) if len(first) <= len(second) else (second, first)
    if len(short) == 1:
        return short in long
    if len(short) == len(long) == 2 and not (short.isascii() or long.isascii()):
        return short[0] == long[1] or short[1] == long[0]
    return len(short) >= 3 and len(long) - len(short) <= 3 and long.startswith(short)


def _unlike_names(top_terms: Sequence[Sequence[str]]) -> list[str]:
    """Join a few terms to a name for each cluster; clusters with the same terms get more terms, or a number."""
    names: list[str] = []
    taken: set[frozenset[str]] = set()
    for cluster, terms in enumerate(top_terms):
        count = min(TERMS_PER_NAME, len(terms))
        while count < len(terms) and frozenset(terms[:count]) in taken:
            count += 1
        words = frozenset(terms[:count])
        name = ", ".join(terms[:count])
        names.append(f"{name} ({cluster})".strip() if words in taken or not terms else name)
        taken.add(words)
    return names

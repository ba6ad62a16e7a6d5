"""Clusters of sequences by their own tokens: the family `sequence_cluster`.

A sequence is a vector of TF-IDF weights of the groups of its tokens: `(1 + log count) log((1 + n) / (1 + frequency))`
for n sequences, scaled to length one (Salton and Buckley 1988, "Term-weighting approaches in automatic text
retrieval"). The clusters are made by spherical k-means (Dhillon and Modha 2001, "Concept decompositions for large
sparse text data using clustering"). Only stored tokens are read, so the clusters need no document and no model.

Rows are sparse and are multiplied row by row, so a row's result does not depend on the other rows or on the device.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float32, Int32
from scipy import sparse

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Segments

_SEQUENCES_PER_CLUSTER = 20
"""A cluster of fewer sequences, on average, is too small to be balanced."""
_TRAINING_ROWS = 64
"""Sequences per cluster that the centres are computed from."""
_MAX_ITERATIONS = 25
_LEAST_MOVED = 0.002
"""Iterations end when a smaller share of the rows changes its cluster."""
_BLOCK = 16_384

CountSequences = Callable[[Segments], sparse.csr_array]
"""Counts the token ids of some sequences: int32 CSR (sequence, token group)."""


def fit_sequence_clusters(
    segments: Segments, count: CountSequences, num_clusters: int, advance: Advance = ignore
) -> Float32[np.ndarray, "cluster group"]:
    """Return the centres of clusters of sequences, each multiplied by the groups' inverse document frequencies.

    With these factors in the centres, `nearest_clusters` needs only the counts of a sequence.

    Args:
        segments: the packed training sequences.
        count: counts the token ids of some of them.
        num_clusters: number of clusters. There are fewer if the corpus has fewer than 20 sequences for each.
        advance: called with 1 after each iteration, of at most `num_iterations()`.
    """
    number = max(min(num_clusters, segments.num_sequences // _SEQUENCES_PER_CLUSTER), 1)
    rng = np.random.default_rng(0)
    taken = np.sort(rng.permutation(segments.num_sequences)[: number * _TRAINING_ROWS])
    counts = count(segments.take(taken))
    if not len(taken):
        return np.zeros((1, counts.shape[1]), np.float32)
    frequency = np.bincount(counts.indices, minlength=counts.shape[1])
    inverse = np.log((1 + len(taken)) / (1 + frequency)).astype(np.float32)
    weights = _logarithms(counts)
    weights.data *= inverse[weights.indices]
    lengths = np.sqrt(np.bincount(_rows(weights), weights.data**2, len(taken)))
    weights.data /= np.maximum(lengths, 1e-30).astype(np.float32)[_rows(weights)]
    centres = weights[np.sort(rng.permutation(len(taken))[:number])].toarray()
    cluster = np.full(len(taken), -1)
    for iteration in range(_MAX_ITERATIONS):
        before = cluster
        nearness, cluster = _nearest(weights, centres)
        advance(1)
        # A cluster without rows begins again at the row that is farthest from its own centre.
        empty = np.flatnonzero(np.bincount(cluster, minlength=number) == 0)
        cluster[np.argsort(nearness, kind="stable")[: len(empty)]] = empty
        if (cluster != before).mean() < _LEAST_MOVED:
            advance(_MAX_ITERATIONS - iteration - 1)  # so that the progress bar ends at its total
            break
        members = sparse.csr_array(
            (np.ones(len(taken), np.float32), (cluster, np.arange(len(taken)))), shape=(number, len(taken))
        )
        sums = sparse.csr_array(members @ weights).toarray()
        centres = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-30)
    return np.ascontiguousarray(centres * inverse, np.float32)


def num_iterations() -> int:
    """Return the largest number of iterations of `fit_sequence_clusters`."""
    return _MAX_ITERATIONS


def nearest_clusters(
    segments: Segments,
    count: CountSequences,
    centres: Float32[np.ndarray, "cluster group"],
    advance: Advance = ignore,
) -> Int32[np.ndarray, " sequence"]:
    """Return the nearest cluster of every sequence; in a tie, the first.

    Args:
        segments: the packed sequences.
        count: counts the token ids of some of them.
        centres: the result of `fit_sequence_clusters`.
        advance: called with the number of finished sequences.
    """
    clusters = np.zeros(segments.num_sequences, np.int32)
    for start in range(0, segments.num_sequences, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, segments.num_sequences))
        # The length of a row does not change which centre is nearest.
        clusters[rows] = _nearest(_logarithms(count(segments.take(rows))), centres)[1]
        advance(len(rows))
    return clusters


def count_sequence_clusters(
    segments: Segments, clusters: Int32[np.ndarray, " sequence"], num_clusters: int
) -> sparse.csr_array:
    """Count the tokens of every cluster in every sequence: all tokens of a sequence belong to its cluster.

    Args:
        segments: the packed sequences.
        clusters: the cluster of every sequence.
        num_clusters: number of clusters.

    Returns:
        int32 CSR (sequence, cluster); a sequence without tokens has no entry.
    """
    tokens = np.bincount(segments.sequence_index, segments.length, segments.num_sequences).astype(np.int32)
    rows = np.flatnonzero(tokens)
    return sparse.csr_array((tokens[rows], (rows, clusters[rows])), shape=(segments.num_sequences, num_clusters))


def _logarithms(counts: sparse.csr_array) -> sparse.csr_array:
    """Return the rows with 1 + log of every count."""
    logarithms = (1 + np.log(counts.data)).astype(np.float32)
    return sparse.csr_array((logarithms, counts.indices, counts.indptr), shape=counts.shape)


def _rows(matrix: sparse.csr_array) -> np.ndarray:
    """Return the row of every entry."""
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))


def _nearest(rows: sparse.csr_array, centres: Float32[np.ndarray, "cluster group"]) -> tuple[np.ndarray, np.ndarray]:
    """Return every row's largest product with a centre, and the number of this centre."""
    columns, best = np.ascontiguousarray(centres.T), []
    for start in range(0, rows.shape[0], _BLOCK):
        products = rows[start : start + _BLOCK] @ columns
        cluster = products.argmax(axis=1)
        best.append((products[np.arange(len(cluster)), cluster], cluster))
    nearness, clusters = zip(*best, strict=True)
    return np.concatenate(nearness), np.concatenate(clusters)

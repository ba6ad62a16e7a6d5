"""The agreement of clusters with the documents' own labels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Int64, Integer


def purity(
    assignments: Integer[np.ndarray, " document"], labels: Sequence[Hashable] | Integer[np.ndarray, " document"]
) -> float:
    """Return the share of documents whose label is the most common label of their cluster; 1 without documents.

    Purity grows with the number of clusters (clusters of one document have purity 1). So compare embeddings only with
    equal numbers of clusters. See Manning, Raghavan & Schütze, Introduction to Information Retrieval (2008), section
    16.3.

    Example:
        >>> purity(np.array([0, 0, 0, 1]), ["sea", "sea", "law", "law"])
        0.75
    """
    if not len(assignments):
        return 1.0
    numbers: dict[Hashable, int] = {}
    values = labels.tolist() if isinstance(labels, np.ndarray) else labels
    codes = np.fromiter((numbers.setdefault(label, len(numbers)) for label in values), np.int64, len(values))
    counts, cluster, _ = _label_counts(assignments, codes)
    best = np.zeros(int(cluster.max()) + 1, np.int64)
    np.maximum.at(best, cluster, counts)
    return int(best.sum()) / len(assignments)


def majority_labels(
    assignments: Integer[np.ndarray, " document"], codes: Integer[np.ndarray, " document"], num_clusters: int
) -> Int64[np.ndarray, " cluster"]:
    """Return the code of the most common label of every cluster, of equals the lowest; -1 for an empty cluster."""
    majority = np.full(num_clusters, -1, np.int64)
    counts, cluster, code = _label_counts(assignments, codes)
    # Of several assignments to one index the last remains: the most common label, and of equally common labels the
    # lowest code.
    order = np.lexsort((-code, counts))
    majority[cluster[order]] = code[order]
    return majority


def _label_counts(assignments: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count the documents of every pair of cluster and label that occurs; return counts, clusters and labels."""
    # Each pair becomes one number, in int64, because clusters times labels may be above 2^31.
    num_labels = int(codes.max(initial=0)) + 1
    pairs, counts = np.unique(assignments.astype(np.int64) * num_labels + codes, return_counts=True)
    return counts, pairs // num_labels, pairs % num_labels

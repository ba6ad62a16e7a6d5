"""Vectors -> topic clusters: jit-compiled k-means, with scikit-learn's MiniBatchKMeans as the fallback."""

from jax_diversity.clustering.kmeans import (
    Clustering,
    assign,
    check_vectors,
    kmeans,
    nearest_documents,
    num_rows_passed,
)

__all__ = ["Clustering", "assign", "check_vectors", "kmeans", "nearest_documents", "num_rows_passed"]

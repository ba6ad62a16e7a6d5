"""Vectors -> topic clusters: jit-compiled k-means over a mesh, names for its clusters, a map of them."""

from jax_diversity.clustering.kmeans import (
    Clustering,
    assign,
    assign_with_distances,
    kmeans,
    nearest_documents,
    num_coarse_clusters,
    num_rows_passed,
    train_centroids,
)
from jax_diversity.clustering.maps import LARGEST_MAP, map_positions
from jax_diversity.clustering.naming import ClusterNames, TermCounts, documents_per_cluster, name_clusters
from jax_diversity.clustering.purity import label_codes, majority_labels, purity
from jax_diversity.clustering.rows import check_vectors

__all__ = [
    "LARGEST_MAP",
    "ClusterNames",
    "Clustering",
    "TermCounts",
    "assign",
    "assign_with_distances",
    "check_vectors",
    "documents_per_cluster",
    "kmeans",
    "label_codes",
    "majority_labels",
    "map_positions",
    "name_clusters",
    "nearest_documents",
    "num_coarse_clusters",
    "num_rows_passed",
    "purity",
    "train_centroids",
]

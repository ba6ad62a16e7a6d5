"""A map of the clusters in two dimensions: similar topics are drawn near each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float32

LARGEST_MAP = 1000
"""Largest number of clusters on a map; with more clusters, t-SNE takes longer and circles overlap."""
_LEAST_NEIGHBOURS = 12
_PERPLEXITY = 15.0


def map_positions(centroids: Float32[np.ndarray, "cluster feature"]) -> Float32[np.ndarray, "cluster 2"]:
    """Compute positions of clusters on a map, each axis from -1 to 1.

    The positions come from t-SNE (van der Maaten & Hinton 2008) by cosine distance. The method begins with the first
    two principal components and uses one thread and a fixed seed, so the result is always the same. With t-SNE, similar
    topics stay near each other. A projection or metric scaling of hundreds of nearly equidistant centroids would give a
    disc without structure. Distances between far topics mean little. If there are few clusters, their positions are the
    first two principal components.

    Args:
        centroids: at most `LARGEST_MAP` centroids.

    Raises:
        ValueError: there are more than `LARGEST_MAP` centroids.
    """
    if len(centroids) > LARGEST_MAP:
        raise ValueError(f"Expected at most {LARGEST_MAP} centroids, found {len(centroids)}.")
    start = _main_axes(centroids)
    if len(centroids) < _LEAST_NEIGHBOURS or not start.any():
        return start
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
    rows = centroids / np.where(lengths > 0, lengths, 1)
    # A start from principal components is scaled to a spread of about 1e-4 (Kobak & Berens 2019).
    init: Any = start * np.float32(1e-4)
    perplexity = min(_PERPLEXITY, (len(centroids) - 1) / 3)
    model: Any = TSNE(perplexity=perplexity, learning_rate="auto", max_iter=750, random_state=0, init=init)
    with threadpool_limits(1):  # with more threads, sums are split differently and positions change
        placed = model.fit_transform(np.ascontiguousarray(rows))
    return _to_square(placed)


def _main_axes(centroids: np.ndarray) -> np.ndarray:
    """Return the first two principal components, each with the sign that makes its largest value positive."""
    positions = np.zeros((len(centroids), 2), np.float32)
    if len(centroids) < 2:
        return positions
    centred = centroids.astype(np.float64) - centroids.mean(axis=0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    axes = min(2, int((values > 1e-6 * max(values[0], 1e-30)).sum()))
    coordinates = left[:, :axes] * values[:axes]
    largest = np.abs(coordinates).argmax(axis=0)
    coordinates *= np.sign(coordinates[largest, np.arange(axes)])
    positions[:, :axes] = coordinates
    return _to_square(positions)


def _to_square(positions: np.ndarray) -> Float32[np.ndarray, "cluster 2"]:
    low, high = positions.min(axis=0), positions.max(axis=0)
    reach = np.maximum((high - low) / 2, 1e-12)
    return ((positions - (low + high) / 2) / reach).astype(np.float32)

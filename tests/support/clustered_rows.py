"""Rows to cluster, and their exact distances."""

from __future__ import annotations

import numpy as np


def random_rows(num_rows: int, width: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((num_rows, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def blobs(num_blobs: int, rows_each: int, width: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((num_blobs, width)) * 20
    labels = rng.permutation(np.repeat(np.arange(num_blobs), rows_each))
    return (centers[labels] + rng.standard_normal((len(labels), width)) * 0.1).astype(np.float32), labels


def squared_distances(rows: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    return np.square(rows.astype(np.float64)[:, None] - centroids.astype(np.float64)[None]).sum(axis=2)

"""Consecutive windows of positions: how far their token shares lie from the targets, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.measures.placing import entries

_BLOCK_POSITIONS = 1 << 19


class AlignedWindows(NamedTuple):
    """What is measured of consecutive windows, one value a window.

    Attributes:
        tv: half the L1 distance between the window's token shares and the targets.
        l2: the Euclidean distance between the same.
        num_groups: distinct groups with tokens.
    """

    tv: Float64[np.ndarray, " window"]
    l2: Float64[np.ndarray, " window"]
    num_groups: Int64[np.ndarray, " window"]


def aligned_windows(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> AlignedWindows:
    """Measure the whole windows of `size` positions from position `offset` on; without tokens both distances are 0.

    Args:
        placed: token counts (position, group).
        target: τ.
        size: positions a window, at least 1.
        offset: where the first window begins, any position from 0 on.
    """
    num_windows = max(placed.shape[0] - offset, 0) // size
    measured = AlignedWindows(np.zeros(num_windows), np.zeros(num_windows), np.zeros(num_windows, np.int64))
    for first, windows in _window_counts(placed, size, offset, num_windows):
        part = slice(first, first + windows.shape[0])
        measured.tv[part], measured.l2[part] = _distances(windows, target)
        measured.num_groups[part] = np.diff(windows.indptr)
    return measured


def window_deviation(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> Float64[np.ndarray, " window"]:
    """TV of consecutive windows of `size` positions from any `offset` on; a window without tokens has TV 0."""
    return aligned_windows(placed, target, size, offset).tv


def window_distance(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> Float64[np.ndarray, " window"]:
    """Euclidean norm of share - τ of consecutive windows, as `window_deviation` takes them."""
    return aligned_windows(placed, target, size, offset).l2


def _window_counts(placed: csr_array, size: int, offset: int, num_windows: int) -> Iterator[tuple[int, csr_array]]:
    """Token counts (window, group), some windows at a time, each time with the number of windows before."""
    step = max(1, _BLOCK_POSITIONS // size)
    for first in range(0, num_windows, step):
        last = min(first + step, num_windows)
        block = entries(placed, offset + first * size, offset + last * size)
        shape = (last - first, placed.shape[1])
        windows = csr_array((block.tokens, (block.position // size, block.group)), shape=shape)
        windows.sum_duplicates()
        yield first, windows


def _distances(
    windows: csr_array, target: Float64[np.ndarray, " group"]
) -> tuple[Float64[np.ndarray, " window"], Float64[np.ndarray, " window"]]:
    """Half the L1 distance and the Euclidean distance of every row's shares to the targets."""
    num_windows = windows.shape[0]
    rows = np.repeat(np.arange(num_windows), np.diff(windows.indptr))
    tokens = np.zeros(num_windows, np.int64)
    np.add.at(tokens, rows, windows.data)
    expected = target[windows.indices]
    deviation = windows.data / np.maximum(tokens, 1)[rows] - expected

    def row_sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(rows, weights=values, minlength=num_windows)

    # Groups that a window lacks contribute their whole target: the sum of the targets less those that it holds.
    distance = target.sum() + row_sums(np.abs(deviation) - expected)
    tv = np.where(tokens > 0, np.maximum(distance, 0.0) / 2, 0.0)
    # Nothing where it holds all, whatever rounding leaves over.
    holds_all = row_sums(expected > 0) == np.count_nonzero(target)
    lacking = np.where(holds_all, 0.0, np.maximum(target @ target - row_sums(expected**2), 0.0))
    return tv, np.where(tokens > 0, np.sqrt(row_sums(deviation**2) + lacking), 0.0)

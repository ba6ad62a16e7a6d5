"""Measures against targets that change along the order: every position has its own target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from scipy.sparse import csr_array

from jax_diversity.measures.windows import cumulative_tokens, entries

_DENSE_ENTRIES = 4_000_000


class WindowTV(NamedTuple):
    """The TV of aligned windows of one size."""

    tv_mean: float
    tv_best: float
    tv_worst: float


class FollowedBalance(NamedTuple):
    """The largest prefix deviation from the targets, in sequence lengths; and window size -> TV from the targets."""

    prefix_l2_max: float
    windows: dict[int, WindowTV]


def follow(
    placed: csr_array,
    starts: Sequence[int],
    shares: Float64[np.ndarray, "phase group"],
    windows: Sequence[int],
    sequence_length: int,
) -> FollowedBalance:
    """Measure one family of an order against targets in phases.

    τ(i) is the target at position i, t_i is the number of tokens there, and c_i are the counts. The prefix deviation is
    `||Σ (c_i - τ(i) t_i)||`. The TV of a window is half the L1 norm of the same sum over the window, divided by the
    window's tokens. This is the distance to the mean of the targets in the window. With one phase, both are equal to
    the values of `measure`.

    Args:
        placed: token counts (position, group).
        starts: the first position of every phase, ascending from 0.
        shares: τ of every phase.
        windows: sizes of aligned windows, in positions.
        sequence_length: L in tokens.

    Example:
        >>> placed = csr_array(np.array([[2, 0], [2, 0], [0, 2], [0, 2]]))
        >>> follow(placed, (0, 2), np.eye(2), (2,), 2).windows[2].tv_worst
        0.0
    """
    largest, excess = 0.0, np.zeros(placed.shape[1])
    for rows, _ in _excesses(placed, starts, shares, 1):
        running = excess + np.cumsum(rows, axis=0)
        largest = max(largest, float(np.linalg.norm(running, axis=1).max()))
        excess = running[-1]
    by_size = {}
    for size in windows:
        parts = [
            np.abs(rows).sum(axis=1) / (2 * np.maximum(tokens, 1))
            for rows, tokens in _excesses(placed, starts, shares, size)
        ]
        tv = np.concatenate(parts)
        by_size[size] = WindowTV(float(tv.mean()), float(tv.min()), float(tv.max()))
    return FollowedBalance(largest / sequence_length, by_size)


def _excesses(
    placed: csr_array, starts: Sequence[int], shares: Float64[np.ndarray, "phase group"], size: int
) -> Iterator[tuple[Float64[np.ndarray, "window group"], Float64[np.ndarray, " window"]]]:
    """Yield counts minus target tokens, and the number of tokens, of aligned windows of `size` positions, in blocks."""
    tokens = np.diff(cumulative_tokens(placed))
    phase = np.searchsorted(starts, np.arange(len(tokens)), side="right") - 1
    num_windows, (num_phases, num_groups) = len(tokens) // size, shares.shape
    step = max(1, _DENSE_ENTRIES // max(num_groups, num_phases))
    for first in range(0, num_windows, step):
        here = min(step, num_windows - first)
        rows = slice(first * size, (first + here) * size)
        block = entries(placed, rows.start, rows.stop)
        excess, of_phase = np.zeros((here, num_groups)), np.zeros((here, num_phases))
        np.add.at(excess, (block.position // size, block.group), block.tokens)
        np.add.at(of_phase, (np.arange(here * size) // size, phase[rows]), tokens[rows])
        yield excess - of_phase @ shares, of_phase.sum(axis=1)

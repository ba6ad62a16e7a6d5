"""Rows in the order of positions, and the windows that they make: what every measure is computed from.

Counts stay sparse. Positions are read in blocks, so that ten million of them need little more memory than the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Integer, Num
from scipy.sparse import csr_array

_BLOCK_POSITIONS = 1 << 18


class Entries(NamedTuple):
    """The non-zeros of consecutive positions; `position` counts from the first of these."""

    position: Int64[np.ndarray, " nonzero"]
    group: Integer[np.ndarray, " nonzero"]
    tokens: Int64[np.ndarray, " nonzero"]


def place(counts: csr_array, indices: Int64[np.ndarray, " position"]) -> csr_array:
    """Rows (sequence, group) in the order of positions (position, group), in the narrowest types that hold them."""
    # int32 where it holds the counts halves the memory of the largest array of measuring.
    widths = np.diff(counts.indptr)
    starts = np.zeros(len(indices) + 1, np.int64)
    np.cumsum(widths[indices], out=starts[1:])
    index_type = np.int32 if max(starts[-1], counts.shape[1]) < 2**31 else np.int64
    groups = np.empty(starts[-1], index_type)
    tokens = np.empty(starts[-1], np.int32 if counts.data.max(initial=0) < 2**31 else np.int64)
    # SciPy's `counts[indices]` keeps the input's types; copying block by block also bounds the index arrays.
    for first in range(0, len(indices), _BLOCK_POSITIONS):
        chosen = indices[first : first + _BLOCK_POSITIONS]
        begin, end = starts[first], starts[first + len(chosen)]
        shifts = counts.indptr[chosen] - starts[first : first + len(chosen)]
        source = np.arange(begin, end) + np.repeat(shifts, widths[chosen])
        groups[begin:end] = counts.indices[source]
        tokens[begin:end] = counts.data[source]
    return csr_array((tokens, groups, starts.astype(index_type)), shape=(len(indices), counts.shape[1]))


def entries(placed: csr_array, start: int, stop: int) -> Entries:
    """The non-zeros of the positions from `start` up to `stop`."""
    bounds = placed.indptr[start : stop + 1]
    begin, end = bounds[0], bounds[-1]
    position = np.repeat(np.arange(stop - start), np.diff(bounds))
    return Entries(position, placed.indices[begin:end], placed.data[begin:end].astype(np.int64))


def blocks(rows: csr_array) -> Iterator[tuple[slice, Entries]]:
    """All rows block by block: which rows, and their non-zeros."""
    for start in range(0, rows.shape[0], _BLOCK_POSITIONS):
        stop = min(start + _BLOCK_POSITIONS, rows.shape[0])
        yield slice(start, stop), entries(rows, start, stop)


def group_sums(block: Entries, num_groups: int) -> Int64[np.ndarray, " group"]:
    """Tokens of every group, exact."""
    sums = np.zeros(num_groups, np.int64)
    np.add.at(sums, block.group, block.tokens)  # bincount would add float64, which is exact up to 2^53 only
    return sums


def cumulative_tokens(placed: csr_array) -> Int64[np.ndarray, " boundary"]:
    """Tokens before every position, and of all: (num_positions + 1,)."""
    totals = np.zeros(placed.shape[0] + 1, np.int64)
    for start in range(0, placed.shape[0], _BLOCK_POSITIONS):
        stop = min(start + _BLOCK_POSITIONS, placed.shape[0])
        bounds = placed.indptr[start : stop + 1]
        running = np.zeros(bounds[-1] - bounds[0] + 1, np.int64)
        np.cumsum(placed.data[bounds[0] : bounds[-1]], dtype=np.int64, out=running[1:])
        totals[start : stop + 1] = totals[start] + running[bounds - bounds[0]]
    return totals


class _Differences(NamedTuple):
    """What both distances of windows are made of: one value a non-zero, and the windows' tokens."""

    windows: csr_array
    expected: Float64[np.ndarray, " nonzero"]
    difference: Float64[np.ndarray, " nonzero"]
    tokens: Float64[np.ndarray, " window"]

    def sums(self, values: np.ndarray) -> Float64[np.ndarray, " window"]:
        """Per window."""
        return _row_sums(self.windows, values)


def _row_sums(rows: csr_array, values: np.ndarray) -> Float64[np.ndarray, " row"]:
    """Row sums of a matrix that has these values in the places of `rows`' non-zeros.

    A product with ones adds from left to right, as a loop would, and needs no array of row numbers.
    """
    return csr_array((values, rows.indices, rows.indptr), shape=rows.shape) @ np.ones(rows.shape[1])


def _differences(windows: csr_array, target: Float64[np.ndarray, " group"]) -> _Differences:
    tokens = _row_sums(windows, windows.data)  # exact below 2^53 tokens a window
    expected = target[windows.indices]
    share = windows.data / np.repeat(np.maximum(tokens, 1.0), np.diff(windows.indptr))
    return _Differences(windows, expected, share - expected, tokens)


def total_variation(
    windows: csr_array | Num[np.ndarray, "window group"], target: Float64[np.ndarray, " group"]
) -> Float64[np.ndarray, " window"]:
    """TV of every window: half the L1 distance between its token shares and the targets; 0 without tokens.

    The one definition of TV: of a batch, of aligned windows, of windows of every size.

    Args:
        windows: token counts, sparse or dense; one batch is `tokens[None]`.
        target: τ, shares that add up to 1.

    Example:
        >>> total_variation(np.array([[3, 1], [2, 2]]), np.array([0.5, 0.5]))
        array([0.25, 0.  ])
    """
    return _half_l1(_differences(csr_array(windows), target), target)


def _half_l1(parts: _Differences, target: Float64[np.ndarray, " group"]) -> Float64[np.ndarray, " window"]:
    # A group that a window lacks contributes its whole target. So the sum begins with all targets, and a group that
    # the window holds replaces its own: only non-zeros are visited.
    distance = target.sum() + parts.sums(np.abs(parts.difference) - parts.expected)
    return np.where(parts.tokens > 0, np.maximum(distance, 0.0) / 2, 0.0)


def _l2(parts: _Differences, target: Float64[np.ndarray, " group"]) -> Float64[np.ndarray, " window"]:
    # As in `_half_l1`, with squares. The subtraction leaves a rounding error of some 1e-17, whose square root of
    # some 1e-9 would be seen: windows that hold every group get an exact 0.
    holds_all = parts.sums(parts.expected > 0) == np.count_nonzero(target)
    lacking = np.where(holds_all, 0.0, np.maximum(target @ target - parts.sums(parts.expected**2), 0.0))
    return np.where(parts.tokens > 0, np.sqrt(parts.sums(parts.difference**2) + lacking), 0.0)


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
    num_windows = _num_windows(placed, size, offset)
    measured = AlignedWindows(np.zeros(num_windows), np.zeros(num_windows), np.zeros(num_windows, np.int64))
    for part, windows in _window_counts(placed, size, offset):
        differences = _differences(windows, target)
        measured.tv[part], measured.l2[part] = _half_l1(differences, target), _l2(differences, target)
        measured.num_groups[part] = np.diff(windows.indptr)
    return measured


def window_deviation(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> Float64[np.ndarray, " window"]:
    """TV of consecutive windows of `size` positions from any `offset` on, as `total_variation` defines it.

    Example:
        >>> window_deviation(place(chars.counts["cluster"], ordering.indices), chars.target_share("cluster"), 256)
    """
    tv = np.zeros(_num_windows(placed, size, offset))
    for part, windows in _window_counts(placed, size, offset):
        tv[part] = total_variation(windows, target)
    return tv


def usable_windows(windows: tuple[int, ...], num_sequences: int) -> tuple[int, ...]:
    """The window sizes that fit twice; all sequences as one window where none does."""
    return tuple(size for size in windows if 2 * size <= num_sequences) or (max(num_sequences // 2, 1),)


def _num_windows(placed: csr_array, size: int, offset: int) -> int:
    return max(placed.shape[0] - offset, 0) // size


def _window_counts(placed: csr_array, size: int, offset: int) -> Iterator[tuple[slice, csr_array]]:
    """Token counts (window, group) of some windows at a time, and which windows these are."""
    num_windows = _num_windows(placed, size, offset)
    step = max(1, _BLOCK_POSITIONS // size)
    for first in range(0, num_windows, step):
        last = min(first + step, num_windows)
        block = entries(placed, offset + first * size, offset + last * size)
        shape = (last - first, placed.shape[1])
        # Rows that share a window become entries of one row; `sum_duplicates` adds those of one group.
        windows = csr_array((block.tokens, (block.position // size, block.group)), shape=shape)
        windows.sum_duplicates()
        yield slice(first, last), windows

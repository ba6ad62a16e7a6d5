"""Token counts sorted by position, and windows of consecutive positions: the input of every measure.

A *position* is a place in the ordering. Counts stay sparse. Positions are read in blocks, so ten million positions need
little more memory than the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Integer, Num
from scipy.sparse import csr_array

# Rows of the family `tokens` have hundreds of non-zeros: then a block has fewer positions. Temporary arrays of 2 MB are
# faster than arrays of 8 MB: measured, a tenth of the time of all measures.
_BLOCK_POSITIONS, _BLOCK_NONZEROS = 1 << 18, 1 << 18


class Entries(NamedTuple):
    """The non-zeros of consecutive positions; `position` is counted from the first of the consecutive positions."""

    position: Int64[np.ndarray, " nonzero"]
    group: Integer[np.ndarray, " nonzero"]
    tokens: Int64[np.ndarray, " nonzero"]


def rows_together(rows: csr_array) -> int:
    """Return the number of rows in a block. Its temporary arrays have about 30 bytes for each non-zero."""
    return max(1, min(_BLOCK_POSITIONS, _BLOCK_NONZEROS * rows.shape[0] // max(len(rows.data), 1)))


def place(counts: csr_array, indices: Int64[np.ndarray, " position"]) -> csr_array:
    """Reorder the rows of `counts` (sequence, group) by position; the result has the axes (position, group)."""
    # If the counts fit into int32, we use int32: it halves the memory of the largest array.
    widths = np.diff(counts.indptr)
    starts = np.zeros(len(indices) + 1, np.int64)
    np.cumsum(widths[indices], out=starts[1:])
    index_type = np.int32 if max(starts[-1], counts.shape[1]) < 2**31 else np.int64
    groups = np.empty(starts[-1], index_type)
    tokens = np.empty(starts[-1], np.int32 if counts.data.max(initial=0) < 2**31 else np.int64)
    # SciPy's `counts[indices]` would keep the types of the input. Copying block by block also bounds the index arrays.
    step = rows_together(counts)
    for first in range(0, len(indices), step):
        chosen = indices[first : first + step]
        begin, end = starts[first], starts[first + len(chosen)]
        shifts = counts.indptr[chosen] - starts[first : first + len(chosen)]
        source = np.arange(begin, end) + np.repeat(shifts, widths[chosen])
        groups[begin:end] = counts.indices[source]
        tokens[begin:end] = counts.data[source]
    return csr_array((tokens, groups, starts.astype(index_type)), shape=(len(indices), counts.shape[1]))


def rows_between(rows: csr_array, start: int, stop: int) -> csr_array:
    """Return the rows from `start` up to `stop`, without a copy of their non-zeros; SciPy's slices copy them."""
    begin, end = rows.indptr[start], rows.indptr[stop]
    bounds = rows.indptr[start : stop + 1] - begin
    return csr_array((rows.data[begin:end], rows.indices[begin:end], bounds), shape=(stop - start, rows.shape[1]))


def entries(placed: csr_array, start: int, stop: int) -> Entries:
    """Return the non-zeros of the positions from `start` up to `stop`."""
    bounds = placed.indptr[start : stop + 1]
    begin, end = bounds[0], bounds[-1]
    position = np.repeat(np.arange(stop - start), np.diff(bounds))
    return Entries(position, placed.indices[begin:end], placed.data[begin:end].astype(np.int64))


def blocks(rows: csr_array) -> Iterator[tuple[slice, Entries]]:
    """Yield all rows block by block: the slice of row numbers, and the non-zeros of these rows."""
    step = rows_together(rows)
    for start in range(0, rows.shape[0], step):
        stop = min(start + step, rows.shape[0])
        yield slice(start, stop), entries(rows, start, stop)


def row_sums(
    rows: csr_array, value: Callable[[np.ndarray, np.ndarray], Float64[np.ndarray, " nonzero"]]
) -> Float64[np.ndarray, " row"]:
    """Sum a value of the non-zeros of every row, which `value` computes from arrays of their groups and tokens."""
    sums, step = np.empty(rows.shape[0]), rows_together(rows)
    for start in range(0, rows.shape[0], step):
        block = rows_between(rows, start, min(start + step, rows.shape[0]))
        sums[start : start + step] = _row_sums(block, value(block.indices, block.data))
    return sums


def _row_sums(rows: csr_array, values: np.ndarray) -> Float64[np.ndarray, " row"]:
    """Compute the row sums of a matrix that has `values` at the places of the non-zeros of `rows`."""
    # A product with ones adds from left to right, as a loop would, and needs no array of row numbers.
    return csr_array((values, rows.indices, rows.indptr), shape=rows.shape) @ np.ones(rows.shape[1])


def group_sums(block: Entries, num_groups: int) -> Int64[np.ndarray, " group"]:
    """Count the tokens of every group exactly."""
    sums = np.zeros(num_groups, np.int64)
    np.add.at(sums, block.group, block.tokens)  # bincount would add in float64, which is exact only up to 2^53
    return sums


def cumulative_tokens(placed: csr_array) -> Int64[np.ndarray, " boundary"]:
    """Count the tokens before every position, and at the end all tokens: (num_positions + 1,)."""
    totals = np.zeros(placed.shape[0] + 1, np.int64)
    step = rows_together(placed)
    for start in range(0, placed.shape[0], step):
        stop = min(start + step, placed.shape[0])
        bounds = placed.indptr[start : stop + 1]
        # We do not use `np.add.reduceat`, because it gives a row without non-zeros the tokens of the next row.
        running = np.zeros(bounds[-1] - bounds[0] + 1, np.int64)
        np.cumsum(placed.data[bounds[0] : bounds[-1]], dtype=np.int64, out=running[1:])
        totals[start : stop + 1] = totals[start] + running[bounds - bounds[0]]
    return totals


class _Differences:
    """Values needed for the two distances (half L1, and L2) between windows and target shares τ.

    They are τ and share - τ of every non-zero, and the number of tokens of every window.
    """

    def __init__(self, windows: csr_array, target: Float64[np.ndarray, " group"]) -> None:
        self.windows, self.target = windows, target
        self.tokens = _row_sums(windows, windows.data)  # exact below 2^53 tokens per window
        self.expected = target[windows.indices]
        share = windows.data / np.repeat(np.maximum(self.tokens, 1.0), np.diff(windows.indptr))
        self.difference = share - self.expected

    def half_l1(self) -> Float64[np.ndarray, " window"]:
        # A group that a window does not contain contributes its whole target. So the sum begins with all targets; for
        # each group in the window, its target is replaced by |share - τ|. This reads only non-zeros.
        distance = self.target.sum() + _row_sums(self.windows, np.abs(self.difference) - self.expected)
        return np.where(self.tokens > 0, np.maximum(distance, 0.0) / 2, 0.0)

    def l2(self) -> Float64[np.ndarray, " window"]:
        # This is like `half_l1`, with squares. The subtraction leaves a rounding error of about 1e-17. Its square root,
        # about 1e-9, would be visible, so windows that contain every group get an exact 0.
        lacking = np.maximum(self.target @ self.target - _row_sums(self.windows, self.expected**2), 0.0)
        lacking[_row_sums(self.windows, self.expected > 0) == np.count_nonzero(self.target)] = 0.0
        return np.where(self.tokens > 0, np.sqrt(_row_sums(self.windows, self.difference**2) + lacking), 0.0)


def total_variation(
    windows: csr_array | Num[np.ndarray, "window group"], target: Float64[np.ndarray, " group"]
) -> Float64[np.ndarray, " window"]:
    """Compute the TV of every window: half the L1 distance between its token shares and the targets; 0 without tokens.

    This is the only definition of TV: for a batch, for aligned windows, for windows of every size.

    Args:
        windows: token counts, sparse or dense; one batch is `tokens[None]`.
        target: τ, shares that add up to 1.

    Example:
        >>> total_variation(np.array([[3, 1], [2, 2]]), np.array([0.5, 0.5]))
        array([0.25, 0.  ])
    """
    if isinstance(windows, np.ndarray):
        tokens = windows.sum(axis=1, dtype=np.float64)
        difference = windows / np.maximum(tokens, 1.0)[:, None]
        difference -= target
        return np.where(tokens > 0, np.abs(difference, out=difference).sum(axis=1) / 2, 0.0)
    return _Differences(windows, target).half_l1()


class AlignedWindows(NamedTuple):
    """Distances L1 / 2 and L2 of every window's shares to the targets, and the number of its groups with tokens."""

    tv: Float64[np.ndarray, " window"]
    l2: Float64[np.ndarray, " window"]
    num_groups: Int64[np.ndarray, " window"]


def aligned_windows(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> AlignedWindows:
    """Measure the whole windows of `size` positions from `offset` on; a window without tokens has distances of 0.

    Args:
        placed: token counts (position, group).
        target: τ.
        size: positions per window, at least 1.
        offset: the position at which the first window begins, at least 0.
    """
    parts = [AlignedWindows(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))]
    for windows in _window_counts(placed, size, offset):
        differences = _Differences(windows, target)
        parts.append(AlignedWindows(differences.half_l1(), differences.l2(), np.diff(windows.indptr).astype(np.int64)))
    return AlignedWindows(*map(np.concatenate, zip(*parts, strict=True)))


def window_deviation(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> Float64[np.ndarray, " window"]:
    """Compute the TV (see `total_variation`) of consecutive windows of `size` positions from `offset` on.

    Example:
        >>> window_deviation(place(chars.counts["cluster"], ordering.indices), chars.target_share("cluster"), 256)
    """
    parts = [total_variation(windows, target) for windows in _window_counts(placed, size, offset)]
    return np.concatenate([np.zeros(0), *parts])


def token_windows(
    placed: csr_array,
    target: Float64[np.ndarray, " group"] | Float64[np.ndarray, "position group"],
    num_tokens: float,
    first_window: int = 0,
    tokens_before: int = 0,
) -> Float64[np.ndarray, " window"]:
    """Compute the TV of consecutive windows of `num_tokens` tokens; tokens after the last whole window are left out.

    If a position is in several windows, its tokens are divided among the windows; each part has the mixture of the
    position.

    Args:
        placed: token counts (position, group).
        target: τ, of all positions or of every position.
        num_tokens: tokens of a window.
        first_window: the number of the first window that is measured.
        tokens_before: the tokens before the first of the positions.

    Example:
        >>> token_windows(csr_array([[3, 0], [0, 3], [1, 1]]), np.array([0.5, 0.5]), 4)
        array([0.25, 0.25])
    """
    starts = tokens_before + cumulative_tokens(placed)
    num_windows = int(starts[-1] / num_tokens)
    parts = [np.zeros(0)]
    step = max(1, rows_together(placed) * (num_windows - first_window) // placed.shape[0]) if num_windows else 1
    for first in range(first_window, num_windows, max(step, 1)):
        last = min(first + step, num_windows)
        bounds = np.minimum(
            np.arange(first, last + 1) * num_tokens, starts[-1]
        )  # rounding must not lead beyond the end
        low = int(np.searchsorted(starts, bounds[0], side="right")) - 1
        high = int(np.searchsorted(starts, bounds[-1]))
        # We cut at every end of a position and every end of a window: each piece is then in one position and one
        # window.
        ends = np.union1d(starts[low : high + 1].clip(bounds[0], bounds[-1]), bounds)
        middles, lengths = (ends[1:] + ends[:-1]) / 2, np.diff(ends)
        position = np.searchsorted(starts, middles, side="right") - 1
        window = np.searchsorted(bounds, middles, side="right") - 1
        share = lengths / (starts[position + 1] - starts[position])
        of_window = csr_array((share, (window, position - low)), shape=(last - first, high - low))
        counts = csr_array(of_window @ rows_between(placed, low, high))
        if target.ndim == 1:
            parts.append(total_variation(counts, target))
        else:
            expected = of_window @ (np.diff(starts[low : high + 1])[:, None] * target[low:high])
            tokens = np.maximum(counts.sum(axis=1), 1e-300)
            parts.append(np.abs(counts.toarray() - expected).sum(axis=1) / (2 * tokens))
    return np.concatenate(parts)


def usable_windows(windows: Sequence[int], num_sequences: int, batch_size: int | None = None) -> tuple[int, ...]:
    """Return the window sizes (and the batch size) that fit twice into the sequences; if none fits, half of all.

    The sizes are sorted.
    """
    sizes = {*windows, *(() if batch_size is None else (batch_size,))}
    return tuple(size for size in sorted(sizes) if 2 * size <= num_sequences) or (max(num_sequences // 2, 1),)


def _window_counts(placed: csr_array, size: int, offset: int) -> Iterator[csr_array]:
    """Yield token counts (window, group), in blocks of windows."""
    # Only whole windows are used: positions before the offset and after the last whole window are left out.
    num_windows = max(placed.shape[0] - offset, 0) // size
    step = max(1, rows_together(placed) // size)
    for first in range(0, num_windows, step):
        last = min(first + step, num_windows)
        # A product with ones adds the counts of the positions of a window, without sorting them.
        starts = np.arange(0, (last - first) * size + 1, size)
        ones = np.ones(starts[-1], np.int64)
        adds = csr_array((ones, np.arange(starts[-1]), starts), shape=(last - first, int(starts[-1])))
        yield csr_array(adds @ rows_between(placed, offset + first * size, offset + last * size))

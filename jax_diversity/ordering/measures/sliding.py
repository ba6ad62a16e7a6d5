"""Windows at every start position. The cost grows with the number of non-zeros, not with positions times groups.

While a window slides, the count of a group changes only where tokens of the group enter or leave the window. In a block
of start positions, each group has *spans* of start positions with the same count; a measure adds or compares spans.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Integer, Shaped
from scipy.sparse import csr_array

from jax_diversity.ordering.measures.windows import cumulative_tokens, entries, group_sums, rows_between

# A block has at most this many (group, start) cells, although only spans are stored. This bounds the number of spans at
# the first start of a block (one per group).
_BLOCK_ENTRIES = 1 << 22
_FEWEST_STARTS, _MOST_STARTS = 1024, 1 << 14


class EveryStart(NamedTuple):
    """The window TV over all start positions; 0 if no window fits."""

    mean: float
    worst: float


class _Spans(NamedTuple):
    """Start positions `begin` up to `end` of a block at which the window has equally many tokens of a group."""

    group: Int64[np.ndarray, " span"]
    begin: Int64[np.ndarray, " span"]
    end: Int64[np.ndarray, " span"]
    tokens: Int64[np.ndarray, " span"]
    fewest: Int64[np.ndarray, " span"]  # smallest number of tokens of the whole window, over the starts of the span
    most: Int64[np.ndarray, " span"]  # largest number of tokens of the whole window


class _GroupChanges(NamedTuple):
    """The counts of a block's windows, group by group: a group has its count at the first start, and every change."""

    first: Integer[np.ndarray, " group"]  # the index of the first count of every group
    start: Integer[np.ndarray, " change"]  # the start position, counted from the first of the block
    tokens: Int64[np.ndarray, " change"]  # the tokens of the group in the window from this start on

    def spans(self, window_tokens: Int64[np.ndarray, " start"]) -> _Spans:
        """Return the spans between the changes; `window_tokens` are the tokens of every window of the block."""
        num_groups, num_starts = len(self.first), len(window_tokens)
        begin = self.start.astype(np.int64)
        groups = np.repeat(np.arange(num_groups), np.diff(self.first, append=len(begin)))
        end = np.append(begin[1:], num_starts)
        end[self.first[1:] - 1] = num_starts
        fewest = _over_ranges(np.minimum, window_tokens, begin, end)
        most = _over_ranges(np.maximum, window_tokens, begin, end)
        return _Spans(groups, begin, end, self.tokens, fewest, most)


def window_tv_all(placed: csr_array, target: Float64[np.ndarray, " group"], size: int) -> EveryStart:
    """Compute the mean and the largest TV of the windows of `size` positions over all start positions.

    TV is the sum of the positive parts of share - τ. If the share of a group stays above its τ over a whole span, the
    exact token count is added to all starts of the span. A span is examined start by start only if the share crosses τ
    because the number of tokens in the window varies.
    """
    total, worst = 0.0, 0.0
    for window_tokens, changes in _blocks(placed, size):
        values = _block_tv(window_tokens, changes.spans(window_tokens), target)
        total += float(values.sum())
        worst = max(worst, float(values.max()))
    return EveryStart(total / max(placed.shape[0] - size + 1, 1), worst)


def window_maximum(placed: csr_array, target: Float64[np.ndarray, " group"], size: int) -> float:
    """Compute the largest |share - τ| of any group in any window of `size` consecutive positions."""
    largest = 0.0
    for window_tokens, changes in _blocks(placed, size):
        if (num_tokens := int(window_tokens[0])) > 0 and (window_tokens == num_tokens).all():
            # The windows have equally many tokens: only the largest and the smallest count of a group matter.
            above = np.maximum.reduceat(changes.tokens, changes.first) / num_tokens - target
            below = target - np.minimum.reduceat(changes.tokens, changes.first) / num_tokens
            largest = max(largest, float(above.max()), float(below.max()))
            continue
        spans = changes.spans(window_tokens)
        # The share of a span is largest or smallest where the window has the fewest or the most tokens: two candidates
        # per span.
        expected = target[spans.group]
        above = spans.tokens / np.maximum(spans.fewest, 1) - expected
        below = np.where(spans.most > 0, expected - spans.tokens / np.maximum(spans.most, 1), 0.0)
        largest = max(largest, float(above.max(initial=0.0)), float(below.max(initial=0.0)))
    return largest


def _block_tv(
    window_tokens: Int64[np.ndarray, " start"], spans: _Spans, target: Float64[np.ndarray, " group"]
) -> Float64[np.ndarray, " start"]:
    expected = target[spans.group]
    # If a group has more tokens than τ times the largest window, its share is above τ at every start of the span. Then
    # whole numbers can be added before the division. If it has fewer tokens than τ times the smallest window, its share
    # is below τ at every start. Then the span adds nothing.
    above = (spans.tokens > 0) & (spans.tokens >= expected * spans.most)
    crossing = (spans.tokens > expected * spans.fewest) & ~above
    num_starts = len(window_tokens)

    # A span adds its value at `begin` and subtracts it at `end`: one running sum gives all starts.
    def running(values: np.ndarray) -> Float64[np.ndarray, " start"]:
        changes = np.bincount(spans.begin[above], weights=values[above], minlength=num_starts + 1)
        changes -= np.bincount(spans.end[above], weights=values[above], minlength=num_starts + 1)
        return np.cumsum(changes, dtype=np.float64)[:-1]

    tokens = np.maximum(window_tokens, 1)
    values = running(spans.tokens) / tokens - running(expected)
    lengths = spans.end[crossing] - spans.begin[crossing]
    # The starts `begin`, `begin + 1` ... of every span, one span after another.
    starts = np.arange(lengths.sum()) + np.repeat(spans.begin[crossing] - np.cumsum(lengths) + lengths, lengths)
    shares = np.repeat(spans.tokens[crossing], lengths) / tokens[starts]
    surplus = np.maximum(shares - np.repeat(expected[crossing], lengths), 0.0)
    values += np.bincount(starts, weights=surplus, minlength=num_starts)
    return np.where(window_tokens > 0, np.maximum(values, 0.0), 0.0)


def _blocks(placed: csr_array, size: int) -> Iterator[tuple[Int64[np.ndarray, " start"], _GroupChanges]]:
    """Yield blocks of start positions: the windows' tokens at each start, and the groups' counts."""
    num_positions, num_groups = placed.shape[0], placed.shape[1]
    num_starts = num_positions - size + 1
    if num_starts < 1:
        return
    before = cumulative_tokens(placed)
    # `sums` has the count of every group in the window at the first start of a block; each block updates it by its
    # changes.
    sums = np.zeros(num_groups, np.int64)
    for first in range(0, size, _MOST_STARTS):
        sums += group_sums(entries(placed, first, min(first + _MOST_STARTS, size)), num_groups)
    step = min(max(_BLOCK_ENTRIES // num_groups, _FEWEST_STARTS), _MOST_STARTS)
    for start in range(0, num_starts, step):
        stop = min(start + step, num_starts)
        window_tokens = before[start + size : stop + size] - before[start:stop]
        # At a start, the row before the start has left the window, and the last row of the window has entered. Changes
        # at `stop` belong to the next block.
        rows = min(stop, num_starts - 1)
        changes = csr_array(rows_between(placed, start + size, rows + size) - rows_between(placed, start, rows))
        yield window_tokens, _by_group(sums, rows_between(changes, 0, stop - start - 1))
        sums += changes.sum(axis=0)  # also the changes at `stop`: now these are the counts at the next start


def _by_group(sums: Int64[np.ndarray, " group"], changes: csr_array) -> _GroupChanges:
    """Sort the counts at the first start of a block, and the changes (start - 1, group) after it, by group."""
    num_groups = len(sums)
    # The counts of the first start and the changes of later starts are the rows of one matrix. Its columns have the
    # changes of each group side by side, in the order of time. SciPy keeps the zeros that we store: a group without
    # tokens at the first start has a span, too.
    columns = csr_array(
        (
            np.concatenate([sums, changes.data]),
            np.concatenate([np.arange(num_groups), changes.indices]),
            np.concatenate([[0], num_groups + changes.indptr]),
        ),
        shape=(changes.shape[0] + 1, num_groups),
    ).tocsc()
    first = columns.indptr[:-1]
    # The counts of a group are the running sum over all changes, minus its value before the group.
    running = np.cumsum(columns.data)
    counted = running - np.repeat((running - columns.data)[first], np.diff(columns.indptr))
    return _GroupChanges(first, columns.indices, counted)


def _over_ranges(
    pick: np.ufunc,
    values: Int64[np.ndarray, " start"],
    begin: Int64[np.ndarray, " span"],
    end: Int64[np.ndarray, " span"],
) -> Shaped[np.ndarray, " span"]:
    """Find the minimum or maximum of `values[begin:end]` by a table over ranges of every power of two.

    Any range is covered by two ranges whose length is the largest power of two that fits. One begins where the range
    begins, the other ends where it ends. (This is a sparse table; Bender and Farach-Colton, "The LCA problem
    revisited", 2000.)
    """
    # If sequences have no padding, every window has the same number of tokens; then no table is needed.
    if len(values) and (values == values[0]).all():
        return np.full(len(begin), values[0])
    table = [values]
    while 2 << (len(table) - 1) <= len(values):
        half = 1 << (len(table) - 1)
        narrower = table[-1]
        table.append(np.append(pick(narrower[:-half], narrower[half:]), narrower[-half:]))
    level = np.frexp(end - begin)[1] - 1  # the integer part of log2; exact at powers of two, where log2 may round
    # All levels have the length of `values`; entries whose range would go past the end are never read.
    stacked = np.stack(table)
    return pick(stacked[level, begin], stacked[level, end - (1 << level)])

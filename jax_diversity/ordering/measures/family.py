"""The measures of one family, from counts in blocks of consecutive positions. One block gives what all blocks give.

Rows that unfinished windows still need are kept from block to block, so memory grows with a block and with the largest
window. If the targets change along the order, the target of a window is the mean target of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array, vstack

from jax_diversity.foundation.progress import Advance
from jax_diversity.ordering.measures.floors import WindowLimits, ideal_token_shuffle
from jax_diversity.ordering.measures.prefixes import prefix_deviation
from jax_diversity.ordering.measures.sliding import EveryStart, window_maximum, window_tv_all
from jax_diversity.ordering.measures.targets import FamilyTargets
from jax_diversity.ordering.measures.windows import (
    AlignedWindows,
    aligned_windows,
    blocks,
    cumulative_tokens,
    entries,
    group_sums,
    rows_between,
    token_windows,
)

_DENSE_ENTRIES = 4_000_000


class WindowsOfSize:
    """Consecutive windows of one size from a first position on."""

    def __init__(self, targets: FamilyTargets, size: int, offset: int = 0) -> None:
        self.next, self._targets, self._size = offset, targets, size
        self._parts = [AlignedWindows(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))]

    def add(self, rows: csr_array, first: int) -> None:
        """Measure the windows that end in some rows, whose first position is `first`."""
        offset = max(self.next - first, 0)
        if self._targets.is_constant:
            measured = aligned_windows(rows, self._targets.shares[0], self._size, offset)
        else:
            measured = _moving_windows(rows, self._targets, self._size, offset, first)
        self._parts.append(measured)
        self.next += len(measured.tv) * self._size

    def measured(self) -> AlignedWindows:
        """Return the distances of all windows."""
        return AlignedWindows(*map(np.concatenate, zip(*self._parts, strict=True)))


def _excesses(
    rows: csr_array, targets: FamilyTargets, first: int, starts: Int64[np.ndarray, " window"], size: int
) -> tuple[Float64[np.ndarray, "window group"], Int64[np.ndarray, " window"]]:
    """Return counts minus target tokens, and the tokens, of consecutive windows; `first` is the rows' position."""
    begin, stop = int(starts[0]), int(starts[-1]) + size
    block = entries(rows, begin, stop)
    tokens = np.diff(cumulative_tokens(rows_between(rows, begin, stop)))
    excess = np.zeros((len(starts), rows.shape[1]))
    np.add.at(excess, (block.position // size, block.group), block.tokens)
    phase = targets.phase_of(first + np.arange(begin, stop))
    of_phase = np.zeros((len(starts), len(targets.starts)))
    np.add.at(of_phase, (np.arange(stop - begin) // size, phase), tokens)
    return excess - of_phase @ targets.shares, of_phase.sum(axis=1).astype(np.int64)


def _moving_windows(rows: csr_array, targets: FamilyTargets, size: int, offset: int, first: int) -> AlignedWindows:
    """Measure windows as `aligned_windows`, against the mean target of each window's tokens."""
    num_windows = max(rows.shape[0] - offset, 0) // size
    step = max(1, _DENSE_ENTRIES // max(targets.shares.shape))
    parts = [AlignedWindows(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))]
    for begin in range(0, num_windows, step):
        starts = offset + np.arange(begin, min(begin + step, num_windows)) * size
        excess, tokens = _excesses(rows, targets, first, starts, size)
        num_tokens = np.maximum(tokens, 1)
        block = entries(rows, int(starts[0]), int(starts[-1]) + size)
        present = np.zeros(excess.shape, bool)
        present[block.position // size, block.group] = True
        distances = np.abs(excess).sum(axis=1) / (2 * num_tokens), np.sqrt((excess**2).sum(axis=1)) / num_tokens
        parts.append(AlignedWindows(*distances, present.sum(axis=1)))
    return AlignedWindows(*map(np.concatenate, zip(*parts, strict=True)))


class SlidingWindows:
    """All windows of one size: the largest |share - τ|, and if requested the window TV of all start positions."""

    def __init__(self, targets: FamilyTargets, size: int, every_start: bool) -> None:
        self.next, self.largest = 0, 0.0
        self._targets, self._size, self._every_start = targets, size, every_start
        self._total, self._worst, self._number = 0.0, 0.0, 0

    def add(self, rows: csr_array, first: int) -> None:
        """Measure the windows that end in some rows, whose first position is `first`."""
        stop, size = first + rows.shape[0], self._size
        if stop - self.next < size:
            return
        end = stop - size + 1  # the starts from `next` up to `end`
        for begin, until, phase in self._stretches(self.next, end):
            rows_of_run = rows_between(rows, begin - first, until - first + size - 1)
            if phase is None:
                self._add_moving(rows_of_run, begin, until - begin)
                continue
            target = self._targets.shares[phase]
            self.largest = max(self.largest, window_maximum(rows_of_run, target, size))
            if self._every_start:
                self._add_starts(window_tv_all(rows_of_run, target, size), until - begin)
        self.next = end

    def _stretches(self, first: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """Yield ranges of starts whose windows are in one phase (its number), or cross a border (None)."""
        if self._targets.is_constant:
            yield first, end, 0
            return
        at = first
        for _, stop, phase in self._targets.stretches(first, end + self._size - 1):
            inside = max(stop - self._size + 1, at)  # the first start whose window leaves the phase
            if at < min(inside, end):
                yield at, min(inside, end), phase
                at = min(inside, end)
            if at < min(stop, end):
                yield at, min(stop, end), None
                at = min(stop, end)

    def _add_moving(self, rows: csr_array, first: int, num_starts: int) -> None:
        """Measure windows that cross borders of phases from dense sums, some groups at a time."""
        size, num_rows = self._size, rows.shape[0]
        tokens = cumulative_tokens(rows)
        of_windows = tokens[size:] - tokens[:-size]
        phase = self._targets.phase_of(first + np.arange(num_rows))
        step = max(1, _DENSE_ENTRIES // num_rows)
        l1 = np.zeros(num_starts)
        for group in range(0, rows.shape[1], step):
            columns = slice(group, min(group + step, rows.shape[1]))
            excess = rows[:, columns].toarray() - np.diff(tokens)[:, None] * self._targets.shares[phase, columns]
            running = np.pad(np.cumsum(excess, axis=0), ((1, 0), (0, 0)))
            distance = np.abs(running[size:] - running[:-size]) / np.maximum(of_windows, 1)[:, None]
            self.largest = max(self.largest, float(distance.max(initial=0.0)))
            l1 += distance.sum(axis=1)
        if self._every_start:
            tv = np.where(of_windows > 0, l1 / 2, 0.0)
            self._add_starts(EveryStart(float(tv.mean()), float(tv.max())), num_starts)

    def _add_starts(self, measured: EveryStart, number: int) -> None:
        self._total += measured.mean * number
        self._worst = max(self._worst, measured.worst)
        self._number += number

    def every_start(self) -> EveryStart:
        """Return the window TV over all start positions."""
        return EveryStart(self._total / max(self._number, 1), self._worst)


class TokenWindows:
    """The TV of consecutive windows of equally many tokens."""

    def __init__(self, targets: FamilyTargets, num_tokens: float) -> None:
        self.next = 0  # the first position that the next window needs
        self._targets = targets
        self._num_tokens, self._num_windows = num_tokens, 0
        self._before = 0  # the tokens before `next`
        self._parts = [np.zeros(0)]

    def add(self, rows: csr_array, first: int) -> None:
        """Measure the windows that end in some rows, whose first position is `first`."""
        new_rows = rows_between(rows, self.next - first, rows.shape[0])
        target = self._targets.shares[0]
        if not self._targets.is_constant:
            target = self._targets.shares[self._targets.phase_of(self.next + np.arange(new_rows.shape[0]))]
        tv = token_windows(new_rows, target, self._num_tokens, self._num_windows, self._before)
        self._parts.append(tv)
        self._num_windows += len(tv)
        ends = self._before + cumulative_tokens(new_rows)
        reached = int(np.searchsorted(ends, self._num_windows * self._num_tokens, side="right")) - 1
        reached = min(max(reached, 0), new_rows.shape[0])
        self.next, self._before = self.next + reached, int(ends[reached])

    def measured(self) -> Float64[np.ndarray, " window"]:
        """Return the TV of all windows."""
        return np.concatenate(self._parts)


class FamilyMeasures:
    """All measures of one family; `add` gets the counts of the next positions.

    Args:
        targets: τ.
        sizes: window sizes.
        sequence_length: L in tokens.
        every_start: whether to measure the window TV of all start positions.
        mean_tokens: the mean number of tokens of a sequence, if windows of equal tokens are measured; else None.
        limits: window size -> the accumulator of its floor and bound; empty if they are known.
    """

    def __init__(
        self,
        targets: FamilyTargets,
        sizes: Sequence[int],
        sequence_length: int,
        *,
        every_start: bool,
        mean_tokens: float | None,
        limits: dict[int, WindowLimits],
    ) -> None:
        self._targets, self._length, self._limits = targets, sequence_length, limits
        num_groups = targets.shares.shape[1]
        self._sums, self._total, self._carried = np.zeros(num_groups, np.int64), 0, np.zeros(num_groups)
        self._position = self.num_entries = 0
        # The rows from `_first` on, which windows still need.
        self._kept, self._first = csr_array((0, num_groups), dtype=np.int32), 0
        self.aligned = {size: WindowsOfSize(targets, size) for size in sizes}
        self.shifted = {size: WindowsOfSize(targets, size, size // 2) for size in sizes}
        self.sliding = {size: SlidingWindows(targets, size, every_start) for size in sizes}
        self.tokens = {} if mean_tokens is None else {size: TokenWindows(targets, size * mean_tokens) for size in sizes}

    def add(self, placed: csr_array, advance: Advance) -> Float64[np.ndarray, " position"]:
        """Measure the next positions; return the prefix deviation after each of them.

        `advance` is called with the number of positions done, over all walks; see `num_walks`.
        """
        deviations = self._prefixes(placed, advance)
        self.num_entries += len(placed.data)
        for limit in self._limits.values():
            limit.add(placed)
        rows = csr_array(vstack([self._kept, placed], format="csr")) if self._kept.shape[0] else placed
        measures = [
            measure
            for by_size in (self.aligned, self.shifted, self.tokens, self.sliding)
            for measure in by_size.values()
        ]
        for measure in measures:
            measure.add(rows, self._first)
            if isinstance(measure, SlidingWindows):
                advance(placed.shape[0])
        stop = self._first + rows.shape[0]
        first = min([stop, *(measure.next for measure in measures)])
        self._kept, self._first = csr_array(rows[first - self._first :]), first  # a copy: a view would keep the block
        return deviations

    @property
    def num_walks(self) -> int:
        """How often `add` reports every position: prefixes and sliding windows take nearly all of the time."""
        return 1 + len(self.sliding)

    def _prefixes(self, placed: csr_array, advance: Advance) -> Float64[np.ndarray, " position"]:
        tokens = np.diff(cumulative_tokens(placed))
        start, parts = self._position, []
        for begin, stop, phase in self._targets.stretches(start, start + placed.shape[0]):
            part = rows_between(placed, begin - start, stop - start)
            target = self._targets.shares[phase]
            if begin > 0 and begin in self._targets.starts:
                # The sums are whole numbers within a phase; the deviation of the phases before is a vector.
                self._carried = self._carried + self._sums - self._total * self._targets.shares[phase - 1]
                self._sums, self._total = np.zeros_like(self._sums), 0
            of_tokens = tokens[begin - start : stop - start]
            before = (self._sums, self._total, self._carried)
            parts.append(prefix_deviation(part, of_tokens, target, self._length, advance, before))
            for _, block in blocks(part):
                self._sums = self._sums + group_sums(block, len(target))
            self._total += int(of_tokens.sum())
        self._position += placed.shape[0]
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def ideal(self, size: int) -> float:
        """Return the TV of independent tokens."""
        return ideal_token_shuffle(self._targets.mean(self._position), size, self._length)

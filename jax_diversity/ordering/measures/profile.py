"""Window TV for every window size that is a power of two, and the shares of the largest groups along an order.

A window of 2n positions consists of two neighbouring windows of n positions. So counts are added level by level, and
the cost of a level grows with its number of non-zeros. Windows that begin half a window later consist of the same
smaller windows in other pairs. Positions are read in blocks; each block is reduced to one row, and these rows make the
higher levels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy import sparse
from scipy.sparse import csr_array

from jax_diversity.counts import TokenCounts
from jax_diversity.foundation.checks import as_whole_number, check_function, check_one_of
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.measures.balance import AnyOrder, as_order_of
from jax_diversity.ordering.measures.floors import WindowLimits
from jax_diversity.ordering.measures.placing import placed_counts
from jax_diversity.ordering.measures.targets import FamilyTargets, GivenTargets, corpus_targets
from jax_diversity.ordering.measures.windows import blocks as blocks_of
from jax_diversity.ordering.measures.windows import total_variation

_BLOCK_ENTRIES = 1 << 20
_FEWEST_ROWS, _MOST_ROWS = 1 << 6, 1 << 17
_TOP_LEVEL = 63
_MOST_GROUPS, _MOST_BINS = 24, 96
_DENSE = 0.25  # share of non-zeros

Windows = csr_array | Float64[np.ndarray, "window group"]
"""Token counts of windows."""


class WindowProfile(NamedTuple):
    """The window TV of one family over window sizes, at one offset.

    Attributes:
        sizes: window sizes in positions, powers of two, ascending, as far as they fit at this offset.
        num_windows: the number of whole windows of each size.
        mean: the mean TV of these windows.
        best: the smallest TV.
        worst: the largest TV.
    """

    sizes: Int64[np.ndarray, " size"]
    num_windows: Int64[np.ndarray, " size"]
    mean: Float64[np.ndarray, " size"]
    best: Float64[np.ndarray, " size"]
    worst: Float64[np.ndarray, " size"]


class GroupTimeline(NamedTuple):
    """Shares of a family's largest groups along an order.

    Attributes:
        bin_size: the number of positions of a bin; the last bin may have fewer.
        groups: the groups, the largest first; of equal groups the lower number first.
        target: the shares of these groups in all tokens.
        share: the shares of these groups in the tokens of every bin; 0 if a bin has no tokens.
    """

    bin_size: int
    groups: Int64[np.ndarray, " group"]
    target: Float64[np.ndarray, " group"]
    share: Float64[np.ndarray, "group bin"]


def window_profile(
    counts: TokenCounts,
    ordering: AnyOrder,
    advance: Advance = ignore,
    *,
    targets: GivenTargets = None,
) -> dict[str, dict[str, WindowProfile]]:
    """Measure window TV at all window sizes 1, 2, 4 ... up to the number of positions, at two offsets.

    The offset `0` has windows that begin at position 0 (aligned). At the offset `half`, the windows begin half a window
    later. The values are equal to the values of `measure` at each of these sizes, but all sizes together cost only as
    much as a few sizes. A million sequences take seconds; ten million need little more memory than their counts.

    Args:
        counts: the token counts; weights are ignored.
        ordering: the order of training; an array must be a bijection of the sequences.
        advance: called with the number of positions done.
        targets: as in `measure`.

    Returns:
        Family -> offset -> profile. Offset `0` has the aligned windows. Offset `half` has the whole windows that begin
        at position size / 2, for sizes of at least 2. Sizes that do not fit are left out.

    Raises:
        ValueError: the ordering was made for another dataset, or targets are not shares.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [0, 2]]})
        >>> aligned = window_profile(chars, np.arange(4))["topic"]["0"]
        >>> aligned.sizes.tolist(), aligned.worst.tolist()
        ([1, 2, 4], [0.5, 0.0, 0.0])
    """
    check_function("advance", advance)
    return observed_profile(counts, ordering, advance, targets, lambda family, first, placed: None)


def observed_profile(
    counts: TokenCounts,
    ordering: AnyOrder,
    advance: Advance,
    targets: GivenTargets,
    observe: Callable[[str, int, csr_array], None],
) -> dict[str, dict[str, WindowProfile]]:
    """Measure as `window_profile`; `observe` gets the family, the first position and the counts of every block."""
    indices = as_order_of(counts, ordering).indices
    levels = {family: _Levels(shares) for family, shares in corpus_targets(counts, targets).items()}
    with placed_counts(counts, indices) as blocks:
        for block in blocks():
            for family, of_family in levels.items():
                placed = block.counts(family)
                of_family.add(placed)
                observe(family, block.first, placed)
            advance(len(block))
    return {
        family: {offset: of_family.profile(offset) for offset in ("0", "half")} for family, of_family in levels.items()
    }


def window_floors(
    counts: TokenCounts,
    family: str,
    sizes: Sequence[int],
    ordering: AnyOrder | None = None,
    targets: GivenTargets = None,
) -> dict[int, float]:
    """Return window size -> the floor of the mean window TV of any order, see `floors.window_floor`.

    Args:
        counts: the token counts.
        family: the family.
        sizes: window sizes.
        ordering: a run that repeats or omits sequences; None means each sequence once.
        targets: as in `measure`.
    """
    indices = None if ordering is None else as_order_of(counts, ordering).indices
    number = counts.num_sequences if indices is None else len(indices)
    target = corpus_targets(counts, targets)[family].largest(number)
    limits = {size: WindowLimits(target, size, counts.sequence_length, number, None) for size in sizes}
    for (first, stop), chunk in zip(itertools.pairwise(counts.chunk_bounds), counts.chunks(), strict=True):
        rows = chunk.counts[family]
        if indices is not None:  # a floor does not depend on the order of the positions
            times = np.bincount(indices[(first <= indices) & (indices < stop)] - first, minlength=stop - first)
            rows = csr_array(rows[np.repeat(np.arange(stop - first), times)])
        for limit in limits.values():
            limit.add(rows)
    return {size: limit.result()[0] for size, limit in limits.items()}


def group_timeline(
    counts: TokenCounts,
    family: str,
    ordering: AnyOrder,
    *,
    num_groups: int = _MOST_GROUPS,
    num_bins: int = _MOST_BINS,
    targets: GivenTargets = None,
) -> GroupTimeline:
    """Compute the shares of a family's largest groups along an order, in bins of equal size.

    Args:
        counts: the token counts.
        family: the family.
        ordering: the order of training; an array must be a bijection of the sequences.
        num_groups: the largest number of groups; groups without tokens are left out.
        num_bins: the largest number of bins.
        targets: as in `measure`; the target of a group is the mean over the positions.

    Raises:
        ValueError: the family is unknown, the ordering was made for another dataset, a number is below 1, or targets
            are not shares.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [1, 1], [2, 0], [0, 2]]})
        >>> group_timeline(chars, "topic", np.arange(4), num_groups=1, num_bins=2).share.tolist()
        [[0.75, 0.5]]
    """
    indices = as_order_of(counts, ordering).indices
    check_one_of("family", family, counts.families)
    as_whole_number("num_groups", num_groups, 1)
    as_whole_number("num_bins", num_bins, 1)
    bins = GroupBins(corpus_targets(counts, targets)[family], len(indices), num_groups, num_bins)
    with placed_counts(counts, indices) as blocks:
        for block in blocks():
            bins.add(block.first, block.counts(family))
    return bins.timeline()


class GroupBins:
    """The tokens of a family's largest groups in bins of positions, from blocks of consecutive positions."""

    def __init__(
        self, targets: FamilyTargets, num_positions: int, num_groups: int = _MOST_GROUPS, num_bins: int = _MOST_BINS
    ) -> None:
        self._target = targets.mean(num_positions)
        groups = np.argsort(-self._target, kind="stable")[:num_groups]
        self._groups = groups[self._target[groups] > 0]
        self._bin_size = max(-(-num_positions // num_bins), 1)
        self._num_bins = -(-num_positions // self._bin_size)
        # All other groups have one common row of the table, because their tokens are part of the bins' tokens.
        self._row_of_group = np.full(len(self._target), len(self._groups), np.int64)
        self._row_of_group[self._groups] = np.arange(len(self._groups))
        self._table = np.zeros((len(self._groups) + 1) * self._num_bins)

    def add(self, first: int, placed: csr_array) -> None:
        """Add the counts of the positions from `first` on."""
        for rows, block in blocks_of(placed):
            bins = (first + rows.start + block.position) // self._bin_size
            places = self._row_of_group[block.group] * self._num_bins + bins
            self._table += np.bincount(places, weights=block.tokens, minlength=len(self._table))

    def timeline(self) -> GroupTimeline:
        """Return the shares."""
        tokens = self._table.reshape(len(self._groups) + 1, self._num_bins)
        share = tokens[:-1] / np.maximum(tokens.sum(axis=0), 1.0)
        return GroupTimeline(self._bin_size, self._groups, self._target[self._groups], share)


def _block_rows(counts: csr_array) -> int:
    """Choose the rows of a block, a power of two, so that blocks of all corpora have about equally many non-zeros."""
    width = max(len(counts.data) / max(counts.shape[0], 1), 1.0)
    rows = 1 << (max(int(_BLOCK_ENTRIES / width), 1).bit_length() - 1)
    return min(max(rows, _FEWEST_ROWS), _MOST_ROWS)


class _Levels:
    """Windows of one family, level by level: level k has the windows of 2^k positions."""

    def __init__(self, targets: FamilyTargets) -> None:
        self._targets = targets
        self._position = 0
        self._waiting_rows: csr_array | None = None
        self._block_level = -1
        self._tops: list[csr_array] = []
        # (offset, level) -> number of windows, sum of their TV, least, largest
        self._measured: dict[tuple[str, int], tuple[int, float, float, float]] = {}
        # The last window of the previous block: at the offset `half`, it is paired with the first window of the next
        # block.
        self._waiting: dict[int, Windows] = {}

    def add(self, placed: csr_array) -> None:
        """Add the counts of the next positions."""
        rows = csr_array((placed.data.astype(np.float64), placed.indices, placed.indptr), shape=placed.shape)
        if not self._targets.is_constant:
            rows = self._with_phases(rows)
        self._position += placed.shape[0]
        if self._block_level < 0:
            self._block_level = _block_rows(placed).bit_length() - 1
        if self._waiting_rows is not None:
            rows = csr_array(sparse.vstack([self._waiting_rows, rows], format="csr"))
        step = 1 << self._block_level
        whole = rows.shape[0] // step * step
        for first in range(0, whole, step):
            self._tops.append(csr_array(self._climb(csr_array(rows[first : first + step]), 0, self._block_level)))
        self._waiting_rows = csr_array(rows[whole:])

    def _with_phases(self, rows: csr_array) -> csr_array:
        """Add a column for every phase: the tokens of the positions in the phase, which add up like counts."""
        phase = self._targets.phase_of(self._position + np.arange(rows.shape[0]))
        tokens = np.asarray(rows.sum(axis=1)).ravel()
        shape = (rows.shape[0], len(self._targets.starts))
        columns = csr_array((tokens, phase, np.arange(rows.shape[0] + 1)), shape=shape)
        return csr_array(sparse.hstack([rows, columns], format="csr"))

    def _climb(self, rows: Windows, level: int, top: int) -> Windows:
        """Measure windows of 2^level positions and the larger windows below the level `top` that they form.

        The windows follow the windows of the previous block. Returns the windows of the level `top`.
        """
        # The counts of a window are the sum of the counts of its two halves, so each level adds the sums of the level
        # below. A level has at most as many non-zeros as the level below, because equal groups are added.
        while level < top and rows.shape[0]:
            # A matrix with many non-zeros is added and measured faster as an array.
            if isinstance(rows, csr_array) and rows.nnz > _DENSE * rows.shape[0] * rows.shape[1]:
                rows = rows.toarray()
            self._measure("0", level, rows)
            # At the offset `half`, a window begins with the last row of one block and ends with the first row of the
            # next.
            if level in self._waiting:
                self._measure("half", level + 1, self._waiting[level] + rows[:1])
            num_pairs, num_shifted = rows.shape[0] // 2, (rows.shape[0] - 1) // 2
            # Aligned windows pair rows 0+1, 2+3 ...; windows at the offset `half` pair rows 1+2, 3+4 ...
            second = rows[1 : 2 * num_pairs : 2]
            if num_shifted:
                self._measure("half", level + 1, second[:num_shifted] + rows[2 : 2 * num_shifted + 1 : 2])
            self._waiting[level] = rows[-1:]
            rows, level = rows[0 : 2 * num_pairs : 2] + second, level + 1
        return rows

    def profile(self, offset: str) -> WindowProfile:
        """Return the profile at one offset, after all positions were added."""
        if self._waiting_rows is not None:
            # The number of positions of a block is a power of two, so a block is reduced to one row. The rows of all
            # blocks make the higher levels; the last block may have fewer positions.
            tops = [*self._tops, csr_array(self._climb(self._waiting_rows, 0, self._block_level))]
            self._climb(csr_array(sparse.vstack(tops, format="csr")), self._block_level, _TOP_LEVEL)
            self._waiting_rows = None
        rows = sorted((level, *values) for (of, level), values in self._measured.items() if of == offset)
        level, number, total, best, worst = np.array(rows, np.float64).reshape(-1, 5).T
        # Levels and numbers of windows were converted to float64, which is exact below 2^53.
        sizes = np.left_shift(1, level.astype(np.int64))
        return WindowProfile(sizes, number.astype(np.int64), total / number, best, worst)

    def _measure(self, offset: str, level: int, windows: Windows) -> None:
        tv = self._window_tv(windows)
        number, total, least, most = self._measured.get((offset, level), (0, 0.0, np.inf, 0.0))
        total, least, most = total + float(tv.sum()), min(least, float(tv.min())), max(most, float(tv.max()))
        self._measured[offset, level] = (number + len(tv), total, least, most)

    def _window_tv(self, windows: Windows) -> Float64[np.ndarray, " window"]:
        if self._targets.is_constant:
            return total_variation(windows, self._targets.shares[0])
        shares, parts = self._targets.shares, [np.zeros(0)]
        step = max(1, _BLOCK_ENTRIES // windows.shape[1])
        for first in range(0, windows.shape[0], step):
            block = windows[first : first + step]
            dense = block if isinstance(block, np.ndarray) else block.toarray()
            num_groups, of_phase = shares.shape[1], dense[:, shares.shape[1] :]
            distance = np.abs(dense[:, :num_groups] - of_phase @ shares).sum(axis=1)
            parts.append(distance / (2 * np.maximum(of_phase.sum(axis=1), 1)))
        return np.concatenate(parts)

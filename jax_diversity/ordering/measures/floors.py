"""Lower bounds of the window TV, and the TV of independent tokens.

The tokens of one group in a sequence are a *piece*: no ordering splits it. The floor uses the pieces that are larger
than the whole target of a window. The bound also uses the fact that a window contains a whole number of pieces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, Integer
from scipy.sparse import csr_array

from jax_diversity.ordering.measures.windows import blocks, row_sums

_TABLE_ENTRIES = 1 << 22
_QUANTILES = (0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95)
_FRACTIONS = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9)


def window_floor(counts: csr_array, target: Float64[np.ndarray, " group"], size: int, sequence_length: int) -> float:
    """Compute a lower bound of the mean window TV of any ordering.

    A sequence brings an excess to the window that contains it, whichever window it is. The excess is the sum of
    `max(0, piece / (nL) - τ)` over the pieces of the sequence. The N mod n largest sums are left out, because these
    sequences may come after the last whole window.
    """
    kept = KeptSum(counts.shape[0] % size)
    kept.add(sequence_excess(counts, target, size, sequence_length))
    return kept.total / max(counts.shape[0] // size, 1)


def sequence_excess(
    counts: csr_array, target: Float64[np.ndarray, " group"], size: int, sequence_length: int
) -> Float64[np.ndarray, " sequence"]:
    """Compute the excess that every sequence brings to any window; see `window_floor`."""
    tokens = size * sequence_length
    return row_sums(counts, lambda groups, pieces: np.maximum(0.0, pieces / tokens - target[groups]))


class KeptSum:
    """The sum of all values but the `num_left_out` largest, of values that are added in blocks.

    The N mod n sequences with the largest values may be after the last window.
    """

    def __init__(self, num_left_out: int) -> None:
        self.total, self._num_left_out, self._largest = 0.0, num_left_out, np.zeros(0)

    def add(self, values: Float64[np.ndarray, " sequence"]) -> None:
        """Add the values of the next sequences."""
        together = np.sort(np.append(self._largest, values))
        number = max(len(together) - self._num_left_out, 0)
        self.total += float(together[:number].sum())
        self._largest = together[number:]


def best_moduli(
    pieces: Pieces, targets: Float64[np.ndarray, " group"], num_windows: float
) -> Float64[np.ndarray, " group"]:
    """Find the modulus d with the largest gain for every group: each d gives a lower bound of the mean window TV.

    Proof of the bound. A window with x_g tokens of group g and t <= nL tokens in all has a TV of
    Σ_g max(0, x_g / t - τ_g) >= Σ_g max(0, x_g - T_g) / (nL), with T_g = τ_g n L. Take any modulus d > 0,
    a = T_g mod d, and

        φ(p) = (d - a) ⌊p / d⌋ + max(0, p mod d - a).

    φ is superadditive, never falls, and has a slope of at most 1 (mixed-integer rounding; Nemhauser and Wolsey, 1988).
    So the window's pieces p_i of g, which add up to x_g, have

        Σ φ(p_i) <= φ(x_g) <= φ(T_g) + max(0, x_g - T_g),   φ(T_g) = (d - a) ⌊T_g / d⌋.

    Summed over groups and over the K = N // n windows, TV adds up to at least

        (Σ of φ over all pieces in windows - K Σ_g φ_g(T_g)) / (nL).

    In the worst case the N mod n sequences after the last window have the largest sums of φ. The bound is valid for
    every d. For every group we look for a good d among the sizes of its pieces and fractions of its target. If d is
    larger than T and all pieces, φ(p) = max(0, p - T), which gives the floor.

    Args:
        pieces: the pieces of all sequences.
        targets: T.
        num_windows: N / n, a fraction: sequences after the last window are not subtracted.
    """
    # We start from the floor: if the modulus is larger than the target and all pieces, φ(p) = max(0, p - T).
    largest = np.zeros(pieces.num_groups, np.int64)
    np.maximum.at(largest, pieces.group, pieces.size)
    best = np.maximum(targets, largest) + 1.0
    gains = pieces.sums(np.maximum(pieces.size - targets[pieces.group], 0.0))
    for candidate in _candidates(pieces, targets, largest):
        moduli = np.maximum(candidate, 1.0)  # φ needs d > 0; a group without tokens has candidates of 0
        rounding = Rounding.of(moduli, targets)
        values = pieces.sums(rounding.rounded(pieces.group, pieces.size)) - num_windows * rounding.of_targets
        # The gain must be larger than rounding errors; otherwise we keep the modulus of the floor.
        better = values > gains + 1e-9 * targets
        best[better], gains[better] = moduli[better], values[better]
    return best


class Rounding(NamedTuple):
    """The function φ of every group; see `best_moduli`."""

    moduli: Float64[np.ndarray, " group"]  # d
    rest: Float64[np.ndarray, " group"]  # a = T mod d
    of_targets: Float64[np.ndarray, " group"]  # φ(T) = (d - a) ⌊T / d⌋

    @classmethod
    def of(cls, moduli: Float64[np.ndarray, " group"], targets: Float64[np.ndarray, " group"]) -> Rounding:
        """Make φ from the moduli and the targets."""
        # A quotient that is rounded up to a whole number gives a remainder just below 0, and φ stays right.
        # (`np.divmod` would take three times as long.)
        times = np.floor(targets / moduli)
        rest = targets - moduli * times
        return cls(moduli, rest, (moduli - rest) * times)

    def rounded(
        self, groups: Integer[np.ndarray, " piece"], pieces: Integer[np.ndarray, " piece"]
    ) -> Float64[np.ndarray, " piece"]:
        """Compute φ of pieces of some groups."""
        moduli, rest = self.moduli[groups], self.rest[groups]
        times = np.floor(pieces / moduli)
        return (moduli - rest) * times + np.maximum(pieces - moduli * times - rest, 0.0)


class Pieces(NamedTuple):
    """The distinct sizes of the pieces of every group, sorted by group and size, and how often each size occurs."""

    group: Int64[np.ndarray, " piece"]
    size: Int64[np.ndarray, " piece"]
    times: Int64[np.ndarray, " piece"]
    num_groups: int

    def plus(self, other: Pieces) -> Pieces:
        """Add the pieces of other sequences."""
        columns = (np.concatenate(pair) for pair in zip(self[:3], other[:3], strict=True))
        group, size, times = columns
        order = np.lexsort((size, group))
        group, size, times = group[order], size[order], times[order]
        first = np.flatnonzero((np.diff(group, prepend=-1) != 0) | (np.diff(size, prepend=-1) != 0))
        return Pieces(
            group[first], size[first], np.add.reduceat(times, first) if len(first) else times, self.num_groups
        )

    def sums(self, values: np.ndarray) -> Float64[np.ndarray, " group"]:
        """Return the sum of a value of the pieces, for every group."""
        return np.bincount(self.group, weights=self.times * values, minlength=self.num_groups)


def pieces_of(counts: csr_array) -> Pieces:
    """Return the pieces of some sequences."""
    num_groups, widest = counts.shape[1], int(counts.data.max(initial=0)) + 1
    # The search for moduli needs each distinct size of a group's pieces once, and how often the size occurs. Real
    # corpora repeat sizes (whole sequences of one group, quantile bins): there are far fewer sizes than pieces. If a
    # table of all (group, size) pairs is small, counting in this table is faster than sorting all pieces.
    if num_groups * widest <= _TABLE_ENTRIES:
        table = np.zeros(num_groups * widest, np.int64)
        for _, block in blocks(counts):
            keys = block.group.astype(np.int64) * widest + block.tokens
            table += np.bincount(keys, minlength=len(table))
        keys = np.flatnonzero(table)
        return Pieces(keys // widest, keys % widest, table[keys], num_groups)
    order = np.lexsort((counts.data, counts.indices))
    groups, sizes = counts.indices[order].astype(np.int64), counts.data[order].astype(np.int64)
    first = np.flatnonzero((np.diff(groups, prepend=-1) != 0) | (np.diff(sizes, prepend=-1) != 0))
    return Pieces(groups[first], sizes[first], np.diff(first, append=len(groups)), num_groups)


def _candidates(
    pieces: Pieces, targets: Float64[np.ndarray, " group"], largest: Int64[np.ndarray, " group"]
) -> Iterator[Float64[np.ndarray, " group"]]:
    """Yield moduli per group: parts of the largest piece, quantiles of pieces by tokens, fractions of the target."""
    # Any d > 0 gives a valid bound; the candidates only decide how tight the bound is. With a good d, many pieces are
    # whole multiples of d, and the target is just below a multiple of d.
    yield from (largest / parts for parts in (1, 2, 3, 4))
    # For quantiles of the pieces by tokens, we search in one running sum over all groups, from the start of each group.
    tokens = np.cumsum(pieces.times * pieces.size)
    totals = pieces.sums(pieces.size)
    before = np.cumsum(totals) - totals
    for quantile in _QUANTILES:
        middle = np.searchsorted(tokens, before + quantile * totals)
        yield pieces.size[np.minimum(middle, len(tokens) - 1)].astype(np.float64)
    yield from (targets / (times + fraction) for times in range(4) for fraction in _FRACTIONS)


class WindowLimits:
    """The floor and the bound of the mean window TV of any order of some positions, for one window size.

    Args:
        target: τ; if windows have different targets, the largest τ of every group.
        size: positions per window.
        sequence_length: L in tokens.
        num_positions: N.
        pieces: the pieces of all positions; None if windows have different targets. Then only the floor has a proof,
            and the bound is the floor.
    """

    def __init__(
        self,
        target: Float64[np.ndarray, " group"],
        size: int,
        sequence_length: int,
        num_positions: int,
        pieces: Pieces | None,
    ) -> None:
        self._target, self._size, self._length = target, size, sequence_length
        self._num_positions = num_positions
        self._excess = KeptSum(num_positions % size)
        self._rounding = None
        if pieces is not None and num_positions >= size and len(pieces.size):
            targets = self._target * (size * sequence_length)
            self._rounding = Rounding.of(best_moduli(pieces, targets, num_positions / size), targets)
            self._rounded = KeptSum(num_positions % size)

    def add(self, placed: csr_array) -> None:
        """Add the next positions."""
        self._excess.add(sequence_excess(placed, self._target, self._size, self._length))
        if self._rounding is not None:
            self._rounded.add(row_sums(placed, self._rounding.rounded))

    def result(self) -> tuple[float, float]:
        """Return the floor and the bound."""
        num_windows = self._num_positions // self._size
        floor = self._excess.total / max(num_windows, 1)
        if self._rounding is None:
            return floor, floor
        least = float(self._rounding.of_targets.sum())
        total = self._rounded.total - num_windows * least
        return floor, max(floor, total / (num_windows * self._size * self._length))


def ideal_token_shuffle(target: Float64[np.ndarray, " group"], size: int, sequence_length: int) -> float:
    """Compute the expected TV of a window of independent tokens: half of Σ sqrt(2 p (1-p) / (π n L)) over groups."""
    variance = target * (1 - target) / (size * sequence_length)
    return float(0.5 * np.sqrt(2 * variance / math.pi).sum())

"""How evenly an ordering spreads the corpus's groups: pure functions of counts and an ordering.

With `c_s` a sequence's token counts in one family, `t_s` its tokens, τ the corpus's token shares and L the
sequence length:

- *prefix deviation* at t: `||Σ_{s placed up to t} (c_s - τ t_s)||₂ / L`, in sequence lengths;
- *window TV* of n: half the L1 distance between the token shares of n consecutive sequences and τ, for aligned
  windows;
- *floor of the mean window TV*: a piece (one sequence's tokens of one group) cannot be split, so a piece larger
  than a window's whole target of its group exceeds it wherever it is placed: no ordering's mean is lower;
- *window maximum*: the largest |share - τ| of a group over all start positions;
- *norm drift*: the running sum of `||c_s||₂ / L` of the first family minus its mean, in sequences;
- *ideal token shuffle*: the TV to expect if single tokens could be shuffled.

Counts stay sparse; a running sum is dense only for a block of positions at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.errors import UserError
from jax_diversity.schema import Characteristics, Ordering

_BLOCK_ENTRIES = 4_000_000


@dataclass(frozen=True)
class Balance:
    """The measures of one ordering; arrays are float64.

    Attributes:
        prefix_l2: family -> (num_sequences,) prefix deviation after every position, in sequence lengths.
        window_tv: family -> window size -> (num_sequences // size,) TV of consecutive aligned windows.
        window_tv_floor: family -> window size -> the floor of the mean of `window_tv`.
        window_max: family -> window size -> the largest |share - τ| over all start positions and groups.
        ideal_tv: family -> window size -> the TV to expect of an ideal token shuffle.
        norm_drift: (num_sequences,) running norm excess of the first family, in sequences.
    """

    prefix_l2: Mapping[str, Float64[np.ndarray, " sequence"]]
    window_tv: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_floor: Mapping[str, Mapping[int, float]]
    window_max: Mapping[str, Mapping[int, float]]
    ideal_tv: Mapping[str, Mapping[int, float]]
    norm_drift: Float64[np.ndarray, " sequence"]

    def summary(self) -> dict[str, Any]:
        """The figures that a table shows, as plain numbers: family -> prefix_l2_max and, per window size, TVs."""
        families: dict[str, Any] = {}
        for family, prefix in self.prefix_l2.items():
            windows = {
                str(size): {
                    "tv_mean": float(tv.mean()),
                    "tv_best": float(tv.min()),
                    "tv_worst": float(tv.max()),
                    "tv_floor": self.window_tv_floor[family][size],
                    "tv_ideal_token_shuffle": self.ideal_tv[family][size],
                    "max_share_deviation": self.window_max[family][size],
                }
                for size, tv in self.window_tv[family].items()
            }
            families[family] = {"prefix_l2_max": float(prefix.max(initial=0.0)), "windows": windows}
        return {"families": families, "norm_drift_max": float(np.abs(self.norm_drift).max(initial=0.0))}


def measure(
    characteristics: Characteristics,
    ordering: Ordering | Int64[np.ndarray, " sequence"],
    windows: Sequence[int] = (256,),
    advance: Callable[[int], None] = lambda positions: None,
) -> Balance:
    """Measure an ordering in every family.

    Args:
        characteristics: the token counts; weights play no part.
        ordering: a bijection of the same sequences.
        windows: window sizes in sequences, each between 1 and the number of sequences.
        advance: told the number of positions done, over all families.

    Raises:
        ValueError: an ordering of another length, a window size outside its range.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [0, 2]]})
        >>> float(measure(chars, np.arange(4), windows=(2,)).window_tv["topic"][2].max())
        0.0
    """
    indices = ordering.indices if isinstance(ordering, Ordering) else Ordering(ordering).indices
    if len(indices) != characteristics.num_sequences:
        raise UserError(
            f"Expected an ordering of {characteristics.num_sequences} sequences, found {len(indices)}; "
            "it was made for another dataset."
        )
    for size in windows:
        if not 1 <= size <= len(indices):
            raise UserError(f"Expected window sizes from 1 to {len(indices)} sequences, found {size}.")
    prefix_l2, window_tv, window_max, floors, ideal = {}, {}, {}, {}, {}
    for family, counts in characteristics.counts.items():
        placed = csr_array(counts[indices])
        tokens = characteristics.tokens[indices]
        target = characteristics.target_share(family)
        length = characteristics.sequence_length
        prefix_l2[family] = prefix_deviation(placed, tokens, target, length, advance)
        window_tv[family] = {size: window_deviation(placed, target, size) for size in windows}
        window_max[family] = {size: window_maximum(placed, target, size) for size in windows}
        floors[family] = {size: window_floor(counts, target, size, length) for size in windows}
        ideal[family] = {size: ideal_token_shuffle(target, size, length) for size in windows}
    norms = _row_norms(characteristics.counts[characteristics.families[0]]) / characteristics.sequence_length
    drift = np.cumsum(norms[indices] - norms.mean()) if len(norms) else np.zeros(0)
    return Balance(prefix_l2, window_tv, floors, window_max, ideal, drift)


def prefix_deviation(
    placed: csr_array,
    tokens: Int64[np.ndarray, " sequence"],
    target: Float64[np.ndarray, " group"],
    sequence_length: int,
    advance: Callable[[int], None] = lambda positions: None,
) -> Float64[np.ndarray, " sequence"]:
    """Norm of the summed excess after every position, in sequence lengths.

    Running sums are exact integers, so that no error builds up over any number of positions.
    """
    deviations = np.empty(len(tokens))
    sums = np.zeros(len(target), np.int64)
    total = 0
    for start, block in _dense_blocks(placed, len(target)):
        running = sums + np.cumsum(block, axis=0)
        running_tokens = total + np.cumsum(tokens[start : start + len(block)])
        excess = running - running_tokens[:, None] * target
        deviations[start : start + len(block)] = np.sqrt(np.einsum("sg,sg->s", excess, excess))
        sums, total = running[-1], int(running_tokens[-1])
        advance(len(block))
    return deviations / sequence_length


def window_deviation(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> Float64[np.ndarray, " window"]:
    """TV of consecutive windows of `size` positions from `offset` on; a window without tokens has TV 0."""
    num_windows = (len(placed.indptr) - 1 - offset) // size
    first, last = placed.indptr[offset], placed.indptr[offset + num_windows * size]
    rows = np.repeat(
        np.arange(num_windows), np.diff(placed.indptr[offset : offset + num_windows * size + 1 : size])
    )
    num_groups = len(target)
    windows = csr_array(
        (placed.data[first:last], (rows, placed.indices[first:last])), shape=(num_windows, num_groups)
    )
    windows.sum_duplicates()
    tokens = np.asarray(windows.sum(axis=1)).ravel()
    rows = np.repeat(np.arange(num_windows), np.diff(windows.indptr))
    expected = target[windows.indices]
    # Groups that a window lacks contribute their whole target: 1 - Σ of the targets of those it holds.
    surplus = np.abs(windows.data / np.maximum(tokens, 1)[rows] - expected) - expected
    distance = target.sum() + np.bincount(rows, weights=surplus, minlength=num_windows)
    return np.where(tokens > 0, np.maximum(distance, 0.0) / 2, 0.0)


def window_maximum(placed: csr_array, target: Float64[np.ndarray, " group"], size: int) -> float:
    """The largest |share - τ| of any group in any window of `size` consecutive positions, at every offset."""
    leaving = _dense_blocks(placed, len(target), stop=len(placed.indptr) - 1 - size)
    sums = np.asarray(placed[:size].sum(axis=0)).ravel().astype(np.int64)
    largest = _largest_deviation(sums[None, :], target)
    for start, block in leaving:
        entering = placed[start + size : start + size + len(block)].toarray()
        running = sums + np.cumsum(entering - block, axis=0)
        largest = max(largest, _largest_deviation(running, target))
        sums = running[-1]
    return largest


def _largest_deviation(windows: Int64[np.ndarray, "window group"], target: Float64[np.ndarray, " group"]) -> float:
    tokens = windows.sum(axis=1, keepdims=True)
    deviation = np.abs(windows / np.maximum(tokens, 1) - target)
    return float(np.where(tokens > 0, deviation, 0.0).max(initial=0.0))


def window_floor(
    counts: csr_array, target: Float64[np.ndarray, " group"], size: int, sequence_length: int
) -> float:
    """A lower bound of the mean window TV of any ordering.

    Σ over a sequence's pieces of `max(0, piece / (nL) - τ)` is the excess that it brings to whichever window holds
    it; the N mod n largest sums may fall past the last whole window.
    """
    num_sequences = len(counts.indptr) - 1
    rows = np.repeat(np.arange(num_sequences), np.diff(counts.indptr))
    excess = np.maximum(0.0, counts.data / (size * sequence_length) - target[counts.indices])
    per_sequence = np.sort(np.bincount(rows, weights=excess, minlength=num_sequences))
    kept = per_sequence[: num_sequences - num_sequences % size]
    return float(kept.sum() / max(num_sequences // size, 1))


def ideal_token_shuffle(target: Float64[np.ndarray, " group"], size: int, sequence_length: int) -> float:
    """Expected TV of a window of independent tokens: half of Σ sqrt(2 p (1-p) / (π n L)) over the groups."""
    variance = target * (1 - target) / (size * sequence_length)
    return float(0.5 * np.sqrt(2 * variance / math.pi).sum())


def _dense_blocks(
    placed: csr_array, num_groups: int, stop: int | None = None
) -> Iterator[tuple[int, Int64[np.ndarray, "position group"]]]:
    """Dense rows up to `stop`, some million entries at a time."""
    num_rows = len(placed.indptr) - 1 if stop is None else stop
    step = max(1, _BLOCK_ENTRIES // num_groups)
    for start in range(0, num_rows, step):
        yield start, placed[start : min(start + step, num_rows)].toarray()


def _row_norms(counts: csr_array) -> Float64[np.ndarray, " sequence"]:
    rows = np.repeat(np.arange(len(counts.indptr) - 1), np.diff(counts.indptr))
    squares = np.bincount(rows, weights=counts.data.astype(np.float64) ** 2, minlength=len(counts.indptr) - 1)
    return np.sqrt(squares)

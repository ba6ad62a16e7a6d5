"""How evenly an ordering spreads the corpus's groups: pure functions of counts and an ordering.

With `c_s` a sequence's token counts in one family, `t_s` its tokens, τ the corpus's token shares and L the
sequence length:

- *prefix deviation* at t: `||Σ_{s placed up to t} (c_s - τ t_s)||₂ / L`, in sequence lengths;
- *window TV* of n: half the L1 distance between the token shares of n consecutive sequences and τ, for aligned
  windows, and for windows that begin half a window later: an order made for one alignment is seen at the other;
- *window L2* of n: the Euclidean distance between the same, the error of a batch of n sequences;
- *floor of the mean window TV*: a piece (one sequence's tokens of one group) cannot be split, so a piece larger
  than a window's whole target of its group exceeds it wherever it is placed: no ordering's mean is lower;
- *window maximum*: the largest |share - τ| of a group over all start positions;
- *norm drift*: the running sum of `||c_s||₂ / L` of the first family minus its mean, in sequences;
- *ideal token shuffle*: the TV to expect if single tokens could be shuffled.

Counts stay sparse; a running sum is dense only for a block of positions at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.errors import UserError
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Characteristics, Ordering

_BLOCK_ENTRIES = 4_000_000


@dataclass(frozen=True)
class Balance:
    """The measures of one ordering; arrays are float64.

    Attributes:
        prefix_l2: family -> (num_sequences,) prefix deviation after every position, in sequence lengths.
        window_tv: family -> window size -> (num_sequences // size,) TV of consecutive aligned windows.
        window_tv_shifted: the same of the whole windows from position size // 2 on; none where none fits.
        window_l2: family -> window size -> (num_sequences // size,) Euclidean norm of share - τ of aligned windows.
        window_tv_floor: family -> window size -> the floor of the mean of `window_tv`.
        window_max: family -> window size -> the largest |share - τ| over all start positions and groups.
        ideal_tv: family -> window size -> the TV to expect of an ideal token shuffle.
        norm_drift: (num_sequences,) running norm excess of the first family, in sequences.
    """

    prefix_l2: Mapping[str, Float64[np.ndarray, " sequence"]]
    window_tv: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_shifted: Mapping[str, Mapping[int, Float64[np.ndarray, " shifted_window"]]]
    window_l2: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_floor: Mapping[str, Mapping[int, float]]
    window_max: Mapping[str, Mapping[int, float]]
    ideal_tv: Mapping[str, Mapping[int, float]]
    norm_drift: Float64[np.ndarray, " sequence"]

    def summary(self) -> dict[str, Any]:
        """The figures that a table shows, as plain numbers: family -> prefix_l2_max and, per window size, the rest.

        `tv_mean_shifted` and `tv_worst_shifted` are None where no shifted window fits.
        """
        families: dict[str, Any] = {
            family: {
                "prefix_l2_max": float(prefix.max(initial=0.0)),
                "windows": {str(size): self._window_summary(family, size) for size in self.window_tv[family]},
            }
            for family, prefix in self.prefix_l2.items()
        }
        return {"families": families, "norm_drift_max": float(np.abs(self.norm_drift).max(initial=0.0))}

    def _window_summary(self, family: str, size: int) -> dict[str, float | None]:
        tv, shifted = self.window_tv[family][size], self.window_tv_shifted[family][size]
        return {
            "tv_mean": float(tv.mean()),
            "tv_best": float(tv.min()),
            "tv_worst": float(tv.max()),
            "tv_mean_shifted": float(shifted.mean()) if len(shifted) else None,
            "tv_worst_shifted": float(shifted.max()) if len(shifted) else None,
            "tv_floor": self.window_tv_floor[family][size],
            "tv_ideal_token_shuffle": self.ideal_tv[family][size],
            "l2_worst": float(self.window_l2[family][size].max()),
            "max_share_deviation": self.window_max[family][size],
        }


def measure(
    characteristics: Characteristics,
    ordering: Ordering | Int64[np.ndarray, " sequence"],
    windows: Sequence[int] = (256,),
    advance: Advance = ignore,
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
    measured = {
        family: _measure_family(characteristics, family, indices, windows, advance)
        for family in characteristics.families
    }
    norms = _row_norms(characteristics.counts[characteristics.families[0]]) / characteristics.sequence_length
    drift = np.cumsum(norms[indices] - norms.mean()) if len(norms) else np.zeros(0)
    names = next(iter(measured.values()))
    by_name: dict[str, Any] = {
        name: {family: values[name] for family, values in measured.items()} for name in names
    }
    return Balance(**by_name, norm_drift=drift)


def _measure_family(
    characteristics: Characteristics,
    family: str,
    indices: Int64[np.ndarray, " sequence"],
    windows: Sequence[int],
    advance: Advance,
) -> dict[str, Any]:
    """A family's part of `Balance`, by the names of its attributes."""
    counts = characteristics.counts[family]
    placed = csr_array(counts[indices])
    tokens = characteristics.tokens[indices]
    target = characteristics.target_share(family)
    length = characteristics.sequence_length
    return {
        "prefix_l2": prefix_deviation(placed, tokens, target, length, advance),
        "window_tv": {size: window_deviation(placed, target, size) for size in windows},
        "window_tv_shifted": {size: window_deviation(placed, target, size, size // 2) for size in windows},
        "window_l2": {size: window_distance(placed, target, size) for size in windows},
        "window_tv_floor": {size: window_floor(counts, target, size, length) for size in windows},
        "window_max": {size: window_maximum(placed, target, size) for size in windows},
        "ideal_tv": {size: ideal_token_shuffle(target, size, length) for size in windows},
    }


def prefix_deviation(
    placed: csr_array,
    tokens: Int64[np.ndarray, " sequence"],
    target: Float64[np.ndarray, " group"],
    sequence_length: int,
    advance: Advance = ignore,
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
    windows, rows, tokens = _window_counts(placed, len(target), size, offset)
    expected = target[windows.indices]
    # Groups that a window lacks contribute their whole target: 1 - Σ of the targets of those it holds.
    surplus = np.abs(windows.data / np.maximum(tokens, 1)[rows] - expected) - expected
    distance = target.sum() + np.bincount(rows, weights=surplus, minlength=len(tokens))
    return np.where(tokens > 0, np.maximum(distance, 0.0) / 2, 0.0)


def window_distance(
    placed: csr_array, target: Float64[np.ndarray, " group"], size: int, offset: int = 0
) -> Float64[np.ndarray, " window"]:
    """Euclidean norm of share - τ of consecutive windows, as `window_deviation` takes them."""
    windows, rows, tokens = _window_counts(placed, len(target), size, offset)
    num_windows = len(tokens)
    expected = target[windows.indices]
    squares = (windows.data / np.maximum(tokens, 1)[rows] - expected) ** 2
    held = np.bincount(rows, weights=squares, minlength=num_windows)
    # The targets of the groups that a window lacks; of none where it holds all, whatever rounding leaves over.
    lacking = (target**2).sum() - np.bincount(rows, weights=expected**2, minlength=num_windows)
    holds_all = np.diff(windows.indptr) == np.count_nonzero(target)
    lacking = np.where(holds_all, 0.0, np.maximum(lacking, 0.0))
    return np.where(tokens > 0, np.sqrt(held + lacking), 0.0)


def _window_counts(
    placed: csr_array, num_groups: int, size: int, offset: int
) -> tuple[csr_array, Int64[np.ndarray, " nonzero"], Int64[np.ndarray, " window"]]:
    """Token counts (window, group) of consecutive windows, every non-zero's window, and every window's tokens."""
    num_windows = (len(placed.indptr) - 1 - offset) // size
    boundaries = placed.indptr[offset : offset + num_windows * size + 1 : size]
    first, last = boundaries[0], boundaries[-1]
    rows = np.repeat(np.arange(num_windows), np.diff(boundaries))
    windows = csr_array(
        (placed.data[first:last], (rows, placed.indices[first:last])), shape=(num_windows, num_groups)
    )
    windows.sum_duplicates()
    tokens = np.asarray(windows.sum(axis=1)).ravel()
    return windows, np.repeat(np.arange(num_windows), np.diff(windows.indptr)), tokens


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

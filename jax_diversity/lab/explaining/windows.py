"""The measured variance of the mean of a window, relative to a shuffle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int64
from scipy.sparse import csr_array

from jax_diversity.lab.explaining.regression import Estimate, jackknife_error
from jax_diversity.schema.intervals import student_reach


def window_variance(
    values: Float[np.ndarray, "sequence number"],
    orders: Sequence[Int64[np.ndarray, " position"]],
    window: int,
    blocks: Int64[np.ndarray, " sequence"],
    seed: int = 0,
) -> Estimate:
    """Return the mean squared deviation of windows' means, divided by its expectation in a shuffle.

    A window of B of n sequences in a shuffle deviates by `V / B (n - B) / (n - 1)` (a sample without replacement), so a
    shuffle has the value 1 at every size. The interval has two parts: the jackknife over blocks of documents, and the
    differences between the orders.

    Args:
        values: numbers of every sequence.
        orders: bijections of the sequences, such as one ordering with several seeds; the result is their mean.
        window: B, the number of sequences in a window; incomplete windows are left out.
        blocks: the number of every sequence's block.
        seed: seed of the shuffle for `by_chance`.
    """
    values = values.astype(np.float64)
    names, codes = np.unique(blocks, return_inverse=True)
    squares = np.einsum("ij,ij->i", values, values)
    ratios = np.array([_ratios(values, squares, order, window, codes, len(names)) for order in orders])
    mean = ratios.mean(axis=0)
    between = ratios[:, 0].var(ddof=1) / len(orders) if len(orders) > 1 else 0.0
    error = float(np.sqrt(jackknife_error(mean[1:]) ** 2 + between))
    reach = float(student_reach(error, len(names) - 1))
    shuffle = np.random.default_rng(seed).permutation(len(values))
    by_chance = _ratios(values, squares, shuffle, window, codes, len(names))[0]
    return Estimate(float(mean[0]), error, reach, float(by_chance))


def _ratios(
    values: np.ndarray, squares: np.ndarray, order: np.ndarray, window: int, codes: np.ndarray, num_blocks: int
) -> np.ndarray:
    """The ratio with all sequences, then without each of the blocks."""
    num_windows = len(order) // window
    order = np.asarray(order)[: num_windows * window]
    place = np.arange(len(order)) // window
    sums = values[order].reshape(num_windows, window, -1).sum(axis=1)
    counts = np.full(num_windows, window)
    ratios = [_ratio(sums, counts, float(squares[order].sum()))]
    for block in range(num_blocks):
        inside = codes[order] == block
        rows, windows = order[inside], place[inside]
        taken = np.bincount(windows, minlength=num_windows)
        of_window = csr_array((np.ones(len(rows)), (windows, np.arange(len(rows)))), shape=(num_windows, len(rows)))
        sums_within = of_window @ values[rows]
        ratios.append(_ratio(sums - sums_within, counts - taken, float(squares[order[~inside]].sum())))
    return np.array(ratios)


def _ratio(sums: np.ndarray, counts: np.ndarray, squares: float) -> float:
    sums, counts = sums[counts > 0], counts[counts > 0]
    number, mean = counts.sum(), sums.sum(axis=0) / counts.sum()
    variance = squares / number - float(mean @ mean)
    deviations = sums / counts[:, None] - mean
    expected = (variance / counts * (number - counts) / (number - 1)).sum()
    return float((deviations**2).sum() / expected)

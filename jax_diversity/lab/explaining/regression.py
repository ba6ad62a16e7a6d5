"""The share of a variance that characteristics explain: adjusted R², with intervals over documents.

An ordering that holds a set of characteristics fixed in every batch removes the variance that they explain. A shuffled
batch of B sequences has the variance V / B, a balanced batch in a wide window (1 - R²) V / B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64, Num
from scipy import linalg

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema.intervals import Interval, student_reach

_TOLERANCE = 1e-9  # a singular value, as a share of the largest, that counts as zero
_LEAST_FREE = 4  # the fit must leave at least one sequence in this number free


@dataclass(frozen=True)
class Estimate(Interval):
    """A value with its 95 % interval, and the value by chance.

    Attributes:
        by_chance: the same estimate for permuted rows or for a shuffle, about 0 or 1.
    """

    by_chance: float


class Basis(NamedTuple):
    """An orthonormal basis of characteristics and a constant.

    Attributes:
        vectors: the basis (sequence, rank).
        num_groups: number of groups with different counts among the sequences.
    """

    vectors: Float64[np.ndarray, "sequence rank"]
    num_groups: int


def basis_of(features: Num[np.ndarray, "sequence group"], name: str) -> Basis:
    """Return a basis of the features and a constant.

    Raises:
        UserError: the features have too many groups for the number of sequences.
    """
    num_sequences = len(features)
    varying = features[:, np.ptp(features, axis=0) > 0].astype(np.float64)
    # The groups of a family add up to the sequence's length, so columns depend on each other: directions with a
    # singular value of about zero are left out.
    vectors, values, _ = linalg.svd(
        np.column_stack([np.ones(num_sequences), varying / max(np.abs(varying).max(initial=0), 1)]), full_matrices=False
    )
    rank = int(np.count_nonzero(values > _TOLERANCE * values[0]))
    if (num_sequences - rank) * _LEAST_FREE < num_sequences:
        raise UserError(
            f"Expected at least {enough_sequences(features.shape[1]):,} sequences to explain gradients by the "
            f"{features.shape[1]:,} groups of {name}, found {num_sequences:,}; give more sequences or fewer families."
        )
    return Basis(vectors[:, :rank], varying.shape[1])


def enough_sequences(num_groups: int) -> int:
    """Return a number of sequences that leaves enough degrees of freedom with so many groups, for any counts."""
    return (num_groups + 1) * _LEAST_FREE // (_LEAST_FREE - 1) + 1


def explained_share(
    values: Float[np.ndarray, "sequence number"],
    basis: Basis,
    blocks: Int64[np.ndarray, " sequence"],
    seed: int = 0,
) -> Estimate:
    """Return the adjusted R² of the values' regression on a basis, with a jackknife interval over blocks.

    Adjusted R² is `1 - (RSS / (n - r)) / (TSS / (n - 1))`, where r is the rank of the basis with the constant
    (Theil 1961, *Economic forecasts and policy*). Its expectation is 0 if the characteristics explain nothing. The
    squares are summed over all numbers of a sequence. The interval leaves out one block after another (Kunsch 1989, the
    delete-a-group jackknife) and uses Student's quantile.

    Args:
        values: numbers of every sequence, such as a sketch of its gradient.
        basis: see `basis_of`.
        blocks: the number of every sequence's block; sequences of one document have the same block.
        seed: seed of the permutation for `by_chance`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> features = rng.normal(size=(500, 3))
        >>> values = features @ rng.normal(size=(3, 8)) + rng.normal(size=(500, 8))
        >>> round(explained_share(values, basis_of(features, "x"), np.arange(500) % 20).value, 1)
        0.8
    """
    vectors, number = basis.vectors, len(values)
    centred = values.astype(np.float64)
    centred -= centred.mean(axis=0)
    total, rank = float((centred**2).sum()), vectors.shape[1]
    rest = centred - vectors @ (vectors.T @ centred)
    left = float((rest**2).sum())
    value = _adjusted(left, total, number, rank)
    without = []
    for block in np.unique(blocks):
        inside = blocks == block
        part, inner = rest[inside], vectors[inside]
        # The sum of squares of a fit without the block follows from the block's residuals e and its leverages H_bb:
        # RSS - e' (I - H_bb)^-1 e. Directions that only the block has make I - H_bb singular; the fit without the block
        # lacks them.
        free, directions = linalg.eigh(np.eye(len(part)) - inner @ inner.T)
        usable = free > 1e-8
        along = directions[:, usable].T @ part
        left_without = left - float((along**2 / free[usable, None]).sum())
        size = int(inside.sum())
        outside = number - size
        sums = centred[inside].sum(axis=0)
        total_without = total - float((centred[inside] ** 2).sum()) - float((sums**2).sum()) / outside
        rank_without = rank - int((~usable).sum())
        without.append(_adjusted(left_without, total_without, outside, rank_without))
    permuted = centred[np.random.default_rng(seed).permutation(number)]
    left_permuted = total - float(((vectors.T @ permuted) ** 2).sum())
    error = jackknife_error(np.array(without))
    reach = float(student_reach(error, len(without) - 1))
    return Estimate(value, error, reach, _adjusted(left_permuted, total, number, rank))


def jackknife_error(without: Float[np.ndarray, " block"]) -> float:
    """The standard error from the values without each of the blocks; NaN for fewer than two blocks."""
    number = len(without)
    return float(np.sqrt((number - 1) * without.var())) if number > 1 else float("nan")


def _adjusted(left: float, total: float, number: int, rank: int) -> float:
    return 1 - (left / (number - rank)) / (total / (number - 1))

"""The balanced choice of validation documents: a part of the corpus that has the corpus's own mixture.

Documents that are copies of one another are chosen together; such a group is a *unit* here. The choice has two steps.

1. *Halving.* Units with similar neighbours are walked over in pairs. One unit of each pair goes to one half, the other
   unit to the other half, with the sign that keeps the running sum of the differences small (the self-balancing walk of
   Alweiss, Liu and Sawhney 2021, https://arxiv.org/abs/2006.14009, with the better sign in place of a random one). Both
   halves then have nearly the same mixture. Halves are halved again until the wanted share is reached.
2. *Exchanges.* Each chosen unit is replaced by another one if the deviation becomes smaller.

The time is proportional to the number of units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy import sparse

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.schema.orderings import as_integers

_LARGEST = 0.1
"""Units above this part of the wanted tokens are chosen only if the smaller units are not enough."""
_SWEEPS = 4
_FEW_PAIRS = 4096
"""Levels with at most this number of pairs are swept several times, because their sums decide the result."""
_ROUNDS = 2
_NEAR = 32
"""Candidates of an exchange: this number of neighbours on each side, and twice this number of random units."""
_TOKENS_BELOW = 2**62


def choose(
    counts: Mapping[str, Any],
    tokens: Any,
    fraction: float,
    seed: int = 0,
    *,
    weights: Mapping[str, float] | None = None,
    held: Any = None,
    barred: Any = None,
) -> Bool[np.ndarray, " unit"]:
    """Choose units with about a fraction of all tokens, such that they have the mixture of all units.

    Args:
        counts: family -> the tokens of every unit in the family's groups, a matrix (unit, group), dense or sparse.
        tokens: the number of tokens of every unit, as whole numbers.
        fraction: the wanted share of the tokens, in [0, 1).
        seed: the choice between equally good units.
        weights: the weight λ of a family's squared deviations; 1 for families that are not given.
        held: units that are chosen in any case, as a mask.
        barred: units that are not chosen, as a mask; they count towards the mixture.

    Returns:
        A mask of the chosen units. A unit with more than a tenth of the wanted tokens is chosen only if the smaller
        units do not have enough tokens, and a unit with more than twice the wanted tokens only if it is in `held`.

    Raises:
        UserError: a fraction outside [0, 1), or counts, tokens or masks of different lengths.

    Example:
        >>> topics = np.repeat(np.eye(2, dtype=int), 50, axis=0)  # 50 documents of each of two topics, one token each
        >>> mask = choose({"topic": topics}, np.ones(100, int), 0.1)
        >>> (topics[mask].sum(axis=0)).tolist()
        [5, 5]
    """
    tokens = as_integers("tokens", tokens, below=_TOKENS_BELOW)
    if not 0 <= fraction < 1:
        raise UserError(f"Expected a fraction in [0, 1), found {quoted(fraction)}.")
    masks = {"held": held, "barred": barred}
    checked = {name: np.zeros(len(tokens), bool) if mask is None else np.asarray(mask) for name, mask in masks.items()}
    for name, mask in checked.items():
        if mask.dtype != bool or mask.shape != tokens.shape:
            raise UserError(f"Expected {name} as a mask of {len(tokens)} units, found {mask.dtype} of {mask.shape}.")
    units = _Units.of(counts, tokens, weights or {})
    goal = fraction * float(tokens.sum())
    chosen = checked["held"].copy()
    free = (tokens > 0) & ~chosen & ~checked["barred"]
    lack = goal - float(tokens[chosen].sum())
    if lack <= 0 or not free.any():
        return chosen
    rng = np.random.default_rng(as_whole_number("seed", seed))
    limit = _LARGEST * goal
    while limit < 2 * goal and tokens[free & (tokens <= limit)].sum() < lack:
        limit = min(2 * limit, 2 * goal)
    arranged = units.arranged(np.flatnonzero(free & (tokens <= limit)), rng)
    _halve(units, arranged, goal, chosen, rng)
    for _ in range(_ROUNDS):
        _exchange(units, arranged, chosen, checked["held"], goal, rng)
    return chosen


class _Units:
    """The units' counts as rows of one matrix.

    Attributes:
        tokens: tokens of every unit.
        rows: the counts of all families, scaled by the square roots of the weights; the last column is the tokens.
        shares: the wanted sum of every column per token.
        keys: for families with few groups per unit, the heaviest group of every unit.
    """

    def __init__(self, tokens: np.ndarray, rows: Any, shares: np.ndarray, keys: list[np.ndarray]) -> None:
        self.tokens, self.rows, self.shares, self.keys = tokens, rows, shares, keys

    @classmethod
    def of(
        cls,
        counts: Mapping[str, Any],
        tokens: Int64[np.ndarray, " unit"],
        weights: Mapping[str, float],
    ) -> _Units:
        parts, weighted, keys = [], [], []
        for family, values in counts.items():
            matrix = sparse.csr_array(values)
            if matrix.shape[0] != len(tokens):
                raise UserError(f"Expected {family} of {len(tokens)} units, found {matrix.shape[0]}.")
            matrix.sum_duplicates()
            matrix = matrix.astype(np.float64)
            if matrix.nnz <= 2 * len(tokens):
                keys.append(_heaviest_groups(matrix))
            scale = float(weights.get(family, 1.0)) ** 0.5
            weighted.append(scale * np.asarray(matrix.sum(axis=0)).ravel() / max(int(tokens.sum()), 1))
            parts.append(matrix * scale)
        sizes = sparse.csr_array(tokens.astype(np.float64)[:, None])
        rows = sparse.hstack([*parts, sizes], format="csr")
        return cls(tokens, sparse.csr_array(rows), np.concatenate([*weighted, np.ones(1)]), keys)

    def sum(self, units: np.ndarray) -> Float64[np.ndarray, " column"]:
        """The sum of some units' rows."""
        return np.asarray(self.rows[units].sum(axis=0)).ravel()

    def arranged(self, units: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Sort units so that neighbours are in the same groups and have similar numbers of tokens."""
        keys = [key[units] for key in reversed(self.keys)]
        return units[np.lexsort([rng.random(len(units)), self.tokens[units], *keys])]


def _heaviest_groups(matrix: Any) -> Int64[np.ndarray, " unit"]:
    """The group with the most tokens of every unit; 0 for units without tokens."""
    sizes = np.diff(matrix.indptr)
    unit = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((matrix.indices, -matrix.data, unit))
    largest = np.zeros(len(sizes), np.int64)
    largest[sizes > 0] = matrix.indices[order[matrix.indptr[:-1][sizes > 0]]]
    return largest


def _halve(
    units: _Units, block: np.ndarray, goal: float, chosen: Bool[np.ndarray, " unit"], rng: np.random.Generator
) -> None:
    """Choose from the units of a block, until the chosen ones have `goal` tokens.

    At each level, the block is halved. If one half is not too large, it is chosen and the other half goes on, with the
    rest of the goal; otherwise this half goes on.
    """
    sums_of_chosen = units.sum(np.flatnonzero(chosen))
    while len(block) and (lack := goal - float(units.tokens[chosen].sum())) > 0:
        size = int(units.tokens[block].sum())
        if size <= lack or len(block) == 1:
            chosen[block] = size < 2 * lack  # a single unit is chosen if the sum then is nearer to the goal
            return
        # Let V be the sum of the block. The part that goes on should have the sum V / 2 plus what the chosen units
        # lack beside the part that V itself gives: the walk starts with this excess, and makes it small.
        excess = units.sum(block) - (goal * units.shares - sums_of_chosen) * (size / lack)
        first, second = _halves(units, block, excess, rng)
        if rng.random() < 0.5:
            first, second = second, first
        if float(units.tokens[first].sum()) <= lack:
            chosen[first] = True
            sums_of_chosen = sums_of_chosen + units.sum(first)
            block = second
        else:
            block = first


def _halves(
    units: _Units, block: np.ndarray, start: Float64[np.ndarray, " column"], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Divide a block into halves; `start` and the difference of the halves together are small."""
    last = block[len(block) // 2 * 2 :]  # the last unit of an odd block belongs to the second half
    left, right = block[: len(block) - len(last)].reshape(-1, 2).T
    differences: Any = sparse.csr_array(units.rows[left] - units.rows[right])
    values, columns, bounds = differences.data, differences.indices, differences.indptr.tolist()
    sums, signs = start - units.sum(last), np.zeros(len(left))
    ties = rng.random(len(left)) < 0.5
    for sweep in range(_SWEEPS if len(left) <= _FEW_PAIRS else 1):
        for pair in range(len(left)):
            part = slice(bounds[pair], bounds[pair + 1])
            values_of_unit, where = values[part], columns[part]
            there = sums[where] - signs[pair] * values_of_unit if sweep else sums[where]
            product = float((there * values_of_unit).sum())
            signs[pair] = -1.0 if product > 0 or (product == 0 and ties[pair]) else 1.0
            sums[where] = there + signs[pair] * values_of_unit
    return np.where(signs > 0, left, right), np.concatenate([np.where(signs > 0, right, left), last])


def _exchange(
    units: _Units,
    arranged: np.ndarray,
    chosen: Bool[np.ndarray, " unit"],
    held_out: Bool[np.ndarray, " unit"],
    goal: float,
    rng: np.random.Generator,
) -> None:
    """Replace each chosen unit by a neighbour or by a random unit, if the deviation becomes smaller."""
    deviation = units.sum(np.flatnonzero(chosen)) - goal * units.shares
    for place in rng.permutation(np.flatnonzero(chosen[arranged] & ~held_out[arranged])).tolist():
        unit = arranged[place]
        near = np.arange(max(place - _NEAR, 0), min(place + _NEAR + 1, len(arranged)))
        candidates = arranged[np.unique(np.append(near, rng.integers(len(arranged), size=2 * _NEAR)))]
        candidates = np.append(unit, candidates[~chosen[candidates]])  # the unit itself is first: it stays in a tie
        rows = units.rows[candidates]
        row = np.repeat(np.arange(len(candidates)), np.diff(rows.indptr))
        first_row = slice(0, rows.indptr[1])
        without = deviation
        without[rows.indices[first_row]] -= rows.data[first_row]
        # The squared deviation with each unit in this place, less the squared deviation without it.
        scores = np.bincount(row, rows.data * (2 * without[rows.indices] + rows.data), len(candidates))
        best = int(scores.argmin())
        chosen[unit], chosen[candidates[best]] = False, True
        new = slice(rows.indptr[best], rows.indptr[best + 1])
        without[rows.indices[new]] += rows.data[new]

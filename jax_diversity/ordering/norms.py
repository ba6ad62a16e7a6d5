"""The form "norms": the sum of the families' weighted norms, where the published rule adds their squares.

The article's own code (https://github.com/JoeMelko/dclm_exp, clustering/greedy_order_sparse_gpu_clean.py) places the
sequence with the smallest

    Σ_f λ_f ||D_f + v_sf|| + λ_n |N + n_s - mean n|

where `D_f` is the deviation of family f, and N the norm column's. Here each norm is taken as its growth
`||D_f + v|| - ||D_f||`, which is `x / (||D_f|| + ||D_f + v||)` with `x = 2 <D_f, v> + ||v||²`: the constant `||D_f||`, of
many sequence lengths, would leave few digits of a float32 for the differences.

The root needs more than float32: in a family of few groups a sequence often cancels the deviation, and
`||D_f||² + x`, the small difference of large numbers, would keep an error of `||D_f||²` times 2^-24, of which the root is
`||D_f||` / 4,000. So `2 D_f` is split into a coarse piece, of whole multiples of 2^-7 to 2^-8 of its norm, and a fine
piece, the rest. Sums of the coarse piece's products with counts up to 65,536, and with itself, have at most 24 bits:
float32 holds them exactly, in any order of the additions. What is rounded is 2^-8 of the whole, and large and small
parts are added as compensated sums.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32

from jax_diversity.ordering.deviation import Compensated, Rule, add_compensated
from jax_diversity.ordering.objective import Features

_EXPONENT = np.int32(0x7F800000)
_TINY = np.float32(1e-30)


class Gradient(NamedTuple):
    """`2 D` and what follows from it for all sequences, each in a coarse and a fine piece."""

    columns: tuple[Float32[Array, " column"], Float32[Array, " column"]]
    # 2 <D_f, τ_f> and ||D_f||².
    per_token: tuple[Float32[Array, " family"], Float32[Array, " family"]]
    squares: tuple[Float32[Array, " family"], Float32[Array, " family"]]
    # N - mean n.
    norm_excess: Float32[Array, ""]


def split_gradient(rule: Rule, gradient: Float32[Array, " column"]) -> Gradient:
    """The pieces of a gradient `2 D`."""
    assert rule.families is not None
    bounds, _, coarse_targets, fine_targets = rule.families
    column = jnp.arange(len(gradient), dtype=jnp.int32)
    inside = (bounds[:-1, None] <= column) & (column < bounds[1:, None])

    def sums(values: Float32[Array, " column"]) -> Float32[Array, " family"]:
        return jnp.sum(jnp.where(inside, values, 0), axis=1)

    length = jnp.sqrt(sums(rule.times(gradient, gradient)))
    # A float's exponent alone is the largest power of two below it.
    power = lax.bitcast_convert_type(lax.bitcast_convert_type(length, jnp.int32) & _EXPONENT, jnp.float32)
    grid = jnp.maximum(power * np.float32(2**-7), _TINY)
    columns_grid = jnp.max(jnp.where(inside, grid[:, None], 0), axis=0)
    coarse = jnp.trunc(gradient / columns_grid) * columns_grid
    fine = gradient - coarse

    exact = sums(coarse * coarse_targets)
    rest = sums(rule.times(coarse, fine_targets) + rule.times(fine, coarse_targets + fine_targets))
    per_token = jnp.trunc((exact + rest) / grid) * grid
    return Gradient(
        columns=(coarse, fine),
        per_token=(per_token, (exact - per_token) + rest),
        # Of 2 D, hence a quarter.
        squares=(0.25 * sums(coarse * coarse), 0.25 * sums(rule.times(fine, gradient + coarse))),
        norm_excess=0.5 * gradient[-1] - rule.targets[-1],
    )


def own_squares(features: Features) -> Float32[np.ndarray, "piece sequence"]:
    """`||v_sf||²`, computed in float64, in two pieces per family."""
    pieces = []
    for columns in features.family_columns.values():
        counts, target = features.counts(columns).astype(np.float64), features.targets[columns]
        # Expanded over the non-zeros alone: ||c - τ t||² = ||c||² - 2 t <τ, c> + t² ||τ||².
        excess = features.tokens * (features.tokens * (target @ target) - 2.0 * (counts @ target))
        squares = counts.power(2).sum(axis=1) + excess
        coarse = squares.astype(np.float32)
        pieces += [coarse, (squares - coarse).astype(np.float32)]
    return np.stack(pieces)


def norm_growths(
    rule: Rule,
    gradient: Gradient,
    products: list[tuple[Float32[Array, " row"], Float32[Array, " row"]]],
    costs: Float32[Array, "piece row"],
    norms: Float32[Array, " row"],
) -> Float32[Array, " row"]:
    """The scores, of `2 <D_f, v_sf>` per family in two pieces and the squares of `own_squares`; infinite where these are."""
    assert rule.families is not None
    weights = rule.families.weights
    score = rule.times(weights[-1], jnp.abs(norms + gradient.norm_excess))
    for family, (coarse, fine) in enumerate(products):
        growth = Compensated(costs[2 * family], costs[2 * family + 1])
        for addend in (coarse, fine):
            growth = add_compensated(growth, addend)
        total = growth
        for addend in gradient.squares:
            total = add_compensated(total, jnp.broadcast_to(addend[family], norms.shape))
        # Rounding may leave less than nothing of a square.
        after = jnp.sqrt(jnp.maximum(total.value + total.error, 0))
        before = jnp.sqrt(gradient.squares[0][family] + gradient.squares[1][family])
        score += rule.times(weights[family], (growth.value + growth.error) / jnp.maximum(before + after, _TINY))
    # Differences of infinite numbers are none.
    return jnp.where(jnp.isfinite(costs[0]), score, np.float32(np.inf))

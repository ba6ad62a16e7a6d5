"""The running deviation `D` of what is placed, on the accelerator, without losing precision.

`D` grows by `-τ t_s` at every step, so that a rounded τ would drift by the number of steps. `D` is therefore a pair
of float32 (a value and the rounding error left over, Knuth's TwoSum), and τ is split into pieces, two of eight
bits, whose products with token counts below 65,536 are exact, and a small rest. Over ten million steps next to
nothing accumulates, and no 64-bit type is needed on the accelerator.

All selectors place sequences through `place`, whatever holds their candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Float64, Int32, Int64

from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.plan import Plan


class Compensated(NamedTuple):
    """An unevaluated sum of two float32 arrays: about 48 bits."""

    value: Float32[Array, "..."]
    error: Float32[Array, "..."]


class Rule(NamedTuple):
    """An objective's weights and the target; the last column is the norms'."""

    target_pieces: Float32[Array, "piece column"]
    column_weights: Float32[Array, " column"]
    window_sizes: Int32[Array, " window"]
    window_weight: Float32[Array, ""]
    zero: Float32[Array, ""]

    @property
    def targets(self) -> Float32[Array, " column"]:
        """τ, rounded to float32: for scores, never for sums."""
        return self.target_pieces[0] + self.target_pieces[1] + self.target_pieces[2]

    def times(self, left: Array, right: Array) -> Array:
        """The product, rounded before it is added to anything.

        A compiler fuses a product with the sum that it goes into, which rounds once, or does not, which rounds
        twice: as it sees fit, on one device otherwise than on many. Fused with a zero that it does not know of, or
        not, a product rounds to the same; so do then all sums of products, wherever they are computed.
        """
        return left * right + self.zero


class Rows(NamedTuple):
    """Every sequence's counts as CSR, padded so that a slice of the longest row's width never runs over the end."""

    starts: Int32[Array, " boundary"]
    columns: Int32[Array, " nonzero"]
    values: Float32[Array, " nonzero"]
    norms: Float32[Array, " sequence"]
    tokens: Float32[Array, " sequence"]
    slots: Int32[Array, " slot"]


class Row(NamedTuple):
    """One sequence's counts; unused slots hold a column past the end and a count of zero."""

    columns: Int32[Array, " slot"]
    values: Float32[Array, " slot"]
    norm: Float32[Array, ""]
    tokens: Float32[Array, ""]


class Deviation(NamedTuple):
    """What a run remembers of the past.

    `total` is `D` in tokens, its last column that of the norms; `windows` holds `D_t - D_{t-w}`. `steering` is what
    scores read of them, `2 λ (D + β Σ_w (D_t - D_{t-w}))`. It is kept rather than computed where it is
    read: XLA would fuse it into the gathers and repeat its operations for each gathered element.
    """

    total: Compensated
    windows: tuple[Compensated, ...]
    steering: Float32[Array, " column"]


def rounded_size(size: int) -> int:
    """The next of eight sizes an octave: at most an eighth of padding, few compilations."""
    if size <= 8:
        return size
    step = 1 << max((size - 1).bit_length() - 4, 0)
    return -(-size // step) * step


def padded(values: np.ndarray, size: int, fill: float = 0) -> Array:
    """The values on the device, filled up to `size`."""
    # Unlike `jnp.asarray` it compiles nothing.
    return jax.device_put(np.pad(values, (0, size - len(values)), constant_values=fill))


def build_rule(features: Features, objective: Objective) -> Rule:
    """The rule of an objective over the features' columns."""
    # A window beyond all positions is the whole prefix, however much beyond.
    sizes = [min(size, int(np.iinfo(np.int32).max)) for size in objective.windows]
    return Rule(
        target_pieces=jnp.asarray(split_into_pieces(features.targets)),
        column_weights=jnp.asarray(features.column_weights, jnp.float32),
        window_sizes=jnp.asarray(sizes, jnp.int32),
        window_weight=jnp.float32(objective.window_weight),
        zero=jnp.float32(0),
    )


def build_rows(features: Features) -> Rows:
    """The features' rows on the device, all sizes rounded up."""
    num_rows = rounded_size(features.num_sequences)
    longest = rounded_size(int(np.diff(features.row_starts).max(initial=1)))
    size = rounded_size(len(features.columns) + longest)
    return Rows(
        starts=padded(features.row_starts.astype(np.int32), num_rows + 1, fill=len(features.columns)),
        columns=padded(features.columns, size),
        values=padded(features.values, size),
        norms=padded(features.norms, num_rows),
        tokens=padded(features.tokens.astype(np.float32), num_rows),
        slots=jnp.arange(longest, dtype=jnp.int32),
    )


def read_row(rows: Rows, sequence_index: Int32[Array, ""], num_columns: int) -> Row:
    """One sequence's row."""
    start, end = rows.starts[sequence_index], rows.starts[sequence_index + 1]
    width = rows.slots.shape[0]
    used = start + rows.slots < end
    columns = lax.dynamic_slice(rows.columns, (start,), (width,))
    values = lax.dynamic_slice(rows.values, (start,), (width,))
    return Row(
        columns=jnp.where(used, columns, num_columns),
        values=jnp.where(used, values, 0),
        norm=rows.norms[sequence_index],
        tokens=rows.tokens[sequence_index],
    )


def start_deviation(rule: Rule, plan: Plan, placed: Int64[np.ndarray, " position"]) -> Deviation:
    """The deviation after the sequences `placed`, from the first position on; computed in float64."""
    total = _compensated(plan.excess(placed))
    windows = [_compensated(plan.excess(placed, last=size)) for size in np.asarray(rule.window_sizes).tolist()]
    return Deviation(total, tuple(windows), steering(rule, total, windows))


def saved_deviation(deviation: Deviation) -> dict[str, np.ndarray]:
    """The sums of a deviation as named arrays."""
    sums = [deviation.total, *deviation.windows]
    return {f"sum_{index}": np.stack([np.asarray(part) for part in total]) for index, total in enumerate(sums)}


def restored_deviation(rule: Rule, saved: Mapping[str, np.ndarray]) -> Deviation:
    """What `saved_deviation` kept."""
    sums = [
        Compensated(*(jnp.asarray(part) for part in saved[f"sum_{index}"]))
        for index in range(1 + len(rule.window_sizes))
    ]
    return Deviation(sums[0], tuple(sums[1:]), steering(rule, sums[0], sums[1:]))


def _compensated(values: Float64[np.ndarray, " column"]) -> Compensated:
    value = values.astype(np.float32)
    return Compensated(jnp.asarray(value), jnp.asarray((values - value).astype(np.float32)))


def place(
    rule: Rule,
    deviation: Deviation,
    chosen: Row,
    leaving: Sequence[Row],
    num_placed: Int32[Array, ""],
) -> Deviation:
    """Add the chosen sequence's excess; take out of each window the sequence that leaves it.

    Args:
        rule: weights and targets.
        deviation: before the step.
        chosen: the sequence that is placed at position `num_placed`.
        leaving: per window of w positions the sequence at position `num_placed - w`; any where that is negative.
        num_placed: number of sequences placed before.
    """
    windows = []
    for index, (window, row) in enumerate(zip(deviation.windows, leaving, strict=True)):
        window = add_excess(rule, window, chosen, jnp.float32(1))
        sign = jnp.where(num_placed >= rule.window_sizes[index], jnp.float32(-1), jnp.float32(0))
        windows.append(add_excess(rule, window, row, sign))
    total = add_excess(rule, deviation.total, chosen, jnp.float32(1))
    return Deviation(total, tuple(windows), steering(rule, total, windows))


def steering(rule: Rule, total: Compensated, windows: Sequence[Compensated]) -> Float32[Array, " column"]:
    """`2 λ (D + β Σ_w (D_t - D_{t-w}))`, rounded to float32 once."""
    combined = total.value + total.error
    for window in windows:
        combined += rule.times(rule.window_weight, window.value + window.error)
    return 2.0 * rule.column_weights * combined


def add_excess(rule: Rule, total: Compensated, row: Row, sign: Float32[Array, ""]) -> Compensated:
    """Add `sign * v_s`, sign being 1, 0 or -1."""
    # A row's columns differ, so each takes one exact sum; unused slots add to a column past the end.
    placed = jnp.zeros_like(total.value).at[row.columns].add(sign * row.values, mode="drop")
    placed = placed.at[-1].set(sign * row.norm)
    total = add_compensated(total, placed)
    multiplier = jnp.full_like(total.value, row.tokens).at[-1].set(1)
    for piece in rule.target_pieces:
        total = add_compensated(total, rule.times(-sign * multiplier, piece))
    return total


def add_compensated(total: Compensated, addend: Float32[Array, "..."]) -> Compensated:
    """Add to a compensated sum without losing the rounding error (Knuth, TAOCP vol. 2, 4.2.2, theorem B)."""
    value = total.value + addend
    shifted = value - total.value
    error = total.error + ((total.value - (value - shifted)) + (addend - shifted))
    renormalised = value + error
    return Compensated(renormalised, error - (renormalised - value))


def split_into_pieces(values: Float[np.ndarray, " column"]) -> Float32[np.ndarray, "piece column"]:
    """Three float32 arrays that add up to `values` (to 2^-40), the first two of eight significant bits each.

    The third is at most 2^-16 of the value: rounding its product leaves an error of 2^-41, which ten million steps
    add up to less than a hundred-thousandth of one step's share.
    """
    rest = values.astype(np.float64)
    pieces = []
    for _ in range(2):
        mantissa, exponent = np.frexp(rest)
        piece = np.ldexp(np.round(mantissa * 256), exponent - 8)
        pieces.append(piece.astype(np.float32))
        rest = rest - piece
    return np.stack([*pieces, rest.astype(np.float32)])

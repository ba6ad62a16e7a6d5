"""Exact greedy: at every step the sequence that the objective likes best, of all that are left.

One step costs one pass over the remaining sequences' non-zeros. What makes the pass fast:

- Rows are bucketed by their number of non-zeros, so that little is padded, and a bucket's table is transposed
  (feature, sequence): every feature is one gather over contiguous memory, unrolled into one fused loop.
- The arg-min is a minimum followed by the lowest index that equals it, several times faster than `argmin` on CPU;
  it is also what breaks ties to the lowest sequence index, over all buckets.
- Placed sequences are masked by an infinite cost. When half of a large table is placed, the rest is packed anew.
- The loop runs compiled for some thousand steps at a time, so that progress shows and interrupts are heard.
- Sizes are rounded up, so that corpora of near sizes share a compilation.

Precision: the deviation `D` grows by `-τ t_s` at every step, so that a rounded τ would drift by the number of
steps. `D` is therefore a pair of float32 (a value and the rounding error left over, Knuth's TwoSum), and τ is
split into pieces, two of eight bits, whose products with token counts below 65,536 are exact, and a small rest.
Over ten million steps next to nothing accumulates, and no 64-bit type is needed on the accelerator.

The rule is Bach et al.'s kernel herding with a linear kernel (https://arxiv.org/abs/1203.4523), without
replacement.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int32, Int64

from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Characteristics

STEPS_PER_CALL = 4096
_REPACK_ABOVE = 65_536
_MAX_UNROLLED = 64
# What a table costs besides its gathers (kernel launches), in gathers; measured on a CPU.
_GATHERS_PER_TABLE = 4_000
_UNPLACEABLE = np.float32(np.inf)


class Bucket(NamedTuple):
    """Sequences of about as many non-zeros, as one transposed table; ascending sequence indices."""

    columns: Int32[Array, "feature row"]
    values: Float32[Array, "feature row"]
    norms: Float32[Array, " row"]
    tokens: Float32[Array, " row"]
    sequence_index: Int32[Array, " row"]


class Tables(NamedTuple):
    """All that stays as it is during a run."""

    buckets: tuple[Bucket, ...]
    bucket_of: Int32[Array, " sequence"]
    row_of: Int32[Array, " sequence"]
    row_starts: Int32[Array, " boundary"]
    columns: Int32[Array, " nonzero"]
    values: Float32[Array, " nonzero"]
    norms: Float32[Array, " sequence"]
    tokens: Float32[Array, " sequence"]
    target_pieces: Float32[Array, "piece column"]
    column_weights: Float32[Array, " column"]
    feature_slots: Int32[Array, " slot"]
    window_sizes: Int32[Array, " window"]
    window_weight: Float32[Array, ""]


class Compensated(NamedTuple):
    """An unevaluated sum of two float32 arrays: about 48 bits."""

    value: Float32[Array, "..."]
    error: Float32[Array, "..."]


class GreedyState(NamedTuple):
    """A run's state; a pytree that can be saved between calls.

    `deviation` is `D` in tokens, its last column that of the norms; `window_deviation` is `D_t - D_{t-w}`.
    `steering` is what scores read of them, `2 λ (D + β Σ_w (D_t - D_{t-w}))`. It is kept rather than computed where
    it is read: XLA would fuse it into the gathers and repeat its operations for each gathered element.
    """

    deviation: Compensated
    window_deviation: tuple[Compensated, ...]
    steering: Float32[Array, " column"]
    costs: tuple[Float32[Array, " row"], ...]
    order: Int32[Array, " position"]
    num_placed: Int32[Array, ""]


def greedy(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
) -> Int64[np.ndarray, " sequence"]:
    """Place the best of all remaining sequences at every step; ties go to the lowest index.

    Time grows with the square of the number of sequences. The result does not depend on `seed`.

    Args:
        characteristics: token counts.
        seed: not used; every method takes one.
        objective: the weights of the rule.
        advance: told the number of sequences placed since it was last called.
    """
    features = Features.build(characteristics, objective)
    num_sequences = features.num_sequences
    if num_sequences == 0:
        return np.zeros(0, np.int64)
    equal_tokens = bool((features.tokens == features.tokens[0]).all())
    remaining = np.arange(num_sequences)
    tables = build_tables(features, objective, remaining)
    state = init(tables, features)
    placed = 0
    while placed < num_sequences:
        steps = min(STEPS_PER_CALL, num_sequences - placed)
        state = run(tables, state, np.int32(steps), equal_tokens)
        placed += steps
        jax.block_until_ready(state.num_placed)
        advance(steps)
        if len(remaining) > _REPACK_ABOVE and num_sequences - placed <= len(remaining) // 2:
            left = np.ones(num_sequences, bool)
            left[np.asarray(state.order[:placed])] = False
            remaining = np.flatnonzero(left)
            tables = build_tables(features, objective, remaining)
            state = state._replace(costs=_costs(tables, features))
    return np.asarray(state.order[:num_sequences]).astype(np.int64)


def rounded_size(size: int) -> int:
    """The next of eight sizes an octave: at most an eighth of padding, few compilations."""
    if size <= 8:
        return size
    step = 1 << max((size - 1).bit_length() - 4, 0)
    return -(-size // step) * step


def build_tables(features: Features, objective: Objective, remaining: Int64[np.ndarray, " row"]) -> Tables:
    """Bucket the remaining sequences and pad everything to rounded sizes."""
    nonzeros = np.diff(features.row_starts)
    nonzeros_left = nonzeros[remaining]
    padded = rounded_size(features.num_sequences)
    bucket_of = np.zeros(padded, np.int32)
    row_of = np.zeros(padded, np.int32)
    buckets = []
    for above, width in _partition(nonzeros_left):
        members = remaining[(np.maximum(nonzeros_left, 1) > above) & (nonzeros_left <= width)]
        bucket_of[members] = len(buckets)
        row_of[members] = np.arange(len(members))
        buckets.append(_bucket(features, members, rounded_size(width)))
    longest = rounded_size(int(nonzeros.max(initial=1)))
    size = rounded_size(len(features.columns) + longest)
    return Tables(
        buckets=tuple(buckets),
        bucket_of=jnp.asarray(bucket_of),
        row_of=jnp.asarray(row_of),
        row_starts=_padded(features.row_starts.astype(np.int32), padded + 1, fill=len(features.columns)),
        columns=_padded(features.columns, size),
        values=_padded(features.values, size),
        norms=_padded(features.norms, padded),
        tokens=_padded(features.tokens.astype(np.float32), padded),
        target_pieces=jnp.asarray(split_into_pieces(features.targets)),
        column_weights=jnp.asarray(features.column_weights),
        feature_slots=jnp.arange(longest, dtype=jnp.int32),
        window_sizes=jnp.asarray(objective.windows, jnp.int32),
        window_weight=jnp.float32(objective.window_weight),
    )


def _partition(nonzeros: Int64[np.ndarray, " row"]) -> list[tuple[int, int]]:
    """Ranges (above, up to) of non-zeros that share a table, so that a step reads least.

    A table of r rows, w wide, costs r w gathers and a few kernel launches; the cheapest cut of the sorted widths
    is found by dynamic programming.
    """
    widths, counts = np.unique(np.maximum(nonzeros, 1), return_counts=True)
    rows_up_to = np.concatenate([[0], np.cumsum(counts)])
    cheapest, cut = [0.0], [0]
    for last in range(1, len(widths) + 1):
        costs = [
            cheapest[first] + (rows_up_to[last] - rows_up_to[first]) * widths[last - 1] + _GATHERS_PER_TABLE
            for first in range(last)
        ]
        cut.append(int(np.argmin(costs)))
        cheapest.append(costs[cut[-1]])
    ranges, last = [], len(widths)
    while last:
        first = cut[last]
        ranges.append((int(widths[first - 1]) if first else 0, int(widths[last - 1])))
        last = first
    return ranges[::-1]


def _bucket(features: Features, members: Int64[np.ndarray, " row"], width: int) -> Bucket:
    num_rows = rounded_size(len(members))
    starts, ends = features.row_starts[members], features.row_starts[members + 1]
    slots = starts[None, :] + np.arange(width)[:, None]
    used = slots < ends[None, :]
    slots = np.where(used, slots, 0)
    columns = np.zeros((width, num_rows), np.int32)
    values = np.zeros((width, num_rows), np.float32)
    if len(features.columns):
        columns[:, : len(members)] = np.where(used, features.columns[slots], 0)
        values[:, : len(members)] = np.where(used, features.values[slots], 0)
    return Bucket(
        columns=jnp.asarray(columns),
        values=jnp.asarray(values),
        norms=_padded(features.norms[members], num_rows),
        tokens=_padded(features.tokens[members].astype(np.float32), num_rows),
        sequence_index=_padded(members.astype(np.int32), num_rows, fill=np.iinfo(np.int32).max),
    )


def _padded(values: np.ndarray, size: int, fill: float = 0) -> Array:
    return jnp.asarray(np.pad(values, (0, size - len(values)), constant_values=fill))


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


def init(tables: Tables, features: Features) -> GreedyState:
    """The state before the first step."""
    num_columns = len(features.targets)

    def zero() -> Compensated:
        return Compensated(jnp.zeros(num_columns, jnp.float32), jnp.zeros(num_columns, jnp.float32))

    return GreedyState(
        deviation=zero(),
        window_deviation=tuple(zero() for _ in range(len(tables.window_sizes))),
        steering=jnp.zeros(num_columns, jnp.float32),
        costs=_costs(tables, features),
        order=jnp.zeros(rounded_size(features.num_sequences), jnp.int32),
        num_placed=jnp.int32(0),
    )


def _costs(tables: Tables, features: Features) -> tuple[Float32[Array, " row"], ...]:
    costs = []
    for bucket in tables.buckets:
        members = np.asarray(bucket.sequence_index)
        own = np.full(len(members), _UNPLACEABLE, np.float32)
        real = members < features.num_sequences
        own[real] = features.own_costs[members[real]]
        costs.append(jnp.asarray(own))
    return tuple(costs)


@functools.partial(jax.jit, static_argnames="equal_tokens", donate_argnames="state")
def run(tables: Tables, state: GreedyState, num_steps: Int32[Array, ""], equal_tokens: bool) -> GreedyState:
    """Place `num_steps` sequences. `equal_tokens` says that all t_s agree, which saves one term of the score."""
    return lax.fori_loop(0, num_steps, lambda _, carry: step(tables, carry, equal_tokens), state)


def step(tables: Tables, state: GreedyState, equal_tokens: bool) -> GreedyState:
    """Place the sequence of the smallest score."""
    targets = tables.target_pieces.sum(axis=0)
    per_token = jnp.dot(state.steering[:-1], targets[:-1])

    scores = []
    for bucket, costs in zip(tables.buckets, state.costs, strict=True):
        scores.append(_scores(bucket, costs, state.steering, None if equal_tokens else per_token))
    best = functools.reduce(jnp.minimum, [jnp.min(score) for score in scores])
    nobody = jnp.int32(np.iinfo(np.int32).max)
    chosen = functools.reduce(
        jnp.minimum,
        [
            jnp.min(jnp.where(score == best, bucket.sequence_index, nobody))
            for bucket, score in zip(tables.buckets, scores, strict=True)
        ],
    )
    return _place(tables, state, chosen)


def _scores(
    bucket: Bucket, costs: Float32[Array, " row"], steering: Float32[Array, " column"], per_token: Array | None
) -> Float32[Array, " row"]:
    score = costs + steering[-1] * bucket.norms
    if per_token is not None:
        score -= per_token * bucket.tokens
    width = bucket.columns.shape[0]
    for feature in range(min(width, _MAX_UNROLLED)):
        score += _gathered(steering, bucket.columns[feature]) * bucket.values[feature]
    if width > _MAX_UNROLLED:
        score = lax.fori_loop(
            _MAX_UNROLLED,
            width,
            lambda feature, total: total + _gathered(steering, bucket.columns[feature]) * bucket.values[feature],
            score,
        )
    # Without the barrier the reductions would compute every score twice.
    return lax.optimization_barrier(score)


def _gathered(steering: Float32[Array, " column"], columns: Int32[Array, " row"]) -> Float32[Array, " row"]:
    return steering.at[columns].get(mode="promise_in_bounds")


def _place(tables: Tables, state: GreedyState, chosen: Int32[Array, ""]) -> GreedyState:
    windows = []
    for window_index, window in enumerate(state.window_deviation):
        size = tables.window_sizes[window_index]
        leaving = state.order[jnp.maximum(state.num_placed - size, 0)]
        window = _add_excess(tables, window, chosen, sign=jnp.float32(1))
        sign = jnp.where(state.num_placed >= size, jnp.float32(-1), jnp.float32(0))
        windows.append(_add_excess(tables, window, leaving, sign=sign))
    bucket_index, row = tables.bucket_of[chosen], tables.row_of[chosen]
    costs = tuple(
        costs.at[jnp.where(bucket_index == index, row, len(costs))].set(_UNPLACEABLE, mode="drop")
        for index, costs in enumerate(state.costs)
    )
    deviation = _add_excess(tables, state.deviation, chosen, sign=jnp.float32(1))
    return GreedyState(
        deviation=deviation,
        window_deviation=tuple(windows),
        steering=_steering(tables, deviation, windows),
        costs=costs,
        order=state.order.at[state.num_placed].set(chosen),
        num_placed=state.num_placed + 1,
    )


def _steering(tables: Tables, deviation: Compensated, windows: Sequence[Compensated]) -> Float32[Array, " column"]:
    total = deviation.value + deviation.error
    for window in windows:
        total += tables.window_weight * (window.value + window.error)
    return 2.0 * tables.column_weights * total


def _add_excess(
    tables: Tables, deviation: Compensated, sequence_index: Int32[Array, ""], sign: Float32[Array, ""]
) -> Compensated:
    """Add `sign * v_s`, sign being 1, 0 or -1."""
    start, end = tables.row_starts[sequence_index], tables.row_starts[sequence_index + 1]
    width = tables.feature_slots.shape[0]
    used = start + tables.feature_slots < end
    columns = lax.dynamic_slice(tables.columns, (start,), (width,))
    counts = sign * jnp.where(used, lax.dynamic_slice(tables.values, (start,), (width,)), 0)
    # A row's columns differ, so each takes one exact sum; unused slots add zero to a column past the end.
    columns = jnp.where(used, columns, deviation.value.shape[0])
    placed = jnp.zeros_like(deviation.value).at[columns].add(counts, mode="drop")
    placed = placed.at[-1].set(sign * tables.norms[sequence_index])
    deviation = add_compensated(deviation, placed)
    multiplier = jnp.full_like(deviation.value, tables.tokens[sequence_index]).at[-1].set(1)
    for piece in tables.target_pieces:
        deviation = add_compensated(deviation, -sign * multiplier * piece)
    return deviation


def add_compensated(total: Compensated, addend: Float32[Array, "..."]) -> Compensated:
    """Add to a compensated sum without losing the rounding error (Knuth, TAOCP vol. 2, 4.2.2, theorem B)."""
    value = total.value + addend
    shifted = value - total.value
    error = total.error + ((total.value - (value - shifted)) + (addend - shifted))
    renormalised = value + error
    return Compensated(renormalised, error - (renormalised - value))

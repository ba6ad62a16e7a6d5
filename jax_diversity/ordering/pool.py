"""A refilled pool over a stream: at every step the best of P candidates is placed and the stream's next takes its place.

This is what a streaming user can run: memory and time of a step depend on the pool, not on the corpus. A step updates
the candidates' scores rather than computing them anew:

- The pool's counts are one dense table (column, slot). Placing a sequence moves the deviation in its own few columns,
  and along the target; every candidate's score moves by those columns' rows of the table, which are contiguous: a few
  multiply-adds over P numbers, no gathers, on any accelerator.
- What is written in a step is written before anything is read (the slot left vacant by the step before is filled
  first), so that XLA updates the table in place instead of copying it.
- Rounding errors of such updates are thrown away every thousand steps, when all scores are computed from the
  compensated deviation.

A pool as large as the corpus is the exact greedy.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, Int32, Int64

from jax_diversity.errors import UserError
from jax_diversity.ordering.deviation import (
    Deviation,
    Row,
    Rows,
    Rule,
    build_rows,
    build_rule,
    padded,
    place,
    read_row,
    restored_deviation,
    rounded_size,
    saved_deviation,
    start_deviation,
    steering,
)
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.running import Checkpoint, drive
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Characteristics

STEPS_PER_REFRESH = 1024
_UNPLACEABLE = np.float32(np.inf)
NOBODY = int(np.iinfo(np.int32).max)
# A table of more entries than this (2 GiB) is not kept; scores are then computed anew at every step.
_LARGEST_TABLE = 2**29


class Stream(NamedTuple):
    """What the pool is fed with: sequences in their order, and their scores' parts that do not change."""

    sequences: Int32[Array, " position"]
    size: Int32[Array, ""]
    own_costs: Float32[Array, " sequence"]
    pulls: Float32[Array, " sequence"]


class Slots(NamedTuple):
    """The pool's candidates; an empty slot has an infinite score."""

    members: Int32[Array, " slot"]
    scores: Float32[Array, " slot"]
    table: Float32[Array, "column slot"]
    norms: Float32[Array, " slot"]
    tokens: Float32[Array, " slot"]
    pulls: Float32[Array, " slot"]


class PoolState(NamedTuple):
    """A run's state.

    The last sequence placed is entered in `order`, and its slot refilled, at the beginning of the next step.
    """

    deviation: Deviation
    slots: Slots
    order: Int32[Array, " position"]
    last: Int32[Array, ""]
    num_placed: Int32[Array, ""]
    num_taken: Int32[Array, ""]


def greedy_pool(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | None = None,
    checkpoint: Checkpoint | None = None,
    pool_size: int = 4096,
    shuffle: bool = True,
) -> Int64[np.ndarray, " sequence"]:
    """Place the best of a pool at every step, over a stream of the sequences; ties go to the lowest index.

    Time grows with the number of sequences. The larger the corpus, the more the pool fills up with what no window wants:
    `balance` feeds the same pool with a better stream.

    Args:
        characteristics: token counts.
        seed: of the stream's shuffle (NumPy's PCG64).
        objective: the weights of the rule.
        advance: told the number of sequences placed since it was last called.
        plan: targets and what was consumed; None aims at the corpus's shares from the beginning.
        checkpoint: where the run's state is kept.
        pool_size: P, candidates at every step; as many as there are sequences is the exact greedy.
        shuffle: whether the stream is shuffled, or is the corpus's own order.

    Raises:
        ValueError: a pool size below 1.
    """
    plan = plan or Plan.build(characteristics, objective)
    stream = plan.remaining
    if shuffle:
        stream = np.random.default_rng(seed).permutation(stream)
    return select_from_pool(plan, objective, stream, pool_size, advance, checkpoint)


def select_from_pool(
    plan: Plan,
    objective: Objective,
    stream: Int64[np.ndarray, " remaining"],
    pool_size: int,
    advance: Advance = ignore,
    checkpoint: Checkpoint | None = None,
) -> Int64[np.ndarray, " remaining"]:
    """Feed a pool with a stream of the plan's remaining sequences.

    Raises:
        ValueError: a pool size that is no whole number >= 1.
    """
    size = checked_pool_size(pool_size)
    if len(stream) == 0:
        return np.zeros(0, np.int64)
    selector = PoolSelector(plan, objective, stream, min(size, rounded_size(len(stream))))
    return drive(selector, plan, advance, checkpoint or Checkpoint())


def checked_pool_size(pool_size: int) -> int:
    """A whole number >= 1."""
    if isinstance(pool_size, bool) or not isinstance(pool_size, int | np.integer) or pool_size < 1:
        raise UserError(f"Expected a pool_size that is a whole number >= 1, found {pool_size!r}.")
    return int(pool_size)


class PoolSelector:
    """A pool's tables and state on one device."""

    def __init__(
        self, plan: Plan, objective: Objective, stream: Int64[np.ndarray, " remaining"], num_slots: int
    ) -> None:
        self._plan = plan
        self._objective = objective
        self._num_slots = num_slots
        self._stream = stream
        self.rows = build_rows(plan.features)
        self.retarget(plan.features)
        deviation = start_deviation(self.rule, plan, plan.consumed)
        self.state = init(plan.features, stream, num_slots, deviation, plan.consumed)

    def retarget(self, features: Features) -> None:
        """Aim at other targets from the next step on."""
        self.rule = build_rule(features, self._objective)
        self.stream = build_stream(features, self._stream)

    def run(self, num_steps: int) -> None:
        """Place so many sequences."""
        self.state = run(self.rule, self.rows, self.stream, self.state, np.int32(num_steps))

    def placed(self) -> Int64[np.ndarray, " position"]:
        """The sequences placed so far."""
        return np.asarray(self.state.order[: int(self.state.num_placed)]).astype(np.int64)

    def saved(self) -> dict[str, np.ndarray]:
        """Deviations, members and what is placed; the scores are computed anew anyway."""
        state = self.state
        return {
            "placed": self.placed(),
            "members": np.asarray(state.slots.members),
            "num_taken": np.asarray(state.num_taken),
            **saved_deviation(state.deviation),
        }

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        deviation = restored_deviation(self.rule, saved)
        state = init(self._plan.features, self._stream, self._num_slots, deviation, saved["placed"])
        slots = state.slots._replace(members=jnp.asarray(saved["members"]))
        self.state = state._replace(slots=slots, num_taken=jnp.asarray(saved["num_taken"]))


def build_stream(features: Features, stream: Int64[np.ndarray, " remaining"]) -> Stream:
    """The stream on the device, with the scores' constant parts for these targets."""
    size = rounded_size(features.num_sequences)
    return Stream(
        sequences=padded(stream.astype(np.int32), size),
        size=jnp.int32(len(stream)),
        own_costs=padded(features.own_costs, size),
        pulls=padded(features.pulls.astype(np.float32), size),
    )


def init(
    features: Features,
    stream: Int64[np.ndarray, " remaining"],
    num_slots: int,
    deviation: Deviation,
    placed: Int64[np.ndarray, " position"],
) -> PoolState:
    """The state after the sequences `placed`, the pool filled from the stream's beginning; scores come with `run`."""
    members = np.full(num_slots, NOBODY, np.int32)
    first = stream[:num_slots]
    members[: len(first)] = first
    num_columns = len(features.targets)
    empty = jnp.zeros(num_slots, jnp.float32)
    return PoolState(
        deviation=deviation,
        slots=Slots(
            members=jnp.asarray(members),
            scores=empty,
            table=jnp.zeros(
                (num_columns if num_columns * num_slots <= _LARGEST_TABLE else 0, num_slots), jnp.float32
            ),
            norms=empty,
            tokens=empty,
            pulls=empty,
        ),
        order=padded(placed.astype(np.int32), rounded_size(features.num_sequences)),
        last=jnp.int32(NOBODY),
        num_placed=jnp.int32(len(placed)),
        num_taken=jnp.int32(len(first)),
    )


@jax.jit
def run(rule: Rule, rows: Rows, stream: Stream, state: PoolState, num_steps: Int32[Array, ""]) -> PoolState:
    """Place `num_steps` sequences, all scores being computed anew at first and after every thousand."""
    return run_steps(rule, rows, stream, state, num_steps, axis=None)


def run_steps(
    rule: Rule, rows: Rows, stream: Stream, state: PoolState, num_steps: Int32[Array, ""], axis: str | None
) -> PoolState:
    """The body of `run`, on one device or on every device of a mesh's axis, each holding a part of the slots."""
    deviation = state.deviation
    deviation = deviation._replace(steering=steering(rule, deviation.total, deviation.windows))
    state = state._replace(deviation=deviation, slots=_filled_table(rows, state.slots, len(deviation.steering)))

    def refresh(index: Int32[Array, ""], carry: PoolState) -> PoolState:
        carry = _refilled(rule, rows, stream, carry)
        carry = carry._replace(slots=_refreshed(rule, rows, stream, carry.slots, carry.deviation))
        steps = jnp.minimum(STEPS_PER_REFRESH, num_steps - index * STEPS_PER_REFRESH)
        return lax.fori_loop(0, steps, lambda _, inner: step(rule, rows, stream, inner, axis), carry)

    state = lax.fori_loop(0, -(-num_steps // STEPS_PER_REFRESH), refresh, state)
    return _refilled(rule, rows, stream, state)


def step(rule: Rule, rows: Rows, stream: Stream, state: PoolState, axis: str | None) -> PoolState:
    """Refill the slot left vacant by the step before, then place the candidate of the smallest score."""
    state = _refilled(rule, rows, stream, state)
    slots, deviation = state.slots, state.deviation
    num_columns = len(deviation.steering)
    if slots.table.shape[0] == 0:
        slots = _refreshed(rule, rows, stream, slots, deviation)
    chosen = _best(slots, axis)
    moved = [chosen]
    moved += [
        state.order[jnp.maximum(state.num_placed - rule.window_sizes[index], 0)]
        for index in range(len(deviation.windows))
    ]
    read = [read_row(rows, sequence, num_columns) for sequence in moved]
    after = place(rule, deviation, read[0], read[1:], state.num_placed)
    if slots.table.shape[0]:
        weights = _weights(rule, state.num_placed)
        pulls = [stream.pulls[sequence] for sequence in moved]
        slots = slots._replace(scores=_moved_scores(rule, slots, read, pulls, weights))
    return state._replace(deviation=after, slots=slots, last=chosen, num_placed=state.num_placed + 1)


def _best(slots: Slots, axis: str | None) -> Int32[Array, ""]:
    """The sequence of the smallest score, the lowest index of several; over all devices of the axis."""
    best = jnp.min(slots.scores)
    chosen = jnp.min(jnp.where(slots.scores == best, slots.members, NOBODY))
    if axis is None:
        return chosen
    bests, firsts = lax.all_gather((best, chosen), axis)
    return jnp.min(jnp.where(bests == jnp.min(bests), firsts, NOBODY))


def _weights(rule: Rule, num_placed: Int32[Array, ""]) -> list[Float32[Array, ""]]:
    """How far `D + β Σ_w (D_t - D_{t-w})` moves with the sequence placed, and with each that leaves a window."""
    num_windows = rule.window_sizes.shape[0]
    leaving = [
        jnp.where(num_placed >= rule.window_sizes[index], -rule.window_weight, 0.0) for index in range(num_windows)
    ]
    return [1.0 + num_windows * rule.window_weight, *leaving]


def _moved_scores(
    rule: Rule,
    slots: Slots,
    moved: list[Row],
    pulls: list[Float32[Array, ""]],
    weights: list[Float32[Array, ""]],
) -> Float32[Array, " slot"]:
    """The scores after the deviation moved by `Σ weight * v` over the moved rows."""
    targets = rule.targets
    square = 2.0 * jnp.dot(rule.column_weights[:-1], targets[:-1] ** 2)
    scores = slots.scores
    along_pull = along_norm = along_tokens = jnp.float32(0)
    for row, pull, weight in zip(moved, pulls, weights, strict=True):
        along_pull -= weight * row.tokens
        along_norm += weight * 2.0 * rule.column_weights[-1] * (row.norm - targets[-1])
        along_tokens -= weight * (pull - row.tokens * square)
        scores = _along_columns(rule, slots.table, scores, row, weight)
    return scores + (along_pull * slots.pulls + along_norm * slots.norms + along_tokens * slots.tokens)


_COLUMNS_PER_PASS = 6


def _along_columns(
    rule: Rule, table: Float32[Array, "column slot"], scores: Array, row: Row, weight: Float32[Array, ""]
) -> Float32[Array, " slot"]:
    """Add `2 weight Σ λ x_j table[j]` over the row's columns; nearly all rows have one pass."""
    width = row.columns.shape[0]
    num_used = jnp.sum(row.columns < table.shape[0])
    padding = -width % _COLUMNS_PER_PASS
    columns = jnp.pad(jnp.minimum(row.columns, table.shape[0] - 1), (0, padding))
    factors = jnp.pad(2.0 * weight * rule.column_weights[columns[:width]] * row.values, (0, padding))

    def add(index: Int32[Array, ""] | int, total: Array) -> Array:
        for slot in range(_COLUMNS_PER_PASS):
            position = index * _COLUMNS_PER_PASS + slot
            total = total + factors[position] * lax.dynamic_index_in_dim(
                table, columns[position], 0, keepdims=False
            )
        return total

    scores = add(0, scores)
    if width <= _COLUMNS_PER_PASS:
        return scores
    return lax.fori_loop(1, -(-num_used // _COLUMNS_PER_PASS), add, scores)


def _refilled(rule: Rule, rows: Rows, stream: Stream, state: PoolState) -> PoolState:
    """Enter the last sequence placed in the order, and give its slot to the stream's next."""
    slots = state.slots
    num_slots = slots.members.shape[0]
    placed_one = state.last != NOBODY
    order = state.order.at[jnp.where(placed_one, state.num_placed - 1, len(state.order))].set(
        state.last, mode="drop"
    )
    own_slots = jnp.arange(num_slots, dtype=jnp.int32)
    # Past the end where another device holds the slot, or where nothing was placed since.
    slot = jnp.min(jnp.where((slots.members == state.last) & placed_one, own_slots, num_slots))
    there_is = state.num_taken < stream.size
    following = stream.sequences[jnp.minimum(state.num_taken, stream.size - 1)]
    steered = state.deviation.steering
    row = read_row(rows, following, len(steered))
    score = stream.own_costs[following] + _steered(rule, steered, row)
    table = slots.table
    if table.shape[0]:
        former = read_row(rows, jnp.where(placed_one, state.last, 0), len(steered))
        table = table.at[former.columns, slot].set(0.0, mode="drop")
        table = table.at[row.columns, slot].set(row.values, mode="drop")
    slots = Slots(
        members=slots.members.at[slot].set(jnp.where(there_is, following, NOBODY), mode="drop"),
        scores=slots.scores.at[slot].set(jnp.where(there_is, score, _UNPLACEABLE), mode="drop"),
        table=table,
        norms=slots.norms.at[slot].set(row.norm, mode="drop"),
        tokens=slots.tokens.at[slot].set(row.tokens, mode="drop"),
        pulls=slots.pulls.at[slot].set(stream.pulls[following], mode="drop"),
    )
    return state._replace(
        slots=slots,
        order=order,
        last=jnp.int32(NOBODY),
        num_taken=state.num_taken + (placed_one & there_is),
    )


def _steered(rule: Rule, steered: Float32[Array, " column"], row: Row) -> Float32[Array, ""]:
    """`2 <D, v>` of one row."""
    columns = jnp.minimum(row.columns, len(steered) - 1)
    per_token = jnp.dot(steered[:-1], rule.targets[:-1])
    return jnp.dot(steered[columns], row.values) + steered[-1] * row.norm - per_token * row.tokens


def _refreshed(rule: Rule, rows: Rows, stream: Stream, slots: Slots, deviation: Deviation) -> Slots:
    """All scores, and what they are made of, computed anew from the deviation."""
    there = slots.members != NOBODY
    members = jnp.where(there, slots.members, 0)
    steered = deviation.steering
    starts, ends = rows.starts[members], rows.starts[members + 1]
    norms, tokens = rows.norms[members], rows.tokens[members]
    per_token = jnp.dot(steered[:-1], rule.targets[:-1])

    def add(feature: Int32[Array, ""], total: Float32[Array, " slot"]) -> Float32[Array, " slot"]:
        entry = starts + feature
        value = jnp.where(entry < ends, rows.values[entry], 0)
        return total + steered[rows.columns[entry]] * value

    scores = stream.own_costs[members] + steered[-1] * norms - per_token * tokens
    scores = lax.fori_loop(0, jnp.max(jnp.where(there, ends - starts, 0)), add, scores)
    return slots._replace(
        scores=jnp.where(there, scores, _UNPLACEABLE), norms=norms, tokens=tokens, pulls=stream.pulls[members]
    )


def _filled_table(rows: Rows, slots: Slots, num_columns: int) -> Slots:
    """The dense table of the members' counts."""
    if slots.table.shape[0] == 0:
        return slots
    there = slots.members != NOBODY
    members = jnp.where(there, slots.members, 0)
    starts = rows.starts[members]
    ends = jnp.where(there, rows.starts[members + 1], starts)
    own_slots = jnp.arange(slots.members.shape[0])

    def fill(feature: Int32[Array, ""], table: Array) -> Array:
        entry = starts + feature
        column = jnp.where(entry < ends, rows.columns[entry], num_columns)
        return table.at[column, own_slots].set(rows.values[entry], mode="drop")

    table = lax.fori_loop(0, jnp.max(ends - starts), fill, jnp.zeros_like(slots.table))
    return slots._replace(table=table)

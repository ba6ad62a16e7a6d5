"""The compiled steps of a refilled pool, on one device or on each of a mesh.

A step updates the candidates' scores rather than computing them anew:

- The pool's counts are one dense table (column, slot). Placing a sequence moves the deviation in its own few
  columns, and along the target; every candidate's score moves by those columns' rows of the table, which are
  contiguous: a few multiply-adds over P numbers, no gathers, on any accelerator.
- What is written in a step is written before anything is read (the slot left vacant by the step before is filled
  first), so that XLA updates the table in place instead of copying it.
- Rounding errors of such updates are thrown away every thousand steps, when all scores are computed from the
  compensated deviation.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from jax_diversity.ordering.deviation import Deviation, Row, Rows, Rule, add_compensated, read_row, steering
from jax_diversity.ordering.mesh import NOBODY, agree

_UNPLACEABLE = np.float32(np.inf)
_COLUMNS_PER_PASS = 6


class Stream(NamedTuple):
    """What the pool is fed with: sequences in their order, and their scores' parts that do not change."""

    sequences: Int32[Array, " position"]
    size: Int32[Array, ""]
    own_costs: Float32[Array, " sequence"]
    pulls: Float32[Array, " sequence"]
    excess_pulls: Float32[Array, " sequence"]
    refresh_every: Int32[Array, ""]


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


@jax.jit
def run(rule: Rule, rows: Rows, stream: Stream, state: PoolState, num_steps: Int32[Array, ""]) -> PoolState:
    """Place `num_steps` sequences, all scores being computed anew at first and after every thousand."""
    return run_steps(rule, rows, stream, state, num_steps, axis=None)


def run_steps(
    rule: Rule, rows: Rows, stream: Stream, state: PoolState, num_steps: Int32[Array, ""], axis: str | None
) -> PoolState:
    """The body of `run`, on one device or on every device of a mesh's axis, each holding a part of the slots."""
    state = state._replace(slots=_filled_table(rows, state.slots, rule.column_weights.shape[0]))

    def refresh(index: Int32[Array, ""], carry: PoolState) -> PoolState:
        deviation = carry.deviation
        deviation = deviation._replace(steering=steering(rule, deviation.total, deviation.windows))
        carry = carry._replace(deviation=deviation)
        recent = _nothing_recent(rule, deviation)
        carry = _refilled(rule, rows, stream, carry, recent)
        carry = carry._replace(slots=_refreshed(rule, rows, stream, carry.slots, deviation))
        steps = jnp.minimum(stream.refresh_every, num_steps - index * stream.refresh_every)
        carry, recent = lax.fori_loop(
            0, steps, lambda _, inner: step(rule, rows, stream, inner[0], inner[1], axis), (carry, recent)
        )
        return carry._replace(deviation=_folded(rule, carry.deviation, recent))

    state = lax.fori_loop(0, -(-num_steps // stream.refresh_every), refresh, state)
    return _refilled(rule, rows, stream, state, _nothing_recent(rule, state.deviation))


def step(
    rule: Rule, rows: Rows, stream: Stream, state: PoolState, recent: Recent, axis: str | None
) -> tuple[PoolState, Recent]:
    """Refill the slot left vacant by the step before, then place the candidate of the smallest score."""
    state = _refilled(rule, rows, stream, state, recent)
    slots = state.slots
    chosen = _best(slots, axis)
    moved = [chosen]
    moved += [
        state.order[jnp.maximum(state.num_placed - rule.window_sizes[index], 0)]
        for index in range(len(state.deviation.windows))
    ]
    read = [read_row(rows, sequence, rule.column_weights.shape[0]) for sequence in moved]
    leaves = [state.num_placed >= rule.window_sizes[index] for index in range(len(read) - 1)]
    shift = _shift(rule, read, [stream.excess_pulls[sequence] for sequence in moved], leaves)
    if slots.table.shape[0]:
        slots = slots._replace(scores=_moved_scores(rule, slots, read, shift))
    state = state._replace(slots=slots, last=chosen, num_placed=state.num_placed + 1)
    return state, _moved(rule, recent, read, leaves, shift)


def _best(slots: Slots, axis: str | None) -> Int32[Array, ""]:
    """The sequence of the smallest score, the lowest index of several; over all devices of the axis."""
    best = jnp.min(slots.scores)
    chosen = jnp.min(jnp.where(slots.scores == best, slots.members, NOBODY))
    return agree(best, chosen, axis)


class Shift(NamedTuple):
    """How a step moves `2 λ (D + β Σ_w (D_t - D_{t-w}))`: the moved rows' weights, and what all scores share."""

    weights: list[Float32[Array, ""]]
    along_pull: Float32[Array, ""]
    along_norm: Float32[Array, ""]
    per_token: Float32[Array, ""]


def _shift(
    rule: Rule, moved: list[Row], excess_pulls: list[Float32[Array, ""]], leaves: list[Bool[Array, ""]]
) -> Shift:
    """The sequence placed counts for the prefix and for every window; one that leaves, against its window alone."""
    weights = [1.0 + rule.times(jnp.float32(len(leaves)), rule.window_weight)]
    weights += [jnp.where(leaving, -rule.window_weight, 0.0) for leaving in leaves]
    steer_norm = 2.0 * rule.column_weights[-1]
    along_pull = along_norm = per_token = jnp.float32(0)
    for row, excess_pull, weight in zip(moved, excess_pulls, weights, strict=True):
        along_pull -= rule.times(weight, row.tokens)
        along_norm += rule.times(weight * steer_norm, row.norm - rule.targets[-1])
        per_token += rule.times(weight, excess_pull)
    return Shift(weights, along_pull, along_norm, per_token)


def _moved_scores(rule: Rule, slots: Slots, moved: list[Row], shift: Shift) -> Float32[Array, " slot"]:
    """The scores after the deviation moved by `Σ weight * v` over the moved rows."""
    scores = slots.scores
    for row, weight in zip(moved, shift.weights, strict=True):
        scores = _along_columns(rule, slots.table, scores, row, weight)
    scores += rule.times(shift.along_pull, slots.pulls)
    scores += rule.times(shift.along_norm, slots.norms)
    return scores - rule.times(shift.per_token, slots.tokens)


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
            counts = lax.dynamic_index_in_dim(table, columns[position], 0, keepdims=False)
            total = total + rule.times(factors[position], counts)
        return total

    scores = add(0, scores)
    if width <= _COLUMNS_PER_PASS:
        return scores
    return lax.fori_loop(1, -(-num_used // _COLUMNS_PER_PASS), add, scores)


class Recent(NamedTuple):
    """What `D` and the windows' sums gained since the scores were computed anew.

    Whole numbers of tokens, exact in float32, added where a row has its few groups; the compensated sums, all
    columns long, are touched once in a thousand steps.
    """

    counts: Float32[Array, "sum column"]
    tokens: Float32[Array, " sum"]
    num_sequences: Float32[Array, " sum"]
    per_token: Float32[Array, ""]
    norm_steering: Float32[Array, ""]


def _nothing_recent(rule: Rule, deviation: Deviation) -> Recent:
    num_sums = 1 + len(deviation.windows)
    steered = deviation.steering
    return Recent(
        counts=jnp.zeros((num_sums, len(steered)), jnp.float32),
        tokens=jnp.zeros(num_sums, jnp.float32),
        num_sequences=jnp.zeros(num_sums, jnp.float32),
        per_token=jnp.sum(rule.times(steered[:-1], rule.targets[:-1])),
        norm_steering=steered[-1],
    )


def _moved(rule: Rule, recent: Recent, moved: list[Row], leaves: list[Bool[Array, ""]], shift: Shift) -> Recent:
    """Add the sequence placed to all sums; take those that leave out of their windows'."""
    counts, tokens, num_sequences = recent.counts, recent.tokens, recent.num_sequences
    chosen = moved[0]
    coarse_norm = rule.target_pieces[0, -1]
    for index in range(len(tokens)):
        counts = counts.at[index, chosen.columns].add(chosen.values, mode="drop")
        counts = counts.at[index, -1].add(chosen.norm - coarse_norm)
    tokens, num_sequences = tokens + chosen.tokens, num_sequences + 1
    for index, (row, leaving) in enumerate(zip(moved[1:], leaves, strict=True), 1):
        sign = jnp.where(leaving, -1.0, 0.0)
        counts = counts.at[index, row.columns].add(sign * row.values, mode="drop")
        counts = counts.at[index, -1].add(sign * (row.norm - coarse_norm))
        tokens, num_sequences = tokens.at[index].add(sign * row.tokens), num_sequences.at[index].add(sign)
    return Recent(
        counts,
        tokens,
        num_sequences,
        recent.per_token + shift.per_token,
        recent.norm_steering + shift.along_norm,
    )


def _folded(rule: Rule, deviation: Deviation, recent: Recent) -> Deviation:
    """The compensated sums with what they gained."""
    sums = []
    for index, total in enumerate([deviation.total, *deviation.windows]):
        total = add_compensated(total, recent.counts[index])
        # Below 65,536 either way, so that products with a target's pieces of eight bits are exact.
        coarse = jnp.floor(recent.tokens[index] / 4096) * 4096
        for tokens, num_sequences in ((coarse, 0.0), (recent.tokens[index] - coarse, recent.num_sequences[index])):
            for piece_index, piece in enumerate(rule.target_pieces):
                # The norms' first piece is out of their sum already.
                counted = num_sequences if piece_index else 0.0
                multiplier = jnp.full_like(total.value, tokens).at[-1].set(counted)
                total = add_compensated(total, rule.times(-multiplier, piece))
        sums.append(total)
    return Deviation(sums[0], tuple(sums[1:]), deviation.steering)


def _refilled(rule: Rule, rows: Rows, stream: Stream, state: PoolState, recent: Recent) -> PoolState:
    """Enter the last sequence placed in the order, and give its slot to the stream's next."""
    slots = state.slots
    num_slots = slots.members.shape[0]
    num_columns = rule.column_weights.shape[0]
    placed_one = state.last != NOBODY
    order = state.order.at[jnp.where(placed_one, state.num_placed - 1, len(state.order))].set(state.last, mode="drop")
    own_slots = jnp.arange(num_slots, dtype=jnp.int32)
    # Past the end where another device holds the slot, or where nothing was placed since.
    slot = jnp.min(jnp.where((slots.members == state.last) & placed_one, own_slots, num_slots))
    there_is = state.num_taken < stream.size
    following = stream.sequences[jnp.minimum(state.num_taken, stream.size - 1)]
    row = read_row(rows, following, num_columns)
    score = _score_alone(rule, stream.own_costs[following], state.deviation, recent, row)
    table = slots.table
    if table.shape[0]:
        former = read_row(rows, jnp.where(placed_one, state.last, 0), num_columns)
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


def _score_alone(
    rule: Rule, own_cost: Float32[Array, ""], deviation: Deviation, recent: Recent, row: Row
) -> Float32[Array, ""]:
    """One row's score, `D` being read in the row's own columns alone."""
    columns = jnp.minimum(row.columns, rule.column_weights.shape[0] - 1)
    targets, column_weights = rule.targets[columns], rule.column_weights[columns]
    gained = jnp.zeros(columns.shape, jnp.float32)
    for index in range(len(recent.tokens)):
        excess = recent.counts[index, columns] - rule.times(recent.tokens[index], targets)
        gained += rule.times(rule.window_weight, excess) if index else excess
    steered = deviation.steering[columns] + rule.times(2.0 * column_weights, gained)
    score = own_cost + jnp.sum(rule.times(steered, row.values))
    return score + rule.times(recent.norm_steering, row.norm) - rule.times(recent.per_token, row.tokens)


def _refreshed(rule: Rule, rows: Rows, stream: Stream, slots: Slots, deviation: Deviation) -> Slots:
    """All scores, and what they are made of, computed anew from the deviation."""
    there = slots.members != NOBODY
    members = jnp.where(there, slots.members, 0)
    steered = deviation.steering
    starts, ends = rows.starts[members], rows.starts[members + 1]
    norms, tokens = rows.norms[members], rows.tokens[members]
    per_token = jnp.sum(rule.times(steered[:-1], rule.targets[:-1]))

    def add(feature: Int32[Array, ""], total: Float32[Array, " slot"]) -> Float32[Array, " slot"]:
        entry = starts + feature
        value = jnp.where(entry < ends, rows.values[entry], 0)
        return total + rule.times(steered[rows.columns[entry]], value)

    scores = stream.own_costs[members] + rule.times(steered[-1], norms) - rule.times(per_token, tokens)
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

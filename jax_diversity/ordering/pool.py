"""A refilled pool over a stream: every step places the best of P candidates and takes the stream's next sequence.

Memory and time of a step depend on the pool, not on the corpus. A step updates the candidates' scores instead of
computing them again: the pool's counts are one dense table (column, slot), and placing a sequence changes every score
by the contiguous rows of that sequence's few columns, and along the target. A step writes before it reads (it first
fills the slot that the previous step emptied), so that XLA updates the table in place instead of copying it. The
rounding errors of the updates are discarded every thousand steps, when all scores are computed again from the
compensated deviation (a *refresh*). On a mesh the slots are divided among the devices; the corpus's rows are on every
device.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float32, Int32, Int64

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.compilation import call
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.deviation import (
    Deviation,
    GreedyRule,
    PaddedCounts,
    SequenceCounts,
    add_compensated,
    add_placed,
    apart_gradient,
    build_rows,
    build_rule,
    compute_gradient,
    padded,
    read_row,
    restored_deviation,
    rounded_size,
    saved_deviation,
    start_deviation,
)
from jax_diversity.ordering.mesh import (
    BY_COLUMN,
    BY_ROW,
    EVERYWHERE,
    NO_SEQUENCE,
    best_of_all,
    flat_mesh,
    num_devices,
    on_every_device,
    replicated,
    shared_checkpoint,
    split,
)
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.plan import Plan, inverse, tie_numbers
from jax_diversity.ordering.running import Checkpoint, drive
from jax_diversity.schema import Characteristics

STEPS_PER_REFRESH = 1024
# A table of more entries than this (2 GiB) is not kept; scores are then computed again at every step.
_LARGEST_TABLE = 2**29
_UNPLACEABLE = np.float32(np.inf)
_COLUMNS_PER_PASS = 6


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
    ties: str = "random",
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Place the best of a pool at every step, over a stream of the sequences.

    Time grows with the number of sequences. In a large corpus the pool fills up with sequences that no window
    needs: `balance` feeds the same pool with a better stream. Other arguments are those of `base.Method`.

    Args:
        seed: for the stream's shuffle (NumPy's PCG64) and the choice between equal scores.
        pool_size: P, candidates at every step; a pool of all sequences is the exact greedy.
        shuffle: whether the stream is shuffled; False takes the corpus's order.
        ties: which of several candidates with the best score is placed: a `random` one, or the `lowest` index.

    Raises:
        ValueError: a pool size that is not a whole number >= 1; unknown `ties`.
    """
    plan = plan or Plan.build(characteristics, objective)
    stream = plan.remaining
    if shuffle:
        stream = np.random.default_rng(seed).permutation(stream)
    numbers = tie_numbers(plan.num_positions, ties, seed)
    return select_from_pool(plan, objective, stream, numbers, pool_size, 0.0, advance, checkpoint, mesh)


def select_from_pool(
    plan: Plan,
    objective: Objective,
    stream: Int64[np.ndarray, " remaining"],
    numbers: Int64[np.ndarray, " sequence"],
    pool_size: int,
    aging: float,
    advance: Advance,
    checkpoint: Checkpoint | None,
    mesh: Mesh | None,
) -> Int64[np.ndarray, " remaining"]:
    """Feed a pool, on one device or shared by the devices of a mesh, with a stream of the plan's remaining sequences.

    Of candidates with equal scores, the first in `numbers` is placed (`tie_numbers`). With `aging` above zero and
    sequences of unequal tokens, candidates that have waited long are placed earlier (`balance` explains why).
    """
    pool_size = as_whole_number("pool_size", pool_size, 1)
    devices = flat_mesh(mesh)
    if len(stream) == 0:
        return np.zeros(0, np.int64)
    # A pool larger than the stream needs no more slots than sequences; the rounding shares compilations.
    num_slots = min(pool_size, rounded_size(len(stream)))
    plan, stream = plan.renumbered(numbers), inverse(numbers)[stream]
    selector = PoolSelector(plan, objective, stream, num_slots, devices, aging)
    return numbers[drive(selector, plan, advance, shared_checkpoint(checkpoint or Checkpoint(), devices))]


class Stream(NamedTuple):
    """The sequences of the stream in their order, and the constant parts of all sequences' scores."""

    sequences: Int32[Array, " position"]
    size: Int32[Array, ""]
    own_costs: Float32[Array, " sequence"]
    target_products: Float32[Array, " sequence"]
    target_excess_products: Float32[Array, " sequence"]
    refresh_every: Int32[Array, ""]


class Slots(NamedTuple):
    """The pool's candidates; an empty slot has an infinite score."""

    members: Int32[Array, " slot"]
    scores: Float32[Array, " slot"]
    table: Float32[Array, "column slot"]
    norms: Float32[Array, " slot"]
    tokens: Float32[Array, " slot"]
    target_products: Float32[Array, " slot"]
    apart: Int32[Array, "member slot"]


class PoolState(NamedTuple):
    """A run's state."""

    deviation: Deviation
    slots: Slots
    order: Int32[Array, " position"]
    # The next step begins by entering it in `order` and refilling its slot.
    last: Int32[Array, ""]
    num_placed: Int32[Array, ""]
    num_taken: Int32[Array, ""]


# How the arrays are split over a mesh.
_SLOTS_SPLIT = Slots(
    members=BY_ROW, scores=BY_ROW, table=BY_COLUMN, norms=BY_ROW, tokens=BY_ROW, target_products=BY_ROW, apart=BY_COLUMN
)
_STATE_SPLIT = PoolState(EVERYWHERE, _SLOTS_SPLIT, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE)


class PoolSelector:
    """A pool's tables and state, on one device or with its slots divided among the devices of a mesh of one axis."""

    def __init__(
        self,
        plan: Plan,
        objective: Objective,
        stream: Int64[np.ndarray, " remaining"],
        num_slots: int,
        mesh: Mesh | None = None,
        aging: float = 0.0,
    ) -> None:
        self._plan, self._objective, self._mesh = plan, objective, mesh
        self._num_slots, self._aging = num_slots, aging
        self._stream = stream
        # The table is the only memory that grows with columns times slots.
        self._has_table = len(plan.features.targets) * num_slots <= _LARGEST_TABLE
        self.rows: PaddedCounts = replicated(mesh, build_rows(plan.features))
        self.retarget(plan.features)
        deviation = start_deviation(self.rule, plan, plan.consumed)
        self._start(deviation, plan.consumed, stream[:num_slots], min(num_slots, len(stream)))

    def _start(
        self,
        deviation: Deviation,
        placed: Int64[np.ndarray, " position"],
        members: Int64[np.ndarray, " member"],
        num_taken: int,
    ) -> None:
        """The state with these members in the slots; `run` computes the rest of their state."""
        num_columns = len(self._plan.features.targets) if self._has_table else 0
        # Devices have equally many slots, so that the last device may have more than the pool needs. The surplus
        # slots never get a member: only a slot that is emptied is refilled.
        num_own = -(-self._num_slots // num_devices(self._mesh))

        def build(device: int) -> Slots:
            own = members[device * num_own : (device + 1) * num_own].astype(np.int32)
            zeros = jax.device_put(np.zeros(num_own, np.float32))
            table = jax.device_put(np.zeros((num_columns, num_own), np.float32))
            apart = jax.device_put(np.zeros((len(self._plan.features.apart.group), num_own), np.int32))
            return Slots(padded(own, num_own, fill=NO_SEQUENCE), zeros, table, zeros, zeros, zeros, apart)

        self.state = PoolState(
            deviation=deviation,
            slots=split(self._mesh, build, _SLOTS_SPLIT),
            order=padded(placed.astype(np.int32), rounded_size(self._plan.num_positions)),
            last=jax.device_put(np.int32(NO_SEQUENCE)),
            num_placed=jax.device_put(np.int32(len(placed))),
            num_taken=jax.device_put(np.int32(num_taken)),
        )

    def retarget(self, features: Features) -> None:
        """Change the targets from the next step on."""
        size = rounded_size(features.num_sequences)
        # 2 <λ τ, v_s> = 2 <λ τ, c_s> - t_s 2 <λ τ, τ>, computed in float64.
        target_square = 2.0 * float(features.column_weights[:-1] @ features.targets[:-1] ** 2)
        excess_products = features.target_products - target_square * features.tokens
        drift = features.apart.drift * features.tokens
        # Between two refreshes sums of tokens must stay below 2^24, up to which float32 holds all whole numbers.
        # Without a table scores cannot be updated, only refreshed.
        longest = max(int(features.tokens.max(initial=1)), 1)
        refresh_every = max(min(STEPS_PER_REFRESH, 2**24 // longest), 1) if self._has_table else 1
        stream = Stream(
            sequences=padded(self._stream.astype(np.int32), size),
            size=jax.device_put(np.int32(len(self._stream))),
            own_costs=padded(self._costs(features), size),
            # A placed token lowers the score along the documents' shares as well.
            target_products=padded((features.target_products + drift).astype(np.float32), size),
            target_excess_products=padded(excess_products.astype(np.float32), size),
            refresh_every=jax.device_put(np.int32(refresh_every)),
        )
        self.rule, self.stream = replicated(self._mesh, (build_rule(features, self._objective), stream))

    def _costs(self, features: Features) -> Float32[np.ndarray, " sequence"]:
        """Every sequence's own cost, plus the cost of its place in the stream."""
        tokens = features.tokens.astype(np.float64)
        # 0 if all sequences have the same tokens; a sequence's squared counts if few sequences hold nearly all tokens.
        unevenness = tokens.var() / max(float((tokens**2).mean()), 1.0)
        # All candidates age by one at every step: only their places in the stream differ.
        by_place = self._aging * unevenness * features.squares.mean() / self._num_slots
        costs = features.own_costs.astype(np.float64)
        costs[self._stream] += by_place * np.arange(len(self._stream))
        return costs.astype(np.float32)

    def run(self, num_steps: int) -> None:
        """Place `num_steps` sequences."""
        arguments = (self.rule, self.rows, self.stream, self.state, np.int32(num_steps))
        self.state = call(run, *replicated(self._mesh, arguments), mesh=self._mesh)
        # JAX returns before the work is done: without waiting, progress would count steps that are only queued.
        jax.block_until_ready(self.state.num_placed)

    def placed(self) -> Int64[np.ndarray, " position"]:
        """The sequences placed so far."""
        return np.asarray(self.state.order)[: int(self.state.num_placed)].astype(np.int64)

    def saved(self) -> dict[str, np.ndarray]:
        """Deviations, the sequences placed, and the number taken from the stream; the pool holds the difference."""
        # A run continues from it with any number of devices, because choices do not depend on members' slots.
        num_taken = np.asarray(self.state.num_taken)
        return {"placed": self.placed(), "num_taken": num_taken, **saved_deviation(self.state.deviation)}

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        placed, num_taken = saved["placed"], int(saved["num_taken"])
        # The pool holds the sequences that were taken from the stream and not placed; their slots may differ.
        taken = self._stream[:num_taken]
        self._start(restored_deviation(self.rule, self._plan, saved), placed, taken[~np.isin(taken, placed)], num_taken)


class PendingSums(NamedTuple):
    """The changes of `D` and of the windows' sums since the last refresh, not yet added to the compensated sums."""

    # Whole numbers of tokens, exact in float32, added in a row's few columns only; the compensated sums, all columns
    # long, are touched once in a thousand steps.
    counts: Float32[Array, "sum column"]
    tokens: Float32[Array, " sum"]
    num_sequences: Float32[Array, " sum"]
    per_token: Float32[Array, ""]
    norm_gradient: Float32[Array, ""]


@functools.partial(jax.jit, static_argnames="mesh")
def run(
    rule: GreedyRule,
    rows: PaddedCounts,
    stream: Stream,
    state: PoolState,
    num_steps: Int32[Array, ""],
    mesh: Mesh | None = None,
) -> PoolState:
    """Place `num_steps` sequences; all scores are computed again at the beginning and after every thousand steps."""
    # The state is not donated: after an interrupt the state before the call must still be complete.
    over_mesh = on_every_device(
        mesh,
        _run_steps,
        in_specs=(EVERYWHERE, EVERYWHERE, EVERYWHERE, _STATE_SPLIT, EVERYWHERE),
        out_specs=_STATE_SPLIT,
    )
    return over_mesh(rule, rows, stream, state, num_steps)


def _run_steps(
    rule: GreedyRule,
    rows: PaddedCounts,
    stream: Stream,
    state: PoolState,
    num_steps: Int32[Array, ""],
    axis: str | None,
) -> PoolState:
    state = state._replace(slots=_with_table(rows, state.slots, rule.column_weights.shape[0]))

    def steps_to_refresh(index: Int32[Array, ""], carry: PoolState) -> PoolState:
        deviation = carry.deviation
        gradient = compute_gradient(rule, deviation.total, deviation.windows)
        carry = carry._replace(deviation=deviation._replace(gradient=gradient))
        pending = _nothing_pending(rule, carry.deviation)
        # Fill the empty slot before the refresh: its new member must get a score as well.
        carry = _refill(rule, rows, stream, carry, pending)
        carry = carry._replace(slots=_refresh_scores(rule, rows, stream, carry.slots, carry.deviation))
        # The last round of a call is shorter.
        steps = jnp.minimum(stream.refresh_every, num_steps - index * stream.refresh_every)
        step = functools.partial(_step, rule, rows, stream, axis)
        carry, pending = lax.fori_loop(0, steps, lambda _, both: step(*both), (carry, pending))
        return carry._replace(deviation=_with_pending(rule, carry.deviation, pending))

    state = lax.fori_loop(0, -(-num_steps // stream.refresh_every), steps_to_refresh, state)
    # Between calls the last sequence is in the order, so that `placed` and `saved` read a complete state.
    return _refill(rule, rows, stream, state, _nothing_pending(rule, state.deviation))


def _step(
    rule: GreedyRule, rows: PaddedCounts, stream: Stream, axis: str | None, state: PoolState, pending: PendingSums
) -> tuple[PoolState, PendingSums]:
    """Refill the slot that the previous step emptied, then place the candidate of the smallest score."""
    state = _refill(rule, rows, stream, state, pending)
    slots = state.slots
    best = jnp.min(slots.scores)
    chosen = best_of_all(best, jnp.min(jnp.where(slots.scores == best, slots.members, NO_SEQUENCE)), axis)
    # The placed sequence, then for each window of w positions the sequence that leaves it, w positions back.
    back = [state.num_placed - rule.window_sizes[index] for index in range(len(state.deviation.windows))]
    moved = [chosen, *(state.order[jnp.maximum(position, 0)] for position in back)]
    read = [read_row(rows, sequence, rule.column_weights.shape[0]) for sequence in moved]
    # In its first w steps a window is not full, and nothing leaves it.
    leaves = [position >= 0 for position in back]
    change = _gradient_change(rule, read, [stream.target_excess_products[sequence] for sequence in moved], leaves)
    if slots.table.shape[0]:
        slots = slots._replace(scores=_updated_scores(rule, slots, read, change))
    state = state._replace(slots=slots, last=chosen, num_placed=state.num_placed + 1)
    return state, _add_pending(rule, pending, read, leaves, change)


class GradientChange(NamedTuple):
    """The change of the gradient in a step: `2 λ Σ weight * (c - τ t)` over the moved rows.

    Its product with a candidate's `c_s - τ t_s` has a part for the columns of each moved row, given by `weights`, and
    three parts along the target: the factors of the candidate's `2 <λ τ, c_s>`, of its norm and of its `-t_s`.
    """

    weights: list[Float32[Array, ""]]
    per_target_product: Float32[Array, ""]
    per_norm: Float32[Array, ""]
    per_token: Float32[Array, ""]


def _gradient_change(
    rule: GreedyRule,
    moved: list[SequenceCounts],
    excess_products: list[Float32[Array, ""]],
    leaves: list[Bool[Array, ""]],
) -> GradientChange:
    # The placed sequence is added to the prefix and every window; a leaving one is subtracted from its own window.
    weights = [1.0 + rule.times(jnp.float32(len(leaves)), rule.window_weight)]
    weights += [jnp.where(leaving, -rule.window_weight, 0.0) for leaving in leaves]
    twice_norm_weight = 2.0 * rule.column_weights[-1]
    per_target_product = per_norm = per_token = jnp.float32(0)
    for row, excess_product, weight in zip(moved, excess_products, weights, strict=True):
        per_target_product -= rule.times(weight, row.tokens)
        per_norm += rule.times(weight * twice_norm_weight, row.norm - rule.targets[-1])
        per_token += rule.times(weight, excess_product)
    return GradientChange(weights, per_target_product, per_norm, per_token)


def _updated_scores(
    rule: GreedyRule, slots: Slots, moved: list[SequenceCounts], change: GradientChange
) -> Float32[Array, " slot"]:
    """The scores after a step's change of the gradient."""
    # <change of the gradient, c_s - τ t_s>: first the moved rows' columns, then the parts along the target.
    scores = slots.scores
    for row, weight in zip(moved, change.weights, strict=True):
        scores = _add_columns(rule, slots.table, scores, row, weight)
        scores = _add_groups(rule, slots, scores, row, weight)
    scores += rule.times(change.per_target_product, slots.target_products)
    scores += rule.times(change.per_norm, slots.norms)
    return scores - rule.times(change.per_token, slots.tokens)


def _add_columns(
    rule: GreedyRule,
    table: Float32[Array, "column slot"],
    scores: Array,
    row: SequenceCounts,
    weight: Float32[Array, ""],
) -> Float32[Array, " slot"]:
    """Add `2 weight Σ λ x_j table[j]` over the row's columns."""
    # Some columns are added in one unrolled pass, which XLA fuses into one loop over the slots. Nearly all rows need
    # only one pass; the number of further passes depends on the row's own width, not on the largest width.
    width = row.columns.shape[0]
    num_used = jnp.sum(row.columns < table.shape[0])
    padding = -width % _COLUMNS_PER_PASS
    # Unused places read the last column with a factor of zero: a product with zero is cheaper than a condition.
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


def _add_groups(
    rule: GreedyRule, slots: Slots, scores: Array, row: SequenceCounts, weight: Float32[Array, ""]
) -> Float32[Array, " slot"]:
    """Add the row's changes for the candidates that share its groups that are kept apart."""
    num_members = len(row.apart)

    def add(index: Int32[Array, ""] | int, total: Array) -> Array:
        group = row.apart[index]
        per_token = 2.0 * weight * rule.apart_weights[group] * row.tokens
        for groups in slots.apart:
            total += rule.times(jnp.where(groups == group, per_token, 0.0), slots.tokens)
        return total

    if num_members <= 1:
        return add(0, scores) if num_members else scores
    # A row's groups are before its unused places. Most rows have one group or none.
    num_used = jnp.sum(rule.apart_weights[row.apart] > 0)
    return lax.fori_loop(0, num_used, add, scores)


def _nothing_pending(rule: GreedyRule, deviation: Deviation) -> PendingSums:
    num_sums = 1 + len(deviation.windows)
    gradient = deviation.gradient
    return PendingSums(
        counts=jnp.zeros((num_sums, len(gradient)), jnp.float32),
        tokens=jnp.zeros(num_sums, jnp.float32),
        num_sequences=jnp.zeros(num_sums, jnp.float32),
        # <gradient, τ> and the gradient of the norm column change by one number per step, so they are kept current
        # here.
        per_token=jnp.sum(rule.times(gradient[:-1], rule.targets[:-1])),
        norm_gradient=gradient[-1],
    )


def _add_pending(
    rule: GreedyRule,
    pending: PendingSums,
    moved: list[SequenceCounts],
    leaves: list[Bool[Array, ""]],
    change: GradientChange,
) -> PendingSums:
    """Add the placed sequence to all sums; subtract from each window's sum the sequence that leaves it."""
    counts, tokens, num_sequences = pending.counts, pending.tokens, pending.num_sequences
    chosen = moved[0]
    # The norms are not whole numbers. Without the first piece of their mean they are small, and their sum is small: its
    # rounding errors are far below the errors of a sum of the norms themselves.
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
    return PendingSums(
        counts, tokens, num_sequences, pending.per_token + change.per_token, pending.norm_gradient + change.per_norm
    )


def _with_pending(rule: GreedyRule, deviation: Deviation, pending: PendingSums) -> Deviation:
    """The compensated sums plus the pending ones."""
    sums = []
    for index, total in enumerate([deviation.total, *deviation.windows]):
        total = add_compensated(total, pending.counts[index])
        # The tokens, up to 2^24, are split into a multiple of 4,096 and a rest below it: 12 bits each, so that their
        # products with a target's pieces of eight bits are exact.
        coarse = jnp.floor(pending.tokens[index] / 4096) * 4096
        for tokens, num_sequences in ((coarse, 0.0), (pending.tokens[index] - coarse, pending.num_sequences[index])):
            for piece_index, piece in enumerate(rule.target_pieces):
                # `_add_pending` has subtracted the first piece of the norms' mean already.
                counted = num_sequences if piece_index else 0.0
                multiplier = jnp.full_like(total.value, tokens).at[-1].set(counted)
                total = add_compensated(total, rule.times(-multiplier, piece))
        sums.append(total)
    return deviation._replace(total=sums[0], windows=tuple(sums[1:]))


def _refill(rule: GreedyRule, rows: PaddedCounts, stream: Stream, state: PoolState, pending: PendingSums) -> PoolState:
    """Enter the last placed sequence in the order, and give its slot to the next sequence of the stream."""
    slots = state.slots
    num_slots = slots.members.shape[0]
    num_columns = rule.column_weights.shape[0]
    # If nothing was placed since the last refill, all writes go past the end and are dropped.
    placed_one = state.last != NO_SEQUENCE
    order = state.order.at[jnp.where(placed_one, state.num_placed - 1, len(state.order))].set(state.last, mode="drop")
    own_slots = jnp.arange(num_slots, dtype=jnp.int32)
    # Also past the end if another device holds the slot.
    slot = jnp.min(jnp.where((slots.members == state.last) & placed_one, own_slots, num_slots))
    has_next = state.num_taken < stream.size
    deviation = state.deviation
    placed = read_row(rows, jnp.where(placed_one, state.last, 0), num_columns)
    if len(rows.apart):
        # After the order is written: the sequence that was placed w positions before is read from it.
        position = state.num_placed - 1
        back = [order[jnp.maximum(position - size, 0)] for size in rule.window_sizes]
        moved = [placed, *(read_row(rows, sequence, num_columns) for sequence in back)]
        # If nothing was placed since, sequences without tokens change nothing.
        moved = [row._replace(tokens=jnp.where(placed_one, row.tokens, 0)) for row in moved]
        deviation = deviation._replace(placed=add_placed(rule, deviation.placed, moved[0], moved[1:], position))
    following = stream.sequences[jnp.minimum(state.num_taken, stream.size - 1)]
    row = read_row(rows, following, num_columns)
    score = _score_one(rule, stream.own_costs[following], deviation, pending, row)
    table = slots.table
    if table.shape[0]:
        # Only the columns of the placed sequence are not zero: clearing these is cheaper than clearing the slot.
        table = table.at[placed.columns, slot].set(0.0, mode="drop")
        table = table.at[row.columns, slot].set(row.values, mode="drop")
    slots = Slots(
        members=slots.members.at[slot].set(jnp.where(has_next, following, NO_SEQUENCE), mode="drop"),
        scores=slots.scores.at[slot].set(jnp.where(has_next, score, _UNPLACEABLE), mode="drop"),
        table=table,
        norms=slots.norms.at[slot].set(row.norm, mode="drop"),
        tokens=slots.tokens.at[slot].set(row.tokens, mode="drop"),
        target_products=slots.target_products.at[slot].set(stream.target_products[following], mode="drop"),
        apart=slots.apart.at[:, slot].set(row.apart, mode="drop"),
    )
    num_taken = state.num_taken + (placed_one & has_next)
    last = jnp.int32(NO_SEQUENCE)
    return state._replace(deviation=deviation, slots=slots, order=order, last=last, num_taken=num_taken)


def _score_one(
    rule: GreedyRule, own_cost: Float32[Array, ""], deviation: Deviation, pending: PendingSums, row: SequenceCounts
) -> Float32[Array, ""]:
    """One row's score; the gradient, pending sums included, is computed in the row's own columns only."""
    # Unused slots of the row read the last column; their count of zero removes it from the product.
    columns = jnp.minimum(row.columns, rule.column_weights.shape[0] - 1)
    targets, column_weights = rule.targets[columns], rule.column_weights[columns]
    gained = jnp.zeros(columns.shape, jnp.float32)
    for index in range(len(pending.tokens)):
        excess = pending.counts[index, columns] - rule.times(pending.tokens[index], targets)
        gained += rule.times(rule.window_weight, excess) if index else excess
    gradient = deviation.gradient[columns] + rule.times(2.0 * column_weights, gained)
    score = own_cost + jnp.sum(rule.times(gradient, row.values))
    if len(row.apart):
        score += rule.times(jnp.sum(apart_gradient(rule, deviation.placed, row.apart)), row.tokens)
    return score + rule.times(pending.norm_gradient, row.norm) - rule.times(pending.per_token, row.tokens)


def _refresh_scores(rule: GreedyRule, rows: PaddedCounts, stream: Stream, slots: Slots, deviation: Deviation) -> Slots:
    """All scores, and the numbers that update them, computed from the deviation."""
    # Empty slots compute the score of sequence 0, which is replaced by infinity at the end.
    filled = slots.members != NO_SEQUENCE
    members = jnp.where(filled, slots.members, 0)
    gradient = deviation.gradient
    starts, ends = rows.starts[members], rows.starts[members + 1]
    norms, tokens = rows.norms[members], rows.tokens[members]
    per_token = jnp.sum(rule.times(gradient[:-1], rule.targets[:-1]))

    def add(feature: Int32[Array, ""], total: Float32[Array, " slot"]) -> Float32[Array, " slot"]:
        entry = starts + feature
        value = jnp.where(entry < ends, rows.values[entry], 0)
        return total + rule.times(gradient[rows.columns[entry]], value)

    scores = stream.own_costs[members] + rule.times(gradient[-1], norms) - rule.times(per_token, tokens)
    # As many rounds as the widest row of the pool has non-zeros; the corpus's widest row may have more.
    scores = lax.fori_loop(0, jnp.max(jnp.where(filled, ends - starts, 0)), add, scores)
    apart = rows.apart[:, members]
    if len(apart):
        of_groups = apart_gradient(rule, deviation.placed)
        for groups in apart:
            scores += rule.times(of_groups[groups], tokens)
    return slots._replace(
        scores=jnp.where(filled, scores, _UNPLACEABLE),
        norms=norms,
        tokens=tokens,
        target_products=stream.target_products[members],
        apart=apart,
    )


def _with_table(rows: PaddedCounts, slots: Slots, num_columns: int) -> Slots:
    """The slots, with the dense table of their members' counts."""
    if slots.table.shape[0] == 0:
        return slots
    filled = slots.members != NO_SEQUENCE
    members = jnp.where(filled, slots.members, 0)
    starts = rows.starts[members]
    ends = jnp.where(filled, rows.starts[members + 1], starts)
    own_slots = jnp.arange(len(members))

    def fill(feature: Int32[Array, ""], table: Array) -> Array:
        entry = starts + feature
        column = jnp.where(entry < ends, rows.columns[entry], num_columns)
        return table.at[column, own_slots].set(rows.values[entry], mode="drop")

    table = lax.fori_loop(0, jnp.max(ends - starts), fill, jnp.zeros_like(slots.table))
    return slots._replace(table=table)

"""A pool that is refilled from a stream: every step places the best of P candidates and takes the next sequence.

Memory and time of a step depend on the pool, not on the corpus. A step updates the candidates' scores instead of
computing them again. The pool's counts are one dense table (column, slot). A placed sequence changes every score by a
multiple of a few contiguous rows of this table (the columns of the placed sequence), and by a term along the target. A
step writes before it reads: it first fills the slot that the previous step emptied. Therefore XLA updates the table in
place and does not copy it. After about every thousand steps, all scores are computed again from the compensated
deviation (a *refresh*); this removes the rounding errors of the updates. On a mesh the slots are divided among the
devices; the corpus's rows are on every device.

If the sequences have many groups, such as token ids, a step updates the scores only for the columns whose counts vary
most. The changes of the other columns, the *deferred* columns (`Features.deferred`), reach the scores after every 16
steps. The candidates' counts in these columns have a table of their own if many are above zero; otherwise they are
lists. After the 16 steps the deviation contains all columns again, so that nothing drifts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Float32, Int32, Int64, Integer

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.compilation import call
from jax_diversity.foundation.devices import processor
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.deviation import (
    NO_ROWS,
    Compensated,
    Deviation,
    GreedyRule,
    PaddedCounts,
    RowSizes,
    SequenceCounts,
    add_compensated,
    add_placed,
    apart_gradient,
    build_rows,
    build_rule,
    compute_gradient,
    fixed_sum,
    padded,
    read_row,
    restored_deviation,
    rounded_size,
    rounded_width,
    row_sizes,
    saved_deviation,
    start_deviation,
)
from jax_diversity.ordering.features import Features
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
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Plan, inverse, tie_numbers
from jax_diversity.ordering.running import STEPS_PER_CALL, Checkpoint, drive

STEPS_PER_REFRESH = 1024
STEPS_PER_DEFERRAL = 16
# If a table would have more entries than this (2 GiB), there is no table, and every step computes all scores again.
_LARGEST_TABLE = 2**29
_UNPLACEABLE = np.float32(np.inf)
_COLUMNS_PER_PASS, _COLUMNS_ON_ACCELERATOR = 4, 32
_POOL, _POOL_WITH_DEFERRED = 4096, 2304
# An entry of the candidates' lists takes as long as this number of rows of a table, because every candidate reads the
# gradient at another column.
_ROWS_PER_ENTRY = 7
# If the candidates' deferred counts would have more entries than this (256 MiB), nothing is deferred.
_MOST_DEFERRED_ENTRIES = 2**26


class PoolSettings(NamedTuple):
    """What the pools of an order share.

    Attributes:
        objective: the weights of the rule.
        pool_size: the number of candidates; None as in `balance`.
        aging: see `balance`.
        advance: is called with the number of positions filled.
        checkpoint: where the state of a long run is kept.
        mesh: the devices.
    """

    objective: Objective
    pool_size: int | None
    aging: float
    advance: Advance
    checkpoint: Checkpoint | None
    mesh: Mesh | None


def greedy_pool(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | None = None,
    checkpoint: Checkpoint | None = None,
    pool_size: int | None = None,
    shuffle: bool = True,
    ties: str = "random",
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Place the best of a pool at every step, over a stream of the sequences.

    Time grows linearly with the number of sequences. In a large corpus the pool fills up with sequences that no window
    needs; `balance` uses the same pool with a better stream. See `base.Method` for the other arguments.

    Args:
        seed: for the stream's shuffle (NumPy's PCG64) and the choice between equal scores.
        pool_size: P, the number of candidates at every step; None as in `balance`. With a pool of all sequences the
            order is that of the exact greedy.
        shuffle: whether the stream is shuffled; False means the corpus's order.
        ties: which candidate is placed if several have the best score: a `random` one, or the one with the `lowest`
            index.

    Raises:
        ValueError: a pool size that is not a whole number >= 1; unknown `ties`.
    """
    plan = plan or Plan.build(characteristics, objective)
    stream = plan.remaining
    if shuffle:
        stream = np.random.default_rng(seed).permutation(stream)
    numbers = tie_numbers(plan.num_positions, ties, seed)
    return select_from_pool(plan, stream, numbers, PoolSettings(objective, pool_size, 0.0, advance, checkpoint, mesh))


def select_from_pool(
    plan: Plan, stream: Int64[np.ndarray, " remaining"], numbers: Int64[np.ndarray, " sequence"], settings: PoolSettings
) -> Int64[np.ndarray, " remaining"]:
    """Order the plan's remaining sequences: run a pool over the stream, on a processor or on the devices of a mesh.

    Without a mesh, a processor runs the pool: a GPU needs several times as long to start the programs of a step.
    If several candidates have equal scores, the first in `numbers` is placed (`tie_numbers`). If `aging` is above zero
    and sequences have different numbers of tokens, candidates that have waited long are placed earlier (see `balance`).
    """
    check_pool_size(settings.pool_size)
    devices = flat_mesh(settings.mesh)
    if len(stream) == 0:
        return np.zeros(0, np.int64)
    sizes = PoolSizes.of_whole(plan, stream, settings.pool_size)
    plan, stream = plan.renumbered(numbers), inverse(numbers)[stream]
    checkpoint = shared_checkpoint(settings.checkpoint or Checkpoint(), devices)
    with jax.default_device(processor()):  # a mesh has its own devices
        selector = PoolSelector(plan, settings.objective, stream, sizes, devices, settings.aging)
        return numbers[drive(selector, plan, settings.advance, checkpoint)]


def check_pool_size(pool_size: int | None) -> None:
    """Raise an error if a pool size is neither None nor a whole number >= 1."""
    if pool_size is not None:
        as_whole_number("pool_size", pool_size, 1)


class PoolSizes(NamedTuple):
    """Sizes of a pool's arrays. Pools with equal sizes share one compiled program.

    `num_candidates` is the largest number of candidates of a pool, `num_slots` the rounded number. `deferred.longest`
    is 0 if no column is deferred. `listed` says whether the candidates' deferred counts are lists.
    """

    num_candidates: int
    num_slots: int
    steps: RowSizes
    deferred: RowSizes
    listed: bool
    num_groups: int
    refresh_every: int
    table_type: type[np.floating]

    @classmethod
    def of_whole(cls, plan: Plan, stream: Int64[np.ndarray, " remaining"], pool_size: int | None) -> PoolSizes:
        """Return sizes for one pool of all sequences; `pool_size` is None for the default."""
        return cls.of(plan.features, [np.arange(plan.num_positions)], len(stream), pool_size)

    @classmethod
    def of(
        cls,
        features: Features,
        parts: Sequence[Int64[np.ndarray, " _part"]],
        stream_size: int,
        pool_size: int | None,
    ) -> PoolSizes:
        """Return sizes that suffice for each of some parts of the sequences.

        `stream_size` is the largest number of candidates of a part; `pool_size` is None for the default.
        """
        if pool_size is None:
            pool_size = _POOL_WITH_DEFERRED if features.deferred.any() else _POOL
        # A pool does not need more slots than its stream has sequences. Because of the rounding, streams of similar
        # sizes use the same compiled program.
        num_slots = min(pool_size, rounded_size(stream_size))
        lengths = np.diff(features.row_starts)
        in_deferred, listed = np.zeros_like(lengths), True
        # Without a table every step computes all scores again, and nothing is deferred.
        if features.deferred.any() and has_table(features, num_slots):
            in_deferred, num_columns = features.num_deferred(), int(features.deferred.sum())
            longest = rounded_width(int(in_deferred.max(initial=0)))
            listed = longest * _ROWS_PER_ENTRY <= num_columns
            if (longest if listed else num_columns) * num_slots > _MOST_DEFERRED_ENTRIES:
                in_deferred = np.zeros_like(lengths)
        steps, deferred = (
            RowSizes(
                *(max(part_sizes) for part_sizes in zip(*(row_sizes(counts[part]) for part in parts), strict=True))
            )
            for counts in (lengths - in_deferred, in_deferred)
        )
        groups = [len(features.apart.only(part)[1]) for part in parts] if len(parts) > 1 else [0]
        num_groups = rounded_size(max(groups) + 1)
        # Between two refreshes, sums of tokens must stay below 2^24: float32 represents all whole numbers up to 2^24.
        # Without a table, scores cannot be updated, only refreshed.
        longest = max(int(features.tokens.max(initial=1)), 1)
        refresh_every = max(min(STEPS_PER_REFRESH, 2**24 // longest), 1) if has_table(features, num_slots) else 1
        # Half precision represents whole numbers up to 2,048 exactly, and reading the table is most of the work of a
        # step with wide rows.
        table_type = np.float16 if features.values.max(initial=0) <= 2048 else np.float32
        return cls(
            min(pool_size, stream_size),
            num_slots,
            steps,
            deferred if in_deferred.any() else NO_ROWS,
            listed,
            num_groups,
            refresh_every,
            table_type,
        )


def has_table(features: Features, num_slots: int) -> bool:
    """Return whether a pool has a table of its candidates' counts; only its memory grows with columns times slots."""
    return len(features.targets) * num_slots <= _LARGEST_TABLE


class Stream(NamedTuple):
    """The sequences of the stream in their order, and the constant parts of all sequences' scores."""

    sequences: Int32[Array, " position"]
    size: Int32[Array, ""]
    own_costs: Float32[Array, " sequence"]
    # λ of the columns whose changes reach the scores at every step; 0 for the deferred columns.
    step_weights: Float32[Array, " column"]
    # The deferred columns, ascending; none if the candidates' deferred counts are lists.
    deferred_columns: Int32[Array, " deferred_column"]
    # `target_products` and `target_excess_products` are without the deferred columns.
    target_products: Float32[Array, " sequence"]
    target_excess_products: Float32[Array, " sequence"]
    refresh_every: Int32[Array, ""]
    # 0, 1, 2 ...: as many numbers as there are steps before the deferred columns reach the scores.
    deferred_steps: Int32[Array, " step"]


# What is equal in all pools that run together. Their loops then end at the same time, without conditions.
_SHARED = ("refresh_every", "deferred_steps", "deferred_columns")


class Slots(NamedTuple):
    """The pool's candidates; an empty slot has an infinite score."""

    members: Int32[Array, " slot"]
    scores: Float32[Array, " slot"]
    table: Float[Array, "column slot"]
    # Three numbers of every candidate: its `2 <λ τ, c_s>` (`Stream.target_products`), its norm and its tokens.
    constants: Float32[Array, "constant slot"]
    apart: Int32[Array, "member slot"]
    # The candidates' counts in the deferred columns: lists of columns and counts, or a table of the counts with one
    # entry for every deferred column. They are read one entry of all slots at a time: with this layout XLA uses vector
    # instructions.
    columns: Integer[Array, "listed_entry slot"]
    values: Integer[Array, "entry slot"] | Float[Array, "entry slot"]
    # The candidates whose counts these are: they are written for several steps together.
    deferred_members: Int32[Array, " slot"]

    @property
    def tokens(self) -> Float32[Array, " slot"]:
        """The candidates' numbers of tokens."""
        return self.constants[2]


class Rows(NamedTuple):
    """The sequences' counts in the columns of every step, and in the deferred columns; None if nothing is deferred."""

    steps: PaddedCounts
    deferred: PaddedCounts | None

    def with_deferred(self, row: SequenceCounts, sequence: Int32[Array, ""], num_columns: int) -> SequenceCounts:
        """Return all counts of a sequence; `row` are those of every step."""
        if self.deferred is None:
            return row
        deferred_row = read_row(self.deferred, sequence, num_columns)
        pairs = zip((row.columns, row.values), (deferred_row.columns, deferred_row.values), strict=True)
        columns, values = (jnp.concatenate(pair) for pair in pairs)
        return row._replace(columns=columns, values=values)


class PoolState(NamedTuple):
    """The state of a run."""

    deviation: Deviation
    slots: Slots
    order: Int32[Array, " position"]
    # The last placed sequence. The next step first writes it into `order` and refills its slot.
    last: Int32[Array, ""]
    num_placed: Int32[Array, ""]
    num_taken: Int32[Array, ""]


# How the arrays are divided over a mesh.
_SLOTS_SPLIT = Slots(
    members=BY_ROW,
    scores=BY_ROW,
    table=BY_COLUMN,
    constants=BY_COLUMN,
    apart=BY_COLUMN,
    columns=BY_COLUMN,
    values=BY_COLUMN,
    deferred_members=BY_ROW,
)
_STATE_SPLIT = PoolState(EVERYWHERE, _SLOTS_SPLIT, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE)


class PoolSelector:
    """The tables and the state of a pool, on one device or with slots divided among a mesh's devices (one axis)."""

    def __init__(
        self,
        plan: Plan,
        objective: Objective,
        stream: Int64[np.ndarray, " remaining"],
        sizes: PoolSizes,
        mesh: Mesh | None = None,
        aging: float = 0.0,
    ) -> None:
        self._plan, self._objective, self._mesh = plan, objective, mesh
        self._sizes, self._aging = sizes, aging
        self._stream = stream
        self._has_table = has_table(plan.features, sizes.num_slots)
        defers = sizes.deferred.longest > 0
        self._of_steps = plan.features.without_deferred() if defers else plan.features
        self._deferred_columns = np.flatnonzero(plan.features.deferred & (defers and not sizes.listed))
        steps, deferred = build_rows(self._of_steps, sizes=sizes.steps), None
        if defers:
            deferred = build_rows(plan.features.only_deferred(), sizes=sizes.deferred)
            # The other values of a sequence are read from the rows of the steps.
            deferred = deferred._replace(norms=steps.norms, tokens=steps.tokens, apart=steps.apart)
        self.rows: Rows = replicated(mesh, Rows(steps, deferred))
        self.retarget(plan.features)
        deviation = start_deviation(self.rule, plan, plan.consumed)
        self._start(deviation, plan.consumed, stream[: sizes.num_slots], min(sizes.num_slots, len(stream)))

    def _start(
        self,
        deviation: Deviation,
        placed: Int64[np.ndarray, " position"],
        members: Int64[np.ndarray, " member"],
        num_taken: int,
    ) -> None:
        """Make the state with these members in the slots; `run` computes the other values of the slots."""
        features = self._plan.features
        num_columns = len(features.targets) if self._has_table else 0
        # All devices have the same number of slots, so the last device may have more slots than the pool needs. These
        # additional slots never get a member, because only a slot that becomes empty is refilled.
        num_own = -(-self._sizes.num_slots // num_devices(self._mesh))

        def build(device: int) -> Slots:
            device_members = members[device * num_own : (device + 1) * num_own].astype(np.int32)
            zeros = jax.device_put(np.zeros(num_own, np.float32))
            table = jax.device_put(np.zeros((num_columns, num_own), self._sizes.table_type))
            apart = jax.device_put(np.zeros((len(features.apart.group), num_own), np.int32))
            num_listed, num_in_table = self._sizes.deferred.longest, len(self._deferred_columns)
            if num_in_table:
                columns = np.zeros((0, num_own), features.columns.dtype)
                values = np.zeros((num_in_table, num_own), table.dtype)
            else:
                columns = np.zeros((num_listed, num_own), features.columns.dtype)
                values = np.zeros((num_listed, num_own), features.values.dtype)
            slots = padded(device_members, num_own, fill=NO_SEQUENCE)
            columns, values = jax.device_put((columns, values))
            constants = jax.device_put(np.zeros((3, num_own), np.float32))
            return Slots(slots, zeros, table, constants, apart, columns, values, slots)

        self.state = PoolState(
            deviation=deviation,
            slots=split(self._mesh, build, _SLOTS_SPLIT),
            order=padded(placed.astype(np.int32), self._num_rows),
            last=jax.device_put(np.int32(NO_SEQUENCE)),
            num_placed=jax.device_put(np.int32(len(placed))),
            num_taken=jax.device_put(np.int32(num_taken)),
        )

    @property
    def _num_rows(self) -> int:
        return max(self._sizes.steps.rows, rounded_size(self._plan.num_positions))

    def retarget(self, features: Features) -> None:
        """Change the targets from the next step on."""
        size = self._num_rows
        of_steps = replace(self._of_steps, targets=features.targets)
        # 2 <λ τ, v_s> = 2 <λ τ, c_s> - t_s 2 <λ τ, τ>, computed in float64.
        target_square = 2.0 * float(of_steps.column_weights[:-1] @ features.targets[:-1] ** 2)
        excess_products = of_steps.target_products - target_square * features.tokens
        drift = features.apart.drift * features.tokens
        stream = Stream(
            sequences=padded(self._stream.astype(np.int32), size),
            size=jax.device_put(np.int32(len(self._stream))),
            own_costs=padded(self._costs(features), size),
            step_weights=jax.device_put(of_steps.column_weights.astype(np.float32)),
            deferred_columns=jax.device_put(self._deferred_columns.astype(np.int32)),
            # A placed token also lowers the score along the documents' shares.
            target_products=padded((of_steps.target_products + drift).astype(np.float32), size),
            target_excess_products=padded(excess_products.astype(np.float32), size),
            refresh_every=jax.device_put(np.int32(self._sizes.refresh_every)),
            deferred_steps=jax.device_put(np.arange(STEPS_PER_DEFERRAL, dtype=np.int32)),
        )
        self.rule, self.stream = replicated(
            self._mesh, (build_rule(features, self._objective, self._sizes.num_groups), stream)
        )

    def _costs(self, features: Features) -> Float32[np.ndarray, " sequence"]:
        """Return every sequence's own cost, plus the cost of its place in the stream."""
        tokens = features.tokens.astype(np.float64)
        # It is 0 if all sequences have the same number of tokens. It is near 1 if few sequences have nearly all tokens.
        unevenness = tokens.var() / max(float((tokens**2).mean()), 1.0)
        # All candidates get older by one at every step, so only their places in the stream make a difference.
        by_place = self._aging * unevenness * features.squares.mean() / max(self._sizes.num_candidates, 1)
        costs = features.own_costs.astype(np.float64)
        costs[self._stream] += by_place * np.arange(len(self._stream))
        return costs.astype(np.float32)

    def run(self, num_steps: int) -> None:
        """Place `num_steps` sequences."""
        arguments = (self.rule, self.rows, self.stream, self.state, np.int32(num_steps))
        size = self._plan.num_positions
        self.state = call(run, *replicated(self._mesh, arguments), num_steps=size, mesh=self._mesh)
        # JAX returns before the work is done. Without waiting, progress would include steps that are only queued.
        jax.block_until_ready(self.state.num_placed)

    def placed(self) -> Int64[np.ndarray, " position"]:
        """Return the sequences placed so far."""
        return _placed(np.asarray(self.state.order), int(self.state.num_placed), int(self.state.last))

    def saved(self) -> dict[str, np.ndarray]:
        """Return the deviations, the placed sequences, and the number of sequences taken from the stream.

        The pool contains the sequences that were taken and not placed.
        """
        # A run can continue from this state with any number of devices: choices do not depend on the members' slots.
        # The next step would first fill the empty slot; the restored pool has no empty slot.
        has_empty = int(self.state.last) != NO_SEQUENCE
        num_taken = np.minimum(np.asarray(self.state.num_taken) + has_empty, len(self._stream))
        return {"placed": self.placed(), "num_taken": num_taken, **saved_deviation(self.state.deviation)}

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        placed, num_taken = saved["placed"], int(saved["num_taken"])
        # The pool contains the sequences that were taken from the stream and not placed. They may get other slots.
        taken = self._stream[:num_taken]
        self._start(restored_deviation(self.rule, self._plan, saved), placed, taken[~np.isin(taken, placed)], num_taken)


def run_together(
    selectors: Sequence[PoolSelector], num_steps: Sequence[int], advance: Advance
) -> list[Int64[np.ndarray, " position"]]:
    """Place all sequences of several pools of equal sizes, all pools at the same time on one device; return the orders.

    On an accelerator, a step takes nearly as long for many small pools as for one, because starting its programs takes
    most of the time. `num_steps` are the pools' numbers of sequences; a pool whose sequences are all placed keeps its
    order.
    """
    rule, rows, stream, state = stack(selectors)
    for first in range(0, max(num_steps), STEPS_PER_CALL):
        steps = min(STEPS_PER_CALL, max(num_steps) - first)
        state = call(run_many, rule, rows, stream, state, np.int32(steps), num_steps=max(num_steps))
        jax.block_until_ready(state.num_placed)
        advance(int(np.clip(np.subtract(num_steps, first), 0, steps).sum()))
    placed = zip(*map(np.asarray, (state.order, state.num_placed, state.last)), strict=True)
    return [_placed(order, int(number), int(last)) for order, number, last in placed]


def stack(selectors: Sequence[PoolSelector]) -> tuple[GreedyRule, Rows, Stream, PoolState]:
    """Join the arrays of pools of equal sizes along a new first axis, for `run_many`, on the default device.

    Pools that were made on a processor are joined in its memory: an accelerator would need as much time to compile the
    joining of hundreds of arrays as to run the pools.
    """

    def join(*leaves: Array | np.ndarray) -> Array:
        return jax.device_put(np.stack(leaves))

    tables = [selector.state.slots.table for selector in selectors]  # all zeros before the first run
    none = np.zeros(0, np.float32)
    states = [selector.state._replace(slots=selector.state.slots._replace(table=none)) for selector in selectors]
    rule, rows, stream, state = (
        jax.tree.map(join, *trees)
        for trees in zip(
            *(
                (selector.rule, selector.rows, selector.stream, selector_state)
                for selector, selector_state in zip(selectors, states, strict=True)
            ),
            strict=True,
        )
    )
    table = jnp.zeros((len(tables), *tables[0].shape), tables[0].dtype)
    shared = {name: jax.device_put(np.asarray(getattr(selectors[0].stream, name))) for name in _SHARED}
    return rule, rows, stream._replace(**shared), state._replace(slots=state.slots._replace(table=table))


def _placed(order: Int32[np.ndarray, " position"], num_placed: int, last: int) -> Int64[np.ndarray, " placed_position"]:
    """Return the placed sequences; the last one is not yet in the order of a state."""
    placed = order[:num_placed].astype(np.int64)
    if last != NO_SEQUENCE:
        placed[-1] = last
    return placed


class PendingSums(NamedTuple):
    """The changes of `D` and of the windows' sums since the last refresh, not yet added to the compensated sums."""

    # `counts` are whole numbers of tokens, exact in float32. A step adds only in the few columns of a row. The
    # compensated sums, which have all columns, are updated only once in about a thousand steps.
    counts: Float32[Array, "sum column"]
    # The number of tokens and the number of sequences.
    amounts: Float32[Array, "sum amount"]
    per_token: Float32[Array, ""]
    norm_gradient: Float32[Array, ""]

    @property
    def tokens(self) -> Float32[Array, " sum"]:
        """The numbers of tokens."""
        return self.amounts[:, 0]


@functools.partial(jax.jit, static_argnames="mesh")
def run(
    rule: GreedyRule,
    rows: Rows,
    stream: Stream,
    state: PoolState,
    num_steps: Int32[Array, ""],
    mesh: Mesh | None = None,
) -> PoolState:
    """Place `num_steps` sequences; all scores are computed again at the beginning and after about a thousand steps."""
    # The state's memory is not reused (donated): after an interrupt the state before the call must still be complete.
    over_mesh = on_every_device(
        mesh,
        _run_steps,
        in_specs=(EVERYWHERE, EVERYWHERE, EVERYWHERE, _STATE_SPLIT, EVERYWHERE),
        out_specs=_STATE_SPLIT,
    )
    return over_mesh(rule, rows, stream, state, num_steps)


@functools.partial(jax.jit, donate_argnames="state")
def run_many(rule: GreedyRule, rows: Rows, stream: Stream, state: PoolState, num_steps: Int32[Array, ""]) -> PoolState:
    """Place `num_steps` sequences by each of several pools; every array that is not shared has an axis of pools.

    Every pool makes the same choices as alone: all sums of rounded numbers have a fixed order (`fixed_sum`).
    """
    axes: dict[str, Any] = {**dict.fromkeys(Stream._fields, 0), **dict.fromkeys(_SHARED)}
    over_pools = jax.vmap(functools.partial(_run_steps, axis=None), in_axes=(0, 0, Stream(**axes), 0, None))
    return over_pools(rule, rows, stream, state, num_steps)


def _run_steps(
    rule: GreedyRule,
    rows: Rows,
    stream: Stream,
    state: PoolState,
    num_steps: Int32[Array, ""],
    axis: str | None,
) -> PoolState:
    deferred_every = len(stream.deferred_steps)
    state = state._replace(slots=_with_rows(rows, stream, state.slots, rule.column_weights.shape[0]))

    def steps_to_refresh(index: Int32[Array, ""], carry: PoolState) -> PoolState:
        deviation = carry.deviation
        gradient = compute_gradient(rule, deviation.total, deviation.windows)
        carry = carry._replace(deviation=deviation._replace(gradient=gradient))
        pending = _nothing_pending(rule, carry.deviation)
        # Fill the empty slot before the refresh: its new member must get a score as well.
        carry = _refill(rule, rows, stream, carry, pending)
        carry = carry._replace(slots=_with_deferred_counts(rows, stream, carry.slots))
        carry = carry._replace(slots=_refresh_scores(rule, rows, stream, carry.slots, carry.deviation))
        # The last round of a call may be shorter.
        steps = jnp.minimum(stream.refresh_every, num_steps - index * stream.refresh_every)
        step = functools.partial(_step, rule, rows, stream, axis)

        def run_steps(num: Array, carry: tuple[PoolState, PendingSums]) -> tuple[PoolState, PendingSums]:
            return lax.fori_loop(0, num, lambda _, carried: step(*carried), carry)

        def steps_to_deferred(
            index: Int32[Array, ""], carry: tuple[PoolState, PendingSums]
        ) -> tuple[PoolState, PendingSums]:
            num = jnp.minimum(deferred_every, steps - index * deferred_every)
            return _with_deferred(rule, rows, stream, gradient, num, *run_steps(num, carry))

        if rows.deferred is None:
            carry, pending = run_steps(steps, (carry, pending))
        else:
            num_rounds = -(-steps // deferred_every)
            carry, pending = lax.fori_loop(0, num_rounds, steps_to_deferred, (carry, pending))
        return carry._replace(deviation=_with_pending(rule, carry.deviation, pending))

    return lax.fori_loop(0, -(-num_steps // stream.refresh_every), steps_to_refresh, state)


def _step(
    rule: GreedyRule, rows: Rows, stream: Stream, axis: str | None, state: PoolState, pending: PendingSums
) -> tuple[PoolState, PendingSums]:
    """Refill the slot that the previous step emptied, then place the candidate with the smallest score."""
    state = _refill(rule, rows, stream, state, pending)
    slots = state.slots
    best = jnp.min(slots.scores)
    chosen = best_of_all(best, jnp.min(jnp.where(slots.scores == best, slots.members, NO_SEQUENCE)), axis)
    # `moved` is the placed sequence, then the sequence that leaves each window: w positions before, for a window of w.
    back = [state.num_placed - rule.window_sizes[index] for index in range(len(state.deviation.windows))]
    moved = [chosen, *(state.order[jnp.maximum(position, 0)] for position in back)]
    read = [read_row(rows.steps, sequence, rule.column_weights.shape[0]) for sequence in moved]
    # In the first w steps the window is not full, and no sequence leaves it.
    leaves = [position >= 0 for position in back]
    change = _gradient_change(rule, read, [stream.target_excess_products[sequence] for sequence in moved], leaves)
    if slots.table.shape[0]:
        slots = slots._replace(scores=_updated_scores(rule, slots, read, change))
    state = state._replace(slots=slots, last=chosen, num_placed=state.num_placed + 1)
    return state, _add_pending(rule, pending, read, leaves, change)


class GradientChange(NamedTuple):
    """The change of the gradient in a step: `2 λ Σ weight * (c - τ t)` over the moved rows.

    The product of this change and a candidate's `c_s - τ t_s` has several parts. For the columns of each moved row, the
    factor is in `weights`. The other three values are the factors of the candidate's `2 <λ τ, c_s>`, of its norm and of
    its `-t_s`.
    """

    weights: list[Float32[Array, ""]]
    per_target_product: Float32[Array, ""]
    per_norm: Float32[Array, ""]
    per_token: Float32[Array, ""]


def _gradient_change(
    rule: GreedyRule,
    moved: Sequence[SequenceCounts],
    excess_products: list[Float32[Array, ""]],
    leaves: list[Bool[Array, ""]],
) -> GradientChange:
    # The placed sequence is added to the prefix and every window. A leaving sequence is subtracted from its window.
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
    rule: GreedyRule, slots: Slots, moved: Sequence[SequenceCounts], change: GradientChange
) -> Float32[Array, " slot"]:
    """Return the scores after a step's change of the gradient."""
    # We add <change of the gradient, c_s - τ t_s>: first the moved rows' columns, then the parts along the target.
    scores = slots.scores
    for row, weight in zip(moved, change.weights, strict=True):
        scores = _add_columns(rule, slots.table, scores, row, weight)
        scores = _add_groups(rule, slots, scores, row, weight)
    for factor, constant in zip(
        (change.per_target_product, change.per_norm, -change.per_token), slots.constants, strict=True
    ):
        scores += rule.times(factor, constant)
    return scores


def _add_columns(
    rule: GreedyRule,
    table: Float[Array, "column slot"],
    scores: Array,
    row: SequenceCounts,
    weight: Float32[Array, ""],
) -> Float32[Array, " slot"]:
    """Add `2 weight Σ λ x_j table[j]` over the row's columns."""
    num_used = jnp.sum(row.columns < table.shape[0])
    # Unused places use the last column with a factor of zero: a product with zero is cheaper than a condition.
    columns = jnp.minimum(row.columns, table.shape[0] - 1)
    factors = 2.0 * weight * rule.column_weights[columns] * row.values
    return _add_multiples(rule, table, scores, columns, factors, num_used)


def _add_multiples(
    rule: GreedyRule,
    table: Float[Array, "column slot"],
    scores: Array,
    columns: Int32[Array, " place"],
    factors: Float32[Array, " place"],
    num_used: Int32[Array, ""] | int,
) -> Float32[Array, " slot"]:
    """Add multiples of some columns of a table; all factors after the first `num_used` are zero."""
    width = len(columns)

    def pass_over(num_columns: int, num_passes: Array | int) -> Callable[[Array], Array]:
        """A pass adds a few columns; it is unrolled, and XLA fuses it into one loop over the slots."""
        padding = -width % num_columns
        padded_columns, padded_factors = jnp.pad(columns, (0, padding)), jnp.pad(factors, (0, padding))

        def add(index: Int32[Array, ""] | int, total: Array) -> Array:
            for slot in range(num_columns):
                position = index * num_columns + slot
                counts = lax.dynamic_index_in_dim(table, padded_columns[position], 0, keepdims=False)
                total = total + rule.times(padded_factors[position], counts.astype(jnp.float32))
            return total

        def passes(scores: Array) -> Array:
            scores = add(0, scores)
            return scores if width <= num_columns else lax.fori_loop(1, num_passes, add, scores)

        return passes

    # Nearly all rows need only one pass on a processor. The number of further passes depends on the row's own width,
    # not on the largest width.
    return lax.platform_dependent(
        scores,
        cpu=pass_over(_COLUMNS_PER_PASS, -(-num_used // _COLUMNS_PER_PASS)),
        default=pass_over(_COLUMNS_ON_ACCELERATOR, -(-width // _COLUMNS_ON_ACCELERATOR)),
    )


_Carry = TypeVar("_Carry")


def _rounds(
    num_rounds: Int32[Array, ""] | int, most: int, body: Callable[[Int32[Array, ""], _Carry], _Carry], start: _Carry
) -> _Carry:
    """Repeat `body`: `num_rounds` times on processors, `most` times on accelerators, if more rounds change nothing.

    An accelerator waits longer for the condition of a loop than for the rounds that it saves, and for many pools every
    round of such a loop would copy the whole carry.
    """
    return lax.platform_dependent(
        start,
        cpu=lambda carry: lax.fori_loop(0, num_rounds, body, carry),
        default=lambda carry: lax.fori_loop(0, most, body, carry, unroll=min(max(most, 1), 8)),
    )


def _add_groups(
    rule: GreedyRule, slots: Slots, scores: Array, row: SequenceCounts, weight: Float32[Array, ""]
) -> Float32[Array, " slot"]:
    """Change the scores of the candidates in the row's groups that are kept apart."""
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
    return _rounds(jnp.sum(rule.apart_weights[row.apart] > 0), num_members, add, scores)


def _nothing_pending(rule: GreedyRule, deviation: Deviation) -> PendingSums:
    num_sums = 1 + len(deviation.windows)
    gradient = deviation.gradient
    return PendingSums(
        counts=jnp.zeros((num_sums, len(gradient)), jnp.float32),
        amounts=jnp.zeros((num_sums, 2), jnp.float32),
        # <gradient, τ> and the gradient of the norm column change by one number per step, so they are updated at every
        # step.
        per_token=fixed_sum(rule.times(gradient[:-1], rule.targets[:-1])),
        norm_gradient=gradient[-1],
    )


def _add_pending(
    rule: GreedyRule,
    pending: PendingSums,
    moved: Sequence[SequenceCounts],
    leaves: list[Bool[Array, ""]],
    change: GradientChange,
) -> PendingSums:
    """Add the placed sequence to all sums; subtract from each window's sum the sequence that leaves it."""
    counts, chosen = pending.counts, moved[0]
    # The norms are not whole numbers. We subtract the first piece of their mean. Then the norms and their sum are
    # small, and the rounding errors are far below the errors of a sum of the norms themselves.
    coarse_norm = rule.target_pieces[0, -1]
    for index in range(len(counts)):
        counts = counts.at[index, chosen.columns].add(chosen.values, mode="drop")
        counts = counts.at[index, -1].add(chosen.norm - coarse_norm)
    amounts = pending.amounts + jnp.stack([chosen.tokens, jnp.float32(1)])
    for index, (row, leaving) in enumerate(zip(moved[1:], leaves, strict=True), 1):
        sign = jnp.where(leaving, -1.0, 0.0)
        counts = counts.at[index, row.columns].add(sign * row.values, mode="drop")
        counts = counts.at[index, -1].add(sign * (row.norm - coarse_norm))
        amounts = amounts.at[index].add(sign * jnp.stack([row.tokens, jnp.float32(1)]))
    return PendingSums(counts, amounts, pending.per_token + change.per_token, pending.norm_gradient + change.per_norm)


def _with_pending(rule: GreedyRule, deviation: Deviation, pending: PendingSums) -> Deviation:
    """Add the pending sums to the compensated sums."""
    # The tokens, up to 2^24, are split into a multiple of 4,096 and a rest below 4,096. Each part has 12 bits, so that
    # its products with the pieces of a target, of eight bits each, are exact.
    coarse = jnp.floor(pending.tokens / 4096) * 4096
    tokens = jnp.stack([coarse, pending.tokens - coarse])
    # `_add_pending` has already subtracted the first piece of the mean norm.
    is_first = jnp.arange(len(rule.target_pieces)) == 0
    counted = jnp.where(is_first, 0.0, pending.amounts[:, 1, None]) * jnp.arange(2.0)[:, None, None]
    num_pieces = len(rule.target_pieces)

    def add_piece(index: Int32[Array, ""], sums: Compensated) -> Compensated:
        part, piece = index // num_pieces, index % num_pieces
        multipliers = jnp.broadcast_to(tokens[part, :, None], sums.value.shape).at[:, -1].set(counted[part, :, piece])
        return add_compensated(sums, rule.times(-multipliers, rule.target_pieces[piece]))

    # A loop over the pieces, and all sums at once: compiling each addition would take longer than all additions.
    sums = [deviation.total, *deviation.windows]
    together = Compensated(jnp.stack([sum_.value for sum_ in sums]), jnp.stack([sum_.error for sum_ in sums]))
    together = lax.fori_loop(0, 2 * num_pieces, add_piece, add_compensated(together, pending.counts))
    total, *windows = (Compensated(together.value[index], together.error[index]) for index in range(len(sums)))
    return deviation._replace(total=total, windows=tuple(windows))


def _refill(rule: GreedyRule, rows: Rows, stream: Stream, state: PoolState, pending: PendingSums) -> PoolState:
    """Write the last placed sequence into the order, and give its slot to the next sequence of the stream.

    Its deferred counts are written later (`_with_deferred_counts`).
    """
    slots = state.slots
    num_slots = slots.members.shape[0]
    num_columns = rule.column_weights.shape[0]
    # If no sequence was placed since the last refill, all writes go past the end and are dropped.
    placed_one = state.last != NO_SEQUENCE
    own_slots = jnp.arange(num_slots, dtype=jnp.int32)
    # If another device has the slot, the write also goes past the end.
    slot = jnp.min(jnp.where((slots.members == state.last) & placed_one, own_slots, num_slots))
    position = _after(slot, jnp.where(placed_one, state.num_placed - 1, len(state.order)))
    order = state.order.at[position].set(state.last, mode="drop")
    has_next = state.num_taken < stream.size
    deviation = state.deviation
    placed = read_row(rows.steps, _after(slot, jnp.where(placed_one, state.last, 0)), num_columns)
    if len(rows.steps.apart):
        # This follows the write into `order`, from which we read the sequence that was placed w positions before.
        position = state.num_placed - 1
        back = [order[jnp.maximum(position - size, 0)] for size in rule.window_sizes]
        moved = [placed, *(read_row(rows.steps, sequence, num_columns) for sequence in back)]
        # If no sequence was placed since the last refill, we set the tokens to 0, so that the sums stay unchanged.
        moved = [row._replace(tokens=jnp.where(placed_one, row.tokens, 0)) for row in moved]
        deviation = deviation._replace(placed=add_placed(rule, deviation.placed, moved[0], moved[1:], position))
    following = stream.sequences[_after(order[0], jnp.minimum(state.num_taken, stream.size - 1))]
    row = read_row(rows.steps, following, num_columns)
    constants = [stream.target_products[following], row.norm, row.tokens]
    whole = rows.with_deferred(row, following, num_columns)
    score = _score_one(rule, stream, stream.own_costs[following], deviation, pending, whole)
    table = slots.table
    if table.shape[0]:
        # Only the columns of the placed sequence are not zero: clearing these columns is cheaper than the whole slot.
        table = table.at[placed.columns, slot].set(0, mode="drop")
        table = table.at[row.columns, slot].set(row.values.astype(table.dtype), mode="drop")
    slots = slots._replace(
        members=slots.members.at[slot].set(jnp.where(has_next, following, NO_SEQUENCE), mode="drop"),
        scores=slots.scores.at[slot].set(jnp.where(has_next, score, _UNPLACEABLE), mode="drop"),
        table=table,
        constants=slots.constants.at[:, slot].set(jnp.stack(constants), mode="drop"),
        apart=slots.apart.at[:, slot].set(row.apart, mode="drop"),
    )
    num_taken = state.num_taken + (placed_one & has_next)
    last = jnp.int32(NO_SEQUENCE)
    return state._replace(deviation=deviation, slots=slots, order=order, last=last, num_taken=num_taken)


def _after(done: Int32[Array, ""], index: Int32[Array, ""]) -> Int32[Array, ""]:
    """Return the index; what reads it waits for `done`, an index or a sequence.

    If more than eight operations of a step could start at the same time, XLA would give some to another thread of a
    processor, which takes twice the time. XLA does not know that `done` is never negative.
    """
    return index + jnp.minimum(done, 0)


def _score_one(
    rule: GreedyRule,
    stream: Stream,
    own_cost: Float32[Array, ""],
    deviation: Deviation,
    pending: PendingSums,
    row: SequenceCounts,
) -> Float32[Array, ""]:
    """Compute the score of one row; the gradient (with the pending sums) is computed only in the row's columns."""
    # Unused slots of the row read the last column. Their count is zero, so the product does not contain this column.
    columns = jnp.minimum(row.columns, rule.column_weights.shape[0] - 1)
    # Like all other scores, this score gets the changes of the deferred columns later.
    targets, column_weights = rule.targets[columns], stream.step_weights[columns]
    gained = jnp.zeros(columns.shape, jnp.float32)
    for index in range(len(pending.tokens)):
        excess = pending.counts[index, columns] - rule.times(pending.tokens[index], targets)
        gained += rule.times(rule.window_weight, excess) if index else excess
    gradient = deviation.gradient[columns] + rule.times(2.0 * column_weights, gained)
    score = own_cost + fixed_sum(rule.times(gradient, row.values))
    if len(row.apart):
        score += rule.times(fixed_sum(apart_gradient(rule, deviation.placed, row.apart)), row.tokens)
    return score + rule.times(pending.norm_gradient, row.norm) - rule.times(pending.per_token, row.tokens)


def _read_deferred(
    counts: PaddedCounts, sequences: Int32[Array, " place"], num_columns: int
) -> tuple[Int32[Array, "place entry"], Float32[Array, "place entry"]]:
    """Read the deferred counts of some sequences; unused entries have a column past the end and a count of zero."""
    is_sequence = sequences != NO_SEQUENCE
    starts = counts.starts[jnp.where(is_sequence, sequences, 0)]
    ends = jnp.where(is_sequence, counts.starts[jnp.where(is_sequence, sequences, 0) + 1], starts)
    entries = starts[:, None] + counts.slots
    used = entries < ends[:, None]
    columns = jnp.where(used, counts.columns[entries].astype(jnp.int32), num_columns)
    return columns, jnp.where(used, counts.values[entries].astype(jnp.float32), 0)


def _with_deferred_counts(rows: Rows, stream: Stream, slots: Slots) -> Slots:
    """Write the deferred counts of the members that took slots in the steps since the last call."""
    if rows.deferred is None:
        return slots
    # The slots with new members come first. If there are fewer than steps, the counts of other slots are written again.
    is_other = (slots.members != slots.deferred_members).astype(jnp.float32)
    changed = lax.top_k(is_other, min(len(stream.deferred_steps), len(is_other)))[1]
    num_columns = slots.table.shape[0]
    columns, counts = _read_deferred(rows.deferred, slots.members[changed], num_columns)
    if len(stream.deferred_columns):
        places = jnp.arange(len(changed))[:, None]
        counts = jnp.zeros((len(changed), num_columns)).at[places, columns].set(counts, mode="drop")
        counts = counts[:, stream.deferred_columns]

    def write(place: Int32[Array, ""], listed_and_values: tuple[Array, Array]) -> tuple[Array, Array]:
        # The column of an unused entry does not matter, because its count is zero.
        listed, values = listed_and_values
        if len(listed):
            listed = listed.at[:, changed[place]].set(columns[place].astype(listed.dtype))
        return listed, values.at[:, changed[place]].set(counts[place].astype(values.dtype))

    # One write for each slot: a scatter would read an index for every entry.
    listed, values = lax.fori_loop(0, len(changed), write, (slots.columns, slots.values))
    return slots._replace(columns=listed, values=values, deferred_members=slots.members)


def _with_deferred_sums(
    rule: GreedyRule,
    rows: Rows,
    stream: Stream,
    state: PoolState,
    num_steps: Int32[Array, ""],
    counts: Float32[Array, "sum column"],
) -> Float32[Array, "sum column"]:
    """Add the deferred counts of the last steps' sequences to all sums; subtract the counts that left a window."""
    assert rows.deferred is not None
    deferred, before = rows.deferred, stream.deferred_steps

    def read(steps_back: Int32[Array, ""] | int) -> tuple[Array, Array]:
        """Read the counts of the sequences that were placed this number of steps before the last steps."""
        positions = state.num_placed - 1 - before - steps_back
        # The last placed sequence is not yet in `order`.
        sequences = jnp.where(positions == state.num_placed - 1, state.last, state.order[jnp.maximum(positions, 0)])
        sequences = jnp.where((before < num_steps) & (positions >= 0), sequences, NO_SEQUENCE)
        return _read_deferred(deferred, sequences, counts.shape[1])

    columns, values = read(0)
    for index in range(len(counts)):
        counts = counts.at[index, columns].add(values, mode="drop")
    for index, size in enumerate(rule.window_sizes, 1):
        columns, values = read(size)
        counts = counts.at[index, columns].add(-values, mode="drop")
    return counts


def _with_deferred(
    rule: GreedyRule,
    rows: Rows,
    stream: Stream,
    at_refresh: Float32[Array, " column"],
    num_steps: Int32[Array, ""],
    state: PoolState,
    pending: PendingSums,
) -> tuple[PoolState, PendingSums]:
    """Bring the changes of the deferred columns into the sums, into the gradient and into all scores.

    `num_steps` is the number of steps since this was done last.
    """
    slots = _with_deferred_counts(rows, stream, state.slots)
    counts = _with_deferred_sums(rule, rows, stream, state, num_steps, pending.counts)
    state, pending = state._replace(slots=slots), pending._replace(counts=counts)
    gained = jnp.zeros_like(at_refresh)
    for index in range(len(pending.tokens)):
        excess = pending.counts[index] - rule.times(pending.tokens[index], rule.targets)
        gained += rule.times(rule.window_weight, excess) if index else excess
    deferred_weights = rule.column_weights - stream.step_weights  # 0 in the other columns
    gradient = at_refresh + rule.times(2.0 * deferred_weights, gained)
    change = gradient - state.deviation.gradient
    per_token = fixed_sum(rule.times(change, rule.targets))
    scores = _add_products(rule, stream, state.slots, change, state.slots.scores)
    slots = state.slots._replace(scores=scores - rule.times(per_token, state.slots.tokens))
    state = state._replace(slots=slots, deviation=state.deviation._replace(gradient=gradient))
    return state, pending._replace(per_token=pending.per_token + per_token)


def _add_products(
    rule: GreedyRule,
    stream: Stream,
    slots: Slots,
    gradient: Float32[Array, " column"],
    scores: Float32[Array, " slot"],
) -> Float32[Array, " slot"]:
    """Add the products of the gradient and the candidates' counts in the deferred columns."""
    if num := len(stream.deferred_columns):
        factors = gradient[stream.deferred_columns]
        return _add_multiples(rule, slots.values, scores, jnp.arange(num, dtype=jnp.int32), factors, num)

    def add(entry: Int32[Array, ""], total: Float32[Array, " slot"]) -> Float32[Array, " slot"]:
        columns, values = (
            lax.dynamic_index_in_dim(entries, entry, 0, keepdims=False) for entries in (slots.columns, slots.values)
        )
        return total + rule.times(gradient[columns], values.astype(jnp.float32))

    return _rounds(len(slots.columns), len(slots.columns), add, scores)


def _refresh_scores(rule: GreedyRule, rows: Rows, stream: Stream, slots: Slots, deviation: Deviation) -> Slots:
    """Compute all scores from the deviation, and read the values of the slots that updates of scores need."""
    # For an empty slot we compute the score of sequence 0. At the end this score is replaced by infinity.
    filled = slots.members != NO_SEQUENCE
    members = jnp.where(filled, slots.members, 0)
    gradient = deviation.gradient
    counts = rows.steps
    starts, ends = counts.starts[members], counts.starts[members + 1]
    norms, tokens = counts.norms[members], counts.tokens[members]
    per_token = fixed_sum(rule.times(gradient[:-1], rule.targets[:-1]))

    def add(feature: Int32[Array, ""], total: Float32[Array, " slot"]) -> Float32[Array, " slot"]:
        entry = starts + feature
        value = jnp.where(entry < ends, counts.values[entry], 0).astype(jnp.float32)
        return total + rule.times(gradient[counts.columns[entry]], value)

    scores = stream.own_costs[members] + rule.times(gradient[-1], norms) - rule.times(per_token, tokens)
    # The number of rounds is the largest number of non-zeros of a row in the pool. In the corpus it may be larger.
    num_rounds = jnp.max(jnp.where(filled, ends - starts, 0))
    scores = _rounds(num_rounds, len(counts.slots), add, scores)
    if rows.deferred is not None:
        scores = _add_products(rule, stream, slots, gradient, scores)
    apart = counts.apart[:, members]
    if len(apart):
        of_groups = apart_gradient(rule, deviation.placed)
        for groups in apart:
            scores += rule.times(of_groups[groups], tokens)
    return slots._replace(
        scores=jnp.where(filled, scores, _UNPLACEABLE),
        constants=jnp.stack([stream.target_products[members], norms, tokens]),
        apart=apart,
    )


def _with_rows(rows: Rows, stream: Stream, slots: Slots, num_columns: int) -> Slots:
    """Fill the dense table, and the candidates' deferred counts, with the counts of the slots' members."""
    if slots.table.shape[0] == 0:
        return slots
    filled = slots.members != NO_SEQUENCE
    members = jnp.where(filled, slots.members, 0)
    own_slots = jnp.arange(len(members))

    def bounds(counts: PaddedCounts) -> tuple[Int32[Array, " slot"], Int32[Array, " slot"]]:
        starts = counts.starts[members]
        return starts, jnp.where(filled, counts.starts[members + 1], starts)

    def with_counts(table: Array, counts: PaddedCounts, row_of: Int32[Array, " column"]) -> Array:
        starts, ends = bounds(counts)

        def fill(feature: Int32[Array, ""], table: Array) -> Array:
            entry = starts + feature
            row = jnp.where(entry < ends, row_of[counts.columns[entry]], len(table))
            return table.at[row, own_slots].set(counts.values[entry].astype(table.dtype), mode="drop")

        return _rounds(jnp.max(ends - starts), len(counts.slots), fill, jnp.zeros_like(table))

    row_of = jnp.arange(num_columns, dtype=jnp.int32)
    slots = slots._replace(table=with_counts(slots.table, rows.steps, row_of), deferred_members=slots.members)
    deferred = rows.deferred
    if deferred is None:
        return slots
    if num := len(stream.deferred_columns):
        row_of = row_of.at[stream.deferred_columns].set(jnp.arange(num, dtype=jnp.int32))
        return slots._replace(values=with_counts(slots.values, deferred, row_of))
    first, last = bounds(deferred)

    def copy(feature: Int32[Array, ""], copied: tuple[Array, Array]) -> tuple[Array, Array]:
        entry = first + feature
        column, value = (jnp.where(entry < last, part[entry], 0) for part in (deferred.columns, deferred.values))
        return copied[0].at[feature].set(column), copied[1].at[feature].set(value)

    empty = jnp.zeros_like(slots.columns), jnp.zeros_like(slots.values)
    columns, values = _rounds(jnp.max(last - first), len(deferred.slots), copy, empty)
    return slots._replace(columns=columns, values=values)

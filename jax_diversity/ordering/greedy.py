"""Exact greedy: at every step the remaining sequence with the smallest score is placed.

The rule is Bach et al.'s kernel herding with a linear kernel (https://arxiv.org/abs/1203.4523), without replacement.
One step is one pass over the remaining sequences' non-zeros. Rows are put into buckets by their number of non-zeros, so
that there is little padding. A bucket's table is transposed (feature, sequence): every feature is one gather over
contiguous memory, unrolled into one fused loop. Placed sequences get an infinite cost. When half of the sequences of a
large table are placed, the tables are built again.

On a mesh, the tables and rows of sequences are divided among the devices: no device needs to hold the whole corpus.
Each device scores its own candidates, one all-gather finds the best candidate of all devices, and every device updates
its own copy of the deviation. A score does not depend on the device that computes it. Therefore the order is exactly
the same as on one device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float32, Int32, Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.compilation import call
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.deviation import (
    Deviation,
    Families,
    GreedyRule,
    PaddedCounts,
    apart_gradient,
    build_rows,
    build_rule,
    compute_gradient,
    padded,
    place,
    restored_deviation,
    rounded_size,
    rounded_width,
    saved_deviation,
    start_deviation,
)
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.mesh import (
    BY_COLUMN,
    BY_ROW,
    EVERYWHERE,
    NO_SEQUENCE,
    best_row_of_all,
    device_place,
    flat_mesh,
    num_devices,
    on_every_device,
    replicated,
    shared_checkpoint,
    split,
)
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Plan, tie_numbers
from jax_diversity.ordering.running import Checkpoint, drive

_UNPLACEABLE = np.float32(np.inf)
_SMALL, _LARGE = np.float32(1e-30), np.float32(1e38)
_REPACK_ABOVE = 65_536
_MAX_UNROLLED = 64
# The cost of the kernel launches of one table, in gathers; measured on a CPU.
_GATHERS_PER_TABLE = 4_000
# Small tables have so many rows, so that they share compiled programs. More would take time: every step computes the
# scores of all rows.
_FEWEST_ROWS = 64


def greedy(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | None = None,
    checkpoint: Checkpoint | None = None,
    ties: str = "random",
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Place the best of all remaining sequences at every step.

    Time grows with the square of the number of sequences. Only this method and `greedy_block_shuffle` can use an
    objective of the form "norms". See `base.Method` for the other arguments.

    Args:
        seed: decides between equal scores.
        ties: which sequence is placed if several have the best score: a `random` one, or the one with the `lowest`
            index.

    Raises:
        ValueError: unknown `ties`.
    """
    devices = flat_mesh(mesh)
    plan = plan or Plan.build(characteristics, objective)
    numbers = tie_numbers(plan.num_positions, ties, seed)
    if len(plan.remaining) == 0:
        return np.zeros(0, np.int64)
    plan = plan.renumbered(numbers)
    selector = GreedySelector(plan, objective, devices)
    return numbers[drive(selector, plan, advance, shared_checkpoint(checkpoint or Checkpoint(), devices))]


class Bucket(NamedTuple):
    """A transposed table of sequences with similar numbers of non-zeros; the sequence indices ascend."""

    columns: Int32[Array, "feature row"]
    values: Float32[Array, "feature row"]
    norms: Float32[Array, " row"]
    tokens: Float32[Array, " row"]
    sequence_index: Int32[Array, " row"]


class Candidates(NamedTuple):
    """The remaining sequences in buckets, and the bucket and row of each sequence."""

    buckets: tuple[Bucket, ...]
    bucket_of: Int32[Array, " sequence"]
    row_of: Int32[Array, " sequence"]


class GreedyState(NamedTuple):
    """The state of a run: a pytree that can be saved between calls."""

    deviation: Deviation
    costs: tuple[Float32[Array, "part _row"], ...]
    order: Int32[Array, " position"]
    # The last placed sequence. The next step writes it into `order` first, before it reads `order` (for the windows).
    # If a step read `order` before it wrote, XLA would copy the whole array in every step.
    last: Int32[Array, ""]
    num_placed: Int32[Array, ""]


# How the arrays are divided over a mesh.
_ROWS_SPLIT = PaddedCounts(
    starts=BY_ROW, columns=BY_ROW, values=BY_ROW, norms=BY_ROW, tokens=BY_ROW, slots=EVERYWHERE, apart=BY_COLUMN
)
_BUCKET_SPLIT = Bucket(columns=BY_COLUMN, values=BY_COLUMN, norms=BY_ROW, tokens=BY_ROW, sequence_index=BY_ROW)
_STATE_SPLIT = GreedyState(EVERYWHERE, BY_COLUMN, EVERYWHERE, EVERYWHERE, EVERYWHERE)


def _candidates_split(num_buckets: int) -> Candidates:
    return Candidates((_BUCKET_SPLIT,) * num_buckets, BY_ROW, BY_ROW)


class GreedySelector:
    """The exact greedy's tables and state, on one device or divided among the devices of a mesh of one axis."""

    def __init__(self, plan: Plan, objective: Objective, mesh: Mesh | None = None) -> None:
        self._plan, self._objective, self._mesh = plan, objective, mesh
        self._features = plan.features
        self._rule = build_rule(plan.features, objective)
        self._rows = split(mesh, lambda device: build_rows(plan.features, device, num_devices(mesh)), _ROWS_SPLIT)
        # Packed sequences are usually all full. Then they have equal numbers of tokens, and the score has one term
        # less.
        tokens = plan.features.tokens
        self._equal_tokens = bool((tokens == tokens[0]).all())
        self._start(start_deviation(self._rule, plan, plan.consumed), plan.consumed)

    def _start(self, deviation: Deviation, placed: Int64[np.ndarray, " position"]) -> None:
        self._build_tables(placed)
        self.state = GreedyState(
            deviation=deviation,
            costs=self._bucket_costs(placed),
            order=padded(placed.astype(np.int32), rounded_size(self._plan.num_positions)),
            # The first step writes this sequence again, to the same place.
            last=jax.device_put(np.int32(placed[-1] if len(placed) else 0)),
            num_placed=jax.device_put(np.int32(len(placed))),
        )

    def _build_tables(self, placed: Int64[np.ndarray, " position"]) -> None:
        """Build tables of the sequences that are not placed."""
        features, size = self._plan.features.with_groups_as_columns(), num_devices(self._mesh)
        self._in_tables = self._plan.without(placed)
        self._groups = groups = _group_by_width(features, self._in_tables)
        self.candidates: Candidates = split(
            self._mesh, lambda device: _build_candidates(features, groups, device, size), _candidates_split(len(groups))
        )

    def _bucket_costs(self, placed: Int64[np.ndarray, " position"]) -> tuple[Float32[Array, "part _row"], ...]:
        """Return the costs, in the order of the buckets: `a ||v_s||²`, or with norms `||v_s||²` of each family.

        The cost of a placed sequence, and of a row that is padding, is infinite.
        """
        norms = self._objective.form == "norms"
        costs = self._features.family_squares if norms else self._features.own_costs[None].copy()
        costs[:, placed] = _UNPLACEABLE
        size = num_devices(self._mesh)

        def build(device: int) -> tuple[Float32[Array, "part _row"], ...]:
            shares = _shares(self._groups, device, size)
            return tuple(
                jax.device_put(
                    np.pad(costs[:, members], ((0, 0), (0, num_rows - len(members))), constant_values=np.inf)
                )
                for _, members, num_rows in shares
            )

        return split(self._mesh, build, (BY_COLUMN,) * len(self._groups))

    def retarget(self, features: Features) -> None:
        """Change the targets from the next step on."""
        self._features = features
        self._rule = build_rule(features, self._objective)
        self.state = self.state._replace(costs=self._bucket_costs(self.placed()))

    def run(self, num_steps: int) -> None:
        """Place `num_steps` sequences."""
        arguments = (self._rule, self._rows, self.candidates, self.state, np.int32(num_steps))
        arguments = replicated(self._mesh, arguments)
        static = {"equal_tokens": self._equal_tokens, "mesh": self._mesh}
        self.state = call(run, *arguments, num_steps=self._plan.num_positions, **static)
        left = self._plan.num_positions - int(self.state.num_placed)
        # If the tables are rebuilt at each half, 2N²/3 rows are read in all, instead of N². Small tables are not
        # rebuilt: they cost less than a compilation.
        if len(self._in_tables) > _REPACK_ABOVE and left <= len(self._in_tables) // 2:
            self._build_tables(self.placed())
            self.state = self.state._replace(costs=self._bucket_costs(self.placed()))

    def placed(self) -> Int64[np.ndarray, " position"]:
        """Return the sequences placed so far."""
        return np.asarray(self.state.order)[: int(self.state.num_placed)].astype(np.int64)

    def saved(self) -> dict[str, np.ndarray]:
        """Return the deviations and the placed sequences; the rest of the state can be computed from them."""
        return {"placed": self.placed(), **saved_deviation(self.state.deviation)}

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Continue from a saved state."""
        self._start(restored_deviation(self._rule, self._plan, saved), saved["placed"])


def _group_by_width(
    features: Features, remaining: Int64[np.ndarray, " row"]
) -> list[tuple[int, Int64[np.ndarray, " _member"]]]:
    """Split the remaining sequences into tables, so that a step costs least; return each table's width and members.

    A table of r rows of width w costs r w gathers and a few kernel launches. Dynamic programming finds the cheapest
    division of the sorted widths.
    """
    # A sequence without tokens also needs a place in a table, so we use the width 1 for it.
    nonzeros = np.maximum(np.diff(features.row_starts)[remaining], 1)
    widths, counts = np.unique(nonzeros, return_counts=True)
    rows_up_to = np.concatenate([[0], np.cumsum(counts)])
    # cheapest[i] is the cost of the best tables for the i smallest widths; the last of these tables begins at cut[i].
    cheapest, cut = [0.0], [0]
    for last in range(1, len(widths) + 1):
        costs = [
            cheapest[first] + (rows_up_to[last] - rows_up_to[first]) * widths[last - 1] + _GATHERS_PER_TABLE
            for first in range(last)
        ]
        cut.append(int(np.argmin(costs)))
        cheapest.append(costs[cut[-1]])
    groups, last = [], len(widths)
    while last:
        table = (nonzeros >= widths[cut[last]]) & (nonzeros <= widths[last - 1])
        groups.append((int(widths[last - 1]), remaining[table]))
        last = cut[last]
    return groups[::-1]


def _shares(
    groups: list[tuple[int, Int64[np.ndarray, " _member"]]], device: int, size: int
) -> Iterator[tuple[int, Int64[np.ndarray, " _own"], int]]:
    """Yield each table's width, its members on one device (every W-th sequence), and its number of rows per device."""
    for width, members in groups:
        owners = members % size
        # Parts of an array over a mesh have equal shapes: the device with the most members sets the size for all.
        most = int(np.bincount(owners).max())
        yield width, members[owners == device], max(rounded_width(most), _FEWEST_ROWS)


def _build_candidates(
    features: Features, groups: list[tuple[int, Int64[np.ndarray, " _member"]]], device: int, size: int
) -> Candidates:
    """Build the tables of one device (its sequences are as in `build_rows`); their shapes are equal on all devices."""
    num_own = rounded_size(-(-features.num_sequences // size))
    bucket_of = np.zeros(num_own, np.int32)
    row_of = np.zeros(num_own, np.int32)
    buckets = []
    for width, members, num_rows in _shares(groups, device, size):
        bucket_of[members // size] = len(buckets)
        row_of[members // size] = np.arange(len(members))
        buckets.append(_build_bucket(features, members, rounded_width(width), num_rows))
    return Candidates(tuple(buckets), jax.device_put(bucket_of), jax.device_put(row_of))


def _build_bucket(features: Features, members: Int64[np.ndarray, " row"], width: int, num_rows: int) -> Bucket:
    starts, ends = features.row_starts[members], features.row_starts[members + 1]
    slots = starts[None, :] + np.arange(width)[:, None]
    used = slots < ends[None, :]
    # Padding has the column 0 and a count of zero. Any valid column is correct, because its product is zero.
    slots = np.where(used, slots, 0)
    columns = np.zeros((width, num_rows), np.int32)
    values = np.zeros((width, num_rows), np.float32)
    if len(features.columns):
        columns[:, : len(members)] = np.where(used, features.columns[slots], 0)
        values[:, : len(members)] = np.where(used, features.values[slots], 0)
    return Bucket(
        columns=jax.device_put(columns),
        values=jax.device_put(values),
        norms=padded(features.norms[members], num_rows),
        tokens=padded(features.tokens[members].astype(np.float32), num_rows),
        sequence_index=padded(members.astype(np.int32), num_rows, fill=NO_SEQUENCE),
    )


@functools.partial(jax.jit, static_argnames=("equal_tokens", "mesh"))
def run(
    rule: GreedyRule,
    rows: PaddedCounts,
    candidates: Candidates,
    state: GreedyState,
    num_steps: Int32[Array, ""],
    equal_tokens: bool,
    mesh: Mesh | None = None,
) -> GreedyState:
    """Place `num_steps` sequences; with `equal_tokens` the score has one term less."""

    def steps(
        rule: GreedyRule, rows: PaddedCounts, candidates: Candidates, state: GreedyState, num_steps: Any, axis: Any
    ) -> Any:
        # The gradient in the state may belong to earlier targets.
        gradient = compute_gradient(rule, state.deviation.total, state.deviation.windows)
        state = state._replace(deviation=state.deviation._replace(gradient=gradient))
        step = functools.partial(_step, rule, rows, candidates, equal_tokens, axis)
        state = lax.fori_loop(0, num_steps, lambda _, carry: step(carry), state)
        return state._replace(order=_entered(state))

    # The state's memory is not reused (donated): after an interrupt the state before the call must still be complete.
    over_mesh = on_every_device(
        mesh,
        steps,
        in_specs=(EVERYWHERE, _ROWS_SPLIT, _candidates_split(len(candidates.buckets)), _STATE_SPLIT, EVERYWHERE),
        out_specs=_STATE_SPLIT,
    )
    return over_mesh(rule, rows, candidates, state, num_steps)


def _step(
    rule: GreedyRule,
    rows: PaddedCounts,
    candidates: Candidates,
    equal_tokens: bool,
    axis: str | None,
    state: GreedyState,
) -> GreedyState:
    """Place the sequence with the smallest score."""
    state = state._replace(order=_entered(state))
    best, first = _best_candidate(rule, candidates, state, equal_tokens)
    num_columns = len(state.deviation.gradient)
    # The sequence that leaves a window of w positions was placed w positions before. (In the first w steps no sequence
    # leaves the window, and `place` ignores the value that is read here.)
    leaving = [
        state.order[jnp.maximum(state.num_placed - rule.window_sizes[index], 0)]
        for index in range(len(state.deviation.windows))
    ]
    chosen, row, rows_leaving = best_row_of_all(best, first, leaving, rows, num_columns, axis)
    deviation = place(rule, state.deviation, row, rows_leaving, state.num_placed)
    device, size = device_place(axis)
    # A device numbers its own sequences 0, 1, 2 ...; on another device the same number is another sequence.
    index_there, is_own = chosen // size, chosen % size == device
    bucket_index, bucket_row = candidates.bucket_of[index_there], candidates.row_of[index_there]
    # The owner writes an infinite cost into one bucket; all other buckets and devices write past the end (dropped).
    costs = tuple(
        costs.at[:, jnp.where(is_own & (bucket_index == index), bucket_row, costs.shape[1])].set(
            _UNPLACEABLE, mode="drop"
        )
        for index, costs in enumerate(state.costs)
    )
    return GreedyState(deviation, costs, state.order, chosen, state.num_placed + 1)


def _entered(state: GreedyState) -> Int32[Array, " position"]:
    """Write the last placed sequence into the order."""
    # Before the first step no sequence was placed: the write goes past the end and is dropped.
    position = jnp.where(state.num_placed > 0, state.num_placed - 1, len(state.order))
    return state.order.at[position].set(state.last, mode="drop")


def _best_candidate(
    rule: GreedyRule, candidates: Candidates, state: GreedyState, equal_tokens: bool
) -> tuple[Float32[Array, ""], Int32[Array, ""]]:
    """Return the smallest score and the lowest sequence index with this score."""
    gradient = state.deviation.gradient
    tables = list(zip(candidates.buckets, state.costs, strict=True))
    if rule.families is None:
        # <gradient, v_s> = <gradient, c_s> - t_s <gradient, τ>. If all t_s are equal, the second term does not matter.
        per_token = None if equal_tokens else jnp.sum(rule.times(gradient[:-1], rule.targets[:-1]))
        # The barrier makes XLA compute these arrays once, not again for every row.
        gradients = jnp.concatenate([gradient, apart_gradient(rule, state.deviation.placed)])
        gradients, norm = lax.optimization_barrier((gradients, gradient[-1]))
        scores = [_scores(rule, bucket, costs[0], gradients, norm, per_token) for bucket, costs in tables]
    else:
        sums = _family_sums(rule, rule.families, gradient)
        scores = [_norm_scores(rule, rule.families, bucket, costs, gradient, *sums) for bucket, costs in tables]
    # We do not use `argmin`: two plain reductions are vectorised, and the second gives the lowest index in all tables.
    best = functools.reduce(jnp.minimum, [jnp.min(score) for score in scores])
    firsts = [
        jnp.min(jnp.where(score == best, bucket.sequence_index, NO_SEQUENCE))
        for bucket, score in zip(candidates.buckets, scores, strict=True)
    ]
    return best, functools.reduce(jnp.minimum, firsts)


def _scores(
    rule: GreedyRule,
    bucket: Bucket,
    costs: Float32[Array, " row"],
    gradient: Float32[Array, " column_or_group"],
    norm_gradient: Float32[Array, ""],
    per_token: Array | None,
) -> Float32[Array, " row"]:
    score = costs + rule.times(norm_gradient, bucket.norms)
    if per_token is not None:
        score -= rule.times(per_token, bucket.tokens)

    def add(feature: int | Int32[Array, ""], total: Array) -> Array:
        gathered = gradient.at[bucket.columns[feature]].get(mode="promise_in_bounds")
        return total + rule.times(gathered, bucket.values[feature])

    # Without the barrier, minimum and index search would each compute all scores.
    return lax.optimization_barrier(_over_features(bucket, add, score))


def _family_sums(
    rule: GreedyRule, families: Families, gradient: Float32[Array, " column"]
) -> tuple[Float32[Array, " family"], Float32[Array, " family"]]:
    """Return `2 <D, τ>` and `||D||²` of every family, computed from the gradient `2 D`."""
    column = jnp.arange(len(gradient), dtype=jnp.int32)
    inside = (families.bounds[:-1, None] <= column) & (column < families.bounds[1:, None])
    products, squares = rule.times(gradient, rule.targets), rule.times(gradient, gradient)
    return jnp.sum(jnp.where(inside, products, 0), axis=1), 0.25 * jnp.sum(jnp.where(inside, squares, 0), axis=1)


def _norm_scores(
    rule: GreedyRule,
    families: Families,
    bucket: Bucket,
    costs: Float32[Array, "family row"],
    gradient: Float32[Array, " column"],
    per_token: Float32[Array, " family"],
    squares: Float32[Array, " family"],
) -> Float32[Array, " row"]:
    """Return `Σ λ (||D + v_s|| - ||D||)` over the families, plus λ |sum| for the sum of the norm column."""
    starts, ends = families.bounds[:-1], families.bounds[1:]

    def add(feature: int | Int32[Array, ""], totals: list[Array]) -> list[Array]:
        columns = bucket.columns[feature]
        product = rule.times(gradient.at[columns].get(mode="promise_in_bounds"), bucket.values[feature])
        return [
            total + jnp.where((start <= columns) & (columns < end), product, 0)
            for total, start, end in zip(totals, starts, ends, strict=True)
        ]

    bucket_costs = [costs[index] - rule.times(per_token[index], bucket.tokens) for index in range(len(starts))]
    score = rule.times(families.norm_weight, jnp.abs(bucket.norms + (0.5 * gradient[-1] - rule.targets[-1])))
    for index, growth in enumerate(_over_features(bucket, add, bucket_costs)):
        # We compute ||D + v|| - ||D|| as the difference of the squares, divided by the sum of the norms. This avoids
        # the difference of two large numbers. Rounding must not make a square negative. The divisor is finite and above
        # zero: an infinite cost stays infinite, and 0/0 does not occur for a family without deviation.
        growth = jnp.maximum(growth, -squares[index])
        sum_of_norms = jnp.sqrt(squares[index]) + jnp.sqrt(jnp.minimum(squares[index] + growth, _LARGE))
        score += rule.times(families.weights[index], growth / jnp.maximum(sum_of_norms, _SMALL))
    return lax.optimization_barrier(score)


def _over_features(bucket: Bucket, add: Callable[[Any, Any], Any], total: Any) -> Any:
    """Call `add(feature, total)` for all features of a table."""
    width = bucket.columns.shape[0]
    # Unrolled gathers of a row are fused into one loop. Only the first features are unrolled, because the program would
    # be too long for very wide rows.
    for feature in range(min(width, _MAX_UNROLLED)):
        total = add(feature, total)
    return lax.fori_loop(_MAX_UNROLLED, width, add, total) if width > _MAX_UNROLLED else total

"""Exact greedy: at every step the sequence that the objective likes best, of all that are left.

One step costs one pass over the remaining sequences' non-zeros. What makes the pass fast:

- Rows are bucketed by their number of non-zeros, so that little is padded, and a bucket's table is transposed
  (feature, sequence): every feature is one gather over contiguous memory, unrolled into one fused loop.
- The arg-min is a minimum followed by the lowest index that equals it, several times faster than `argmin` on CPU;
  it is also what breaks ties to the lowest sequence index, over all buckets.
- Placed sequences are masked by an infinite cost. When half of a large table is placed, the rest is packed anew.
- The loop runs compiled for some thousand steps at a time, so that progress shows and interrupts are heard.
- Sizes are rounded up, so that corpora of near sizes share a compilation.

The rule is Bach et al.'s kernel herding with a linear kernel (https://arxiv.org/abs/1203.4523), without
replacement.
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
from jaxtyping import Array, Float32, Int32, Int64

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.deviation import (
    Deviation,
    Rows,
    Rule,
    build_rows,
    build_rule,
    padded,
    place,
    restored_deviation,
    rounded_size,
    saved_deviation,
    start_deviation,
    steering,
)
from jax_diversity.ordering.mesh import NOBODY, agree_on_rows, flat_mesh, place_on, shared_checkpoint
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.running import Checkpoint, drive
from jax_diversity.ordering.tables import (
    UNPLACEABLE,
    Bucket,
    Candidates,
    WidthGroup,
    bucketed,
    build_candidates,
    group_by_width,
)
from jax_diversity.schema import Characteristics

_REPACK_ABOVE = 65_536
_MAX_UNROLLED = 64
# What a table costs besides its gathers (kernel launches), in gathers; measured on a CPU.
_GATHERS_PER_TABLE = 4_000


class GreedyState(NamedTuple):
    """A run's state; a pytree that can be saved between calls.

    The last sequence that was placed is entered in `order` at the beginning of the next step: an array that is read
    before it is written in one step would be copied in every step.
    """

    deviation: Deviation
    costs: tuple[Float32[Array, " _row"], ...]
    order: Int32[Array, " position"]
    last: Int32[Array, ""]
    num_placed: Int32[Array, ""]


def greedy(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | None = None,
    checkpoint: Checkpoint | None = None,
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Place the best of all remaining sequences at every step; ties go to the lowest index.

    Time grows with the square of the number of sequences. The result does not depend on `seed`.

    Args:
        characteristics: token counts.
        seed: not used; every method takes one.
        objective: the weights of the rule.
        advance: told the number of sequences placed since it was last called.
        plan: targets and what was consumed; None aims at the corpus's shares from the beginning.
        checkpoint: where the run's state is kept.
        mesh: devices to share the work; the result is the same as one device's. All processes of a mesh over
            several hosts call with the same arguments, and each gets the whole result.

    Raises:
        ValueError: a mesh that is none, or has no device of this process.
    """
    devices = None if mesh is None else flat_mesh(mesh)
    plan = plan or Plan.build(characteristics, objective)
    if len(plan.remaining) == 0:
        return np.zeros(0, np.int64)
    checkpoint = checkpoint or Checkpoint()
    if devices is None:
        return drive(GreedySelector(plan, objective), plan, advance, checkpoint)
    from jax_diversity.ordering.sharded import ShardedGreedySelector

    selector = ShardedGreedySelector(plan, objective, devices)
    return drive(selector, plan, advance, shared_checkpoint(checkpoint, devices))


class GreedySelector:
    """The exact greedy's tables and state, and when to pack them anew."""

    def __init__(self, plan: Plan, objective: Objective) -> None:
        self._plan = plan
        self._objective = objective
        self._rows = self._build_rows()
        tokens = plan.features.tokens
        self._equal_tokens = bool((tokens == tokens[0]).all())
        self._start(start_deviation(build_rule(plan.features, objective), plan, plan.consumed), plan.consumed)

    def _start(self, deviation: Deviation, placed: Int64[np.ndarray, " position"]) -> None:
        self._pack(placed)
        costs = self._bucketed(self._plan.features.own_costs)
        self.state = init(deviation, costs, placed, self._plan.num_positions)

    def _pack(self, placed: Int64[np.ndarray, " position"]) -> None:
        left = np.ones(self._plan.num_positions, bool)
        left[placed] = False
        self._remaining = np.flatnonzero(left)
        self.candidates = self._build_candidates(
            group_by_width(self._plan.features, self._remaining, _GATHERS_PER_TABLE)
        )

    def _build_rows(self) -> Rows:
        return build_rows(self._plan.features)

    def _build_candidates(self, groups: list[WidthGroup]) -> Candidates:
        return build_candidates(self._plan.features, groups)

    def _bucketed(self, costs: Float32[np.ndarray, " sequence"]) -> tuple[Float32[Array, " _row"], ...]:
        return bucketed(self.candidates, costs)

    def _run(self, num_steps: int) -> GreedyState:
        steps = np.int32(num_steps)
        return run(self._rule, self._rows, self.candidates, self.state, steps, self._equal_tokens)

    def retarget(self, features: Features) -> None:
        """Aim at other targets from the next step on."""
        self._features = features
        self._rule = build_rule(features, self._objective)
        gone = self.placed()
        costs = features.own_costs.copy()
        costs[gone] = UNPLACEABLE
        self.state = self.state._replace(costs=self._bucketed(costs))

    def run(self, num_steps: int) -> None:
        """Place so many sequences."""
        self.state = self._run(num_steps)
        left = self._plan.num_positions - int(self.state.num_placed)
        if len(self._remaining) > _REPACK_ABOVE and left <= len(self._remaining) // 2:
            self._pack(self.placed())
            self.state = self.state._replace(costs=self._bucketed(self._features.own_costs))

    def placed(self) -> Int64[np.ndarray, " position"]:
        """The sequences placed so far."""
        return np.asarray(self.state.order)[: int(self.state.num_placed)].astype(np.int64)

    def saved(self) -> dict[str, np.ndarray]:
        """Deviations and what is placed; all else is made from them."""
        return {"placed": self.placed(), **saved_deviation(self.state.deviation)}

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        rule = build_rule(self._plan.features, self._objective)
        self._start(restored_deviation(rule, saved), saved["placed"])


def init(
    deviation: Deviation,
    costs: tuple[Float32[Array, " _row"], ...],
    placed: Int64[np.ndarray, " position"],
    num_positions: int,
) -> GreedyState:
    """The state after the sequences `placed`."""
    return GreedyState(
        deviation=deviation,
        costs=costs,
        order=padded(placed.astype(np.int32), rounded_size(num_positions)),
        last=jnp.int32(placed[-1] if len(placed) else 0),
        num_placed=jnp.int32(len(placed)),
    )


@functools.partial(jax.jit, static_argnames="equal_tokens")
def run(
    rule: Rule,
    rows: Rows,
    candidates: Candidates,
    state: GreedyState,
    num_steps: Int32[Array, ""],
    equal_tokens: bool,
) -> GreedyState:
    """Place `num_steps` sequences. `equal_tokens` says that all t_s agree, which saves one term of the score."""
    return run_steps(rule, rows, candidates, state, num_steps, equal_tokens)


def run_steps(
    rule: Rule,
    rows: Rows,
    candidates: Candidates,
    state: GreedyState,
    num_steps: Int32[Array, ""],
    equal_tokens: bool,
    axis: str | None = None,
) -> GreedyState:
    """The body of `run`, on one device or on every device of a mesh's axis, each holding its share of the rows."""
    # Nothing of the state is donated: an interrupt between this call and the next must find the former state whole.
    state = state._replace(
        deviation=state.deviation._replace(steering=steering(rule, state.deviation.total, state.deviation.windows))
    )

    def one_step(_: Array, carry: GreedyState) -> GreedyState:
        return step(rule, rows, candidates, carry, equal_tokens, axis)

    state = lax.fori_loop(0, num_steps, one_step, state)
    return state._replace(order=_entered(state))


def step(
    rule: Rule,
    rows: Rows,
    candidates: Candidates,
    state: GreedyState,
    equal_tokens: bool,
    axis: str | None = None,
) -> GreedyState:
    """Place the sequence of the smallest score."""
    state = state._replace(order=_entered(state))
    best, first = best_candidate(rule, candidates, state, equal_tokens)
    num_columns = len(state.deviation.steering)
    leaving = leaving_sequences(rule, state)
    chosen, row, rows_leaving = agree_on_rows(best, first, leaving, rows, num_columns, axis)
    deviation = place(rule, state.deviation, row, rows_leaving, state.num_placed)
    device, num_devices = place_on(axis)
    own, is_own = chosen // num_devices, chosen % num_devices == device
    bucket_index, bucket_row = candidates.bucket_of[own], candidates.row_of[own]
    costs = tuple(
        costs.at[jnp.where(is_own & (bucket_index == index), bucket_row, len(costs))].set(UNPLACEABLE, mode="drop")
        for index, costs in enumerate(state.costs)
    )
    return GreedyState(deviation, costs, state.order, chosen, state.num_placed + 1)


def _entered(state: GreedyState) -> Int32[Array, " position"]:
    """The order with the last sequence in its place."""
    position = jnp.where(state.num_placed > 0, state.num_placed - 1, len(state.order))
    return state.order.at[position].set(state.last, mode="drop")


def leaving_sequences(rule: Rule, state: GreedyState) -> list[Int32[Array, ""]]:
    """Per window of w positions the sequence that leaves it at this step."""
    return [
        state.order[jnp.maximum(state.num_placed - rule.window_sizes[index], 0)]
        for index in range(len(state.deviation.windows))
    ]


def best_candidate(
    rule: Rule, candidates: Candidates, state: GreedyState, equal_tokens: bool
) -> tuple[Float32[Array, ""], Int32[Array, ""]]:
    """The smallest score and the lowest sequence index that has it."""
    steered = state.deviation.steering
    per_token = None if equal_tokens else jnp.sum(rule.times(steered[:-1], rule.targets[:-1]))
    scores = [
        _scores(rule, bucket, costs, steered, per_token)
        for bucket, costs in zip(candidates.buckets, state.costs, strict=True)
    ]
    best = functools.reduce(jnp.minimum, [jnp.min(score) for score in scores])
    firsts = [
        jnp.min(jnp.where(score == best, bucket.sequence_index, NOBODY))
        for bucket, score in zip(candidates.buckets, scores, strict=True)
    ]
    return best, functools.reduce(jnp.minimum, firsts)


def _scores(
    rule: Rule,
    bucket: Bucket,
    costs: Float32[Array, " row"],
    steering: Float32[Array, " column"],
    per_token: Array | None,
) -> Float32[Array, " row"]:
    score = costs + rule.times(steering[-1], bucket.norms)
    if per_token is not None:
        score -= rule.times(per_token, bucket.tokens)

    def add(feature: int | Int32[Array, ""], total: Array) -> Array:
        return total + rule.times(_gathered(steering, bucket.columns[feature]), bucket.values[feature])

    width = bucket.columns.shape[0]
    for feature in range(min(width, _MAX_UNROLLED)):
        score = add(feature, score)
    if width > _MAX_UNROLLED:
        score = lax.fori_loop(_MAX_UNROLLED, width, add, score)
    # Without the barrier the reductions would compute every score twice.
    return lax.optimization_barrier(score)


def _gathered(steering: Float32[Array, " column"], columns: Int32[Array, " row"]) -> Float32[Array, " row"]:
    return steering.at[columns].get(mode="promise_in_bounds")

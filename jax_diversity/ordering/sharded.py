"""The exact greedy and the refilled pool over a mesh of devices: the same steps, each device with its candidates.

Greedy: sequences are dealt to the devices, tables and rows alike, so that a corpus need fit on no single one. Pool:
its slots are dealt; the corpus's rows are on every device. In a step each device scores its own candidates, one
all-gather finds the best of all, the lowest index of several, and every device moves its own deviation alike.

What a score is does not depend on where it is computed, so that the order is one device's, bit for bit.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float32, Int32, Int64

from jax_diversity.ordering import greedy, pool, pool_steps
from jax_diversity.ordering.deviation import Rows, Rule, padded, rounded_size
from jax_diversity.ordering.mesh import AXIS, BY_COLUMN, BY_ROW, EVERYWHERE, assembled, part_of, replicated
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.tables import Bucket, Candidates, WidthGroup, bucketed, build_candidates

_ROWS = Rows(starts=BY_ROW, columns=BY_ROW, values=BY_ROW, norms=BY_ROW, tokens=BY_ROW, slots=EVERYWHERE)
_BUCKET = Bucket(columns=BY_COLUMN, values=BY_COLUMN, norms=BY_ROW, tokens=BY_ROW, sequence_index=BY_ROW)
_SLOTS = pool_steps.Slots(members=BY_ROW, scores=BY_ROW, table=BY_COLUMN, norms=BY_ROW, tokens=BY_ROW, pulls=BY_ROW)


class ShardedGreedySelector(greedy.GreedySelector):
    """The exact greedy's tables and state on a mesh."""

    def __init__(self, plan: Plan, objective: Objective, mesh: Mesh) -> None:
        self._mesh = mesh
        super().__init__(plan, objective)

    def _build_rows(self) -> Rows:
        return deal_rows(self._mesh, self._plan.features)

    def _build_candidates(self, groups: list[WidthGroup]) -> Candidates:
        def build(device: int) -> Candidates:
            return build_candidates(self._plan.features, groups, device, self._mesh.size)

        return assembled(self._mesh, build, _candidate_specs(len(groups)))

    def _bucketed(self, costs: Float32[np.ndarray, " sequence"]) -> tuple[Float32[Array, " _row"], ...]:
        def build(device: int) -> tuple[Float32[Array, " _row"], ...]:
            return bucketed(part_of(self.candidates, self._mesh, device), costs)

        return assembled(self._mesh, build, (BY_ROW,) * len(self.candidates.buckets))

    def _run(self, num_steps: int) -> greedy.GreedyState:
        arguments = (self._rule, self._rows, self.candidates, self.state, np.int32(num_steps))
        return run_greedy(*replicated(self._mesh, arguments), self._equal_tokens, self._mesh)


@functools.partial(jax.jit, static_argnames=("equal_tokens", "mesh"))
def run_greedy(
    rule: Rule,
    rows: Rows,
    candidates: Candidates,
    state: greedy.GreedyState,
    num_steps: Int32[Array, ""],
    equal_tokens: bool,
    mesh: Mesh,
) -> greedy.GreedyState:
    """`greedy.run`, sequences dealt to the mesh's devices."""
    state_specs = greedy.GreedyState(EVERYWHERE, BY_ROW, EVERYWHERE, EVERYWHERE, EVERYWHERE)
    # That the outputs are replicated cannot be proved, since each device finds the winner by itself.
    over_mesh = jax.shard_map(
        functools.partial(greedy.run_steps, equal_tokens=equal_tokens, axis=AXIS),
        mesh=mesh,
        in_specs=(EVERYWHERE, _ROWS, _candidate_specs(len(candidates.buckets)), state_specs, EVERYWHERE),
        out_specs=state_specs,
        check_vma=False,
    )
    return over_mesh(rule, rows, candidates, state, num_steps)


def _candidate_specs(num_buckets: int) -> Candidates:
    return Candidates((_BUCKET,) * num_buckets, BY_ROW, BY_ROW)


def deal_rows(mesh: Mesh, features: Features) -> Rows:
    """Every device's own sequences as CSR, all of one size."""
    counts = np.diff(features.row_starts)
    longest = rounded_size(int(counts.max(initial=1)))
    own_counts = [counts[device :: mesh.size] for device in range(mesh.size)]
    num_rows = rounded_size(max(map(len, own_counts)))
    size = rounded_size(max(int(own.sum()) for own in own_counts) + longest)

    def build(device: int) -> Rows:
        own = own_counts[device]
        ends = np.cumsum(own)
        firsts = features.row_starts[device :: mesh.size][: len(own)]
        entries = np.repeat(firsts - ends + own, own) + np.arange(own.sum())
        return Rows(
            starts=padded(np.concatenate([[0], ends]).astype(np.int32), num_rows + 1, int(own.sum())),
            columns=padded(features.columns[entries], size),
            values=padded(features.values[entries], size),
            norms=padded(features.norms[device :: mesh.size], num_rows),
            tokens=padded(features.tokens[device :: mesh.size].astype(np.float32), num_rows),
            slots=jax.device_put(np.arange(longest, dtype=np.int32)),
        )

    return assembled(mesh, build, _ROWS)


class ShardedPoolSelector(pool.PoolSelector):
    """A pool's tables and state on a mesh."""

    def __init__(
        self,
        plan: Plan,
        objective: Objective,
        stream: Int64[np.ndarray, " remaining"],
        num_slots: int,
        mesh: Mesh,
    ) -> None:
        self._mesh = mesh
        super().__init__(plan, objective, stream, num_slots)
        self.rows = replicated(mesh, self.rows)

    def _empty_slots(self, num_columns: int, members: Int64[np.ndarray, " member"]) -> pool_steps.Slots:
        # The slots past the pool's own stay empty for ever: nobody leaves them, so that nobody follows.
        own_slots = -(-self._num_slots // self._mesh.size)

        def build(device: int) -> pool_steps.Slots:
            return pool.empty_slots(num_columns, own_slots, members[device * own_slots : (device + 1) * own_slots])

        return assembled(self._mesh, build, _SLOTS)

    def retarget(self, features: Features) -> None:
        """Aim at other targets from the next step on."""
        super().retarget(features)
        self.rule, self.stream = replicated(self._mesh, (self.rule, self.stream))

    def run(self, num_steps: int) -> None:
        """Place so many sequences."""
        arguments = (self.rule, self.rows, self.stream, self.state, np.int32(num_steps))
        self.state = run_pool(*replicated(self._mesh, arguments), self._mesh)


@functools.partial(jax.jit, static_argnames="mesh")
def run_pool(
    rule: Rule,
    rows: Rows,
    stream: pool_steps.Stream,
    state: pool_steps.PoolState,
    num_steps: Int32[Array, ""],
    mesh: Mesh,
) -> pool_steps.PoolState:
    """`pool.run`, slots dealt to the mesh's devices."""
    state_specs = pool_steps.PoolState(EVERYWHERE, _SLOTS, EVERYWHERE, EVERYWHERE, EVERYWHERE, EVERYWHERE)
    over_mesh = jax.shard_map(
        functools.partial(pool_steps.run_steps, axis=AXIS),
        mesh=mesh,
        in_specs=(EVERYWHERE, EVERYWHERE, EVERYWHERE, state_specs, EVERYWHERE),
        out_specs=state_specs,
        check_vma=False,
    )
    return over_mesh(rule, rows, stream, state, num_steps)

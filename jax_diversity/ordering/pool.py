"""A refilled pool over a stream: at every step the best of P candidates is placed and the stream's next follows it.

This is what a streaming user can run: memory and time of a step depend on the pool, not on the corpus. The compiled
steps are in `pool_steps`. A pool as large as the corpus is the exact greedy.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.deviation import (
    Deviation,
    build_rows,
    build_rule,
    padded,
    restored_deviation,
    rounded_size,
    saved_deviation,
    start_deviation,
)
from jax_diversity.ordering.mesh import NOBODY, flat_mesh, shared_checkpoint
from jax_diversity.ordering.objective import Features, Objective
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.pool_steps import PoolState, Slots, Stream, run
from jax_diversity.ordering.running import Checkpoint, drive
from jax_diversity.schema import Characteristics

STEPS_PER_REFRESH = 1024
# A table of more entries than this (2 GiB) is not kept; scores are then computed anew at every step.
_LARGEST_TABLE = 2**29


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
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Place the best of a pool at every step, over a stream of the sequences; equal scores go to the lowest index.

    Time grows with the number of sequences. The larger the corpus, the more the pool fills up with what no window
    wants: `balance` feeds the same pool with a better stream.

    Args:
        characteristics: token counts.
        seed: of the stream's shuffle (NumPy's PCG64).
        objective: the weights of the rule.
        advance: told the number of sequences placed since it was last called.
        plan: targets and what was consumed; None aims at the corpus's shares from the beginning.
        checkpoint: where the run's state is kept.
        pool_size: P, candidates at every step; as many as there are sequences is the exact greedy.
        shuffle: whether the stream is shuffled, or is the corpus's own order.
        mesh: devices to share the pool; the result is the same as one device's. All processes of a mesh over
            several hosts call with the same arguments, and each gets the whole result.

    Raises:
        ValueError: a pool size below 1; a mesh that is none, or has no device of this process.
    """
    plan = plan or Plan.build(characteristics, objective)
    stream = plan.remaining
    if shuffle:
        stream = np.random.default_rng(seed).permutation(stream)
    return select_from_pool(plan, objective, stream, pool_size, advance, checkpoint, mesh)


def select_from_pool(
    plan: Plan,
    objective: Objective,
    stream: Int64[np.ndarray, " remaining"],
    pool_size: int,
    advance: Advance = ignore,
    checkpoint: Checkpoint | None = None,
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " remaining"]:
    """Feed a pool, on one device or shared by those of a mesh, with a stream of the plan's remaining sequences.

    Raises:
        ValueError: a pool size that is no whole number >= 1; a mesh that is none, or has no device of this process.
    """
    size = checked_pool_size(pool_size)
    devices = None if mesh is None else flat_mesh(mesh)
    if len(stream) == 0:
        return np.zeros(0, np.int64)
    num_slots = min(size, rounded_size(len(stream)))
    checkpoint = checkpoint or Checkpoint()
    if devices is None:
        return drive(PoolSelector(plan, objective, stream, num_slots), plan, advance, checkpoint)
    from jax_diversity.ordering.sharded import ShardedPoolSelector

    selector = ShardedPoolSelector(plan, objective, stream, num_slots, devices)
    return drive(selector, plan, advance, shared_checkpoint(checkpoint, devices))


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
        self._has_table = len(plan.features.targets) * num_slots <= _LARGEST_TABLE
        self.rows = build_rows(plan.features)
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
        num_columns = len(self._plan.features.targets)
        slots = self._empty_slots(num_columns if self._has_table else 0, members)
        self.state = init(slots, deviation, placed, num_taken, self._plan.num_positions)

    @property
    def _steps_per_refresh(self) -> int:
        """So many that sums of tokens stay exact in float32; one where no table is kept."""
        longest = int(self._plan.features.tokens.max(initial=1))
        return max(min(STEPS_PER_REFRESH, 2**24 // max(longest, 1)), 1) if self._has_table else 1

    def _empty_slots(self, num_columns: int, members: Int64[np.ndarray, " member"]) -> Slots:
        return empty_slots(num_columns, self._num_slots, members)

    def retarget(self, features: Features) -> None:
        """Aim at other targets from the next step on."""
        self.rule = build_rule(features, self._objective)
        self.stream = build_stream(features, self._stream, self._steps_per_refresh)

    def run(self, num_steps: int) -> None:
        """Place so many sequences."""
        self.state = run(self.rule, self.rows, self.stream, self.state, np.int32(num_steps))

    def placed(self) -> Int64[np.ndarray, " position"]:
        """The sequences placed so far."""
        return np.asarray(self.state.order)[: int(self.state.num_placed)].astype(np.int64)

    def saved(self) -> dict[str, np.ndarray]:
        """Deviations, what is placed, and what was taken from the stream; the pool holds the difference.

        A run goes on from it with any number of devices: a member's slot decides nothing.
        """
        state = self.state
        num_taken = np.asarray(state.num_taken)
        return {"placed": self.placed(), "num_taken": num_taken, **saved_deviation(state.deviation)}

    def restore(self, saved: Mapping[str, np.ndarray]) -> None:
        """Go on from a saved state."""
        placed, num_taken = saved["placed"], int(saved["num_taken"])
        left = np.ones(self._plan.num_positions, bool)
        left[placed] = False
        taken = self._stream[:num_taken]
        self._start(restored_deviation(self.rule, saved), placed, taken[left[taken]], num_taken)


def build_stream(features: Features, stream: Int64[np.ndarray, " remaining"], steps_per_refresh: int) -> Stream:
    """The stream on the device, with the scores' constant parts for these targets."""
    size = rounded_size(features.num_sequences)
    target_pull = 2.0 * float(features.column_weights[:-1] @ features.targets[:-1] ** 2)
    excess_pulls = features.pulls - target_pull * features.tokens
    return Stream(
        sequences=padded(stream.astype(np.int32), size),
        size=jnp.int32(len(stream)),
        own_costs=padded(features.own_costs, size),
        pulls=padded(features.pulls.astype(np.float32), size),
        excess_pulls=padded(excess_pulls.astype(np.float32), size),
        refresh_every=jnp.int32(steps_per_refresh),
    )


def empty_slots(num_columns: int, num_slots: int, members: Int64[np.ndarray, " member"]) -> Slots:
    """Slots with these members, the others empty; all else comes with `run`."""
    zeros = jax.device_put(np.zeros(num_slots, np.float32))
    return Slots(
        members=padded(members.astype(np.int32), num_slots, fill=NOBODY),
        scores=zeros,
        table=jnp.zeros((num_columns, num_slots), jnp.float32),
        norms=zeros,
        tokens=zeros,
        pulls=zeros,
    )


def init(
    slots: Slots,
    deviation: Deviation,
    placed: Int64[np.ndarray, " position"],
    num_taken: int,
    num_positions: int,
) -> PoolState:
    """The state after the sequences `placed`, when `num_taken` were taken from the stream."""
    return PoolState(
        deviation=deviation,
        slots=slots,
        order=padded(placed.astype(np.int32), rounded_size(num_positions)),
        last=jnp.int32(NOBODY),
        num_placed=jnp.int32(len(placed)),
        num_taken=jnp.int32(num_taken),
    )

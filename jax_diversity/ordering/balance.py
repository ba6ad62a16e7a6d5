"""The default method, which needs linear time: a pool takes sequences from a balanced stream.

First `halving` makes a balanced stream of all sequences. Then `pool` places at every step the best sequence of a pool,
and takes the next sequence of the stream into the pool. If there are many sequences, `parts` cuts the stream, and pools
order its parts at the same time. If the counts have several chunks, `chunks` divides the sequences first, and every
part of the order is made in this way.

A pool alone is not enough: if the stream is a plain shuffle, the pool fills up with sequences of groups that are not
needed. If the target changes during the run, a stream with a constant mixture would lack sequences of the groups that
the target needs. In this case each group's sequences are first moved to the positions where the target needs them.
"""

from __future__ import annotations

import functools

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int64

from jax_diversity.counts import TokenCounts
from jax_diversity.foundation.checks import as_weight, as_whole_number
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.chunks import ChunkedPlan, planned
from jax_diversity.ordering.demand import follow_targets
from jax_diversity.ordering.halving import balanced_stream
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.parts import parts_of, select_in_parts
from jax_diversity.ordering.plan import Plan, PlannedPart, tie_numbers
from jax_diversity.ordering.pool import PoolSettings, check_pool_size, select_from_pool
from jax_diversity.ordering.running import Checkpoint


def balance(
    counts: TokenCounts,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | ChunkedPlan | None = None,
    checkpoint: Checkpoint | None = None,
    pool_size: int | None = None,
    aging: float = 2.0,
    ties: str = "random",
    part_size: int = 32_768,
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Balance in linear time: sorted halving, then the best of a refilled pool at every step.

    See `base.Method` for the other arguments.

    Args:
        seed: decides the order among similar sequences; other seeds give other orderings that are equally balanced.
        pool_size: P, the number of candidates at every step. None means 4,096, and 2,304 if a family has many groups
            (on average 32 counts above zero per sequence), as the family `tokens`. A step takes time in proportion to
            P times the number of groups, and with many groups a larger pool makes windows only slightly better.
        aging: for sequences with different numbers of tokens: the amount that is added to a candidate's score if it
            comes one pool (P places) later in the stream. The unit is E||c||² · Var(t) / E[t²]: c are the counts of a
            sequence, and t is its number of tokens. Without aging, the longest sequences, which no window
            needs, would all be at the end. If all sequences have the same number of tokens, aging has no effect.
        ties: which candidate is placed if several have the best score: a `random` one, or the one with the `lowest`
            index.
        part_size: about how many sequences are ordered one after another. Parts of this size are ordered at the same
            time, on all cores or devices; the number of parts is 1, 2, 4, 8 ...

    Raises:
        ValueError: a pool size or part size that is not a whole number >= 1; a negative aging; unknown `ties`.
    """
    check_pool_size(pool_size)  # before the stream, which takes a long time
    as_whole_number("part_size", part_size, 1)
    as_weight("aging", aging)
    tie_numbers(0, ties, 0)
    settings = PoolSettings(objective, pool_size, aging, advance, checkpoint, mesh)

    def order_part(part: PlannedPart) -> Int64[np.ndarray, " _remaining"]:
        plan = part.plan
        numbers = tie_numbers(plan.num_positions, ties, [seed, part.number])
        num_parts = parts_of(len(plan.remaining), part_size)
        stream = balanced_stream(
            plan.features, plan.remaining, [seed, part.number], num_parts, part.deviation, part.capacity
        )
        if part.follows:
            stream = follow_targets(plan, stream)
        select = select_from_pool if num_parts == 1 else functools.partial(select_in_parts, num_parts=num_parts)
        return select(plan, stream, numbers, settings)

    if plan is not None:
        return plan.in_parts(order_part, advance)
    with planned(counts, objective, seed=seed, mesh=mesh) as chunked_plan:
        return chunked_plan.in_parts(order_part, advance)

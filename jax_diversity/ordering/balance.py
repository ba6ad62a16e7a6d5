"""The linear-time default: a balanced stream through a refilled pool.

Exact greedy's time grows with the square of the number of sequences. Here sorted halving (`halving.py`) makes a
stream whose every stretch holds the corpus's mixture to within a few hundred sequences, and a refilled pool
(`pool.py`) removes what is left: at every step it places the best of some thousand candidates by the same rule
as the exact greedy. A pool alone is not enough: over a plain shuffle its leftovers pile up as the stream grows.

Where the target moves, a stream of one mixture would starve the pool: each group's sequences are moved to where the
target asks for them first.
"""

from __future__ import annotations

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int64

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.groups import heaviest_groups
from jax_diversity.ordering.halving import balanced_stream
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.pool import checked_pool_size, select_from_pool
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.schema import Characteristics

# What is left after some consumption is never quite the corpus's mixture: a smaller L1 distance asks for nothing.
_OTHER_MIXTURE = 0.05
# Between them the way to where a target asks for a group is taken as straight.
_NUM_KNOTS = 257


def balance(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | None = None,
    checkpoint: Checkpoint | None = None,
    pool_size: int = 4096,
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Balance in linear time: sorted halving, then the best of a refilled pool at every step.

    Args:
        characteristics: token counts.
        seed: of the order among likes; other seeds give other orderings, as balanced.
        objective: the weights of the rule.
        advance: told the number of sequences placed since it was last called.
        plan: targets and what was consumed; None aims at the corpus's shares from the beginning.
        checkpoint: where the run's state is kept.
        pool_size: P, candidates at every step.
        mesh: devices to share the pool; the result is the same as one device's.

    Raises:
        ValueError: a pool size below 1.
    """
    checked_pool_size(pool_size)
    plan = plan or Plan.build(characteristics, objective)
    stream = follow_targets(plan, balanced_stream(plan.features, plan.remaining, seed))
    return select_from_pool(plan, objective, stream, pool_size, advance, checkpoint, mesh)


def follow_targets(plan: Plan, stream: Int64[np.ndarray, " remaining"]) -> Int64[np.ndarray, " remaining"]:
    """Move a balanced stream's sequences to the positions where a plan's targets ask for their groups.

    By heaviest group of the first family that is not to be spread evenly: the sequence up to whose middle
    the group has u tokens goes where the target's integral reaches u, and what was consumed too much or too
    little is made up for first. What no position asks for comes last.
    """
    if not len(stream):
        return stream
    family = next((columns for columns in plan.features.family_columns.values() if _asks(plan, columns, stream)), None)
    if family is None:
        return stream
    features = plan.features
    first = len(plan.consumed)
    inside = [start for start in plan.starts if first < start < plan.num_positions]
    knots = np.unique([*np.linspace(first, plan.num_positions, _NUM_KNOTS), *inside])
    phase = np.searchsorted(plan.starts, knots[:-1], side="right") - 1
    per_position = features.tokens[stream].mean() * plan.targets[phase][:, family]
    asked = np.cumsum(np.diff(knots)[:, None] * per_position, axis=0)
    # A last group for sequences without tokens, of which nobody asks for any.
    asked = np.pad(asked, ((1, 0), (0, 1))) - np.append(plan.excess(plan.consumed)[family], 0.0)
    asked = np.maximum.accumulate(np.maximum(asked, 0.0), axis=0)
    groups = heaviest_groups(features.counts(family))[stream]
    positions = np.empty(len(stream))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        tokens = features.tokens[stream[members]]
        middles = np.cumsum(tokens) - tokens / 2
        reached = asked[:, group]
        late = np.maximum(middles - reached[-1], 0) / max(reached[-1], 1.0)
        positions[members] = np.interp(middles, reached, knots) + late * plan.num_positions
    return stream[np.argsort(positions, kind="stable")]


def _asks(plan: Plan, columns: slice, stream: Int64[np.ndarray, " remaining"]) -> bool:
    """Whether the targets of a family are another mixture than that of the stream."""
    features = plan.features
    first = max(int(np.searchsorted(plan.starts, len(plan.consumed), side="right")) - 1, 0)
    stop = int(np.searchsorted(plan.starts, plan.num_positions))
    tokens = np.asarray(features.counts(columns)[stream].sum(axis=0)).ravel()
    mixture = tokens / max(tokens.sum(), 1)
    return float(np.abs(plan.targets[first:stop, columns] - mixture).sum(axis=1).max()) > _OTHER_MIXTURE

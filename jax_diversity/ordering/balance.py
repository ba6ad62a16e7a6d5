"""The linear-time default: a balanced stream (`halving`) through a refilled pool (`pool`).

A pool alone is not enough: with a plain shuffle it fills up with sequences of groups that are not needed. If the target
changes over the run, a stream of one mixture would lack sequences of the groups that the target needs: first, each
group's sequences are moved to the positions where the target needs them.
"""

from __future__ import annotations

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int64

from jax_diversity.foundation.checks import as_weight, as_whole_number
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.halving import balanced_stream
from jax_diversity.ordering.objective import Objective, heaviest_groups
from jax_diversity.ordering.plan import Plan, tie_numbers
from jax_diversity.ordering.pool import select_from_pool
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.schema import Characteristics

# The sequences left after a part of training never have exactly the corpus's mixture. A target whose L1 distance from
# their mixture is at most this is met by an evenly spread stream.
_OTHER_MIXTURE = 0.05
# Positions between which the tokens that a target asks for are interpolated linearly.
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
    aging: float = 2.0,
    ties: str = "random",
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Balance in linear time: sorted halving, then the best of a refilled pool at every step.

    Other arguments are those of `base.Method`.

    Args:
        seed: decides the order among similar sequences; other seeds give other orderings of the same balance.
        pool_size: P, candidates at every step.
        aging: for sequences of unequal tokens, the cost of placing a candidate one pool later than another: in mean
            squared counts of a sequence, times the variance of the tokens divided by their mean square. Without it
            the longest sequences, which no window needs, would all be at the end. It changes nothing if all
            sequences have the same number of tokens.
        ties: which of several candidates with the best score is placed: a `random` one, or the `lowest` index.

    Raises:
        ValueError: a pool size that is not a whole number >= 1; a negative aging; unknown `ties`.
    """
    as_whole_number("pool_size", pool_size, 1)  # before the stream, which takes a long time
    aging = as_weight("aging", aging)
    plan = plan or Plan.build(characteristics, objective)
    numbers = tie_numbers(plan.num_positions, ties, seed)
    stream = follow_targets(plan, balanced_stream(plan.features, plan.remaining, seed))
    return select_from_pool(plan, objective, stream, numbers, pool_size, aging, advance, checkpoint, mesh)


def follow_targets(plan: Plan, stream: Int64[np.ndarray, " remaining"]) -> Int64[np.ndarray, " remaining"]:
    """Move a balanced stream's sequences to the positions where a plan's targets ask for their heaviest groups.

    The family is the first whose targets differ from the stream's mixture. A sequence goes where the integral of its
    group's target reaches the group's tokens up to the middle of the sequence; the integral starts at the deficit that
    the consumed sequences left. Sequences that no position needs are placed last.
    """
    if not len(stream):
        return stream
    families = plan.features.family_columns.values()
    family = next((columns for columns in families if _differs(plan, columns, stream)), None)
    if family is None:
        return stream
    features = plan.features
    first = len(plan.consumed)
    inside = [start for start in plan.starts if first < start < plan.num_positions]
    knots = np.unique([*np.linspace(first, plan.num_positions, _NUM_KNOTS), *inside])
    phase = np.searchsorted(plan.starts, knots[:-1], side="right") - 1
    # Targets are shares; a position asks for its share of a mean sequence's tokens.
    per_position = features.tokens[stream].mean() * plan.targets[phase][:, family]
    asked = np.cumsum(np.diff(knots)[:, None] * per_position, axis=0)
    # One more column is the group of the sequences without tokens, which no target asks for.
    asked = np.pad(asked, ((1, 0), (0, 1))) - np.append(plan.excess(plan.consumed)[family], 0.0)
    # A group that had too many tokens is not asked for until its target has caught up; `np.interp` needs an ascending
    # curve.
    asked = np.maximum.accumulate(np.maximum(asked, 0.0), axis=0)
    groups = heaviest_groups(features.counts(family))[stream]
    positions = np.empty(len(stream))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        tokens = features.tokens[stream[members]]
        # The middle of a sequence, so that the first sequence of a group is not placed before the target needs it.
        middles = np.cumsum(tokens) - tokens / 2
        reached = asked[:, group]
        # Tokens beyond the target's total are placed after the last position, in the same proportion for all groups.
        late = np.maximum(middles - reached[-1], 0) / max(reached[-1], 1.0)
        positions[members] = np.interp(middles, reached, knots) + late * plan.num_positions
    return stream[np.argsort(positions, kind="stable")]


def _differs(plan: Plan, columns: slice, stream: Int64[np.ndarray, " remaining"]) -> bool:
    """Whether the targets of a family differ from the mixture of the stream."""
    features = plan.features
    first = max(int(np.searchsorted(plan.starts, len(plan.consumed), side="right")) - 1, 0)
    stop = int(np.searchsorted(plan.starts, plan.num_positions))
    tokens = np.asarray(features.counts(columns)[stream].sum(axis=0)).ravel()
    mixture = tokens / max(tokens.sum(), 1)
    return float(np.abs(plan.targets[first:stop, columns] - mixture).sum(axis=1).max()) > _OTHER_MIXTURE

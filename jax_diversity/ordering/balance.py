"""The default method, which needs linear time: a pool takes sequences from a balanced stream.

First `halving` makes a balanced stream of all sequences. Then `pool` places at every step the best sequence of a pool,
and takes the next sequence of the stream into the pool. If there are many sequences, `parts` cuts the stream, and pools
order its parts at the same time.

A pool alone is not enough: if the stream is a plain shuffle, the pool fills up with sequences of groups that are not
needed. If the target changes during the run, a stream with a constant mixture would lack sequences of the groups that
the target needs. In this case each group's sequences are first moved to the positions where the target needs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float64, Int64

from jax_diversity.foundation.checks import as_weight, as_whole_number
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.halving import balanced_stream
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.parts import parts_of, select_in_parts
from jax_diversity.ordering.plan import Plan, tie_numbers
from jax_diversity.ordering.pool import check_pool_size, select_from_pool
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.counts import Characteristics

# The sequences that remain after a part of training never have exactly the corpus's mixture. If the L1 distance between
# a target and the mixture of the remaining sequences is at most this value, an evenly spread stream meets the target.
_OTHER_MIXTURE = 0.05
# Number of positions at which the tokens that a target needs are computed. Between them they are interpolated linearly.
_NUM_KNOTS = 257


def balance(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | None = None,
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
    check_options(pool_size, aging, ties, part_size)  # before the stream, which takes a long time
    plan = plan or Plan.build(characteristics, objective)
    numbers = tie_numbers(plan.num_positions, ties, seed)
    num_parts = parts_of(len(plan.remaining), part_size)
    stream = follow_targets(plan, balanced_stream(plan.features, plan.remaining, seed, num_parts))
    return order_stream(
        plan, objective, stream, numbers, num_parts, pool_size, aging, advance=advance, checkpoint=checkpoint, mesh=mesh
    )


def check_options(pool_size: int | None, aging: float, ties: str, part_size: int) -> None:
    """Raise an error if an option of `balance` is invalid."""
    check_pool_size(pool_size)
    as_whole_number("part_size", part_size, 1)
    as_weight("aging", aging)
    tie_numbers(0, ties, 0)


def order_stream(
    plan: Plan,
    objective: Objective,
    stream: Int64[np.ndarray, " remaining"],
    numbers: Int64[np.ndarray, " sequence"],
    num_parts: int,
    pool_size: int | None,
    aging: float,
    *,
    advance: Advance = ignore,
    checkpoint: Checkpoint | None = None,
    mesh: Mesh | None = None,
) -> Int64[np.ndarray, " remaining"]:
    """Order a balanced stream by one pool, or in parts by several pools; see `pool.select_from_pool`."""
    if num_parts == 1:
        return select_from_pool(plan, objective, stream, numbers, pool_size, aging, advance, checkpoint, mesh)
    return select_in_parts(plan, objective, stream, numbers, num_parts, pool_size, aging, advance, checkpoint, mesh)


def follow_targets(plan: Plan, stream: Int64[np.ndarray, " remaining"]) -> Int64[np.ndarray, " remaining"]:
    """Move a balanced stream's sequences to the positions where a plan's targets need their heaviest groups.

    We use the first family whose targets differ from the stream's mixture. For each group, we add up its target tokens
    over the positions; this sum starts at the deficit that the consumed sequences left. We also add up the tokens of
    the group's sequences, up to the middle of each sequence. A sequence is moved to the position where both sums are
    equal. Sequences that no position needs are placed last.
    """
    if not len(stream):
        return stream
    features, first = plan.features, len(plan.consumed)
    span = (first, plan.num_positions)
    totals = features.totals(stream)
    family = differing_family(plan.starts, plan.targets, features.family_columns, span, totals)
    if family is None:
        return stream
    deviation = plan.carried + plan.excess(plan.consumed)
    asked = Asked.of(plan.starts, plan.targets[:, family], span, features.tokens[stream].mean(), deviation[family])
    groups = features.heaviest(family)[0][stream]
    positions = np.empty(len(stream))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        tokens = features.tokens[stream[members]]
        # We use the middle of a sequence, so that a group's first sequence is not placed before the target needs it.
        positions[members] = asked.positions(int(group), np.cumsum(tokens) - tokens / 2)
    return stream[np.argsort(positions, kind="stable")]


class Asked(NamedTuple):
    """The tokens that the targets of a family ask of each group.

    Attributes:
        knots: some positions, ascending; the last is the end of the run.
        tokens: the tokens that positions before each knot ask of each group. The additional last column is the group of
            the sequences without tokens, which no target needs.
    """

    knots: Float64[np.ndarray, " knot"]
    tokens: Float64[np.ndarray, "knot group"]

    @classmethod
    def of(
        cls,
        starts: Sequence[int],
        shares: Float64[np.ndarray, "phase family_group"],
        span: tuple[int, int],
        mean_tokens: float | np.floating,
        deviation: Float64[np.ndarray, " family_group"],
    ) -> Asked:
        """Add up the target tokens.

        Args:
            starts: the first positions of the phases.
            shares: the family's targets in every phase.
            span: the first position, and the end.
            mean_tokens: the mean number of tokens of the sequences to place.
            deviation: the family's tokens above its target, before the first position.
        """
        first, stop = span
        inside = [start for start in starts if first < start < stop]
        knots = np.unique([*np.linspace(first, stop, _NUM_KNOTS), *inside])
        phase = np.searchsorted(starts, knots[:-1], side="right") - 1
        # Targets are shares. A position needs its target share of the tokens of a mean sequence.
        per_position = mean_tokens * shares[phase]
        asked = np.cumsum(np.diff(knots)[:, None] * per_position, axis=0)
        asked = np.pad(asked, ((1, 0), (0, 1))) - np.append(deviation, 0.0)
        # If a group already has too many tokens, no position needs it until its target has caught up. `np.interp` needs
        # an ascending curve.
        return cls(knots, np.maximum.accumulate(np.maximum(asked, 0.0), axis=0))

    def positions(self, group: int, middles: Float64[np.ndarray, " member"]) -> Float64[np.ndarray, " member"]:
        """Return the positions that need the sequences of a group; `middles` are the group's tokens up to each."""
        reached = self.tokens[:, group]
        # Tokens beyond the target's total get places after the last position, in the same proportion for all groups.
        late = np.maximum(middles - reached[-1], 0) / max(reached[-1], 1.0)
        return np.interp(middles, reached, self.knots) + late * self.knots[-1]

    def tokens_before(self, position: float) -> Float64[np.ndarray, " group"]:
        """Return how many tokens of each group have positions up to the given one: the inverse of `positions`."""
        end, last = self.knots[-1], self.tokens[-1]
        if position >= end:
            return last + (position - end) / end * np.maximum(last, 1.0)
        right = int(np.searchsorted(self.knots, position, side="right"))
        left = max(right - 1, 0)
        share = (position - self.knots[left]) / (self.knots[right] - self.knots[left]) if right else 0.0
        return self.tokens[left] + share * (self.tokens[right] - self.tokens[left])


def differing_family(
    starts: Sequence[int],
    targets: Float64[np.ndarray, "phase column"],
    family_columns: Mapping[str, slice],
    span: tuple[int, int],
    totals: Float64[np.ndarray, " column"],
) -> slice | None:
    """Return the columns of the first family whose targets differ from the mixture of the sequences to place.

    Args:
        starts: the first positions of the phases.
        targets: the targets of the phases.
        family_columns: the columns of every family.
        span: the first position, and the end.
        totals: the tokens of the sequences to place.
    """
    first = max(int(np.searchsorted(starts, span[0], side="right")) - 1, 0)
    phases = slice(first, int(np.searchsorted(starts, span[1])))
    for columns in family_columns.values():
        mixture = totals[columns] / max(totals[columns].sum(), 1)
        if float(np.abs(targets[phases, columns] - mixture).sum(axis=1).max()) > _OTHER_MIXTURE:
            return columns
    return None

"""The tokens that targets demand of each group along the positions, and streams that follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.ordering.features import Features
from jax_diversity.ordering.plan import Plan

# The sequences that remain after a part of training never have exactly the corpus's mixture. If the L1 distance between
# a target and the mixture of the remaining sequences is at most this value, an evenly spread stream meets the target.
_OTHER_MIXTURE = 0.05
# Number of positions at which the tokens that a target needs are computed. Between them they are interpolated linearly.
_NUM_KNOTS = 257
# A pool corrects by itself a stream whose tokens are off by at most this number of mean sequences.
_CORRECTED_BY_POOL = 128
_MOST_ROUNDS = 16
# A sequence that no position needs is placed at most at this multiple of the end, see `TargetDemand.positions`.
_LATER = 2.0 ** np.arange(1, 61)


def follow_targets(plan: Plan, stream: Int64[np.ndarray, " remaining"]) -> Int64[np.ndarray, " remaining"]:
    """Move a balanced stream's sequences to the positions where a plan's targets need their heaviest groups.

    We use the first family whose targets differ from the stream's mixture. For each group, we add up its target tokens
    over the positions; this sum starts at the deficit that the consumed sequences left. We also add up the tokens of
    the group's sequences, up to the middle of each sequence. A sequence is moved to the position where both sums are
    equal. Sequences that no position needs are placed last. Sequences also hold tokens of other groups than their
    heaviest one, so the sums are corrected first, see `TargetDemand.corrected`.
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
    demand = TargetDemand.of(
        plan.starts, plan.targets[:, family], span, features.tokens[stream].mean(), deviation[family]
    )
    demand = demand.corrected(HeaviestGroups.of(features, family, stream))
    groups = features.heaviest(family)[0][stream]
    positions = np.empty(len(stream))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        tokens = features.tokens[stream[members]]
        # We use the middle of a sequence, so that a group's first sequence is not placed before the target needs it.
        positions[members] = demand.positions(int(group), np.cumsum(tokens) - tokens / 2)
    return stream[np.argsort(positions, kind="stable")]


class HeaviestGroups(NamedTuple):
    """Sums over the sequences with the same heaviest group of a family.

    Attributes:
        tokens: (heaviest group, group) the tokens of each group in these sequences. The additional last row has the
            sequences without tokens.
        numbers: the numbers of these sequences.
    """

    tokens: csr_array
    numbers: Int64[np.ndarray, " heaviest"]

    @classmethod
    def of(cls, features: Features, family: slice, rows: Int64[np.ndarray, " row"]) -> HeaviestGroups:
        """Sum up over some distinct sequences; `family` are the family's columns."""
        counts = features.counts(family)
        groups, num_groups = features.heaviest(family)[0][rows], counts.shape[1] + 1
        is_of = csr_array((np.ones(len(rows), np.int64), (groups, rows)), shape=(num_groups, features.num_sequences))
        return cls(csr_array(is_of @ counts, dtype=np.int64), np.bincount(groups, minlength=num_groups))

    def plus(self, other: HeaviestGroups) -> HeaviestGroups:
        """Add the sums over other sequences."""
        return HeaviestGroups(csr_array(self.tokens + other.tokens), self.numbers + other.numbers)

    @property
    def sizes(self) -> Int64[np.ndarray, " heaviest"]:
        """All tokens of the sequences."""
        return np.asarray(self.tokens.sum(axis=1)).ravel()


class TargetDemand(NamedTuple):
    """The tokens that the targets of a family demand of each group.

    Attributes:
        knots: some positions, ascending; the last is the end of the run.
        tokens: the tokens that positions before each knot demand of each group. The additional last column is the group
            of the sequences without tokens, which no target needs.
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
    ) -> TargetDemand:
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
        tokens = np.cumsum(np.diff(knots)[:, None] * per_position, axis=0)
        tokens = np.pad(tokens, ((1, 0), (0, 1))) - np.append(deviation, 0.0)
        # If a group already has too many tokens, no position needs it until its target has caught up.
        return cls(knots, _ascending(tokens))

    def corrected(self, sequences: HeaviestGroups) -> TargetDemand:
        """Correct what is demanded of the sequences by their heaviest groups, so that all tokens follow the targets.

        A sequence with much of one group also holds other groups. If half of a group's tokens are in sequences with
        another heaviest group, its tokens move only half as far as its targets: in a million sequences the sums are off
        by thousands of sequences. What is missing before every knot is added to the demand until the largest error no
        longer falls.
        """
        tokens, mean_tokens = self.tokens[:, :-1], sequences.sizes.sum() / max(int(sequences.numbers.sum()), 1)
        demand, best, least = self, self, np.inf
        for _ in range(_MOST_ROUNDS):
            missing = tokens - demand._placed(sequences)
            error = float(np.linalg.norm(missing, axis=1).max()) / max(mean_tokens, 1.0)
            if error >= least:
                break
            best, least = demand, error
            if error <= _CORRECTED_BY_POOL:
                break
            raised = demand.tokens + np.pad(missing, ((0, 0), (0, 1)))
            demand = demand._replace(tokens=_ascending(raised))
        return best

    def _placed(self, sequences: HeaviestGroups) -> Float64[np.ndarray, "knot family_group"]:
        """Return the tokens of each group in the sequences that are placed before every knot."""
        wanted_at = np.append(self.knots, self.knots[-1] * _LATER)
        before = np.array([self.tokens_before(position) for position in wanted_at])
        shares = np.minimum(before / np.maximum(sequences.sizes, 1), 1.0)
        # A sequence is placed at the rank of the position that needs it.
        ranks, rank = shares @ sequences.numbers, self.knots - self.knots[0]
        right = np.clip(np.searchsorted(ranks, rank), 1, len(ranks) - 1)
        step = np.maximum(ranks[right] - ranks[right - 1], 1e-9)
        of_right = np.clip((rank - ranks[right - 1]) / step, 0.0, 1.0)[:, None]
        placed = shares[right - 1] + of_right * (shares[right] - shares[right - 1])
        return np.asarray(sequences.tokens.T @ placed.T).T

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


def _ascending(tokens: Float64[np.ndarray, "knot group"]) -> Float64[np.ndarray, "knot group"]:
    """Make the curves of all groups ascend, as `np.interp` needs."""
    return np.maximum.accumulate(np.maximum(tokens, 0.0), axis=0)


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

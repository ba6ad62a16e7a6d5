"""Targets that an order cannot follow: for want of tokens, or because other families pull it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import TokenCounts
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.plan import Plan

if TYPE_CHECKING:
    from jax_diversity.ordering.chunks import ChunkedPlan

# If a group's tokens last for this share of the run, we report no shortage: an ordering cannot split sequences.
_LASTS = 0.99


# An order is divided into so many parts, in which shares are compared with their targets.
_NUM_PARTS = 10
# A share of a part may differ from its target by this much, and by half of the deviation of a random part.
_TOLERANCE = 0.03


class UnmetTargets(UserWarning):
    """An order does not follow its targets: a group has too few tokens, or other families have too much weight."""


class Shortage(NamedTuple):
    """A group with fewer tokens than the targets need; it is used up after a share of the run."""

    family: str
    group: int
    needed: float
    has: int
    used_up_after: float

    def sentence(self, name: str, num_others: int) -> str:
        """Return the sentence for users. `name` is the group, `num_others` is how many groups are used up later."""
        tokens, place = f"the tokens of {self.family} {name!r}", f"{self.used_up_after:.0%} of the order"
        more = f"; they also use up {counted(num_others, 'more group')} before its end" if num_others else ""
        if not self.has:
            fault = f"{tokens} from {place} on, but the corpus has none"
        else:
            fault = f"{self.needed / self.has:.2f} times {tokens}, which are used up after {place}"
        return (
            f"The targets ask for {fault}{more}. The remaining sequences follow. To use all tokens evenly, give "
            "targets whose mean over the order is the corpus's shares."
        )


def shortages(plan: Plan | ChunkedPlan, targets: Targets) -> list[Shortage]:
    """Return the groups that are used up before the end of the run, in the order in which they are used up.

    The run is assumed to follow the targets exactly. It reads all sequences once and begins after the consumed
    sequences.

    Args:
        plan: the plan of the run.
        targets: its targets.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> shortages(Plan.build(chars, Objective()), Targets((0,), {"topic": np.array([[1.0, 0.0]])}))
        [Shortage(family='topic', group=0, needed=8.0, has=4, used_up_after=0.5)]
    """
    totals, num_tokens = plan.remaining_totals(tuple(targets.shares))
    first, num_positions = plan.span
    per_position = float(num_tokens) / max(num_positions - first, 1)
    starts = np.clip(targets.starts, first, num_positions)
    lengths = np.diff(starts, append=num_positions)
    lacking = []
    for family, shares in targets.shares.items():
        has = totals[family]
        needed = np.cumsum(lengths[:, None] * shares * per_position, axis=0)
        for group in np.flatnonzero(needed[-1] > has):
            # Within a phase the targets need tokens at a constant rate.
            phase = int(np.argmax(needed[:, group] > has[group]))
            late = (needed[phase, group] - has[group]) / (shares[phase, group] * per_position)
            place = (starts[phase] + lengths[phase] - late) / num_positions
            if place < _LASTS:
                lacking.append(Shortage(family, int(group), float(needed[-1, group]), int(has[group]), float(place)))
    return sorted(lacking, key=lambda shortage: shortage.used_up_after)


class Unreached(NamedTuple):
    """A group whose share in a part of an order is far from its target."""

    family: str
    group: int
    target: float
    share: float
    part: float

    def sentence(self, name: str) -> str:
        """Return the sentence for users. `name` is the group."""
        return (
            f"The order does not reach its targets: from {self.part:.0%} of the order on, {self.family} {name!r} has "
            f"{self.share:.3f} of the tokens, where the targets ask for {self.target:.3f}. Families without targets "
            "keep the corpus's shares, and some of their groups go together with this one: give these families targets "
            "too, or less weight. `measure` with the targets shows all shares."
        )


def unreached(counts: TokenCounts, targets: Targets, indices: Int64[np.ndarray, " position"]) -> Unreached | None:
    """Return the group whose share differs most from its target in a tenth of an order; None if all are near.

    The last tenth is not compared, because it has the sequences that remain.

    Example:
        >>> chars = Characteristics.from_counts({"topic": np.repeat(np.eye(2, dtype=int), 500, axis=0)})
        >>> unreached(chars, Targets((0,), {"topic": np.array([[0.5, 0.5]])}), np.arange(1000)).share
        1.0
    """
    from jax_diversity.ordering.measures.profile import group_timeline  # orders without targets do not need it

    furthest, worst = 0.0, None
    num_positions = len(indices)
    for family, shares in targets.shares.items():
        timeline = group_timeline(counts, family, indices, num_groups=shares.shape[1], num_bins=_NUM_PARTS)
        num_parts = min(timeline.share.shape[1], _NUM_PARTS - 1)
        edges = np.minimum(np.arange(num_parts + 1) * timeline.bin_size, num_positions)
        # The number of positions of every phase in every part.
        ends = np.append(targets.starts[1:], max(num_positions, targets.starts[-1]))
        overlap = np.minimum(edges[1:, None], ends) - np.maximum(edges[:-1, None], targets.starts)
        wanted = np.maximum(overlap, 0) @ shares[:, timeline.groups] / np.diff(edges)[:, None]
        allowed = _TOLERANCE + 0.5 * np.sqrt(wanted * (1 - wanted) / np.diff(edges)[:, None])
        excess = np.abs(timeline.share.T[:num_parts] - wanted) - allowed
        if not excess.size:
            continue
        part, group = np.unravel_index(np.argmax(excess), excess.shape)
        if excess[part, group] > furthest:
            furthest = excess[part, group]
            values = float(wanted[part, group]), float(timeline.share[group, part]), float(edges[part] / num_positions)
            worst = Unreached(family, int(timeline.groups[group]), *values)
    return worst

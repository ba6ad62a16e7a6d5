"""Targets that an order cannot follow: for want of tokens, or because other families pull it back."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csc_array

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
# A share of a part may differ from its target by this much, by the share of the longest sequence (sequences are not
# split), and by half of the deviation of a random part.
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
            f"The order does not reach its targets: in a tenth of it, from {self.part:.0%} on, {self.family} {name!r} "
            f"has {self.share:.3f} of the tokens, where the targets ask for {self.target:.3f}. Other families may hold "
            "it back, because those without targets keep the corpus's shares: give them targets too, or less weight. "
            "Or too few sequences of the corpus have this share. `measure` with the targets shows all shares."
        )


def unreached(counts: TokenCounts, targets: Targets, indices: Int64[np.ndarray, " position"]) -> Unreached | None:
    """Return the group whose share differs most from its target in a tenth of an order; None if all are near.

    The last tenth is not compared, because it has the sequences that remain.

    Example:
        >>> chars = Characteristics.from_counts({"topic": np.repeat(np.eye(2, dtype=int), 500, axis=0)})
        >>> unreached(chars, Targets((0,), {"topic": np.array([[0.5, 0.5]])}), np.arange(1000)).share
        1.0
    """
    num_positions = len(indices)
    size = max(-(-num_positions // _NUM_PARTS), 1)
    edges = np.append(np.arange(0, num_positions, size), num_positions)
    part_of = np.empty(num_positions, np.int64)
    part_of[indices] = np.arange(num_positions) // size
    tables = {family: np.zeros((len(edges) - 1, shares.shape[1])) for family, shares in targets.shares.items()}
    longest, num_tokens = 0, 0
    for (first, stop), chunk in zip(itertools.pairwise(counts.chunk_bounds), counts.chunks(), strict=True):
        longest = max(longest, int(chunk.tokens.max(initial=0)))
        num_tokens += int(chunk.tokens.sum())
        # A matrix with a one at the part of every sequence: the product adds up the sequences of a part.
        entries = np.ones(stop - first), part_of[first:stop], np.arange(stop - first + 1)
        ones: Any = csc_array(entries, shape=(len(edges) - 1, stop - first))
        for family, table in tables.items():
            table += (ones @ chunk.counts[family]).toarray()
    furthest, worst = 0.0, None
    lengths = np.diff(edges[:-1])[:, None]  # positions of every part but the last one
    # The number of positions of every phase in every part.
    ends = np.append(targets.starts[1:], max(num_positions, targets.starts[-1]))
    overlap = np.minimum(edges[1:-1, None], ends) - np.maximum(edges[:-2, None], targets.starts)
    for family, table in tables.items():
        wanted = np.maximum(overlap, 0) @ targets.shares[family] / lengths
        tokens = table[:-1].sum(axis=1, keepdims=True)
        reached = np.where(tokens > 0, table[:-1] / np.maximum(tokens, 1), wanted)
        allowed = (
            _TOLERANCE + longest * _NUM_PARTS / max(num_tokens, 1) + 0.5 * np.sqrt(wanted * (1 - wanted) / lengths)
        )
        excess = np.abs(reached - wanted) - allowed
        if excess.max(initial=0.0) > furthest:
            furthest = excess.max()
            part, group = (int(place) for place in np.unravel_index(np.argmax(excess), excess.shape))
            begin = float(edges[part] / num_positions)
            worst = Unreached(family, group, float(wanted[part, group]), float(reached[part, group]), begin)
    return worst

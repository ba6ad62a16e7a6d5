"""Groups with fewer tokens than the targets need."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.plan import Plan

if TYPE_CHECKING:
    from jax_diversity.ordering.chunks import ChunkedPlan

# If a group's tokens last for this share of the run, we report no shortage: an ordering cannot split sequences.
_LASTS = 0.99


class UnmetTargets(UserWarning):
    """Targets need more tokens of a group than the corpus has."""


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

"""Groups with fewer tokens than the targets need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.plan import Targets
from jax_diversity.counts import Characteristics

# If a group's tokens last for this share of the run, we report no shortage: an ordering cannot split sequences.
_LASTS = 0.99


class UnmetTargets(UserWarning):
    """Targets need more tokens of a group than the corpus has."""


class Shortage(NamedTuple):
    """A group with fewer tokens than the targets need; it is used up after a share of the run."""

    family: str
    group: int
    asked: float
    has: int
    used_up_after: float

    def sentence(self, name: str, num_others: int) -> str:
        """Return the sentence for users. `name` is the group, `num_others` is how many groups are used up later."""
        tokens, place = f"the tokens of {self.family} {name!r}", f"{self.used_up_after:.0%} of the order"
        others = f"; they also use up {counted(num_others, 'more group')} before its end" if num_others else ""
        if not self.has:
            fault = f"{tokens} from {place} on, but the corpus has none"
        else:
            fault = f"{self.asked / self.has:.2f} times {tokens}, which are used up after {place}"
        return f"The targets ask for {fault}{others}. The remaining sequences follow."


def shortages(
    characteristics: Characteristics, targets: Targets, consumed: Int64[np.ndarray, " consumed"] | None = None
) -> list[Shortage]:
    """Return the groups that are used up before the end of the run, in the order in which they are used up.

    The run is assumed to follow the targets exactly. It reads all sequences once and begins after the `consumed`
    sequences.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> shortages(chars, Targets((0,), {"topic": np.array([[1.0, 0.0]])}))
        [Shortage(family='topic', group=0, asked=8.0, has=4, used_up_after=0.5)]
    """
    num_positions, tokens = characteristics.num_sequences, characteristics.tokens
    consumed = np.zeros(0, np.int64) if consumed is None else consumed
    left = np.ones(num_positions, bool)
    left[consumed] = False
    totals = {
        family: np.asarray(characteristics.counts[family][left].sum(axis=0, dtype=np.int64)).ravel()
        for family in targets.shares
    }
    return shortages_of(targets, totals, int(tokens[left].sum()), (len(consumed), num_positions))


def shortages_of(
    targets: Targets, totals: Mapping[str, Int64[np.ndarray, " group"]], num_tokens: int, span: tuple[int, int]
) -> list[Shortage]:
    """Return the shortages from sums over the sequences that are not consumed.

    Args:
        targets: the targets.
        totals: family -> the tokens of its groups.
        num_tokens: all tokens.
        span: the first position after the consumed sequences, and the number of positions.
    """
    first, num_positions = span
    per_position = float(num_tokens) / max(num_positions - first, 1)
    starts = np.clip(targets.starts, first, num_positions)
    lengths = np.diff(starts, append=num_positions)
    found = []
    for family, shares in targets.shares.items():
        has = totals[family]
        asked = np.cumsum(lengths[:, None] * shares * per_position, axis=0)
        for group in np.flatnonzero(asked[-1] > has):
            # Within a phase the targets need tokens at a constant rate.
            phase = int(np.argmax(asked[:, group] > has[group]))
            late = (asked[phase, group] - has[group]) / (shares[phase, group] * per_position)
            place = (starts[phase] + lengths[phase] - late) / num_positions
            if place < _LASTS:
                found.append(Shortage(family, int(group), float(asked[-1, group]), int(has[group]), float(place)))
    return sorted(found, key=lambda shortage: shortage.used_up_after)

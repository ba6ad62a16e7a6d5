"""Targets as settings name them, and what the corpus lacks to meet them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.ordering.plan import Targets
from jax_diversity.ordering.settings import TargetsConfig, position_of
from jax_diversity.schema import Characteristics

_MOST_STEPS = 64
_MOST_NAMES = 12
# A group that lasts for this share of the run is met: sequences are pieces that no order can split.
_LASTS = 0.99


def named_targets(
    config: TargetsConfig, characteristics: Characteristics, group_names: Mapping[str, Sequence[str]]
) -> Targets:
    """The targets that settings describe.

    Raises:
        UserError: a group that does not exist, another number of shares than groups, a start beyond the last position.
    """
    num_positions = characteristics.num_sequences
    shares = {}
    for family, phases in config.shares.items():
        names, own = group_names[family], characteristics.target_share(family)
        shares[family] = np.stack([_group_shares(family, phase, names, own) for phase in phases])
    if config.linear:
        first, last = ({family: phases[end] for family, phases in shares.items()} for end in (0, 1))
        return Targets.linear(first, last, num_positions, min(_MOST_STEPS, num_positions))
    even = [phase * num_positions // config.num_phases for phase in range(config.num_phases)]
    starts = [position_of(place, num_positions) for place in config.starts] or even
    if starts[-1] >= max(num_positions, 1):
        raise UserError(f"Expected targets that start before position {num_positions}, the last, found {starts[-1]}.")
    return Targets(tuple(starts), shares)


def _group_shares(
    family: str, given: Mapping[str, float] | Sequence[float], names: Sequence[str], own: Float64[np.ndarray, " group"]
) -> Float64[np.ndarray, " group"]:
    """A share for every group; those that are not named divide the rest in the corpus's own proportions `own`."""
    known = f"{', '.join(names[:_MOST_NAMES])}{' ...' if len(names) > _MOST_NAMES else ''}"
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise UserError(
                f"Expected targets of {family!r} to give a share for each of its {len(names)} groups ({known}), found "
                f"{len(given)}; or name the groups."
            )
        return np.array(given, np.float64)
    for name in given:
        if name not in names:
            raise UserError(
                f"Expected targets of {family!r} to name its groups ({known}), found {quoted(name)}"
                f"{did_you_mean(name, names) or '.'}"
            )
    shares = np.array([given.get(name, np.nan) for name in names])
    others = np.isnan(shares)
    rest = max(1.0 - sum(given.values()), 0.0)
    shares[others] = rest * own[others] / (own[others].sum() or 1.0)
    return shares


class Shortage(NamedTuple):
    """A group of which targets ask for more tokens than there are; it is used up after a share of the run."""

    family: str
    group: int
    asked: float
    has: int
    used_up_after: float

    def sentence(self, name: str, num_others: int) -> str:
        """What to tell of it; the group is called `name`, and so many others are used up later."""
        tokens, place = f"the tokens of {self.family} {name!r}", f"{self.used_up_after:.0%} of the run"
        groups = "group" if num_others == 1 else "groups"
        others = f", and {num_others} more {groups} before its end" if num_others else ""
        if not self.has:
            fault = f"{tokens}, of which there are none, from {place} on"
        else:
            fault = f"{self.asked / self.has:.2f} times {tokens}: followed exactly, they use them up after {place}"
        return f"The targets ask for {fault}{others}; what comes then is what is left."


def shortages(
    characteristics: Characteristics, targets: Targets, consumed: Int64[np.ndarray, " consumed"] | None = None
) -> list[Shortage]:
    """The groups that are used up before the end of a run that follows the targets exactly, the first first.

    The run goes over all sequences once; it begins after those that were `consumed`.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> shortages(chars, Targets((0,), {"topic": np.array([[1.0, 0.0]])}))
        [Shortage(family='topic', group=0, asked=8.0, has=4, used_up_after=0.5)]
    """
    num_positions, tokens = characteristics.num_sequences, characteristics.tokens
    consumed = np.zeros(0, np.int64) if consumed is None else consumed
    left = np.ones(num_positions, bool)
    left[consumed] = False
    first, per_position = len(consumed), float(tokens[left].sum()) / max(num_positions - len(consumed), 1)
    starts = np.clip(targets.starts, first, num_positions)
    lengths = np.diff(starts, append=num_positions)
    found = []
    for family, shares in targets.shares.items():
        has = np.asarray(characteristics.counts[family][left].sum(axis=0, dtype=np.int64)).ravel()
        asked = np.cumsum(lengths[:, None] * shares * per_position, axis=0)
        for group in np.flatnonzero(asked[-1] > has):
            # Within a phase tokens are asked for at a constant rate.
            phase = int(np.argmax(asked[:, group] > has[group]))
            late = (asked[phase, group] - has[group]) / (shares[phase, group] * per_position)
            place = (starts[phase] + lengths[phase] - late) / num_positions
            if place < _LASTS:
                found.append(Shortage(family, int(group), float(asked[-1, group]), int(has[group]), float(place)))
    return sorted(found, key=lambda shortage: shortage.used_up_after)

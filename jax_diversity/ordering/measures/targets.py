"""The targets that an order is measured against, of every position."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.counts import TokenCounts
from jax_diversity.counts.targets import Targets, read_targets
from jax_diversity.foundation.errors import UserError

GivenTargets = Targets | Mapping[str, Any] | None
"""What `jd.order` and `jd.measure` take as targets: phases of shares, family -> shares of one phase, or the targets in
the `info` of an ordering. None means the shares of the corpus."""


class FamilyTargets(NamedTuple):
    """τ of one family at every position.

    Attributes:
        starts: the first position of every phase, ascending from 0.
        shares: τ of every phase.
    """

    starts: Int64[np.ndarray, " phase"]
    shares: Float64[np.ndarray, "phase group"]

    @property
    def is_constant(self) -> bool:
        """Whether all positions have the same target."""
        return len(self.starts) == 1

    def largest(self, num_positions: int) -> Float64[np.ndarray, " group"]:
        """Return the largest τ of every group: no window of the positions has a larger target."""
        # Phases may begin after the last position.
        return self.shares[self.starts < max(num_positions, 1)].max(axis=0)

    def mean(self, num_positions: int) -> Float64[np.ndarray, " group"]:
        """Return the mean target of all positions."""
        if self.is_constant:
            return self.shares[0]
        phase_sizes = np.diff(np.append(np.minimum(self.starts, num_positions), num_positions))
        return phase_sizes @ self.shares / max(num_positions, 1)

    def phase_of(self, positions: Int64[np.ndarray, " position"]) -> Int64[np.ndarray, " position"]:
        """Return the phase of every position."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def stretches(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the first position, the end and the phase of every stretch of positions with the same target."""
        inside = self.starts[(self.starts > first) & (self.starts < stop)]
        bounds = [first, *inside.tolist(), stop]
        for start, end in itertools.pairwise(bounds):
            yield start, end, int(np.searchsorted(self.starts, start, side="right")) - 1


def given_targets(counts: TokenCounts, targets: GivenTargets) -> Targets:
    """Return targets in phases; without targets, no family has any."""
    return Targets.of({} if targets is None else read_targets(targets, counts))


def measured_targets(
    counts: TokenCounts, targets: Targets, own_shares: Mapping[str, Float64[np.ndarray, " group"]]
) -> dict[str, FamilyTargets]:
    """Return τ of every family: the given targets, or the shares of the corpus.

    Args:
        counts: the families and their groups.
        targets: the given targets.
        own_shares: the shares of the corpus.

    Raises:
        UserError: a family is unknown, or has another number of groups; shares that are not numbers >= 0.
    """
    if unknown := set(targets.shares) - set(counts.families):
        raise UserError(f"Targets name unknown families {sorted(unknown)}; the families are {sorted(counts.families)}.")
    by_family = {}
    for family, number in counts.num_groups.items():
        if family not in targets.shares:
            by_family[family] = FamilyTargets(np.zeros(1, np.int64), own_shares[family][None])
            continue
        shares = targets.shares[family]
        if shares.shape[1] != number:
            raise UserError(f"Expected target shares of {number} groups of {family!r}, found {shares.shape[1]}.")
        by_family[family] = FamilyTargets(np.array(targets.starts, np.int64), shares)
    return by_family


def corpus_targets(counts: TokenCounts, targets: GivenTargets) -> dict[str, FamilyTargets]:
    """Return τ of every family as `measured_targets`, with the shares of the corpus for families without targets."""
    corpus_shares = {family: counts.target_share(family) for family in counts.families}
    return measured_targets(counts, given_targets(counts, targets), corpus_shares)

"""Make targets from settings, which name the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from jax_diversity.counts import TokenCounts
from jax_diversity.counts.targets import Targets, group_shares
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.settings import TargetsConfig, position_of

_MOST_STEPS = 64


def named_targets(config: TargetsConfig, counts: TokenCounts, group_names: Mapping[str, Sequence[str]]) -> Targets:
    """Make the targets that settings describe for an order of all sequences.

    Raises:
        UserError: a group does not exist, the numbers of shares and groups differ, or a start is beyond the last
            position.
    """
    corpus_shares = {family: counts.target_share(family) for family in config.shares}
    return targets_of(config, group_names, corpus_shares, counts.num_sequences)


def targets_of(
    config: TargetsConfig,
    group_names: Mapping[str, Sequence[str]],
    own_shares: Mapping[str, Float64[np.ndarray, " group"]],
    num_positions: int,
) -> Targets:
    """Make the targets that settings describe for a run of `num_positions` positions.

    Args:
        config: the settings.
        group_names: family -> the names of its groups.
        own_shares: family -> the shares of its groups in the corpus.
        num_positions: the number of positions.

    Raises:
        UserError: a group does not exist, the numbers of shares and groups differ, or a start is beyond the last
            position.
    """
    shares = {}
    for family, phases in config.shares.items():
        names, corpus_shares = group_names[family], own_shares[family]
        shares[family] = np.stack([group_shares(family, phase, names, corpus_shares) for phase in phases])
    if config.linear:
        first, last = ({family: phases[end] for family, phases in shares.items()} for end in (0, 1))
        return Targets.linear(first, last, num_positions, min(_MOST_STEPS, num_positions))
    even = [phase * num_positions // config.num_phases for phase in range(config.num_phases)]
    starts = [position_of(place, num_positions) for place in config.starts] or even
    if starts[-1] >= max(num_positions, 1):
        raise UserError(f"Expected targets that start before position {num_positions}, the last, found {starts[-1]}.")
    return Targets(tuple(starts), shares)

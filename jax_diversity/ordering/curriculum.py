"""Make targets from settings, which name the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.ordering.plan import Targets
from jax_diversity.ordering.settings import TargetsConfig, position_of
from jax_diversity.schema import Characteristics

_MOST_STEPS = 64
_MOST_NAMES = 12


def named_targets(
    config: TargetsConfig, characteristics: Characteristics, group_names: Mapping[str, Sequence[str]]
) -> Targets:
    """Make the targets that settings describe.

    Raises:
        UserError: a group does not exist, the numbers of shares and groups differ, or a start is beyond the last
            position.
    """
    own = {family: characteristics.target_share(family) for family in config.shares}
    return targets_of(config, group_names, own, characteristics.num_sequences)


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
        names, own = group_names[family], own_shares[family]
        shares[family] = np.stack([group_shares(family, phase, names, own) for phase in phases])
    if config.linear:
        first, last = ({family: phases[end] for family, phases in shares.items()} for end in (0, 1))
        return Targets.linear(first, last, num_positions, min(_MOST_STEPS, num_positions))
    even = [phase * num_positions // config.num_phases for phase in range(config.num_phases)]
    starts = [position_of(place, num_positions) for place in config.starts] or even
    if starts[-1] >= max(num_positions, 1):
        raise UserError(f"Expected targets that start before position {num_positions}, the last, found {starts[-1]}.")
    return Targets(tuple(starts), shares)


def shares_by_name(targets: Mapping[str, Any], characteristics: Characteristics) -> dict[str, Any]:
    """Replace mappings from the names of groups to shares by a share for every group; other values stay.

    Example:
        >>> chars = Characteristics.from_counts({"source": ["web", "code", "web", "books"]})
        >>> shares_by_name({"source": {"web": 0.8}}, chars)["source"].tolist()
        [0.1, 0.1, 0.8]
    """
    return {
        family: group_shares(family, given, characteristics.names[family], characteristics.target_share(family))
        if isinstance(given, Mapping) and family in characteristics.names
        else given
        for family, given in targets.items()
    }


def group_shares(
    family: str, given: Mapping[str, float] | Sequence[float], names: Sequence[str], own: Float64[np.ndarray, " group"]
) -> Float64[np.ndarray, " group"]:
    """Return a share for every group. Groups without a given share divide the rest in proportion to `own`.

    Raises:
        UserError: a group does not exist, or the numbers of shares and groups differ.

    Example:
        >>> group_shares("source", {"web": 0.5}, ["books", "code", "web"], np.array([0.1, 0.3, 0.6])).tolist()
        [0.125, 0.375, 0.5]
    """
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

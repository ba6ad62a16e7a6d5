"""Target shares of the groups, in phases of training: what an order follows, and what it is measured against."""

from __future__ import annotations

import hashlib
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float64

from jax_diversity.counts.token_counts import TokenCounts
from jax_diversity.foundation.checks import as_whole_number, check_mapping
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.foundation.wording import counted

_MOST_NAMES = 12
FAMILY_TO_SHARES = "family -> shares of its groups"


@dataclass(frozen=True, repr=False)
class Targets:
    """The target shares of the groups, in phases of training.

    Families without an entry keep the corpus's own shares. Shares are scaled to a sum of one.

    Attributes:
        starts: first position of every phase, ascending from 0.
        shares: family -> array of shares with the axes (phase, group).

    Raises:
        ValueError: starts do not ascend from 0; shares are negative, not finite or all zero, or their number of phases
            is not the number of starts.

    Example:
        >>> Targets((0, 1000), {"source": [[0.9, 0.1], [0.5, 0.5]]}).shares["source"].shape
        (2, 2)
    """

    starts: tuple[int, ...]
    shares: Mapping[str, Float64[np.ndarray, "phase group"]]

    def __post_init__(self) -> None:
        try:
            starts = tuple(operator.index(start) for start in self.starts)
        except TypeError:
            raise UserError(f"Expected the targets' starts as whole numbers, found {quoted(self.starts)}.") from None
        if not starts or starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
            raise UserError(f"Expected the targets' starts to ascend from 0, found {starts}.")
        check_mapping("the targets' shares", self.shares, FAMILY_TO_SHARES)
        shares = {name: as_shares(name, values, len(starts)) for name, values in self.shares.items()}
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "shares", MappingProxyType(shares))

    def __repr__(self) -> str:
        places = ", ".join([*map(str, self.starts[:4]), *(["..."] if len(self.starts) > 4 else [])])
        groups = ", ".join(f"{name}: {counted(shares.shape[1], 'group')}" for name, shares in self.shares.items())
        return f"Targets({len(self.starts)} phases from {places}; {groups})"

    def __reduce__(self) -> tuple[type[Targets], tuple[Any, ...]]:
        return type(self), (self.starts, dict(self.shares))  # a proxy cannot be pickled

    @classmethod
    def linear(
        cls, first: Mapping[str, Any], last: Mapping[str, Any], num_positions: int, num_phases: int = 64
    ) -> Targets:
        """Change from the shares `first` at position 0 to the shares `last` at `num_positions`, in equal steps.

        Raises:
            ValueError: `first` and `last` have different families or numbers of groups; fewer positions than phases.
        """
        for name, phase_shares in (("first", first), ("last", last)):
            check_mapping(f"the targets' {name} shares", phase_shares, FAMILY_TO_SHARES)
        num_positions, num_phases = (
            as_whole_number("num_positions", num_positions),
            as_whole_number("num_phases", num_phases),
        )
        if not 1 <= num_phases <= num_positions:
            raise UserError(f"Expected 1 to {num_positions} phases, found {num_phases}.")
        if set(first) != set(last):
            raise UserError(f"Expected first and last shares of the same families, found {set(first) ^ set(last)}.")
        # Each phase has the shares of its middle, so that the steps and the straight line have equal means.
        middles = (np.arange(num_phases) + 0.5) / num_phases
        shares = {}
        for name in first:
            ends = [as_shares(name, [values[name]], 1)[0] for values in (first, last)]
            if len(ends[0]) != len(ends[1]):
                raise UserError(
                    f"Expected equal numbers of first and last shares of {name!r}, found {len(ends[0])} and "
                    f"{len(ends[1])}."
                )
            shares[name] = (1 - middles[:, None]) * ends[0] + middles[:, None] * ends[1]
        return cls(tuple(num_positions * phase // num_phases for phase in range(num_phases)), shares)

    @classmethod
    def of(cls, targets: Targets | Mapping[str, Any]) -> Targets:
        """Return the targets themselves, or the targets of one phase that a mapping family -> shares describes."""
        if isinstance(targets, Targets):
            return targets
        return cls((0,), {name: as_shares(name, [shares], 1) for name, shares in targets.items()})

    @property
    def fingerprint(self) -> str:
        """A hash of the starts and shares."""
        digest = hashlib.sha256(repr(self.starts).encode())
        for name, values in self.shares.items():
            digest.update(f"{name} {values.shape}".encode() + values.tobytes())
        return digest.hexdigest()


def read_targets(targets: Targets | Mapping[str, Any], counts: TokenCounts) -> Targets | dict[str, Any]:
    """Return targets in phases, or family -> a share of every group, for shares of one phase.

    Args:
        targets: targets in phases, the `info["targets"]` of an ordering, or family -> shares, also by groups' names.
        counts: whose groups have names.
    """
    if isinstance(targets, Targets):
        return targets
    check_mapping("targets", targets, FAMILY_TO_SHARES)
    if set(targets) == {"starts", "shares"}:
        starts, shares = targets["starts"], targets["shares"]
        check_mapping("the targets' shares", shares, FAMILY_TO_SHARES)
        starts = tuple(starts) if isinstance(starts, list | tuple | np.ndarray) else starts
        return Targets(starts, {name: as_shares(name, phases, len(starts)) for name, phases in shares.items()})
    return shares_by_name(targets, counts)


def shares_by_name(targets: Mapping[str, Any], counts: TokenCounts) -> dict[str, Any]:
    """Replace mappings from the names of groups to shares by a share for every group; other values stay.

    Example:
        >>> chars = Characteristics.from_counts({"source": ["web", "code", "web", "books"]})
        >>> shares_by_name({"source": {"web": 0.8}}, chars)["source"].tolist()
        [0.1, 0.1, 0.8]
    """
    return {
        family: group_shares(family, family_shares, counts.names[family], counts.target_share(family))
        if isinstance(family_shares, Mapping) and family in counts.names
        else family_shares
        for family, family_shares in targets.items()
    }


def group_shares(
    family: str,
    family_shares: Mapping[str, float] | Sequence[float],
    names: Sequence[str],
    corpus_shares: Float64[np.ndarray, " group"],
) -> Float64[np.ndarray, " group"]:
    """Return a share for every group. Groups without a given share divide the rest in proportion to `corpus_shares`.

    Raises:
        UserError: a group does not exist, or the numbers of shares and groups differ.

    Example:
        >>> group_shares("source", {"web": 0.5}, ["books", "code", "web"], np.array([0.1, 0.3, 0.6])).tolist()
        [0.125, 0.375, 0.5]
    """
    first_names = f"{', '.join(names[:_MOST_NAMES])}{' ...' if len(names) > _MOST_NAMES else ''}"
    if not isinstance(family_shares, Mapping):
        if len(family_shares) != len(names):
            raise UserError(
                f"Expected targets of {family!r} to give a share for each of its {len(names)} groups ({first_names}), "
                f"found {len(family_shares)}; or name the groups."
            )
        return np.array(family_shares, np.float64)
    for name in family_shares:
        if name not in names:
            raise UserError(
                f"Expected targets of {family!r} to name its groups ({first_names}), found {quoted(name)}"
                f"{did_you_mean(name, names) or '.'}"
            )
    shares = np.array([family_shares.get(name, np.nan) for name in names])
    is_missing = np.isnan(shares)
    rest = max(1.0 - sum(family_shares.values()), 0.0)
    shares[is_missing] = rest * corpus_shares[is_missing] / (corpus_shares[is_missing].sum() or 1.0)
    return shares


def as_shares(name: str, values: Any, num_phases: int) -> Float64[np.ndarray, "phase group"]:
    """Check the shares of a family's groups in every phase, and scale them to a sum of one."""
    try:
        shares = np.array(values, np.float64, ndmin=2)
    except (TypeError, ValueError):
        raise UserError(f"Expected target shares of {name!r} as numbers, found {quoted(values)}.") from None
    if shares.ndim != 2 or len(shares) != num_phases:
        raise UserError(f"Expected target shares of {name!r} for {num_phases} phases, found {shares.shape}.")
    totals = shares.sum(axis=1, keepdims=True)
    if not np.isfinite(shares).all() or shares.min(initial=0) < 0 or not (totals > 0).all():
        raise UserError(f"Expected target shares of {name!r} >= 0 with a sum above zero in every phase.")
    # If the sum of shares is 1 up to rounding, they stay unchanged. The corpus's own shares then give the same ordering
    # as an ordering without targets.
    shares /= np.where(np.abs(totals - 1) < 1e-12, 1.0, totals)
    shares.setflags(write=False)
    return shares

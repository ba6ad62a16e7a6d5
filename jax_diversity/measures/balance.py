"""All measures of one ordering or schedule, in every family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.measures.floors import ideal_token_shuffle, window_bound, window_floor
from jax_diversity.measures.placing import cumulative_tokens, place
from jax_diversity.measures.prefixes import norm_drift, prefix_deviation, row_norms
from jax_diversity.measures.sliding import EveryStart, window_maximum, window_tv_all
from jax_diversity.measures.windows import aligned_windows
from jax_diversity.schema import Characteristics, Ordering, Schedule

Targets = Mapping[str, Float[np.ndarray, " group"] | Sequence[float]]


@dataclass(frozen=True)
class Balance:
    """The measures of one ordering; arrays are float64 where nothing else is said.

    For a schedule, which may repeat and omit sequences, a position takes a sequence's place in the shapes, and
    floors and bounds are those of all orders of the same positions.

    Attributes:
        prefix_l2: family -> (num_sequences,) prefix deviation after every position, in sequence lengths.
        window_tv: family -> window size -> (num_sequences // size,) TV of consecutive aligned windows.
        window_tv_shifted: the same of the whole windows from position size // 2 on; none where none fits.
        window_l2: family -> window size -> (num_sequences // size,) Euclidean norm of share - τ of aligned windows.
        window_tv_floor: family -> window size -> the floor of the mean of `window_tv`.
        window_max: family -> window size -> the largest |share - τ| over all start positions and groups.
        ideal_tv: family -> window size -> the TV to expect of an ideal token shuffle.
        norm_drift: (num_sequences,) running norm excess of the first family, in sequences.
        window_tv_bound: family -> window size -> a bound of the mean of `window_tv`, at least the floor.
        groups_per_batch: family -> window size -> int64 (num_sequences // size,) distinct groups of every window.
        groups_per_sequence: family -> the mean number of distinct groups of a position's sequence.
        window_tv_every_start: family -> window size -> mean and worst TV over all start positions, where asked for.
    """

    prefix_l2: Mapping[str, Float64[np.ndarray, " sequence"]]
    window_tv: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_shifted: Mapping[str, Mapping[int, Float64[np.ndarray, " shifted_window"]]]
    window_l2: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
    window_tv_floor: Mapping[str, Mapping[int, float]]
    window_max: Mapping[str, Mapping[int, float]]
    ideal_tv: Mapping[str, Mapping[int, float]]
    norm_drift: Float64[np.ndarray, " sequence"]
    window_tv_bound: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    groups_per_batch: Mapping[str, Mapping[int, Int64[np.ndarray, " window"]]] = field(default_factory=dict)
    groups_per_sequence: Mapping[str, float] = field(default_factory=dict)
    window_tv_every_start: Mapping[str, Mapping[int, EveryStart]] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The figures that a table shows, as plain numbers: family -> prefix_l2_max and, per window size, the rest.

        `tv_mean_shifted` and `tv_worst_shifted` are None where no shifted window fits; `tv_mean_every_start` and
        `tv_worst_every_start` are there where they were asked for.
        """
        families: dict[str, Any] = {
            family: {
                "prefix_l2_max": float(prefix.max(initial=0.0)),
                "groups_per_sequence_mean": self.groups_per_sequence[family],
                "windows": {str(size): self._window_summary(family, size) for size in self.window_tv[family]},
            }
            for family, prefix in self.prefix_l2.items()
        }
        return {"families": families, "norm_drift_max": float(np.abs(self.norm_drift).max(initial=0.0))}

    def _window_summary(self, family: str, size: int) -> dict[str, float | None]:
        tv, shifted = self.window_tv[family][size], self.window_tv_shifted[family][size]
        groups = self.groups_per_batch[family][size]
        every_start = self.window_tv_every_start[family].get(size)
        return {
            "tv_mean": float(tv.mean()),
            "tv_best": float(tv.min()),
            "tv_worst": float(tv.max()),
            "tv_mean_shifted": float(shifted.mean()) if len(shifted) else None,
            "tv_best_shifted": float(shifted.min()) if len(shifted) else None,
            "tv_worst_shifted": float(shifted.max()) if len(shifted) else None,
            "tv_floor": self.window_tv_floor[family][size],
            "tv_bound": self.window_tv_bound[family][size],
            "tv_ideal_token_shuffle": self.ideal_tv[family][size],
            "l2_worst": float(self.window_l2[family][size].max()),
            "max_share_deviation": self.window_max[family][size],
            "groups_per_batch_mean": float(groups.mean()),
            "groups_per_batch_min": float(groups.min()),
            **({"tv_mean_every_start": every_start.mean} if every_start else {}),
            **({"tv_worst_every_start": every_start.worst} if every_start else {}),
        }


def measure(
    characteristics: Characteristics,
    ordering: Ordering | Schedule | Int64[np.ndarray, " position"],
    windows: Sequence[int] = (256,),
    advance: Advance = ignore,
    *,
    targets: Targets | None = None,
    every_start: bool = False,
) -> Balance:
    """Measure an ordering, or a schedule that repeats or omits sequences, in every family.

    Args:
        characteristics: the token counts; weights play no part.
        ordering: what is trained on, in order; an array must be a bijection of the sequences.
        windows: window sizes in sequences, each between 1 and the number of positions.
        advance: told the number of positions done, over all families.
        targets: family -> the groups' shares to measure against; the corpus's own where not given. Norms have
            no target: with one for the first family, their drift is measured against the schedule's own mean.
        every_start: whether to take the window TV of all start positions as well.

    Raises:
        ValueError: an ordering of another dataset, a window size outside its range, targets that are no shares.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [0, 2], [2, 0], [0, 2]]})
        >>> float(measure(chars, np.arange(4), windows=(2,)).window_tv["topic"][2].max())
        0.0
    """
    shares = target_shares(characteristics, targets or {})
    return measure_by(
        Yardstick(tuple(windows), shares, set(targets or {}), every_start), characteristics, ordering, advance
    )


class Limits(NamedTuple):
    """What the mean window TV cannot be below."""

    floor: float
    bound: float


@dataclass(frozen=True)
class Yardstick:
    """What orders are measured by, the same for all that are compared.

    Attributes:
        windows: window sizes.
        shares: family -> τ.
        given: the families whose shares are not the corpus's own.
        every_start: whether to take the window TV of all start positions as well.
        limits: family -> window size -> those of the corpus's orderings, where they are known already.
    """

    windows: tuple[int, ...]
    shares: Mapping[str, Float64[np.ndarray, " group"]]
    given: Set[str]
    every_start: bool
    limits: Mapping[str, Mapping[int, Limits]] | None = None

    def known_limits(self, characteristics: Characteristics) -> Yardstick:
        """The same with the limits of all the corpus's orderings."""
        length = characteristics.sequence_length
        limits = {
            family: _limits(characteristics.counts[family], share, length, self.windows)
            for family, share in self.shares.items()
        }
        return replace(self, limits=limits)


def measure_by(
    yardstick: Yardstick,
    characteristics: Characteristics,
    ordering: Ordering | Schedule | Int64[np.ndarray, " position"],
    advance: Advance,
) -> Balance:
    """Measure one ordering; `measure` says what its arguments mean and what it raises."""
    ordering = checked(characteristics, ordering)
    for size in yardstick.windows:
        if not 1 <= size <= len(ordering):
            raise UserError(f"Expected window sizes from 1 to {len(ordering)} sequences, found {size}.")
    # Prefixes and window maxima, and every start where asked for, each walk over all positions.
    num_walks = 1 + len(yardstick.windows) * (2 if yardstick.every_start else 1)
    measured = {
        family: _measure_family(yardstick, characteristics, family, ordering, _Shared(advance, num_walks))
        for family in characteristics.families
    }
    first, length = characteristics.families[0], characteristics.sequence_length
    norms = row_norms(characteristics.counts[first]) / length
    drift = norm_drift(norms, ordering.indices, own_mean=first in yardstick.given)
    by_name: dict[str, Any] = {
        name: {family: values[name] for family, values in measured.items()} for name in measured[first]
    }
    return Balance(**by_name, norm_drift=drift)


def _measure_family(
    yardstick: Yardstick,
    characteristics: Characteristics,
    family: str,
    ordering: Ordering | Schedule,
    advance: Advance,
) -> dict[str, Any]:
    """A family's part of `Balance`, by the names of its attributes."""
    target, length, windows = yardstick.shares[family], characteristics.sequence_length, yardstick.windows
    placed = place(characteristics.counts[family], ordering.indices)
    tokens = np.diff(cumulative_tokens(placed))
    aligned = {size: aligned_windows(placed, target, size) for size in windows}
    if yardstick.limits is not None and isinstance(ordering, Ordering):
        limits = yardstick.limits[family]
    else:
        limits = _limits(placed, target, length, windows)

    def by_size(value: Callable[[int], Any]) -> dict[int, Any]:
        return {size: value(size) for size in windows}

    every_start = by_size(lambda size: window_tv_all(placed, target, size, advance)) if yardstick.every_start else {}
    return {
        "prefix_l2": prefix_deviation(placed, tokens, target, length, advance),
        "window_tv": by_size(lambda size: aligned[size].tv),
        "window_tv_shifted": by_size(lambda size: aligned_windows(placed, target, size, size // 2).tv),
        "window_l2": by_size(lambda size: aligned[size].l2),
        "window_tv_floor": by_size(lambda size: limits[size].floor),
        "window_tv_bound": by_size(lambda size: limits[size].bound),
        "window_max": by_size(lambda size: window_maximum(placed, target, size, advance)),
        "ideal_tv": by_size(lambda size: ideal_token_shuffle(target, size, length)),
        "groups_per_batch": by_size(lambda size: aligned[size].num_groups),
        "groups_per_sequence": len(placed.data) / max(len(ordering), 1),
        "window_tv_every_start": every_start,
    }


def _limits(
    rows: csr_array, target: Float64[np.ndarray, " group"], length: int, windows: Sequence[int]
) -> dict[int, Limits]:
    """By window size, of all orders of the rows."""
    return {
        size: Limits(window_floor(rows, target, size, length), window_bound(rows, target, size, length))
        for size in windows
    }


class _Shared:
    """Tells of positions done where several walks over them are one unit of work."""

    def __init__(self, advance: Advance, num_walks: int) -> None:
        self._advance, self._num_walks, self._done = advance, num_walks, 0

    def __call__(self, amount: int) -> None:
        before = self._done // self._num_walks
        self._done += amount
        self._advance(self._done // self._num_walks - before)


def checked(
    characteristics: Characteristics, ordering: Ordering | Schedule | Int64[np.ndarray, " position"]
) -> Ordering | Schedule:
    """An ordering or schedule of the same dataset as the characteristics."""
    ordering = ordering if isinstance(ordering, Ordering | Schedule) else Ordering(ordering)
    if ordering.num_sequences != characteristics.num_sequences:
        raise UserError(
            f"Expected an ordering of {characteristics.num_sequences} sequences, found {ordering.num_sequences}; "
            "it was made for another dataset."
        )
    return ordering


def target_shares(characteristics: Characteristics, targets: Targets) -> dict[str, Float64[np.ndarray, " group"]]:
    """τ of every family: the one that is given, or the corpus's own.

    Raises:
        ValueError: an unknown family; shares that are negative, not finite, of another number of groups, or that
            do not add up to 1.
    """
    unknown = set(targets) - set(characteristics.families)
    if unknown:
        raise UserError(
            f"Targets name unknown families {sorted(unknown)}; the families are {sorted(characteristics.families)}."
        )
    shares = {}
    for family in characteristics.families:
        num_groups = characteristics.counts[family].shape[1]
        if family not in targets:
            shares[family] = characteristics.target_share(family)
            continue
        given = np.asarray(targets[family], np.float64)
        if given.shape != (num_groups,) or not np.isfinite(given).all() or given.min() < 0:
            raise UserError(
                f"Expected the target of family {family!r} to be {num_groups} finite shares >= 0, found {given}."
            )
        if abs(given.sum() - 1) > 1e-6:
            raise UserError(f"Expected the target shares of family {family!r} to add up to 1, found {given.sum()}.")
        shares[family] = given / given.sum()
    return shares

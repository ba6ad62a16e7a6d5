"""What the report draws of the orderings: measures at all scales and over time, and what they are drawn beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_diversity.dataset import Dataset
from jax_diversity.foundation.progress import Advance
from jax_diversity.measures.balance import measure
from jax_diversity.measures.curves import shorten
from jax_diversity.measures.floors import ideal_token_shuffle, window_floor
from jax_diversity.measures.profile import WindowProfile, group_timeline, window_profile
from jax_diversity.report.batches import Opened
from jax_diversity.report.inputs import HeatMapInputs, OrderingInputs, ProfileInputs, ReferenceInputs
from jax_diversity.report.ordering_values import heat_map_bins
from jax_diversity.schema import Characteristics

NUM_SEEDS = 5
_MOST_POINTS = 2400

GroupNames = Mapping[str, Sequence[str]]
"""Family -> names of its groups."""


def measured_orderings(
    dataset: Dataset,
    about: Mapping[str, Mapping[str, Any]],
    windows: Sequence[int],
    group_names: GroupNames,
    opened: Opened,
    advance: Advance,
) -> list[OrderingInputs]:
    """Measure orderings one after another; of each no more is kept than the report can draw.

    Args:
        dataset: what holds them and the counts.
        about: ordering -> how it was made, in the order in which they are drawn.
        windows: window sizes.
        group_names: names of the families' groups.
        opened: the orderings' batches; may be empty.
        advance: told the positions done, twice over all families and orderings.
    """
    return [
        _measured(dataset, name, of_name, windows, group_names, opened.get(name, {}), len(about), advance)
        for name, of_name in about.items()
    ]


def _measured(
    dataset: Dataset,
    name: str,
    about: Mapping[str, Any],
    windows: Sequence[int],
    group_names: GroupNames,
    batches: Mapping[str, Any],
    num_orderings: int,
    advance: Advance,
) -> OrderingInputs:
    chars, ordering = dataset.characteristics, dataset.orderings[name]
    balance = measure(chars, ordering, windows, advance)
    profiles = window_profile(chars, ordering, advance)
    num_bins = heat_map_bins(num_orderings * len(chars.families))
    heat_maps = {}
    for family in chars.families:
        timeline = group_timeline(chars, family, ordering, num_bins=num_bins)
        names = [group_names[family][int(group)] for group in timeline.groups]
        heat_maps[family] = HeatMapInputs(timeline.bin_size, names, timeline.target, timeline.share)
    return OrderingInputs(
        name=name,
        method=about["method"],
        prefix_l2={family: shorten(curve, max_points=_MOST_POINTS) for family, curve in balance.prefix_l2.items()},
        window_tv=balance.window_tv,
        window_tv_floor=balance.window_tv_floor,
        window_max=balance.window_max,
        norm_drift=shorten(balance.norm_drift, max_points=_MOST_POINTS),
        info={key: about[key] for key in ("seed", "objective", "options") if key in about},
        profile={family: _inputs(offsets) for family, offsets in profiles.items()},
        heat_maps=heat_maps,
        batches=batches,
    )


def profile_references(chars: Characteristics, advance: Advance) -> dict[str, ReferenceInputs]:
    """What profiles are drawn beside: uniform shuffles of five seeds, the floor, the ideal token shuffle.

    Args:
        chars: the counts.
        advance: told the positions done, over all families and shuffles.
    """
    from jax_diversity.ordering.base import order

    shuffles = [window_profile(chars, order(chars, "uniform_shuffle", seed=seed), advance) for seed in range(NUM_SEEDS)]
    references = {}
    for family in chars.families:
        sizes, target = shuffles[0][family]["0"].sizes, chars.target_share(family)
        limits = [
            (
                window_floor(chars.counts[family], target, size, chars.sequence_length),
                ideal_token_shuffle(target, size, chars.sequence_length),
            )
            for size in sizes.tolist()
        ]
        floor, ideal = np.array(limits, np.float64).reshape(-1, 2).T
        bands = [_inputs(shuffle[family]) for shuffle in shuffles]
        references[family] = ReferenceInputs(sizes, floor, ideal, bands)
    return references


def _inputs(offsets: Mapping[str, WindowProfile]) -> dict[str, ProfileInputs]:
    return {offset: ProfileInputs(*profile) for offset, profile in offsets.items()}

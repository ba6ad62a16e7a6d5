"""The orderings' values: prefix and window curves, profiles over window sizes, heat maps, norm drift."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from jax_diversity.measures.curves import MAX_POINTS, Curve, envelope
from jax_diversity.report.aggregate import as_json, clean_text, round_optional, round_value, round_values
from jax_diversity.report.batch_values import batches_values
from jax_diversity.report.inputs import HeatMapInputs, OrderingInputs, ProfileInputs, ReferenceInputs, ReportInputs

BASELINE_METHOD = "uniform_shuffle"
"""The method whose first ordering the others are compared with."""
FEWEST_POINTS, ALL_POINTS = 60, 14_000
FEWEST_BINS, MOST_BINS, ALL_BINS = 32, 96, 1200


def curve_points(orderings: Sequence[OrderingInputs]) -> int:
    """Points of a curve, so that a page of many orderings and families stays small enough to be sent by mail."""
    curves = sum(1 + len(order.prefix_l2) + sum(map(len, order.window_tv.values())) for order in orderings)
    return min(max(ALL_POINTS // max(curves, 1), FEWEST_POINTS), MAX_POINTS)


def heat_map_bins(num_heat_maps: int) -> int:
    """Stretches of training in a heat map, for the same reason; `num_heat_maps` is of all orderings."""
    return min(max(ALL_BINS // max(num_heat_maps, 1), FEWEST_BINS), MOST_BINS)


def ordering_values(inputs: ReportInputs, baseline: OrderingInputs | None) -> dict[str, Any]:
    """What the page shows of all orderings: each alone, and what they are drawn beside."""
    families = list(dict.fromkeys(family for order in inputs.orderings for family in order.prefix_l2))
    sizes = {size for order in inputs.orderings for tv in order.window_tv.values() for size in tv}
    points = curve_points(inputs.orderings)
    return {
        "baseline": None if baseline is None else clean_text(baseline.name),
        "families": [clean_text(family) for family in families],
        "window_sizes": sorted(int(size) for size in sizes),
        "references": [
            {
                "family": clean_text(family),
                "window_size": int(size),
                "floor": _lookup(inputs.orderings, family, size),
                "ideal_token_tv": round_optional(inputs.ideal_token_tv.get(family, {}).get(size)),
            }
            for family in families
            for size in sorted(sizes)
        ],
        "profile_references": {
            clean_text(family): _reference(reference) for family, reference in inputs.profile_references.items()
        },
        "batches": batches_values(inputs),
        "orders": [_order(order, points) for order in inputs.orderings],
    }


def _lookup(orderings: Sequence[OrderingInputs], family: str, size: int) -> float | int | None:
    # The floor belongs to the sequences, not to an ordering: the first ordering that knows it speaks for all.
    floors = (order.window_tv_floor.get(family, {}).get(size) for order in orderings)
    return round_optional(next((floor for floor in floors if floor is not None), None))


def _order(order: OrderingInputs, points: int) -> dict[str, Any]:
    prefix = [
        {
            "family": clean_text(family),
            "max": round_optional(_largest(curve)),
            "curve": envelope(curve, max_points=points),
        }
        for family, curve in order.prefix_l2.items()
    ]
    windows = [
        {
            "family": clean_text(family),
            "window_size": int(size),
            "num_windows": len(tv),
            "mean": round_value(tv.mean()),
            "best": round_value(tv.min()),
            "worst": round_value(tv.max()),
            "worst_position": int(np.argmax(tv)) * int(size),
            "window_max": round_optional(order.window_max.get(family, {}).get(size)),
            "curve": envelope(tv, (np.arange(len(tv)) + 0.5) * size, points),
        }
        for family, by_size in order.window_tv.items()
        for size, tv in sorted(by_size.items())
        if len(tv)
    ]
    return {
        "name": clean_text(order.name),
        "method": clean_text(order.method),
        "is_baseline": order.method == BASELINE_METHOD,
        "info": as_json(order.info),
        "prefix": prefix,
        "windows": windows,
        "profile": {
            clean_text(family): {offset: _profile(profile) for offset, profile in offsets.items()}
            for family, offsets in order.profile.items()
        },
        "heat_map": {clean_text(family): _heat_map(heat_map) for family, heat_map in order.heat_maps.items()},
        "norm_drift": {
            "max": round_optional(_largest(order.norm_drift)),
            "curve": envelope(order.norm_drift, max_points=points),
        },
    }


def _largest(curve: np.ndarray | Curve) -> float | None:
    """The largest distance from zero."""
    low, high = (curve.low, curve.high) if isinstance(curve, Curve) else (curve, curve)
    return float(max(high.max(), -low.min())) if len(low) else None


def _profile(profile: ProfileInputs) -> dict[str, list[Any]]:
    return {
        "sizes": profile.sizes.tolist(),
        "num_windows": profile.num_windows.tolist(),
        "mean": round_values(profile.mean),
        "best": round_values(profile.best),
        "worst": round_values(profile.worst),
    }


def _reference(reference: ReferenceInputs) -> dict[str, Any]:
    """A family's floor, its ideal token shuffle, and the band that the shuffles lie in."""
    offsets = reference.shuffles[0] if reference.shuffles else ()
    bands = {offset: _band([shuffle[offset] for shuffle in reference.shuffles]) for offset in offsets}
    return {
        "sizes": reference.sizes.tolist(),
        "floor": round_values(reference.floor),
        "ideal": round_values(reference.ideal),
        "shuffle": {"num_seeds": len(reference.shuffles), **bands},
    }


def _band(profiles: Sequence[ProfileInputs]) -> dict[str, list[Any]]:
    """Where the shuffles' means, worst and best windows lie, over seeds."""
    mean, best, worst = (
        np.stack([getattr(profile, name) for profile in profiles]) for name in ("mean", "best", "worst")
    )
    curves: Mapping[str, Float64[np.ndarray, " size"]] = {
        "mean": mean.mean(axis=0),
        "mean_low": mean.min(axis=0),
        "mean_high": mean.max(axis=0),
        "worst_low": worst.min(axis=0),
        "worst_high": worst.max(axis=0),
        "best_low": best.min(axis=0),
    }
    return {"sizes": profiles[0].sizes.tolist(), **{name: round_values(curve) for name, curve in curves.items()}}


def _heat_map(heat_map: HeatMapInputs) -> dict[str, Any]:
    return {
        "num_bins": heat_map.share.shape[1],
        "bin_size": int(heat_map.bin_size),
        "groups": [
            {"name": clean_text(name, 60), "target": round_value(target)}
            for name, target in zip(heat_map.names, heat_map.target.tolist(), strict=True)
        ],
        # Three digits are more than a colour shows.
        "share": [round_values(shares, 3) for shares in heat_map.share],
    }

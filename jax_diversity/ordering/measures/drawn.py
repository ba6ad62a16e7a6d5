"""Measures as the values of figures: curves that are short enough to be drawn, in plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from jax_diversity.foundation.figures.plain import clean_text, round_value
from jax_diversity.ordering.measures.curves import MAX_POINTS, envelope, shortened


class MeasuredOrder(NamedTuple):
    """The measures of one order, as they are stored and drawn.

    Attributes:
        summary: as `Balance.summary` returns it.
        curves: `prefix` (family -> curve), `windows` (family -> window size -> `curve` and `worst_position`) and
            `norm_drift` (a curve); a curve is what `envelope` makes.
    """

    summary: dict[str, Any]
    curves: dict[str, Any]


def window_curves(
    window_tv: Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]], points: int = MAX_POINTS
) -> dict[str, dict[str, Any]]:
    """Return the curves of aligned windows, drawn at their middles, and the positions of the worst windows.

    The keys are the family and the window size.
    """
    curves: dict[str, dict[str, Any]] = {}
    for family, by_size in window_tv.items():
        for size, tv in by_size.items():
            middles = (np.arange(len(tv)) + 0.5) * size
            curve = {"curve": envelope(tv, middles, points), "worst_position": int(np.argmax(tv)) * size}
            curves.setdefault(family, {})[str(size)] = curve
    return curves


def shortened_curves(curves: Mapping[str, Any], points: int) -> dict[str, Any]:
    """Return the curves of a measured order with at most `points` points each."""
    return {
        "prefix": {family: shortened(curve, points) for family, curve in curves["prefix"].items()},
        "windows": {
            family: {size: {**window, "curve": shortened(window["curve"], points)} for size, window in by_size.items()}
            for family, by_size in curves["windows"].items()
        },
        "norm_drift": shortened(curves["norm_drift"], points),
    }


def curve_values(summary: Mapping[str, Any], curves: Mapping[str, Any], num_positions: int) -> dict[str, Any]:
    """Return what figures draw of an order: `prefix`, `windows` and `norm_drift`.

    Args:
        summary: the measures of the order, as `Balance.summary` returns them.
        curves: its curves, as `Balance.curves` returns them.
        num_positions: the number of its positions.
    """
    prefix, windows = [], []
    for family, measured in summary["families"].items():
        of_prefix = {"max": round_value(measured["prefix_l2_max"]), "curve": curves["prefix"][family]}
        prefix.append({"family": clean_text(family), **of_prefix})
        for size, tv in sorted((int(size), tv) for size, tv in measured["windows"].items()):
            windows.append(
                {
                    "family": clean_text(family),
                    "window_size": size,
                    "num_windows": num_positions // size,
                    **{name: round_value(tv[f"tv_{name}"]) for name in ("mean", "best", "worst")},
                    "window_max": round_value(tv["max_share_deviation"]),
                    **curves["windows"][family][str(size)],
                }
            )
    drift = {"max": round_value(summary["norm_drift_max"]), "curve": curves["norm_drift"]}
    return {"prefix": prefix, "windows": windows, "norm_drift": drift}


def limit_values(floors: Mapping[str, Mapping[int, float]], ideals: Mapping[str, Mapping[int, float]]) -> list[Any]:
    """Return the floor and the TV of an ideal token shuffle of every family and window size."""
    return [
        {
            "family": clean_text(family),
            "window_size": size,
            "floor": round_value(floor),
            "ideal_token_tv": round_value(ideals[family][size]),
        }
        for family, by_size in floors.items()
        for size, floor in sorted(by_size.items())
    ]

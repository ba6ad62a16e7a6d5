"""Measures as the values of figures: curves that are short enough to be drawn, in plain numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from jax_diversity.figures.plain import clean_text, round_value
from jax_diversity.measures.curves import MAX_POINTS, envelope

if TYPE_CHECKING:
    from jax_diversity.measures.balance import Balance


def curve_values(balance: Balance, points: int = MAX_POINTS) -> dict[str, Any]:
    """Return what figures draw of an order: `prefix`, `windows` and `norm_drift`, curves of at most `points` points."""
    windows = [
        {
            "family": clean_text(family),
            "window_size": size,
            "num_windows": len(tv),
            "mean": round_value(tv.mean()),
            "best": round_value(tv.min()),
            "worst": round_value(tv.max()),
            "worst_position": int(np.argmax(tv)) * size,
            "window_max": round_value(balance.window_max[family][size]),
            "curve": envelope(tv, (np.arange(len(tv)) + 0.5) * size, points),
        }
        for family, by_size in balance.window_tv.items()
        for size, tv in sorted(by_size.items())
        if len(tv)
    ]
    return {
        "prefix": [
            {"family": clean_text(family), **_curve(curve, points)} for family, curve in balance.prefix_l2.items()
        ],
        "windows": windows,
        "norm_drift": _curve(balance.norm_drift, points),
    }


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


def _curve(values: Float64[np.ndarray, " position"], points: int) -> dict[str, Any]:
    """A curve and its largest distance from zero, taken before the curve is shortened and rounded."""
    return {"max": round_value(np.abs(values).max(initial=0.0)), "curve": envelope(values, max_points=points)}

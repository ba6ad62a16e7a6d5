"""Reduction of curves to a few points for drawing and JSON; every peak stays visible."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

MAX_POINTS = 600


def envelope(
    values: Float[np.ndarray, " position"], positions: np.ndarray | None = None, max_points: int = MAX_POINTS
) -> dict[str, list[float]]:
    """Shorten a curve to at most `max_points` points, in plain numbers of six significant digits.

    Neighbouring values become one point with their mean position, `mean`, `min` and `max`. The band between `min` and
    `max` contains every value. Values that are not finite are left out. Positions ascend; None means 1, 2 ...
    """
    finite = np.isfinite(values)
    places = np.arange(1, len(values) + 1) if positions is None else np.asarray(positions)
    places, values = places[finite].astype(np.float64), values[finite].astype(np.float64)
    num_points = min(len(values), max_points)
    if not num_points:
        return {"position": [], "mean": [], "min": [], "max": []}
    # The numbers of values per point differ by at most one; `reduceat` needs at least one value per point.
    starts = np.arange(num_points, dtype=np.int64) * len(values) // num_points
    numbers = np.diff(starts, append=len(values))
    return {
        # We keep nine digits, because positions go up to a hundred million and neighbouring points must stay distinct.
        "position": _rounded(np.add.reduceat(places, starts) / numbers, digits=9),
        "mean": _rounded(np.add.reduceat(values, starts) / numbers),
        "min": _rounded(np.minimum.reduceat(values, starts)),
        "max": _rounded(np.maximum.reduceat(values, starts)),
    }


def _rounded(column: Float[np.ndarray, " point"], digits: int = 6) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in column.tolist()]

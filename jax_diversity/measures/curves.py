"""Curves with few enough points to be drawn or written down; no peak is lost."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

MAX_POINTS = 600


def envelope(
    values: Float[np.ndarray, " position"], positions: np.ndarray | None = None, max_points: int = MAX_POINTS
) -> dict[str, list[float]]:
    """Shorten a curve to at most `max_points` points, in plain numbers of six significant digits.

    Neighbouring values share a point, which keeps their mean, the least and the largest of them: the band between
    them holds every value of the curve. Values that are not finite are left out.

    Args:
        values: the curve.
        positions: the horizontal coordinate of every value, ascending; None counts 1, 2 ...
        max_points: most points.

    Returns:
        `position` (the mean of the point's), `mean`, `min` and `max`, lists of equal length.

    Example:
        >>> envelope(np.array([1.0, 3.0, 2.0, 2.0]), max_points=2)
        {'position': [1.5, 3.5], 'mean': [2.0, 2.0], 'min': [1.0, 2.0], 'max': [3.0, 2.0]}
    """
    finite = np.isfinite(values)
    places = np.arange(1, len(values) + 1) if positions is None else np.asarray(positions)
    places, values = places[finite].astype(np.float64), values[finite].astype(np.float64)
    num_points = min(len(values), max_points)
    if not num_points:
        return {"position": [], "mean": [], "min": [], "max": []}
    # Stretches whose lengths differ by one at most, none of them empty, as `reduceat` needs.
    starts = np.arange(num_points, dtype=np.int64) * len(values) // num_points
    numbers = np.diff(starts, append=len(values))
    return {
        "position": _rounded(np.add.reduceat(places, starts) / numbers, digits=9),
        "mean": _rounded(np.add.reduceat(values, starts) / numbers),
        "min": _rounded(np.minimum.reduceat(values, starts)),
        "max": _rounded(np.maximum.reduceat(values, starts)),
    }


def _rounded(column: Float[np.ndarray, " point"], digits: int = 6) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in column.tolist()]

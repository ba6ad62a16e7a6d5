"""Curves with few enough points to be drawn or written down; no peak is lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

MAX_POINTS = 600


class Curve(NamedTuple):
    """A long curve in few points: of every stretch of positions the mean, the least and the largest value.

    Attributes:
        position: the stretches' mean positions, ascending.
        mean: the values' means.
        low: the least values.
        high: the largest values.
        number: how many values a point stands for.
    """

    position: Float64[np.ndarray, " point"]
    mean: Float64[np.ndarray, " point"]
    low: Float64[np.ndarray, " point"]
    high: Float64[np.ndarray, " point"]
    number: Float64[np.ndarray, " point"]


def shorten(
    curve: Float[np.ndarray, " position"] | Curve,
    positions: np.ndarray | None = None,
    max_points: int = MAX_POINTS,
) -> Curve:
    """Shorten a curve to at most `max_points` points without losing a peak.

    Neighbouring values share a bucket; of each bucket the mean, the least and the largest value are kept, so that
    the band between them holds every value of the curve. Values that are not finite are left out. A curve that was
    shortened can be shortened again.

    Args:
        curve: one value a position, or what an earlier call gave.
        positions: the horizontal coordinate of every value, ascending; None counts 1, 2 ...; a shortened curve has
            its own.
        max_points: most buckets.

    Example:
        >>> shorten(np.array([1.0, 3.0, 2.0, 2.0]), max_points=2).high.tolist()
        [3.0, 2.0]
    """
    if isinstance(curve, Curve):
        positions, values, low, high, number = curve
    else:
        finite = np.isfinite(curve)
        values = low = high = curve[finite].astype(np.float64)
        positions = np.arange(1, len(curve) + 1) if positions is None else np.asarray(positions)
        positions, number = positions[finite].astype(np.float64), np.ones(len(values))
    num_buckets = min(len(values), max_points)
    if not num_buckets:
        return Curve(*np.zeros((5, 0)))
    starts = np.arange(num_buckets, dtype=np.int64) * len(values) // num_buckets
    numbers = np.add.reduceat(number, starts)
    return Curve(
        np.add.reduceat(positions * number, starts) / numbers,
        np.add.reduceat(values * number, starts) / numbers,
        np.minimum.reduceat(low, starts),
        np.maximum.reduceat(high, starts),
        numbers,
    )


def envelope(
    curve: Float[np.ndarray, " position"] | Curve,
    positions: np.ndarray | None = None,
    max_points: int = MAX_POINTS,
) -> dict[str, list[float]]:
    """A curve as `shorten` leaves it, in plain numbers.

    Returns:
        `position` (mean of the bucket's), `mean`, `min` and `max`, lists of equal length.

    Example:
        >>> envelope(np.array([1.0, 3.0, 2.0, 2.0]), max_points=2)
        {'position': [1.5, 3.5], 'mean': [2.0, 2.0], 'min': [1.0, 2.0], 'max': [3.0, 2.0]}
    """
    short = shorten(curve, positions, max_points)

    def rounded(column: Float64[np.ndarray, " point"], digits: int = 6) -> list[float]:
        return [float(f"{value:.{digits}g}") for value in column.tolist()]

    return {
        "position": rounded(short.position, digits=9),
        "mean": rounded(short.mean),
        "min": rounded(short.low),
        "max": rounded(short.high),
    }

"""Reduction of curves to a few points for drawing and JSON; every peak stays visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


class Envelope:
    """The curve of `envelope` of values that come in pieces, at the positions 1, 2 ... `num_values`."""

    def __init__(self, num_values: int, max_points: int = MAX_POINTS) -> None:
        num_points = min(num_values, max_points)
        self._starts = np.arange(num_points, dtype=np.int64) * num_values // max(num_points, 1)
        self._num_values, self._done = num_values, 0
        self._sums = np.zeros(num_points)
        self._least, self._most = np.full(num_points, np.inf), np.full(num_points, -np.inf)

    def add(self, values: Float[np.ndarray, " position"]) -> None:
        """Add the next values, which must be finite."""
        if not len(values):
            return
        stop = self._done + len(values)
        first = int(np.searchsorted(self._starts, self._done, side="right")) - 1
        points = slice(first, int(np.searchsorted(self._starts, stop)))
        bounds = np.maximum(self._starts[points] - self._done, 0)
        self._sums[points] += np.add.reduceat(values, bounds)
        self._least[points] = np.minimum(self._least[points], np.minimum.reduceat(values, bounds))
        self._most[points] = np.maximum(self._most[points], np.maximum.reduceat(values, bounds))
        self._done = stop

    @property
    def largest(self) -> float:
        """The largest value; 0 if all values are negative, or there are none."""
        return float(self._most.max(initial=0.0))

    @property
    def largest_size(self) -> float:
        """The largest absolute value; 0 if there are no values."""
        return max(abs(float(self._most.max(initial=0.0))), abs(float(self._least.min(initial=0.0))))

    def points(self) -> dict[str, list[float]]:
        """Return the points, as `envelope`."""
        ends = np.append(self._starts[1:], self._num_values)
        return {
            "position": _rounded((self._starts + 1 + ends) / 2, digits=9),
            "mean": _rounded(self._sums / (ends - self._starts)),
            "min": _rounded(self._least),
            "max": _rounded(self._most),
        }


def shortened(curve: Mapping[str, Sequence[float]], max_points: int) -> dict[str, list[float]]:
    """Return a curve of `envelope` with fewer points.

    All points stand for nearly the same number of values, so the mean of their means is nearly the mean of the values.
    """
    columns = {name: np.asarray(values, np.float64) for name, values in curve.items()}
    number = len(columns["mean"])
    if number <= max_points:
        return {name: list(values) for name, values in curve.items()}
    starts = np.arange(max_points, dtype=np.int64) * number // max_points
    sizes = np.diff(starts, append=number)
    return {
        "position": _rounded(np.add.reduceat(columns["position"], starts) / sizes, digits=9),
        "mean": _rounded(np.add.reduceat(columns["mean"], starts) / sizes),
        "min": _rounded(np.minimum.reduceat(columns["min"], starts)),
        "max": _rounded(np.maximum.reduceat(columns["max"], starts)),
    }


def _rounded(column: Float[np.ndarray, " point"], digits: int = 6) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in column.tolist()]

"""A number with the interval in which its true value lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

_LEVEL = 0.95
LEAST = 4
"""The smallest number of documents or sequences with an interval."""
TOO_FEW = "too few for an interval"


@dataclass(frozen=True)
class Interval:
    """An estimated number with its 95 % interval.

    Attributes:
        value: the number.
        error: its standard error; NaN if it is unknown.
        reach: half the width of the interval; NaN if it is unknown.
    """

    value: float
    error: float
    reach: float

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.value - self.reach

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.value + self.reach


@dataclass(frozen=True)
class MeanInterval(Interval):
    """An estimated mean with its 95 % interval."""

    @property
    def mean(self) -> float:
        """The value."""
        return self.value


def student_reach(error: Any, freedom: Any, skewness: Any = 0.0) -> Any:
    """Half the width of a 95 % interval by Student's quantile; numbers or arrays.

    With skewed noise the quantile t is too small, because a small sample rarely contains a large value. To the order
    of 1/sqrt(n) it is too small by t² skewness / 3 (Johnson 1978, *Modified t tests and confidence intervals for
    asymmetrical populations*). Twice as much is added, because the skewness of few numbers is smaller than that of all.

    Args:
        error: the standard error.
        freedom: the degrees of freedom; below 1 they count as 1.
        skewness: the skewness of the mean (`skewness_of_mean`).
    """
    quantile = stats.t.ppf((1 + _LEVEL) / 2, np.fmax(freedom, 1))
    return quantile * error * (1 + 2 / 3 * quantile * skewness)


def skewness_of_mean(parts: Any) -> Any:
    """The absolute skewness of the sum of independent numbers with the mean 0, along the first axis.

    For n equal numbers it is their skewness divided by sqrt(n). It is at most 1.
    """
    squares = (parts**2).sum(axis=0)
    return np.abs((parts**3).sum(axis=0)) / np.where(squares > 0, squares, 1.0) ** 1.5

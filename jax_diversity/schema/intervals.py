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


def student_reach(error: Any, freedom: Any) -> Any:
    """Half the width of a 95 % interval by Student's quantile; numbers or arrays.

    Args:
        error: the standard error.
        freedom: the degrees of freedom; below 1 they count as 1.
    """
    return stats.t.ppf((1 + _LEVEL) / 2, np.fmax(freedom, 1)) * error

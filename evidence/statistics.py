"""Statistics of paired runs: differences with intervals, corrections for several comparisons, and statistical power.

The runs of a pair share initial weights, validation and budget, and differ only in the compared setting. The shared
part is most of the variance, and it cancels in their difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema.intervals import MeanInterval, student_reach

_LEVEL = 0.05  # of significance
_POWER = 0.8
_BATCH = 2**24
"""The largest number of values in memory in one step of the bootstrap."""


@dataclass(frozen=True)
class Difference(MeanInterval):
    """A mean difference of pairs.

    Attributes:
        p_value: p-value of the two-sided paired t-test whose null hypothesis is a mean of 0.
        deviation: standard deviation of the pairs' differences.
        num_pairs: number of pairs.
    """

    p_value: float
    deviation: float
    num_pairs: int

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def is_clear(self) -> bool:
        """Whether the difference is significant at 5 % as a single comparison, by the t-test and by the interval."""
        return self.p_value <= 0.05 and self.is_significant


def paired_difference(
    one: Float[np.ndarray, "seed document"],
    other: Float[np.ndarray, "seed document"],
    weights: Float[np.ndarray, " document"] | None = None,
    *,
    num_draws: int = 10_000,
    seed: int = 0,
) -> Difference:
    """The mean of `one - other` with a bootstrap interval of 95 % over seeds and over documents.

    Seeds and documents are resampled independently of each other, because all seeds have the same documents (the
    "pigeonhole" bootstrap: Owen 2007, *The pigeonhole bootstrap*, Annals of Applied Statistics 1(2)). The interval is
    the bootstrap's standard error times Student's quantile with `seeds - 1` degrees of freedom: a percentile interval
    of five seeds, a usual number here, would contain the true value in only about 85 % of cases.

    Args:
        one: values of one kind of run, such as losses in nats per token, by pair (seed) and document.
        other: values of the other kind, in the same order.
        weights: weights of the documents, such as their numbers of tokens; None means equal weights.
        num_draws: number of bootstrap samples.
        seed: seed of the draws.

    Raises:
        UserError: there are fewer than two pairs, shapes differ, or values are not finite.

    Example:
        >>> losses = np.array([[3.1, 2.9], [3.2, 3.0], [3.0, 2.9]])
        >>> paired_difference(losses - 0.1, losses).mean
        -0.1...
    """
    if one.shape != other.shape or one.ndim != 2 or len(one) < 2 or not one.shape[1]:
        raise UserError(
            f"Expected at least two pairs of runs with the same documents, found values of {one.shape} and "
            f"{other.shape}."
        )
    differences = one - other
    if not np.isfinite(differences).all():
        raise UserError("Expected finite values of all pairs, found other values; leave out runs that diverged.")
    num_pairs, num_documents = differences.shape
    shares = np.full(num_documents, 1 / num_documents) if weights is None else weights / weights.sum()
    by_pair = differences @ shares
    rng = np.random.default_rng(seed)
    draws = []
    for start in range(0, num_draws, size := max(_BATCH // (num_pairs + num_documents), 1)):
        number = min(size, num_draws - start)
        pairs = rng.multinomial(num_pairs, np.full(num_pairs, 1 / num_pairs), number) / num_pairs
        documents = shares * rng.multinomial(num_documents, np.full(num_documents, 1 / num_documents), number)
        totals = documents.sum(axis=1)
        # A bootstrap sample in which all documents have weight 0 has no mean.
        means = ((pairs @ differences) * documents).sum(axis=1)[totals > 0] / totals[totals > 0]
        draws.append(means)
    # The bootstrap's variance over n pairs is (n - 1) / n of the variance that it estimates.
    error = float(np.concatenate(draws).std() * np.sqrt(num_pairs / (num_pairs - 1)))
    reach = float(student_reach(error, num_pairs - 1))
    deviation = float(by_pair.std(ddof=1))
    return Difference(float(by_pair.mean()), error, reach, _p_value(by_pair), deviation, num_pairs)


def _p_value(differences: Float[np.ndarray, " pair"]) -> float:
    if not differences.any():
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0
    return float(np.asarray(stats.ttest_1samp(differences, 0))[1])


def holm(p_values: Float[np.ndarray, " comparison"]) -> Float[np.ndarray, " comparison"]:
    """P-values of several comparisons, corrected so that the chance of any false rejection stays below the level.

    Holm 1979, *A simple sequentially rejective multiple test procedure*: the smallest of m p-values is multiplied by m,
    the next by m - 1 and so on, and no corrected value becomes smaller than the value before it.

    Example:
        >>> holm(np.array([0.01, 0.04, 0.03]))
        array([0.03, 0.06, 0.06])
    """
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(np.maximum.accumulate(p_values[order] * factors), 1)
    return corrected


def power(difference: float, deviation: float, num_pairs: int) -> float:
    """The probability that a two-sided paired t-test at the level of 5 % finds a true difference.

    Args:
        difference: the true difference of the means.
        deviation: standard deviation of the pairs' differences.
        num_pairs: number of pairs.

    Raises:
        UserError: there are fewer than two pairs, or the deviation is not positive.
    """
    if num_pairs < 2 or not deviation > 0:
        raise UserError(
            f"Expected at least two pairs and a deviation above 0, found {num_pairs} pairs and {deviation}."
        )
    freedom = num_pairs - 1
    limit = float(stats.t.ppf(1 - _LEVEL / 2, freedom))
    shift = abs(difference) / deviation * np.sqrt(num_pairs)
    # Far from 0 SciPy returns NaN for the tail on the other side, which is negligible there.
    other_side = float(np.nan_to_num(stats.nct.cdf(-limit, freedom, shift)))
    return float(stats.nct.sf(limit, freedom, shift)) + other_side


class VarianceRatio(NamedTuple):
    """The ratio of two variances with its 95 % interval."""

    value: float
    low: float
    high: float


def variance_ratio(one: Float[np.ndarray, " pair"], other: Float[np.ndarray, " pair"]) -> VarianceRatio:
    """The ratio of the variances of paired values, `one` over `other`, with an interval of 95 %.

    The interval inverts the test of Pitman and Morgan: two variances are equal if and only if the sums and the
    differences of the pairs are uncorrelated (Pitman 1939, *A note on normal correlation*, Biometrika 31). Without a
    correlation between the pairs it is about the interval of the F distribution.

    Args:
        one: values of one kind of run.
        other: values of the other kind, in the same order of pairs.

    Raises:
        UserError: fewer than three pairs, or values of one kind that are all equal.

    Example:
        >>> variance_ratio(np.array([0.0, 4.0, 8.0, 2.0]), np.array([0.0, 1.0, 2.0, 3.0])).value
        7.0
    """
    if len(one) < 3 or len(one) != len(other) or not np.ptp(one) or not np.ptp(other):
        raise UserError(
            f"Expected at least three pairs of different values, found {len(one)} and {len(other)} values with ranges "
            f"of {np.ptp(one):g} and {np.ptp(other):g}."
        )
    ratio = float(one.var(ddof=1) / other.var(ddof=1))
    correlation = float(np.corrcoef(one, other)[0, 1])
    limit = float(stats.t.ppf(1 - _LEVEL / 2, len(one) - 2))
    center = 1 + 2 * (1 - correlation**2) * limit**2 / (len(one) - 2)
    spread = np.sqrt(max(center**2 - 1, 0.0))
    return VarianceRatio(ratio, float(ratio * (center - spread)), float(ratio * (center + spread)))


def smallest_detectable(deviation: float, num_pairs: int) -> float:
    """The minimal detectable effect of `num_pairs` pairs, with a power of 80 %; arguments as for `power`.

    Example:
        >>> round(smallest_detectable(0.01, 5), 4)
        0.0168
    """
    low, high = 0.0, deviation
    while power(high, deviation, num_pairs) < _POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, deviation, num_pairs) < _POWER else (low, middle)
    return high


def pairs_needed(difference: float, deviation: float) -> int:
    """The number of pairs that detect `difference` with a power of 80 %; arguments as for `power`.

    Raises:
        UserError: the difference is 0, or a million pairs would not find it.
    """
    high = 2
    while not difference or power(difference, deviation, high) < _POWER:
        if not difference or high > 1_000_000:
            raise UserError(f"Expected a difference that a million pairs can find, found {difference}.")
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(difference, deviation, middle) < _POWER else (low, middle)
    return high if low >= 2 or power(difference, deviation, 2) < _POWER else 2

"""The noise of a logged training loss, and steps whose loss is far above its course: spikes and hard batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from jax_diversity.foundation.checks import as_tuple, as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.wording import counted

_POINTS = 9
"""Number of means to which a local line is fitted."""
_FOUND = 1.95996 + 0.84162
"""Standard errors of a difference that four of five comparisons find at the level of 5 %."""
_REACH = 32
"""Number of steps on each side whose median is the course of a loss: longer spikes become a part of the course."""
_LEAST_REACH = 4
_CHUNK = 2**14
_FAR = 5.0
"""Standard deviations above the course: with normal noise one step of 3 million would be this far."""
_DEVIATION = 1.4826
"""The standard deviation of a normal distribution, divided by its median absolute deviation."""


@dataclass(frozen=True)
class LossNoise:
    """The noise of a training loss; keys are numbers k of steps.

    Attributes:
        deviations: k -> standard deviation of the mean loss of k steps around the course of the loss.
        smallest_differences: k -> the smallest difference between two curves that their means of k steps show: if the
            runs differ by it, four of five such comparisons find it (two-sided, at 5 %). It holds for runs with
            independent batches. Runs with the same batches in the same order share most of the noise.
    """

    deviations: Mapping[int, float]
    smallest_differences: Mapping[int, float]

    def __str__(self) -> str:
        parts = [f"{counted(number, 'step')}: {deviation:.4f}" for number, deviation in self.deviations.items()]
        return f"Standard deviation of the mean loss of {', '.join(parts) or 'too few steps to tell'}"


def loss_noise(losses: Any, spans: Any = (1, 8, 64)) -> LossNoise:
    """Measure the noise of a training loss.

    The losses are averaged in blocks of k steps. A line is fitted to every 9 consecutive means; the noise is the
    residual of the middle one, scaled by √(9/8) so that its variance is that of independent noise. The line follows the
    fall of the loss, so use a part of the run in which 9 k steps are nearly straight, such as the second half.

    If the losses of steps were independent, the deviation would fall with 1/√k. With a balanced order it falls faster,
    because the mixtures of consecutive batches compensate one another.

    Args:
        losses: the loss of every step, one after another, (step,), in nats per token.
        spans: numbers k of steps, at least 1. One for which there are fewer than 9 blocks is left out of the result.

    Raises:
        UserError: losses that are not finite numbers in one dimension, or a span below 1.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> loss_noise(3 + 0.1 * rng.normal(size=10_000)).deviations
        {1: 0.1..., 8: 0.035..., 64: 0.012...}
    """
    values = _as_losses("losses", losses)
    estimates = {}
    for span in as_tuple(spans):
        number = as_whole_number("every span", span, 1)
        means = values[len(values) % number :].reshape(-1, number).mean(axis=1)
        if len(means) >= _POINTS:
            # In the middle of its points, a fitted line has the value of their mean.
            lines = np.lib.stride_tricks.sliding_window_view(means, _POINTS).mean(axis=1)
            residuals = means[_POINTS // 2 : -(_POINTS // 2)] - lines
            estimates[number] = float(np.sqrt((residuals**2).mean() * _POINTS / (_POINTS - 1)))
    return LossNoise(estimates, {number: smallest_difference(deviation) for number, deviation in estimates.items()})


def smallest_difference(deviation: float) -> float:
    """The difference of two independent means with this standard deviation that four of five comparisons find."""
    return _FOUND * 2**0.5 * deviation


@dataclass(frozen=True)
class Outliers:
    """Steps whose loss is far above the course of the loss.

    Attributes:
        spikes: steps whose batches do not explain it: the model or the optimiser does.
        hard_batches: steps whose batches explain it; none if the expected losses are not known.
        slope: how much of a change of the expected loss appears in the loss; 0 if expected losses are not known.
        deviation: standard deviation of the unexplained part, in nats per token.
    """

    spikes: tuple[int, ...]
    hard_batches: tuple[int, ...]
    slope: float
    deviation: float


def find_outliers(losses: Any, expected: Any = None) -> Outliers:
    """Tell spikes of a training loss from hard batches.

    The course of a curve at a step is the median of up to 32 steps on each side. The distances of the losses from their
    course are explained by the distances of the expected losses from theirs (least squares, without outliers). A step
    is a spike if the unexplained part is more than 5 standard deviations above 0, estimated from the median absolute
    deviation. It is a hard batch if its loss is as far above the course, and the unexplained part is not. The first and
    the last 4 steps are not judged.

    Args:
        losses: the loss of every step, (step,), in nats per token.
        expected: `loss_expected` of every step, which `watch_batches` logs with `reference=`; None if it is not known.
            Then every outlier counts as a spike.

    Raises:
        UserError: values that are not finite numbers in one dimension, or expected losses of another number of steps.

    Example:
        >>> losses, expected = np.full(100, 3.0), np.full(100, 2.9)
        >>> losses[[20, 60]] += 1
        >>> expected[20] += 1
        >>> found = find_outliers(losses + 1e-3 * np.random.default_rng(0).normal(size=100), expected)
        >>> found.spikes, found.hard_batches
        ((60,), (20,))
    """
    values = _as_losses("losses", losses)
    distance = _from_course(values)
    explained, slope = np.zeros(len(values)), 0.0
    if expected is not None:
        other = _as_losses("expected", expected)
        if len(other) != len(values):
            raise UserError(f"Expected as many expected losses as losses ({len(values)}), found {len(other)}.")
        hardness = _from_course(other)
        slope = _robust_slope(hardness, distance)
        explained = slope * hardness
    rest = distance - explained
    is_spike, is_high = _are_far(rest), _are_far(distance)
    hard = is_high & ~is_spike if expected is not None else np.zeros(len(values), bool)
    return Outliers(_steps(is_spike), _steps(hard), slope, _spread(rest))


def _as_losses(name: str, values: Any) -> Float64[np.ndarray, " step"]:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"Expected {name} to be numbers, one for each step, found {values!r}.") from None
    if array.ndim != 1 or not np.isfinite(array).all():
        description = (
            f"an array {array.shape}" if array.ndim != 1 else f"{int((~np.isfinite(array)).sum())} that are not"
        )
        raise UserError(f"Expected {name} to be finite numbers, one for each step, found {description}.")
    return array


def _from_course(values: Float64[np.ndarray, " step"]) -> Float64[np.ndarray, " step"]:
    """The distances from the local medians; 0 where there are too few neighbours."""
    # Near the ends the window becomes narrower but stays symmetric: a falling curve is then not above its course.
    number = len(values)
    medians = values.copy()
    for start in range(_REACH, number - _REACH, _CHUNK):
        stop = min(start + _CHUNK, number - _REACH)
        windows = np.lib.stride_tricks.sliding_window_view(values[start - _REACH : stop + _REACH], 2 * _REACH + 1)
        medians[start:stop] = np.median(windows, axis=1)
    for step in {*range(_LEAST_REACH, min(_REACH, number)), *range(max(number - _REACH, 0), number - _LEAST_REACH)}:
        reach = min(_REACH, step, number - 1 - step)
        if reach >= _LEAST_REACH:
            medians[step] = np.median(values[step - reach : step + reach + 1])
    return values - medians


def _robust_slope(x: Float64[np.ndarray, " step"], y: Float64[np.ndarray, " step"]) -> float:
    kept, slope = np.ones(len(x), bool), 0.0
    for _ in range(10):
        squares = float(x[kept] @ x[kept])
        slope = float(x[kept] @ y[kept]) / squares if squares > 0 else 0.0
        rest = y - slope * x
        kept = np.abs(rest) <= 3 * _spread(rest)
    return slope


def _spread(values: Float64[np.ndarray, " step"]) -> float:
    judged = values[_LEAST_REACH : len(values) - _LEAST_REACH]
    return _DEVIATION * float(np.median(np.abs(judged - np.median(judged)))) if len(judged) else 0.0


def _are_far(values: Float64[np.ndarray, " step"]) -> Bool[np.ndarray, " step"]:
    return values > _FAR * max(_spread(values), 1e-12)


def _steps(is_chosen: Bool[np.ndarray, " step"]) -> tuple[int, ...]:
    steps: Int64[np.ndarray, " found"] = np.flatnonzero(is_chosen)
    return tuple(steps.tolist())

"""Averages of the weights over the last steps, for evaluation."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Weights = Any


class MeanOfWeights:
    """The mean of the weights after each of the last steps before an evaluation.

    It is the tail average, or suffix average, of Rakhlin, Shamir and Sridharan 2012, *Making gradient descent optimal
    for strongly convex stochastic optimization*; in deep learning it is known as stochastic weight averaging (Izmailov
    et al. 2018, *Averaging weights leads to wider optima and better generalization*). The mean of the latest
    checkpoints (Kaddour 2022, *Stop wasting my time!*) is the same with fewer terms. The mean stays on the device and
    takes the memory of one model.

    Args:
        step: the number of steps at the evaluation.
        share: the averaged steps, as a fraction of `step`, in [0, 1]; at least the last step is included.

    Attributes:
        weights: the mean of the weights so far; None before the first averaged step.

    Example:
        >>> mean = MeanOfWeights(step=100, share=0.2)
        >>> for step in range(1, 101):
        ...     mean.add(step, weights_after[step])  # the steps 81 to 100 count
    """

    def __init__(self, step: int, share: float) -> None:
        self._first = step - max(round(share * step), 1) + 1
        self._last = step
        self.weights: Weights = None

    def add(self, step: int, weights: Weights) -> None:
        """Include the weights after a step; weights of earlier or later steps do not change the mean."""
        if not self._first <= step <= self._last:
            return
        if self.weights is None:
            # The mean needs its own buffers: the next step of training reuses those of the weights.
            self.weights = jax.tree.map(jnp.zeros_like, weights)
        self.weights = _include(self.weights, weights, jnp.float32(step - self._first + 1))


@partial(jax.jit, donate_argnums=0)
def _include(mean: Weights, weights: Weights, number: Float[Array, ""]) -> Weights:
    """The mean of `number` weights, of which the last ones are given, from the mean of the others."""
    return jax.tree.map(lambda old, new: old + (new - old) / number, mean, weights)

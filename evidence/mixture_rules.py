"""Compute mixture weights from groups' losses during training. A group is one value of a family, such as one source.

There are two rules. `excess_loss` gives more weight to groups whose loss exceeds the loss of a reference run (Xie et
al. 2023, "DoReMi: Optimizing data mixtures speeds up language model pretraining", algorithm 1). `learning_speed` gives
more weight to groups whose loss still falls fast (Jiang et al. 2024, "Adaptive data optimization: dynamic sample
selection with scaling laws"). A rule gets the groups' losses since its last update and returns shares; the training
loop orders the rest of the epoch by them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.errors import UserError

MixtureName = Literal["excess_loss", "learning_speed"]
Shares = Float64[np.ndarray, " group"]


@runtime_checkable
class MixtureRule(Protocol):
    """Turns losses into shares; your own rule may be any object with this method."""

    def update(self, losses: Shares, num_tokens: Int64[np.ndarray, " group"]) -> Shares:
        """The shares of the groups until the next update; they add up to one.

        Args:
            losses: mean loss of every group since the last update, in nats per token; NaN for a group without tokens.
            num_tokens: number of tokens in each mean.
        """
        ...


class ExcessLoss:
    """DoReMi's rule: `α ∝ α exp(η max(loss - reference, 0))`, mixed with the uniform shares.

    Args:
        prior: the shares at the start.
        reference: loss of every group at the end of the reference run.
        step_size: η.
        smoothing: weight of the uniform shares in the result.

    Example:
        >>> rule = ExcessLoss(np.array([0.5, 0.5]), np.array([2.0, 2.0]))
        >>> rule.update(np.array([3.0, 2.0]), np.array([10, 10])).round(2).tolist()
        [0.73, 0.27]
    """

    def __init__(
        self,
        prior: Shares,
        reference: Float64[np.ndarray, " reference"],
        step_size: float = 1.0,
        smoothing: float = 1e-3,
    ) -> None:
        if len(prior) != len(reference):
            raise UserError(f"Expected a reference loss for each of {len(prior)} groups, found {len(reference)}.")
        self.shares, self.reference = _normal(prior), reference
        self.step_size, self.smoothing = step_size, smoothing

    def update(self, losses: Shares, num_tokens: Int64[np.ndarray, " group"]) -> Shares:
        """The next shares; a group without tokens, or without a reference, has an excess of 0."""
        excess = np.nan_to_num(np.maximum(losses - self.reference, 0))
        uniform = 1 / len(losses)
        shares = _normal(self.shares * np.exp(self.step_size * excess))
        self.shares = (1 - self.smoothing) * shares + self.smoothing * uniform
        return self.shares


class LearningSpeed:
    """ADO's rule: `prior x (-dL/d log n)`, mixed with the prior; L is a power law fitted to the group's losses so far.

    The power law is `L = ε + β n^-α`, with n the group's tokens so far; α is chosen from a grid by least squares. The
    speed `α β n^-α` estimates how much further tokens of the group would lower its loss. A group with fewer than three
    losses keeps its prior's share.

    Args:
        prior: the corpus's own shares.
        smoothing: weight of the prior in the result.

    Example:
        >>> rule = LearningSpeed(np.array([0.5, 0.5]))
        >>> for loss in ([4.0, 4.0], [3.0, 4.0], [2.5, 4.0]):
        ...     shares = rule.update(np.array(loss), np.array([10, 10]))
        >>> bool(shares[0] > shares[1])
        True
    """

    _EXPONENTS = np.linspace(0.05, 1.0, 20)

    def __init__(self, prior: Shares, smoothing: float = 0.3) -> None:
        self.prior, self.smoothing = _normal(prior), smoothing
        self._losses: list[list[tuple[float, float]]] = [[] for _ in prior]
        self._tokens = np.zeros(len(prior))

    def update(self, losses: Shares, num_tokens: Int64[np.ndarray, " group"]) -> Shares:
        """The next shares."""
        # A mean over a range of tokens is used as the value at the middle of the range.
        middle = self._tokens + num_tokens / 2
        self._tokens += num_tokens
        for group, loss in enumerate(losses):
            if np.isfinite(loss) and num_tokens[group]:
                self._losses[group].append((middle[group], loss))
        speeds = np.array([self._speed(group) for group in range(len(losses))])
        is_known = np.isfinite(speeds)
        if not is_known.any() or not speeds[is_known].sum():
            return self.prior
        speeds[~is_known] = speeds[is_known].mean()
        return (1 - self.smoothing) * _normal(self.prior * speeds) + self.smoothing * self.prior

    def _speed(self, group: int) -> float:
        points = self._losses[group]
        if len(points) < 3:
            return np.nan
        tokens, losses = np.array(points).T
        best = (np.inf, 0.0)
        for exponent in self._EXPONENTS:
            falls = tokens**-exponent
            spread = falls - falls.mean()
            slope = max(float(spread @ losses / (spread @ spread)), 0.0)
            error = float(np.square(losses - losses.mean() - slope * spread).sum())
            if error < best[0]:
                best = error, exponent * slope * self._tokens[group] ** -exponent
        return best[1]


def make_rule(rule: MixtureName, prior: Shares, reference: Mapping[str, float] | Shares | None = None) -> MixtureRule:
    """Return the rule with a name; `excess_loss` needs the reference losses of the groups."""
    if rule == "learning_speed":
        return LearningSpeed(prior)
    if reference is None:
        raise UserError("Expected reference losses for the rule excess_loss, found none.")
    return ExcessLoss(prior, np.asarray(reference, np.float64))


def _normal(shares: Shares) -> Shares:
    return np.asarray(shares, np.float64) / np.sum(shares)

"""Choose positions that stand for all: the first positions of a balanced order."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.base import order
from jax_diversity.ordering.composition.hosts import partition_sequences
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.shortages import UnmetTargets

_CANDIDATES = 8192
"""Number of sequences beyond the chosen ones that the order may choose from; it is at least the pool of `balance`."""


def balanced_prefix(
    characteristics: Characteristics,
    number: int,
    *,
    seed: int = 0,
    objective: Objective | str | None = None,
    advance: Advance = ignore,
) -> Int64[np.ndarray, " chosen"]:
    """Return the first `number` sequences of a balanced order of all sequences.

    The first positions of `balance` depend only on the beginning of its balanced stream. If `number` is small, only one
    balanced part of the sequences is ordered, towards the mixture of all.

    Args:
        characteristics: token counts of all sequences.
        number: how many sequences to choose.
        seed: decides among similar sequences; other seeds give other samples.
        objective: weights of the rule; None means `Objective()`.
        advance: called with the number of positions filled since its last call.
    """
    num_parts = characteristics.num_sequences // (number + _CANDIDATES)
    if num_parts < 2:
        return order(characteristics, seed=seed, objective=objective, advance=advance).indices[:number]
    part = partition_sequences(characteristics, num_parts, seed)[0]
    targets = {family: characteristics.target_share(family) for family in characteristics.families}
    with warnings.catch_warnings():
        # The part may lack tokens of a rare group for an order of the whole part; the sample is its beginning.
        warnings.simplefilter("ignore", UnmetTargets)
        chosen = order(
            characteristics.take(part), seed=seed, objective=objective, targets=targets, advance=advance
        ).indices[:number]
    return part[chosen]

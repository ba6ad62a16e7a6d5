"""The linear-time default: a balanced stream through a refilled pool.

Exact greedy's time grows with the square of the number of sequences. Here sorted halving (`halving.py`) makes a stream
whose every stretch holds the corpus's mixture to within a few hundred sequences, and a refilled pool (`pool.py`)
removes what is left: at every step it places the best of some thousand candidates by the same rule as the exact
greedy. A pool alone is not enough: over a plain shuffle its leftovers pile up as the stream grows.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from jax_diversity.ordering.halving import balanced_stream
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Plan
from jax_diversity.ordering.pool import checked_pool_size, select_from_pool
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Characteristics


def balance(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    plan: Plan | None = None,
    checkpoint: Checkpoint | None = None,
    pool_size: int = 4096,
) -> Int64[np.ndarray, " sequence"]:
    """Balance in linear time: sorted halving, then the best of a refilled pool at every step.

    Args:
        characteristics: token counts.
        seed: of the order among likes; other seeds give other orderings, as balanced.
        objective: the weights of the rule.
        advance: told the number of sequences placed since it was last called.
        plan: targets and what was consumed; None aims at the corpus's shares from the beginning.
        checkpoint: where the run's state is kept.
        pool_size: P, candidates at every step.

    Raises:
        ValueError: a pool size below 1.
    """
    checked_pool_size(pool_size)
    plan = plan or Plan.build(characteristics, objective)
    stream = balanced_stream(plan.features, plan.remaining, seed)
    return select_from_pool(plan, objective, stream, pool_size, advance, checkpoint)

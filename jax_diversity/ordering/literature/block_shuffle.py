"""The exact greedy order with blocks in random order: batches stay balanced, prefixes do not."""

from __future__ import annotations

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.composition.compose import shuffle_blocks
from jax_diversity.ordering.greedy import greedy
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.running import Checkpoint
from jax_diversity.schema import Ordering


def greedy_block_shuffle(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
    checkpoint: Checkpoint | None = None,
    block_size: int = 256,
    mesh: Mesh | None = None,
    ties: str = "random",
) -> Int64[np.ndarray, " sequence"]:
    """Cut the exact greedy order into blocks and put the blocks in random order.

    This is the third configuration of the source article. It separates the effect of balanced batches from the effect
    of balanced prefixes. See `base.Method` for the other arguments.

    Args:
        seed: for the greedy order and the order of its blocks.
        block_size: number of sequences per block, usually the batch size of training. If settings have a `batch_size`
            and no block size, they use the batch size. If the last block is not full, it stays last. If the corpus has
            fewer sequences than a block, the greedy order stays.
        ties: as in `greedy`.

    Raises:
        ValueError: a block size that is not a whole number >= 1, unknown `ties`.
    """
    block_size = as_whole_number("block_size", block_size, 1)  # before `greedy`, which takes a long time
    order = greedy(
        characteristics, seed=seed, objective=objective, advance=advance, checkpoint=checkpoint, mesh=mesh, ties=ties
    )
    return shuffle_blocks(Ordering(order), min(block_size, max(len(order), 1)), seed).indices

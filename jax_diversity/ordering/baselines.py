"""Orders that need no objective: what people do today, and what plots compare with."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from jax_diversity.ordering.objective import Objective
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Characteristics


def uniform_shuffle(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
) -> Int64[np.ndarray, " sequence"]:
    """Every permutation equally likely (NumPy's PCG64, seeded); the objective is not used."""
    indices = np.random.default_rng(seed).permutation(characteristics.num_sequences).astype(np.int64)
    advance(len(indices))
    return indices


def corpus_order(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
) -> Int64[np.ndarray, " sequence"]:
    """Sequences as they were packed; neither seed nor objective is used."""
    advance(characteristics.num_sequences)
    return np.arange(characteristics.num_sequences, dtype=np.int64)

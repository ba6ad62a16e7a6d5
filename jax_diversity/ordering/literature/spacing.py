"""Spacing: every step places the document or sequence that keeps the shares nearest to the target.

`document_spacing` orders whole documents before they are packed. `sequence_spacing` orders sequences of different
lengths.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.spacing import space_groups
from jax_diversity.ordering.features import heaviest_groups
from jax_diversity.ordering.objective import Objective


def document_spacing(characteristics: Characteristics, *, advance: Advance = ignore) -> Int64[np.ndarray, " document"]:
    """Place, at every step, the document that brings its own cluster nearest to the cluster's share.

    Here the rows are documents, with any number of tokens. T_c is the number of tokens of cluster c placed so far. S is
    the number of all tokens placed so far. τ_c is the cluster's share of the corpus's tokens, and l_d is the number of
    tokens of document d. The next document is

        argmin_d |(T_c + l_d) - τ_c (S + l_d)|,  c the cluster of d, ties to the lowest index.

    A document's cluster is its heaviest group in the first family. All tokens of the document are assigned to this
    cluster, also in τ. Documents without tokens change no share and are placed first. If all documents have the same
    cluster, they keep the corpus's order.

    The rule considers only the document's own cluster. If a cluster lacks few tokens, the shortest document is the best
    choice. Therefore short documents tend to be first and long documents last.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> document_spacing(chars).tolist()
        [0, 2, 1, 3]
    """
    tokens = characteristics.tokens
    _, cluster = np.unique(heaviest_groups(characteristics.counts[characteristics.families[0]]), return_inverse=True)
    return space_groups(cluster, tokens, advance)


def sequence_spacing(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    advance: Advance = ignore,
    ties: str = "random",
) -> Int64[np.ndarray, " sequence"]:
    """Order sequences of different lengths with the published f1: the exact greedy method on the first family only.

    The objective is always `Objective.f1()`: no norm column, no windows, self weight 1, weight 1. The excess of a
    sequence is computed with its own number of tokens: `c_s - τ t_s`. The time grows with the square of the number of
    sequences.

    Args:
        seed: decides between equal scores.
        ties: which sequence is placed if several have the best score: a `random` one, or the one with the `lowest`
            index.

    Raises:
        ValueError: unknown `ties`.
    """
    from jax_diversity.ordering.greedy import greedy  # loads JAX, which `document_spacing` does not need

    return greedy(characteristics, seed=seed, objective=Objective.f1(), advance=advance, ties=ties)

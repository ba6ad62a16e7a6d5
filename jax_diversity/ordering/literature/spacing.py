"""Spacing: every step places the document or sequence that keeps the shares nearest to the target.

`document_spacing` orders whole documents before they are packed, `sequence_spacing` sequences of unequal lengths.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.spacing import space_groups
from jax_diversity.ordering.objective import Objective, heaviest_groups
from jax_diversity.schema import Characteristics


def document_spacing(characteristics: Characteristics, *, advance: Advance = ignore) -> Int64[np.ndarray, " document"]:
    """Place, at every step, the document that leaves its own cluster nearest to its share.

    Rows are documents here, of any number of tokens. T_c is the number of tokens of cluster c placed so far, S of all
    tokens placed, τ_c the cluster's share of the corpus's tokens, l_d the tokens of document d. The next document is

        argmin_d |(T_c + l_d) - τ_c (S + l_d)|,  c the cluster of d, ties to the lowest index.

    A document's cluster is its heaviest group in the first family, and all its tokens count there, in τ as well.
    Documents without tokens change no share and are placed first. If all documents are of one cluster, they keep the
    corpus's order.

    The rule considers only the document's own cluster. For a cluster that lacks few tokens the shortest document is the
    best choice, so that short documents tend to be first and the longest last.

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
    """The published f1 for sequences of unequal lengths: exact greedy on the first family alone.

    The objective is always `Objective.f1()`: no norm column, no windows, self weight 1, weight 1. A sequence counts
    with its own tokens, `c_s - τ t_s`. Time grows with the square of the number of sequences.

    Args:
        seed: decides between equal scores.
        ties: which of several sequences with the best score is placed: a `random` one, or the `lowest` index.

    Raises:
        ValueError: unknown `ties`.
    """
    from jax_diversity.ordering.greedy import greedy  # loads JAX, which `document_spacing` does not need

    return greedy(characteristics, seed=seed, objective=Objective.f1(), advance=advance, ties=ties)

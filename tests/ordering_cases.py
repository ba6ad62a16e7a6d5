"""Objectives and a dense reference of the excess, shared by the tests of the selectors."""

from __future__ import annotations

import numpy as np

from jax_diversity import Characteristics, Objective

OBJECTIVES = {
    "default": Objective(),
    "f1": Objective.f1(),
    "f2": Objective.f2(2.0),
    "f3": Objective.f3(0.5),
    "windows": Objective(windows=(16, 64), window_weight=0.5),
}


def excess_matrix(chars: Characteristics, objective: Objective) -> np.ndarray:
    """Every v_s in sequence lengths, dense float64, columns scaled by the square root of their weight."""
    columns = []
    for family, weight in objective.resolved_weights(chars).items():
        counts = chars.counts[family].toarray().astype(np.float64)
        target = counts.sum(axis=0) / counts.sum()
        columns.append(np.sqrt(weight) * (counts - chars.tokens[:, None] * target))
    norms = np.sqrt((chars.counts[chars.families[0]].toarray().astype(np.float64) ** 2).sum(axis=1))
    columns.append(np.sqrt(objective.norm_weight) * (norms - norms.mean())[:, None])
    return np.hstack(columns) / chars.sequence_length

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


class DocumentTerm:
    """The scores that keep sequences of one document apart, dense float64, in squared sequence lengths."""

    def __init__(self, chars: Characteristics, objective: Objective) -> None:
        self.tokens = chars.tokens / chars.sequence_length
        documents = np.full(chars.num_sequences, -1) if chars.documents is None else chars.documents
        _, self.document, size = np.unique(documents, return_inverse=True, return_counts=True)
        self.known = (size[self.document] > 1) & (documents >= 0)
        self.objective = objective

    def scores(self, placed: np.ndarray) -> np.ndarray:
        """Every sequence's score after these are placed."""
        if not self.known.any():
            return np.zeros(len(self.tokens))
        excess = self._excess(placed)
        for window in self.objective.windows:
            excess = excess + self.objective.window_weight * self._excess(placed[max(len(placed) - window, 0) :])
        return np.where(self.known, 2 * self.objective.document_weight * self.tokens * excess, 0.0)

    def _excess(self, placed: np.ndarray) -> np.ndarray:
        num = int(self.document.max()) + 1
        share = np.bincount(self.document, self.tokens, minlength=num) / self.tokens.sum()
        held = np.bincount(self.document[placed], self.tokens[placed], minlength=num)
        return (held - share * self.tokens[placed].sum())[self.document]

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
    """The scores that keep documents' sequences and copies apart, dense float64, in squared sequence lengths."""

    def __init__(self, chars: Characteristics, objective: Objective) -> None:
        self.tokens, self.objective = chars.tokens / chars.sequence_length, objective
        # A column for each group of several sequences: 1 for those in it.
        columns = []
        for groups in (chars.documents, chars.copies):
            if groups is not None:
                members = groups.reshape(len(groups), -1)
                columns += [(members == group).any(axis=1) for group in np.unique(groups[groups >= 0])]
        known = [column for column in columns if column.sum() > 1]
        self.member = np.array(known, np.float64).reshape(len(known), len(self.tokens)).T
        self.weights = objective.document_weight * np.sqrt(self.member.sum(axis=0))

    def scores(self, placed: np.ndarray) -> np.ndarray:
        """Every sequence's score after these are placed."""
        excess = self._excess(placed)
        for window in self.objective.windows:
            excess = excess + self.objective.window_weight * self._excess(placed[max(len(placed) - window, 0) :])
        return 2 * self.tokens * (self.member @ (self.weights * excess))

    def _excess(self, placed: np.ndarray) -> np.ndarray:
        share = self.tokens @ self.member / self.tokens.sum()
        return self.tokens[placed] @ self.member[placed] - share * self.tokens[placed].sum()


def random_copies(num_sequences: int, rng: np.random.Generator) -> np.ndarray:
    """Up to three groups of copies a sequence: one column of many small groups, one of few, one of few sequences."""
    columns = [rng.integers(0, max(num_sequences // 3, 1), num_sequences), 1000 + rng.integers(0, 9, num_sequences)]
    columns.append(np.where(rng.random(num_sequences) < 0.1, 2000, -1))
    return np.stack(columns, axis=1)

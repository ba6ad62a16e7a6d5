"""How often training sees a document, by its source, language or another field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax_diversity.corpus.steps.base import Candidate, Measured, Step
from jax_diversity.foundation.errors import UserError, quoted


@dataclass
class Weight(Step):
    """Sets the field `weight`: how often training sees a document, such as 2.5 times.

    `by` is `source`, `language` or the name of a field; `weights` maps its values to weights, such as `{wikipedia: 3,
    web: 1}`. For a field of fractional numbers, such as a probability, the values are thresholds: `{0.8: 2, 0.95: 3}`
    applies the highest threshold that the number reaches. All other documents get `default`. A second step multiplies
    the weights. A weight is above 0.
    """

    weights: Mapping[str, float]
    by: str = "source"
    default: float = 1.0

    def __post_init__(self) -> None:
        if not self.weights:
            raise UserError("Expected the option 'weights' to map values to weights, found none.")
        for name, weight in (*self.weights.items(), ("default", self.default)):
            if not (weight > 0 and math.isfinite(weight)):
                raise UserError(
                    f"Expected the weight of {quoted(name)} to be above 0, found {weight}; other steps remove "
                    "documents."
                )
        try:  # the highest threshold first; none if the values are not numbers
            self._thresholds = sorted(((float(name), weight) for name, weight in self.weights.items()), reverse=True)
        except ValueError:
            self._thresholds = []

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Look the weight up."""
        value = _value(candidate, self.by)
        if isinstance(value, float):
            found = next((weight for threshold, weight in self._thresholds if value >= threshold), self.default)
        else:
            found = self.weights.get(str(value), self.default)
        candidate.scores["weight"] = round(candidate.scores.get("weight", 1.0) * found, 6)
        yield from ()


def _value(candidate: Candidate, by: str) -> Any:
    if by == "source":
        return candidate.document.source
    if by == "language":
        return candidate.language
    return candidate.scores.get(by, candidate.document.metadata.get(by))

"""Set how many times a document is used in training, by its source, language or another field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.preparation.steps.base import Candidate, Measured, Step
from jax_diversity.preparation.steps.fields import field_value
from jax_diversity.schema.weights import parse_rules


@dataclass
class Weight(Step):
    """Sets the field `weight`: how many times a document is used in training, such as 2.5 times.

    `weights` are rules about the source, the language or a field, such as `{source=web-*: 0.5, quality>=0.8: 2}`. They
    have the same form as in `packing.weights`. The factors of all matching rules are multiplied, also the factors of
    several steps `weight`.
    """

    is_filter = False

    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.weights:
            raise UserError("Expected rules in the option 'weights', found no rule.")
        self._rules = parse_rules(self.weights, "weights")
        for rule in self._rules:
            if rule.family is not None:  # the mean of a group is computed only after all documents are read
                raise UserError(
                    f"Expected rules about documents in the step weight, found the mean of a group, "
                    f"{quoted(rule.text)}; give it as packing.weights."
                )

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Multiply the factors of the rules that match."""
        weight = candidate.scores.get("weight", 1.0)
        for rule in self._rules:
            if rule.matches(field_value(candidate, rule.name)):
                weight *= rule.factor
        candidate.scores["weight"] = round(weight, 6)
        yield from ()

"""Filter by fields: values that an earlier run marked, or that came with the documents. Texts are not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, unknown
from jax_diversity.schema.prepared import OUT_OF_SCOPE
from jax_diversity.schema.weights import WeightRule, is_number, parse_rules


@dataclass
class Fields(Step):
    """Keeps documents that match all rules of `keep` and no rule of `remove`.

    The rules compare the source, the language or a field, as in the step `weight`: `quality>=0.5`, `source!=web-*`,
    `gopher_passes=true`. A field may come from the corpus or from an earlier step, such as a marked step. A document
    without the field passes, and the funnel counts it as not judged. If no document has the field, this is an error.
    """

    keep: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.keep and not self.remove:
            raise UserError("Expected rules in the options 'keep' or 'remove', found no rule.")
        self._rules = [(rule, True) for rule in _parsed(self.keep, "keep")]
        self._rules += [(rule, False) for rule in _parsed(self.remove, "remove")]

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Compare the fields."""
        for rule, keeps in self._rules:
            value = field_value(candidate, rule.name)
            if value is None:
                yield unknown(rule.text)
                continue
            matches = rule.matches(value)
            shown = (
                (value, float(rule.value)) if rule.compares_numbers and is_number(value) else (int(matches), int(keeps))
            )
            yield Measured(rule.text, *shown, matches == keeps)

    def check_account(self, total: Mapping[str, Any]) -> None:
        """Check that a document has the field of every rule.

        Raises:
            UserError: no document has it.
        """
        removed, unjudged = total["removed"], total["unjudged"]
        num_others = sum(removed.values()) - sum(removed.get(rule.text, 0) for rule, _ in self._rules)
        number = total["documents_in"] - unjudged.get(OUT_OF_SCOPE, 0) - num_others
        for rule, _ in self._rules:  # each rule is evaluated for the documents that the rules before it have kept
            if number > 0 and unjudged.get(rule.text, 0) == number:
                raise UserError(
                    f"Expected the field {rule.name!r} of the rule {quoted(rule.text)} in a document, found it in none "
                    f"of {number:,}; correct the name, or add the field in an earlier step or run."
                )
            number -= removed.get(rule.text, 0)


def field_value(candidate: Candidate, name: str) -> Any:
    """Return the document's source, language or field; None without such a field. Earlier steps' fields come first."""
    if name == "source":
        return candidate.document.source
    if name == "language":
        return candidate.language
    return candidate.scores.get(name, candidate.document.metadata.get(name))


def _parsed(rules: tuple[str, ...], option: str) -> tuple[WeightRule, ...]:
    parsed = parse_rules(dict.fromkeys(rules, 1.0), option)
    for rule in parsed:
        if rule.family is not None:  # the mean of a group is computed only after all documents are read
            raise UserError(
                f"Expected rules about documents in {option}, found the mean of a group, {quoted(rule.text)}."
            )
    return parsed

"""How often training should see a document, by what it is."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules
from jax_diversity.foundation.errors import UserError, quoted


def weight(*, by: str = "source", weights: str, default: float = 1.0) -> Rules:
    """Gives documents the field `weight`: how often training should see them, such as 2.5 times.

    `by` is `source`, `language` or the name of a field; `weights` lists its values with their weights, as in
    `wikipedia=3 web=1 "my notes"=2`. For a field of numbers with a fraction, such as a probability, they are
    thresholds: of `0.8=2 0.95=3` the highest one counts that the number reaches. All other documents get `default`.
    A second step multiplies what the first one gave. A weight is above 0.
    """
    known = _parse(weights)
    thresholds = _thresholds(known)
    _check("default", default)

    def rules(candidate: Candidate) -> Iterator[Measured]:
        value = _value(candidate, by)
        if isinstance(value, float):
            found = next((weight for threshold, weight in thresholds if value >= threshold), default)
        else:
            found = known.get(str(value), default)
        candidate.scores["weight"] = round(candidate.scores.get("weight", 1.0) * found, 6)
        return iter(())

    return rules


def _value(candidate: Candidate, by: str) -> Any:
    if by == "source":
        return candidate.document.source
    if by == "language":
        return candidate.language
    return candidate.scores.get(by, candidate.document.metadata.get(by))


def _parse(weights: str) -> dict[str, float]:
    """Values and their weights, as they are written in an option."""
    try:
        entries = shlex.split(weights)
    except ValueError:
        entries = []
    known: dict[str, float] = {}
    for entry in entries:
        name, equals, number = entry.rpartition("=")
        try:
            found = float(number)
        except ValueError:
            equals, found = "", 0.0
        if not equals or name in known:
            raise UserError(
                "Expected the option 'weights' to be values with a weight each, such as wikipedia=3, every one once, "
                f"found {quoted(entry)}."
            )
        _check(name, found)
        known[name] = found
    if not known:
        raise UserError(
            "Expected the option 'weights' to be values with weights, as in wikipedia=3 web=1, found "
            f"{quoted(weights)}."
        )
    return known


def _check(name: str, number: float) -> None:
    if not (number > 0 and math.isfinite(number)):
        raise UserError(
            f"Expected the weight of {quoted(name)} to be above 0, found {number}; other steps remove documents."
        )


def _thresholds(known: dict[str, float]) -> list[tuple[float, float]]:
    """Thresholds and their weights, the highest first; none where a value is no number."""
    try:
        return sorted(((float(name), weight) for name, weight in known.items()), reverse=True)
    except ValueError:
        return []

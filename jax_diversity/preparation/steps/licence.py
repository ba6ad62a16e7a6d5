"""Documents under permissive licences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.text.licences import all_of, is_permitted, licence_named
from jax_diversity.preparation.steps.base import Candidate, Measured, Step, at_least

_FIELDS = ("licence", "license", "licenses")
_LONGEST_COUNTED = 60


@dataclass
class Licence(Step):
    """Keeps documents under `allowed` licences (SPDX identifiers), by the metadata field `licence`.

    The field may be a name (`MIT License`), an expression (`MIT OR GPL-2.0-only`) or a list. One alternative of an
    expression must be allowed; every entry of a list must be allowed. If the field `licence` is absent, `license` or
    `licenses` is read. A document without a known licence is removed, except with `unknown`. The field `licence` is set
    to the expression, and the counts of the step contain the number of documents for each expression.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "known": "no known licence",
        "permitted": "licence that is not allowed",
    }
    allowed: tuple[str, ...] = ("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT")
    unknown: bool = False

    def __post_init__(self) -> None:
        for name in self.allowed:
            if licence_named(name) is None:
                raise UserError(f"Expected the option 'allowed' to list SPDX identifiers, found {quoted(name)}.")
        if not self.allowed:
            raise UserError("Expected the option 'allowed' to list SPDX identifiers such as MIT, found none.")
        self._permitted = frozenset(filter(None, map(licence_named, self.allowed)))

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Find the licence, then compare it."""
        metadata = candidate.document.metadata
        expression = _expression(next((metadata[name] for name in _FIELDS if metadata.get(name)), None))
        counted = expression or "unknown"
        candidate.found[counted if len(counted) <= _LONGEST_COUNTED else "another expression"] += 1
        if expression is None:
            yield at_least("known", int(self.unknown), 1)
            return
        if expression != metadata.get("licence"):
            candidate.scores["licence"] = expression
        yield at_least("permitted", int(is_permitted(expression, self._permitted)), 1)


def _expression(stated: object) -> str | None:
    if isinstance(stated, str):
        return licence_named(stated)
    if isinstance(stated, list | tuple):
        parts = [licence_named(part) if isinstance(part, str) else None for part in stated]
        return all_of(part for part in parts if part) if parts and all(parts) else None
    return None

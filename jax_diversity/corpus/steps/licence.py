"""Documents whose licence permits their use."""

from __future__ import annotations

from collections.abc import Iterator

from jax_diversity.corpus.steps.base import Candidate, Measured, Rules, at_least
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.text.licences import all_of, is_permitted, licence_named

_FIELDS = ("licence", "license", "licenses")
_LONGEST_COUNTED = 60


def licence(
    *, allowed: str = "Apache-2.0 BSD-2-Clause BSD-3-Clause MIT", field: str = "licence", unknown: bool = False
) -> Rules:
    """Keeps documents under licences that are `allowed`: SPDX identifiers, in the field `field` of the metadata.

    The field may hold a name (`MIT License`), an expression (`MIT OR GPL-2.0-only`), of which one way must be
    allowed, or a list, of which all must be. `license` and `licenses` are looked at where `licence` is absent.
    A document whose licence is not known is removed, unless `unknown`. The field `licence` becomes the expression;
    documents are counted by it.
    """
    names = allowed.replace(",", " ").split()
    for name in names:
        if licence_named(name) is None:
            raise UserError(f"Expected the option 'allowed' to list SPDX identifiers, found {quoted(name)}.")
    if not names:
        raise UserError("Expected the option 'allowed' to list SPDX identifiers such as MIT, found none.")
    permitted = frozenset(filter(None, map(licence_named, names)))
    fields = _FIELDS if field == _FIELDS[0] else (field,)

    def rules(candidate: Candidate) -> Iterator[Measured]:
        metadata = candidate.document.metadata
        found = _expression(next((metadata[name] for name in fields if metadata.get(name)), None))
        counted = found or "unknown"
        candidate.found[counted if len(counted) <= _LONGEST_COUNTED else "another expression"] += 1
        if found is None:
            yield at_least("known", int(unknown), 1)
            return
        if found != metadata.get("licence"):
            candidate.scores["licence"] = found
        yield at_least("permitted", int(is_permitted(found, permitted)), 1)

    return rules


def _expression(stated: object) -> str | None:
    if isinstance(stated, str):
        return licence_named(stated)
    if isinstance(stated, list | tuple):
        parts = [licence_named(part) if isinstance(part, str) else None for part in stated]
        return all_of(part for part in parts if part) if parts and all(parts) else None
    return None

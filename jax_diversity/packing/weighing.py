"""Every document's weight, by the rules of the settings, from what is stored of the documents."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Integer

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stage import Context
from jax_diversity.packing.weights import Rule, check_largest, field_weights, numbers, parse_rules

WEIGHT = "weight"
"""The metadata field in which a step of preparation stores weights."""
_COLUMNS = ("source", "language")


def weigh_documents(context: Context, *, with_clusters: bool = True) -> Float64[np.ndarray, " document"] | None:
    """Every document's weight; None where the settings name none.

    Args:
        context: of the stage `pack`.
        with_clusters: whether there are clusters; rules that look at them do not count where there are none.

    Raises:
        UserError: rules that name nothing that is there, or of which none of the documents holds; values that are no
            weights; documents that are to appear too often.
    """
    rules, field = parse_rules(context.config.packing.weights), weight_field(context)
    if not rules and field is None:
        return None
    stored = _Stored(context)
    rules = tuple(rule for rule in rules if stored.check(rule) or with_clusters)
    weights = np.ones(stored.num_documents)
    if field is not None:
        start = 0
        for values in stored.field(field):
            weights[start : start + len(values)] = field_weights(
                values, lambda place, first=start: stored.name(first + place), field
            )
            start += len(values)
    for rule in rules:
        holds = stored.holds(rule)
        if not holds.any():
            raise UserError(
                f"Expected documents that {rule.text!r} of packing.weights means, found none; leave it out."
            )
        weights[holds] *= rule.factor
    check_largest(weights, stored.name)
    return weights


def weight_field(context: Context) -> str | None:
    """The metadata field that holds weights; None where none is to be looked at."""
    wanted, prepared = context.config.packing.weight_field, context.counts("prepare")
    if wanted == "auto":
        return WEIGHT if WEIGHT in prepared.get("preparation", {}).get("fields", ()) else None
    if wanted is not None and wanted not in prepared["metadata_fields"]:
        raise UserError(
            f"Expected packing.weight_field to be a metadata field of the documents ({_listed(prepared)}), found "
            f"{wanted!r}; take one of these."
        )
    return wanted


def needs_clusters(context: Context) -> bool:
    """Whether a rule looks at the documents' clusters."""
    named = {name for rule in parse_rules(context.config.packing.weights) for name in rule.names}
    return not named.isdisjoint(context.config.cluster.clusterings)


def _listed(prepared: Any) -> str:
    return ", ".join(prepared["metadata_fields"]) or "there are none"


class _Stored:
    """What rules look at, a column at a time."""

    def __init__(self, context: Context) -> None:
        self._dataset, self._store = context.dataset, context.dataset.document_store
        self._clusterings = tuple(context.config.cluster.clusterings)
        self._prepared = context.counts("prepare")
        self.num_documents = self._store.num_documents

    def check(self, rule: Rule) -> bool:
        """Refuse what a rule names and is not there; whether it can do without clusters."""
        groups = (*_COLUMNS, *self._clusterings)
        if (rule.family is None and rule.name in groups) or (
            rule.name in self._prepared["metadata_fields"] and rule.family in (None, *groups)
        ):
            return not {*rule.names} & {*self._clusterings}
        raise UserError(
            f"Expected packing.weights to name {', '.join(groups)} or metadata fields of the documents "
            f"({_listed(self._prepared)}), found {rule.text!r}; take one of these."
        )

    def name(self, document: int) -> str:
        """A document's id."""
        return self._store.rows(np.array([document]), ["id"])[0]["id"]

    def field(self, name: str) -> Any:
        """A metadata field's values, some documents at a time."""
        return (group[name] for group in self._store.metadata([name]))

    def holds(self, rule: Rule) -> Bool[np.ndarray, " document"]:
        """Of which documents a rule holds."""
        if rule.family is not None:
            values = np.concatenate([numbers(group, rule.text) for group in self.field(rule.name)])
            return rule.holds_of_means(values, self._groups(rule.family)[1])
        if rule.name in (*_COLUMNS, *self._clusterings):
            names, group = self._groups(rule.name)
            return rule.holds(names)[group]
        return np.concatenate([rule.holds(group) for group in self.field(rule.name)])

    def _groups(self, family: str) -> tuple[list[str | None], Integer[np.ndarray, " document"]]:
        """The groups' names, and the number of every document's."""
        if family in self._clusterings:
            group = self._dataset.assignments(family)
            return [str(number) for number in range(int(group.max(initial=-1)) + 1)], group
        coded = self._store.columns([family])[family].cast("large_string").combine_chunks().dictionary_encode()
        names = [*coded.dictionary.to_pylist(), None]
        return names, coded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)

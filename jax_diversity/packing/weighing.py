"""Compute the weight of every document from the rules in the settings and the stored metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64, Integer

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stage import Context
from jax_diversity.packing.weights import WeightRule, check_largest, field_weights, numbers, parse_rules

WEIGHT = "weight"
"""The metadata field where a step of preparation stores weights."""
_COLUMNS = ("source", "language")


def weigh_documents(context: Context, *, with_clusters: bool = True) -> Float64[np.ndarray, " document"] | None:
    """Every document's weight; None without weights in the settings.

    Args:
        context: the context of the stage `pack`.
        with_clusters: whether clusters exist already; otherwise rules about clusters are ignored.

    Raises:
        UserError: rules that name an unknown field or group, or match no document; values that are not weights;
            documents that would appear too often.
    """
    rules, field = parse_rules(context.config.packing.weights), weight_field(context)
    if not rules and field is None:
        return None
    stored = _Stored(context)
    for rule in rules:
        stored.check(rule)
    counted = [rule for rule in rules if with_clusters or not stored.needs_clusters(rule)]
    fields = {rule.name for rule in counted if not stored.is_family(rule.name)}
    # Metadata is JSON, which is parsed once; only the values that a field's rules need are kept.
    parts: dict[WeightRule, list[np.ndarray]] = {rule: [] for rule in counted if rule.name in fields}
    weights, start = np.ones(stored.num_documents), 0
    for group in stored.metadata({*fields, *([] if field is None else [field])}):
        size = len(next(iter(group.values())))
        if field is not None:
            own = field_weights(group[field], lambda place, first=start: stored.name(first + place), field)
            weights[start : start + size] = own
        for rule, found in parts.items():
            values = group[rule.name]
            found.append(rule.holds(values) if rule.family is None else numbers(values, rule.text))
        start += size
    for rule in counted:
        if rule not in parts:
            names, groups = stored.groups(rule.name)
            holds = rule.holds(names)[groups]
        elif rule.family is None:
            holds = np.concatenate(parts[rule])
        else:
            holds = rule.holds_of_means(np.concatenate(parts[rule]), stored.groups(rule.family)[1])
        if not holds.any():
            raise UserError(
                f"Expected the rule {rule.text!r} of packing.weights to match a document, found none; remove the rule."
            )
        weights[holds] *= rule.factor
    if len(counted) == len(rules):  # otherwise a rule that was ignored can still make a weight smaller
        check_largest(weights, stored.name)
    return weights


def weight_field(context: Context) -> str | None:
    """The metadata field of weights; None if no field is used."""
    wanted, prepared = context.config.packing.weight_field, context.counts("prepare")
    if wanted == "auto":
        return WEIGHT if WEIGHT in prepared.get("preparation", {}).get("fields", ()) else None
    if wanted is not None and wanted not in prepared["metadata_fields"]:
        raise UserError(
            f"Expected packing.weight_field to be a metadata field of the documents ({_listed(prepared)}), found "
            f"{wanted!r}; take one of these."
        )
    return wanted


def is_field_unused(context: Context) -> bool:
    """Whether the corpus has a field named `weight` that no setting mentions."""
    is_there = WEIGHT in context.counts("prepare")["metadata_fields"]
    return is_there and context.config.packing.weight_field == "auto" and weight_field(context) is None


def needs_clusters(context: Context) -> bool:
    """Whether a rule uses the documents' clusters."""
    named = {name for rule in parse_rules(context.config.packing.weights) for name in rule.names}
    return not named.isdisjoint(context.config.cluster.clusterings)


def _listed(prepared: Mapping[str, Any]) -> str:
    return ", ".join(prepared["metadata_fields"]) or "there are none"


class _Stored:
    """The stored values that rules refer to: metadata fields, sources, languages and clusters."""

    def __init__(self, context: Context) -> None:
        self._dataset, self._store = context.dataset, context.dataset.document_store
        self._clusterings = tuple(context.config.cluster.clusterings)
        self._prepared = context.counts("prepare")
        self.num_documents = self._store.num_documents

    def metadata(self, fields: Collection[str]) -> Iterator[dict[str, list[Any]]]:
        """Yield the values of metadata fields, for some documents at a time; yields nothing without fields."""
        return self._store.metadata(sorted(fields)) if fields else iter(())

    def is_family(self, name: str) -> bool:
        """Whether a name is a family of groups, and not a metadata field."""
        return name in _COLUMNS or name in self._clusterings

    def needs_clusters(self, rule: WeightRule) -> bool:
        """Whether a rule uses a clustering."""
        return not {*rule.names}.isdisjoint(self._clusterings)

    def check(self, rule: WeightRule) -> None:
        """Check that a rule's names exist."""
        is_field = rule.name in self._prepared["metadata_fields"] and not self.is_family(rule.name)
        fits = (is_field or self.is_family(rule.name)) if rule.family is None else is_field
        if not fits or not (rule.family is None or self.is_family(rule.family)):
            raise UserError(
                f"Expected packing.weights to name {', '.join((*_COLUMNS, *self._clusterings))} or metadata fields of "
                f"the documents ({_listed(self._prepared)}), found {rule.text!r}; take one of these."
            )

    def name(self, document: int) -> str:
        """A document's id."""
        return self._store.rows(np.array([document]), ["id"])[0]["id"]

    def groups(self, family: str) -> tuple[list[str | None], Integer[np.ndarray, " document"]]:
        """The names of the groups, and the group number of every document."""
        if family in self._clusterings:
            group = self._dataset.assignments(family)
            return [str(number) for number in range(int(group.max(initial=-1)) + 1)], group
        coded = self._store.columns([family])[family].cast("large_string").combine_chunks().dictionary_encode()
        names = [*coded.dictionary.to_pylist(), None]
        return names, coded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)

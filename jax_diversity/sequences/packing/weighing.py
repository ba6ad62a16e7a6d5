"""Compute the weight of every document from the rules in the settings and the stored metadata."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Integer

from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.foundation.stage import Context
from jax_diversity.schema.weights import LARGEST, WeightRule, is_number, parse_rules

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
    rules, field = _rules(context), weight_field(context)
    if not rules and field is None:
        return None
    stored = _Stored(context)
    for rule in rules:
        stored.check(rule)
    counted = [rule for rule in rules if with_clusters or not _uses_clusters(rule, context)]
    fields = {rule.name for rule in counted if rule.name not in stored.families}
    # Metadata is JSON, which is parsed once; only the values that a field's rules need are kept.
    parts: dict[WeightRule, list[np.ndarray]] = {rule: [] for rule in counted if rule.name in fields}
    weights, start = np.ones(stored.store.num_documents), 0
    needed = sorted(fields.union(filter(None, [field])))
    for group in stored.store.metadata(needed) if needed else ():
        size = len(next(iter(group.values())))
        if field is not None:
            weights_of_field = field_weights(group[field], lambda place, first=start: stored.name(first + place), field)
            weights[start : start + size] = weights_of_field
        for rule, matches in parts.items():
            matches.append((matching if rule.family is None else _numbers)(rule, group[rule.name]))
        start += size
    for rule in counted:
        if rule not in parts:
            names, groups = stored.groups(rule.name)
            holds = matching(rule, names)[groups]
        elif rule.family is None:
            holds = np.concatenate(parts[rule])
        else:
            holds = rule.compare(group_means(np.concatenate(parts[rule]), stored.groups(rule.family)[1]))
        if not holds.any():
            raise UserError(
                f"Expected the rule {rule.text!r} of packing.weights to match a document, found none; remove the rule."
            )
        weights[holds] *= rule.factor
    # If a rule was ignored, it can still make a weight smaller.
    if len(counted) == len(rules) and weights.max(initial=0) > LARGEST:
        most = int(weights.argmax())
        raise UserError(
            f"Expected weights of at most {LARGEST:,}, found {weights[most]:,.6g} of document {stored.name(most)!r} "
            f"(all {len(weights):,} documents together would appear {weights.sum():,.6g} times); lower it."
        )
    return weights


def weight_field(context: Context) -> str | None:
    """The metadata field of weights; None if no field is used."""
    field, prepared = context.config.packing.weight_field, context.counts("prepare")
    if field == "auto":
        return WEIGHT if WEIGHT in prepared.get("preparation", {}).get("fields", ()) else None
    if field is not None and field not in prepared["metadata_fields"]:
        raise UserError(
            f"Expected packing.weight_field to be a metadata field of the documents ({_listed(prepared)}), found "
            f"{field!r}; take one of these."
        )
    return field


def is_field_unused(context: Context) -> bool:
    """Whether the corpus has a field named `weight` that no setting mentions."""
    is_there = WEIGHT in context.counts("prepare")["metadata_fields"]
    return is_there and context.config.packing.weight_field == "auto" and weight_field(context) is None


def needs_clusters(context: Context) -> bool:
    """Whether a rule uses the documents' clusters."""
    return any(_uses_clusters(rule, context) for rule in _rules(context))


def matching(rule: WeightRule, values: Sequence[Any]) -> Bool[np.ndarray, " value"]:
    """Whether a rule matches values of documents or names of groups.

    Raises:
        UserError: a value that cannot be compared with the rule's number.
    """
    if rule.compares_numbers:
        return rule.compare(_numbers(rule, values))
    return np.array([rule.matches(value) for value in values], bool)


def group_means(
    values: Float64[np.ndarray, " document"], group: Integer[np.ndarray, " document"]
) -> Float64[np.ndarray, " document"]:
    """The mean of every document's group; documents without a value (NaN) do not count."""
    is_known = ~np.isnan(values)
    counts = np.bincount(group[is_known], minlength=int(group.max(initial=-1)) + 1)
    sums = np.bincount(group[is_known], values[is_known], minlength=len(counts))
    return np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)[group]


def field_weights(values: Sequence[Any], names: Callable[[int], str], field: str) -> Float64[np.ndarray, " document"]:
    """The weights in a metadata field; None is 1.

    Args:
        values: the documents' values.
        names: the id of a document, by its place among the values.
        field: its name.

    Raises:
        UserError: a value is not a finite number >= 0; the sentence has the document's id.
    """
    for place, value in enumerate(values):
        if value is not None and not (is_number(value) and 0 <= value <= sys.float_info.max):
            raise UserError(
                f"Expected a finite number >= 0 in the metadata field {field!r}, which packing.weight_field uses as "
                f"the document's weight, found {quoted(value)} in document {names(place)!r}."
            )
    return np.array([1 if value is None else value for value in values], np.float64)


def _rules(context: Context) -> tuple[WeightRule, ...]:
    return parse_rules(context.config.packing.weights, "packing.weights")


def _uses_clusters(rule: WeightRule, context: Context) -> bool:
    return not {rule.name, rule.family}.isdisjoint(context.config.cluster.clusterings)


def _numbers(rule: WeightRule, values: Sequence[Any]) -> Float64[np.ndarray, " value"]:
    """Values as numbers, NaN for None; other values are a UserError that names the rule."""
    for value in values:
        if value is not None and not is_number(value):
            raise UserError(
                f"Expected numbers for the rule {rule.text!r} of packing.weights, found {quoted(value)}; compare texts "
                "by =."
            )
    return np.array([math.nan if value is None else _as_float(value) for value in values], np.float64)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf if value > 0 else -math.inf


def _listed(prepared: Mapping[str, Any]) -> str:
    return ", ".join(prepared["metadata_fields"]) or "there are none"


class _Stored:
    """The stored values that rules refer to: metadata fields, sources, languages and clusters."""

    def __init__(self, context: Context) -> None:
        self._dataset, self.store = context.dataset, context.dataset.document_store
        self.families = (*_COLUMNS, *context.config.cluster.clusterings)
        self._prepared = context.counts("prepare")

    def check(self, rule: WeightRule) -> None:
        """Check that a rule's names exist."""
        fields = {*self._prepared["metadata_fields"]} - {*self.families}
        names = fields.union(self.families) if rule.family is None else fields
        if rule.name not in names or rule.family not in (None, *self.families):
            raise UserError(
                f"Expected packing.weights to name {', '.join(self.families)} or metadata fields of the documents "
                f"({_listed(self._prepared)}), found {rule.text!r}; take one of these."
            )

    def name(self, document: int) -> str:
        """A document's id."""
        return self.store.rows(np.array([document]), ["id"])[0]["id"]

    def groups(self, family: str) -> tuple[list[str | None], Integer[np.ndarray, " document"]]:
        """The names of the groups, and the group number of every document."""
        if family not in _COLUMNS:
            group = self._dataset.assignments(family)
            return [str(number) for number in range(int(group.max(initial=-1)) + 1)], group
        coded = self.store.columns([family])[family].cast("large_string").combine_chunks().dictionary_encode()
        names = [*coded.dictionary.to_pylist(), None]
        return names, coded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)

"""Compute ratios of measured orders to the exact greedy algorithm f3, and compare them with targets.

These are pure functions of `orders` (label -> order) in a results file of `orderings.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Mapping[str, float]]  # measure -> family -> value
Entries = Mapping[str, Any]  # label -> an order's values in a results file

REFERENCE = "exact f3"
EVERY_OFFSET = "mean TV 256, every offset"


@dataclass(frozen=True)
class Target:
    """The target for an order.

    Attributes:
        order: the order's label.
        measure: the name of a ratio to exact f3, such as "seconds"; or "norm drift", in sequences.
        at_most: the largest allowed value.
        all_families: whether the largest value of all families is used, or the value of the first family.
        from_sequences: the target applies to corpora of at least this size.
    """

    order: str
    measure: str
    at_most: float
    all_families: bool = False
    from_sequences: int = 0


def targets(synthetic: bool) -> list[Target]:
    """Targets of the linear-time method and of the rule with windows; all except drifts are relative to exact f3."""
    found = [
        Target("balance 4096", "seconds", 1 / 20, from_sequences=200_000 if synthetic else 0),
        Target("balance 4096", "prefix max", 1.0, all_families=True),
        *(Target("balance 4096", f"mean TV {size}", 1.02) for size in (64, 192, 256, 1024)),
        *(Target("balance 4096", f"worst TV {size}", 0.95) for size in (64, 192, 256, 1024)),
        Target("balance 4096", "norm drift", 5.0),
    ]
    for order in ("exact, windows 256", "balance, windows 256"):
        found += [
            Target(order, EVERY_OFFSET, 0.975 if synthetic else 0.96),
            Target(order, "worst TV 256", 0.94),
            Target(order, "prefix max", 1.1, all_families=True),
            *(Target(order, f"mean TV {size}", 1.04) for size in (64, 192, 320, 1024)),
        ]
    return found


def all_ratios(entries: Entries, families: Sequence[str]) -> dict[str, Figures]:
    """Every measured order's ratios to exact f3; empty if f3 was not measured."""
    reference = entries[REFERENCE]
    if "families" not in reference:
        return {}
    return {label: ratios_to(entry, reference, families) for label, entry in entries.items() if "families" in entry}


def ratios_to(entry: Mapping[str, Any], reference: Mapping[str, Any], families: Sequence[str]) -> Figures:
    """Measure -> family -> ratio; for windows the larger of aligned windows and windows half a window later."""
    share: float = entry["seconds"] / reference["seconds"]
    figures = {"seconds": dict.fromkeys(families, share)}
    for family in families:
        ours, theirs = entry["families"][family], reference["families"][family]
        values = {"prefix max": _ratio(ours["prefix_l2_max"], theirs["prefix_l2_max"])}
        for size, window in ours["windows"].items():
            parts = {name: _by_offset(window, theirs["windows"][size], f"tv_{name}") for name in ("mean", "worst")}
            values |= {f"{name} TV {size}": _largest(ratios) for name, ratios in parts.items()}
        at_offsets = zip(*(side["tv_mean_256_by_offset"][family] for side in (entry, reference)), strict=True)
        values[EVERY_OFFSET] = _largest([_ratio(*pair) for pair in at_offsets])
        for name, value in values.items():
            figures.setdefault(name, {})[family] = value
    return figures


def _by_offset(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> list[float]:
    return [_ratio(ours["offsets"][offset][name], theirs["offsets"][offset][name]) for offset in ("0", "half")]


def _ratio(ours: float | None, theirs: float | None) -> float:
    """NaN if either is undefined or the divisor is 0."""
    return ours / theirs if ours is not None and theirs else math.nan


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def judge(
    entries: Entries,
    ratios: Mapping[str, Figures],
    families: Sequence[str],
    num_sequences: int,
    synthetic: bool,
) -> list[dict[str, Any]]:
    """For every target with a measured order, return the value, and the verdict in words.

    `beside` is the last family's value if the target is only for the first family.
    """
    judged = []
    for target in targets(synthetic):
        figures = _figures(target, entries, ratios, families)
        if figures is None or math.isnan(figures[families[0]]):
            continue
        found = _largest(list(figures.values())) if target.all_families else figures[families[0]]
        line = {"order": target.order, "measure": target.measure, "at_most": target.at_most, "found": found}
        line["verdict"] = _verdict(target, found, num_sequences)
        line["beside"] = None if target.all_families or len(figures) == 1 else figures[families[-1]]
        judged.append(line)
    return judged


def _verdict(target: Target, found: float, num_sequences: int) -> str:
    if found <= target.at_most:
        return "reached"
    if num_sequences < target.from_sequences:
        return f"holds from {target.from_sequences:,} sequences on: {found:.3f}"
    return f"not reached: {found:.3f}"


def _figures(
    target: Target, entries: Entries, ratios: Mapping[str, Figures], families: Sequence[str]
) -> Mapping[str, float] | None:
    """The values of a target by family; time and drift have only one value, for the first family."""
    entry = entries.get(target.order)
    if entry is None:
        return None
    if target.measure == "seconds":
        return {families[0]: entry["seconds"] / entries[REFERENCE]["seconds"]}
    if target.measure == "norm drift":
        return {families[0]: entry["families"][families[0]]["norm_drift_max"]} if "families" in entry else None
    return ratios.get(target.order, {}).get(target.measure)


def best_everywhere(ratios: Mapping[str, Figures]) -> str:
    """The order with the smallest largest mean ratio over all window sizes, among orders whose prefix is not worse."""
    largest = {}
    for label, figures in ratios.items():
        means = {name: next(iter(value.values())) for name, value in figures.items() if name.startswith("mean TV")}
        defined = [(value, name) for name, value in means.items() if not math.isnan(value)]
        if defined and label != REFERENCE and max(figures["prefix max"].values()) <= 1:
            largest[label] = max(defined)
    if not largest:
        return "No order has prefixes that are no worse than exact f3's."
    label = min(largest, key=lambda name: largest[name])
    ratio, where = largest[label]
    return f"Best at all window sizes with no worse prefix: {label}, {ratio:.3f} at worst ({where}); the aim is .95."

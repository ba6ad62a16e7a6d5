"""The verdicts: every ordering that is no shuffle against the shuffle, window size by window size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax_diversity.report import words
from jax_diversity.report.aggregate import clean_text, round_value
from jax_diversity.report.inputs import OrderingInputs, ReportInputs
from jax_diversity.report.ordering_values import BASELINE_METHOD


def verdict_values(orderings: Sequence[OrderingInputs], baseline: OrderingInputs | None) -> list[dict[str, Any]]:
    """Every ordering that is no shuffle against the baseline: its worst window and the baseline's best."""
    if baseline is None:
        return []
    verdicts = []
    for order in orderings:
        if order.method == BASELINE_METHOD:
            continue
        for family, by_size in order.window_tv.items():
            for size, tv in sorted(by_size.items()):
                reference = baseline.window_tv.get(family, {}).get(size)
                if reference is None or min(len(tv), len(reference)) < 2:
                    continue
                verdicts.append(_verdict(order, baseline, family, size))
    return verdicts


def _verdict(order: OrderingInputs, baseline: OrderingInputs, family: str, size: int) -> dict[str, Any]:
    tv, reference = order.window_tv[family][size], baseline.window_tv[family][size]
    mean, reference_mean = float(tv.mean()), float(reference.mean())
    floor = order.window_tv_floor.get(family, {}).get(size)
    gap = None if floor is None else reference_mean - floor
    # A gap of rounding errors would make any share of it.
    has_gap = gap is not None and gap > 1e-9
    verdict: dict[str, Any] = {
        "ordering": clean_text(order.name),
        "baseline": clean_text(baseline.name),
        "family": clean_text(family),
        "window_size": int(size),
        "num_windows": len(tv),
        "holds": bool(tv.max() < reference.min()),
        "worst": float(tv.max()),
        "baseline_best": float(reference.min()),
        "mean": mean,
        "baseline_mean": reference_mean,
        "gap_closed": (reference_mean - mean) / gap if has_gap and gap else None,
    }
    sentence = words.verdict_sentence(verdict)
    rounded = {key: round_value(value) if isinstance(value, float) else value for key, value in verdict.items()}
    return {**rounded, "sentence": sentence}


def main_verdicts(inputs: ReportInputs, verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdicts that the summary is about: one ordering, one window size, every family."""
    names = [order.name for order in inputs.orderings]
    if inputs.main_ordering is not None and inputs.main_ordering not in names:
        raise ValueError(f"Expected main_ordering to be one of {names}, found {inputs.main_ordering!r}.")
    name = inputs.main_ordering
    if name is None or clean_text(name) not in {verdict["ordering"] for verdict in verdicts}:
        name = verdicts[0]["ordering"] if verdicts else ""
    own = [verdict for verdict in verdicts if verdict["ordering"] == clean_text(name)]
    sizes = {verdict["window_size"] for verdict in own}
    if not sizes:
        return []
    size = inputs.main_window
    if size not in sizes:
        size = min(sizes, key=lambda size: (abs(math.log(size / 256)), size))
    return [verdict for verdict in own if verdict["window_size"] == size]

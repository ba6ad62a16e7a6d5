"""Compute the values of the orderings: curves, profiles over window sizes, heat maps, comparisons with a shuffle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from jax_diversity.counts import TokenCounts
from jax_diversity.foundation.figures.plain import as_json, clean_text, round_value, round_values
from jax_diversity.foundation.progress import Advance, Progress
from jax_diversity.ordering.base import order as make_order
from jax_diversity.ordering.measures.balance import Measurer
from jax_diversity.ordering.measures.comparison import SHUFFLE, gap_or_none
from jax_diversity.ordering.measures.curves import MAX_POINTS
from jax_diversity.ordering.measures.drawn import MeasuredOrder, curve_values, limit_values, shortened_curves
from jax_diversity.ordering.measures.floors import ideal_token_shuffle
from jax_diversity.ordering.measures.profile import (
    GroupBins,
    GroupTimeline,
    WindowProfile,
    observed_profile,
    window_floors,
    window_profile,
)
from jax_diversity.ordering.measures.targets import GivenTargets, corpus_targets
from jax_diversity.ordering.measures.verdict import gap_closed, targeted_families
from jax_diversity.report.words import verdict_sentence
from jax_diversity.schema.orderings import Order

NUM_SEEDS = 5
# The settings of an ordering that the page shows.
_SHOWN = ("seed", "objective", "options", "reverse", "replanned_at", "unmet_targets")
# If there are many orderings and families, their curves are shorter, so that the page can be sent by mail.
FEWEST_POINTS, ALL_POINTS = 60, 14_000
FEWEST_BINS, MOST_BINS, ALL_BINS = 32, 96, 1200
LEAST_SEQUENCES = 8
"""The least mean number of sequences with a group in a bin of a heat map. With fewer, any order has strong colours."""
CLEARLY_BETTER = 0.01
"""The additional share of the gap that another ordering must close to be recommended in place of the main ordering."""
_SMALLEST_GAP = 1e-4
_WANTED_GROUPS, _WIDEST_BINS = 8, 12
"""The number of groups that should be large enough, and the smallest number of bins that they may cost."""


class WindowSummary(NamedTuple):
    """The number of the windows of one size, and their mean, best and worst TV."""

    number: int
    mean: float
    best: float
    worst: float


WindowSummaries = Mapping[str, Mapping[int, WindowSummary]]
"""Family -> window size -> TV of the windows of one ordering."""


def curve_points(num_curves: int) -> int:
    """The number of points of a curve, on a page with this number of curves."""
    return min(max(ALL_POINTS // max(num_curves, 1), FEWEST_POINTS), MAX_POINTS)


def heat_map_bins(num_heat_maps: int) -> int:
    """The number of bins (parts of training) in a heat map, on a page with this number of heat maps."""
    return min(max(ALL_BINS // max(num_heat_maps, 1), FEWEST_BINS), MOST_BINS)


@dataclass(frozen=True)
class Shown:
    """An order that the page shows: its positions, its name, method and settings, and its measures if it has them."""

    order: Order
    about: Mapping[str, Any]
    measured: MeasuredOrder | None = None


def orders_values(
    counts: TokenCounts,
    orders: Sequence[Shown],
    windows: Sequence[int],
    group_names: Mapping[str, Sequence[str]],
    progress: Progress,
    *,
    targets: GivenTargets = None,
    shuffle: Callable[[int], Order] | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure orders one after another, and compare them with the first shuffle; returns values and verdicts.

    Args:
        counts: the token counts.
        orders: the orders to show.
        windows: window sizes.
        group_names: family -> the names of its groups.
        progress: shows the progress.
        targets: family -> shares to measure against; by default the shares of the corpus.
        shuffle: a function from a seed to a shuffle, to show the spread by chance; None means uniform shuffles of the
            corpus.
    """
    values, summaries = [], []
    measurer: Measurer | None = None
    positions = sum((1 if measured_order.measured else 2) * len(measured_order.order) for measured_order in orders)
    with progress.task("measure orderings", positions, "position") as advance:
        for measured_order in orders:
            measured = measured_order.measured
            if measured is None:
                measurer = measurer or Measurer(counts, windows, targets)
                measured = measurer.measure_in_short(measured_order.order, advance)
            summaries.append(measured.summary)
            values.append(order_values(counts, measured_order, measured, group_names, len(orders), advance, targets))
    if shuffle is None:
        shuffle = partial(_uniform_shuffle, counts)
    length = len(shuffle(0))
    with progress.task("measure shuffles", NUM_SEEDS * length, "position") as advance:
        references = reference_values(counts, shuffle, advance, targets)
    return _compared(values, summaries, references)


def _uniform_shuffle(counts: TokenCounts, seed: int) -> Order:
    return make_order(counts, SHUFFLE, seed=seed)


def order_values(
    counts: TokenCounts,
    shown: Shown,
    measured: MeasuredOrder,
    group_names: Mapping[str, Sequence[str]],
    num_orderings: int,
    advance: Advance,
    targets: GivenTargets = None,
) -> dict[str, Any]:
    """The values of one order on the page; curves are shortened to the points that can be drawn."""
    summary, families = measured.summary, counts.families
    num_bins = heat_map_bins(num_orderings * len(families))
    # One pass over all sizes and heat maps: `measure` would take a pass for each of them.
    profiles, timelines = profile_and_timelines(counts, shown.order, num_bins, advance, targets)
    return {
        **_about_order(shown.about, families),
        **_drawn(summary, shortened_curves(measured.curves, _points(num_orderings, summary)), len(shown.order)),
        "profile": {
            clean_text(family): {
                offset: {name: round_values(values) for name, values in profile._asdict().items()}
                for offset, profile in offsets.items()
            }
            for family, offsets in profiles.items()
        },
        "heat_map": {clean_text(family): _heat_map(timelines[family], group_names[family]) for family in families},
    }


def _points(num_orderings: int, summary: Mapping[str, Any]) -> int:
    """The number of points of a curve."""
    # Each ordering has a curve of the norm drift and, in every family, a prefix curve and one curve per window size.
    families = summary["families"]
    sizes = next(iter(families.values()))["windows"]
    return curve_points(num_orderings * (1 + len(families) * (1 + len(sizes))))


def _drawn(summary: Mapping[str, Any], curves: Mapping[str, Any], num_positions: int) -> dict[str, Any]:
    """The values of one order that come from its measures."""
    spreads = {part: _spread(summary.get(part)) for part in ("documents", "copies")}
    return {**curve_values(summary, curves, num_positions), **spreads}


def _compared(
    values: Sequence[dict[str, Any]], summaries: Sequence[Mapping[str, Any]], profile_references: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Add what all orders have in common, and the verdicts; `summaries` are the measures of the orders in `values`."""
    shuffles = [order["name"] for order in values if order["is_baseline"]]
    floors, ideals = dict[str, dict[int, float]](), dict[str, dict[int, float]]()
    window_tv = dict[str, dict[str, dict[int, WindowSummary]]]()
    for order, summary in zip(values, summaries, strict=True):
        numbers = {row["window_size"]: row["num_windows"] for row in order["windows"]}
        for family, measured in summary["families"].items():
            # An order is not judged in a family in which it follows targets of its own.
            is_judged = clean_text(family) not in order["targeted"]
            for size, tv in sorted((int(size), tv) for size, tv in measured["windows"].items()):
                of_size = WindowSummary(numbers[size], tv["tv_mean"], tv["tv_best"], tv["tv_worst"])
                if is_judged:
                    window_tv.setdefault(order["name"], {}).setdefault(family, {})[size] = of_size
                # They are equal for all orderings of a corpus.
                floors.setdefault(family, {})[size] = tv["tv_floor"]
                ideals.setdefault(family, {})[size] = tv["tv_ideal_token_shuffle"]
    section = {
        "baseline": shuffles[0] if shuffles else None,
        "families": [clean_text(family) for family in floors],
        "window_sizes": sorted({size for by_size in floors.values() for size in by_size}),
        "references": limit_values(floors, ideals),
        "profile_references": profile_references,
        "orders": values,
    }
    return section, verdict_values(window_tv, floors, shuffles)


def _about_order(description: Mapping[str, Any], families: Sequence[str]) -> dict[str, Any]:
    return {
        "name": clean_text(description["name"]),
        "method": clean_text(description["method"]),
        "is_baseline": description["method"] == SHUFFLE,
        "targeted": [*map(clean_text, targeted_families(description, families))],
        "info": as_json({key: description[key] for key in _SHOWN if key in description}),
    }


def _spread(figures: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    figures = dict(figures)
    windows = [{"window_size": int(size), **values} for size, values in figures.pop("windows").items()]
    return as_json({**figures, "windows": windows})


def profile_and_timelines(
    counts: TokenCounts, order: Order, most_bins: int, advance: Advance, targets: GivenTargets = None
) -> tuple[dict[str, dict[str, WindowProfile]], dict[str, GroupTimeline]]:
    """The window profiles of all families, and the shares of their large groups along an order, in one pass.

    A group that few sequences of a bin have is too frequent in one bin and missing in the next, in any order. So bins
    are made wider until the largest groups fit, and the other groups are left out.

    Args:
        counts: the token counts.
        order: the order of training.
        most_bins: the largest number of bins.
        advance: called with the number of positions done.
        targets: family -> the groups' shares to compare with; the corpus's own if not given.

    Returns:
        The profiles; and the timelines, the largest group first, without groups if none is large enough. In a single
        bin, all groups.
    """
    present = {family: np.zeros(number) for family, number in counts.num_groups.items()}
    for chunk in counts.chunks():
        for family, matrix in chunk.counts.items():
            present[family] += np.bincount(matrix.indices, minlength=matrix.shape[1])
    corpus_shares, number = corpus_targets(counts, targets), len(order)
    has_group = {family: num_with / max(counts.num_sequences, 1) for family, num_with in present.items()}
    bins = {}
    for family, share in has_group.items():
        largest = share[np.argsort(-corpus_shares[family].mean(number), kind="stable")]
        smallest = largest[:_WANTED_GROUPS].min(initial=1.0)
        num_bins = min(max(int(number * smallest / LEAST_SEQUENCES), _WIDEST_BINS), most_bins)
        bins[family] = GroupBins(corpus_shares[family], number, num_bins=num_bins)

    def observe(family: str, first: int, placed: csr_array) -> None:
        bins[family].add(first, placed)

    profiles = observed_profile(counts, order, advance, targets, observe)
    timelines = {}
    for family, of_family in bins.items():
        timeline = of_family.timeline()
        if timeline.share.shape[1] != 1:
            kept = has_group[family][timeline.groups] * timeline.bin_size >= LEAST_SEQUENCES
            groups, target, share = timeline.groups[kept], timeline.target[kept], timeline.share[kept]
            timeline = timeline._replace(groups=groups, target=target, share=share)
        timelines[family] = timeline
    return profiles, timelines


def _heat_map(timeline: GroupTimeline, names: Sequence[str]) -> dict[str, Any]:
    numbers: list[int] = timeline.groups.tolist()
    groups = zip(numbers, timeline.target.tolist(), strict=True)
    return {
        "num_bins": timeline.share.shape[1],
        "bin_size": timeline.bin_size,
        "groups": [{"name": clean_text(names[group], 60), "target": round_value(target)} for group, target in groups],
        # Three digits are enough: a colour cannot show more.
        "share": [round_values(shares, 3) for shares in timeline.share],
    }


def reference_values(
    counts: TokenCounts,
    shuffle: Callable[[int], Order],
    advance: Advance,
    targets: GivenTargets = None,
) -> dict[str, Any]:
    """The references of the profiles: the floor, the ideal token shuffle, the range of uniform shuffles over seeds."""
    # Several seeds show the spread by chance. Their profiles are cheap; the other measures use the dataset's shuffle.
    shuffles = [window_profile(counts, shuffle(seed), advance, targets=targets) for seed in range(NUM_SEEDS)]
    run, length = None if targets is None else shuffle(0), counts.sequence_length
    references = {}
    for family, corpus_shares in corpus_targets(counts, targets).items():
        # A floor does not depend on the order of the sequences, only on how often each sequence occurs.
        sizes, target = shuffles[0][family]["0"].sizes.tolist(), corpus_shares.mean(len(shuffle(0)))
        floors = window_floors(counts, family, sizes, run, targets)
        bands = {at: shuffle_band([profile[family][at] for profile in shuffles]) for at in shuffles[0][family]}
        references[clean_text(family)] = {
            "sizes": sizes,
            "floor": [round_value(floors[size]) for size in sizes],
            "ideal": [round_value(ideal_token_shuffle(target, size, length)) for size in sizes],
            "shuffle": {"num_seeds": NUM_SEEDS, **bands},
        }
    return references


def shuffle_band(profiles: Sequence[WindowProfile]) -> dict[str, list[Any]]:
    """The ranges of the shuffles' means, worst and best windows over the seeds."""
    # Shuffles of one corpus have the same window sizes, so that their curves are rows of one matrix.
    mean, best, worst = (
        np.stack([getattr(profile, name) for profile in profiles]) for name in ("mean", "best", "worst")
    )
    curves = {
        "mean": mean.mean(axis=0),
        "mean_low": mean.min(axis=0),
        "mean_high": mean.max(axis=0),
        "worst_low": worst.min(axis=0),
        "worst_high": worst.max(axis=0),
        "best_low": best.min(axis=0),
    }
    return {"sizes": profiles[0].sizes.tolist(), **{name: round_values(curve) for name, curve in curves.items()}}


# ---- verdicts


def verdict_values(
    window_tv: Mapping[str, WindowSummaries], floors: Mapping[str, Mapping[int, float]], shuffles: Sequence[str]
) -> list[dict[str, Any]]:
    """Compare the windows of every other ordering with the windows of the first shuffle: the means and the worst.

    `window_tv` is ordering -> family -> window size -> TV of the windows; `floors` are lower bounds of the means.
    """
    return [
        _verdict(name, shuffles[0], family, size, tv, window_tv[shuffles[0]][family][size], floors[family][size])
        for name, families in window_tv.items()
        if shuffles and name not in shuffles
        for family, by_size in families.items()
        for size, tv in sorted(by_size.items())
        if tv.number >= 2
    ]


def _verdict(
    name: str, baseline: str, family: str, size: int, tv: WindowSummary, shuffled: WindowSummary, floor: float
) -> dict[str, Any]:
    verdict: dict[str, Any] = {
        "ordering": clean_text(name),
        "baseline": clean_text(baseline),
        "family": clean_text(family),
        "window_size": size,
        "num_windows": tv.number,
        "holds": tv.worst < shuffled.best,
        "worst": tv.worst,
        "baseline_best": shuffled.best,
        "baseline_worst": shuffled.worst,
        "mean": tv.mean,
        "baseline_mean": shuffled.mean,
        "gap_closed": gap_or_none(tv.mean, shuffled.mean, floor),
    }
    # The sentence shows enough digits to distinguish the two numbers: it is made before they are rounded.
    sentence = verdict_sentence(verdict)
    rounded = {key: round_value(value) if isinstance(value, float) else value for key, value in verdict.items()}
    return {**rounded, "sentence": sentence}


def main_verdicts(
    verdicts: Sequence[dict[str, Any]], main_ordering: str | None, size: int = 256
) -> list[dict[str, Any]]:
    """The verdicts in the summary, one per family, for one ordering at the window size nearest to `size`."""
    # The ordering of the settings may have no verdict (a shuffle, too few windows). Then the first ordering with a
    # verdict is used.
    judged = [verdict["ordering"] for verdict in verdicts]
    name = clean_text(main_ordering or "")
    shown = [verdict for verdict in verdicts if verdict["ordering"] == (name if name in judged else judged[0])]
    sizes = {verdict["window_size"] for verdict in shown}
    # The nearest size on a logarithmic scale; of two equally near sizes the smaller one is used.
    nearest = min(sizes, key=lambda window: (abs(math.log(window / size)), window), default=0)
    return [verdict for verdict in shown if verdict["window_size"] == nearest]


# ---- the recommendation


def mean_gaps_closed(section: Mapping[str, Any]) -> dict[str, float]:
    """Ordering -> the closed share of the gap between a shuffle and the floor, over all that the page shows.

    This is the mean over the families, the window sizes of the profile (powers of two) from the smallest to the
    largest measured size, and both offsets. It does not depend on one window size, because some orders are good only in
    aligned windows of one size. Sizes with fewer than two windows, or without a gap, do not count. Orders that follow
    targets of their own have no value, because the other orders do not aim at these targets.

    Args:
        section: the values `ordering` of the page.
    """
    measured, references = section["window_sizes"], section["profile_references"]
    closed: dict[str, float] = {}
    for order in section["orders"]:
        gaps = []
        for family, offsets in order["profile"].items():
            floors = dict(zip(references[family]["sizes"], references[family]["floor"], strict=True))
            for offset, profile in offsets.items():
                band = references[family]["shuffle"][offset]
                shuffled = dict(zip(band["sizes"], band["mean"], strict=True))
                for size, number, mean in zip(*(profile[key] for key in ("sizes", "num_windows", "mean")), strict=True):
                    # A run may have larger windows than a shuffle of its dataset.
                    is_measured = measured and min(measured) <= size * math.sqrt(2) <= 2 * max(measured)
                    is_comparable = is_measured and number >= 2 and size in shuffled
                    if is_comparable and shuffled[size] - floors[size] > _SMALLEST_GAP:
                        gaps.append(gap_closed(mean, shuffled[size], floors[size]))
        if gaps and not order["is_baseline"] and not order["targeted"]:
            closed[order["name"]] = sum(gaps) / len(gaps)
    return closed


def recommended_ordering(closed: Mapping[str, float], main_ordering: str | None) -> str | None:
    """The ordering to train on: the main ordering, or the best ordering if it is clearly better; None without any.

    `closed` is the result of `mean_gaps_closed`.
    """
    if not closed:
        return None
    best = max(closed, key=closed.__getitem__)
    if main_ordering is None or main_ordering not in closed:
        return best
    is_better = closed[best] > 0 >= closed[main_ordering] or closed[best] - closed[main_ordering] > CLEARLY_BETTER
    return best if is_better else main_ordering

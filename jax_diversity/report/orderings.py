"""The values of the orderings: curves, profiles over window sizes, heat maps, and verdicts against a shuffle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64

from jax_diversity.foundation.progress import Advance
from jax_diversity.measures.balance import Balance
from jax_diversity.measures.comparison import SHUFFLE, gap_or_none
from jax_diversity.measures.curves import MAX_POINTS, envelope
from jax_diversity.measures.documents import DocumentSpread
from jax_diversity.measures.floors import ideal_token_shuffle, window_floor
from jax_diversity.measures.profile import GroupTimeline, WindowProfile, group_timeline, window_profile
from jax_diversity.ordering.base import order
from jax_diversity.report.plain import as_json, clean_text, round_value, round_values
from jax_diversity.report.words import verdict_sentence
from jax_diversity.schema import Characteristics, Ordering

NUM_SEEDS = 5
# How an ordering was made, as far as the page shows it.
_SHOWN = ("seed", "objective", "options", "reverse", "replanned_at", "unmet_targets")
# Many orderings and families have shorter curves, so that the page stays small enough to be sent by mail.
FEWEST_POINTS, ALL_POINTS = 60, 14_000
FEWEST_BINS, MOST_BINS, ALL_BINS = 32, 96, 1200

WindowTVs = Mapping[str, Mapping[int, Float64[np.ndarray, " window"]]]
"""Family -> window size -> TV of every window of one ordering."""


def curve_points(num_curves: int) -> int:
    """Points of a curve on a page of so many curves."""
    return min(max(ALL_POINTS // max(num_curves, 1), FEWEST_POINTS), MAX_POINTS)


def heat_map_bins(num_heat_maps: int) -> int:
    """Stretches of training in a heat map on a page of so many."""
    return min(max(ALL_BINS // max(num_heat_maps, 1), FEWEST_BINS), MOST_BINS)


def order_values(
    characteristics: Characteristics,
    ordering: Ordering,
    balance: Balance,
    about: Mapping[str, Any],
    group_names: Mapping[str, Sequence[str]],
    num_orderings: int,
    advance: Advance,
) -> dict[str, Any]:
    """What the page shows of one ordering; of its curves no more is kept than can be drawn.

    `about` is its `name`, its `method` and how else it was made; `num_orderings` are on the page.
    """
    # Curves on the page: a norm drift an ordering; in every family a prefix and one of each window size.
    families, sizes = balance.prefix_l2, next(iter(balance.window_tv.values()))
    points = curve_points(num_orderings * (1 + len(families) * (1 + len(sizes))))
    num_bins = heat_map_bins(num_orderings * len(families))
    windows = [
        {
            "family": clean_text(family),
            "window_size": size,
            "num_windows": len(tv),
            "mean": round_value(tv.mean()),
            "best": round_value(tv.min()),
            "worst": round_value(tv.max()),
            "worst_position": int(np.argmax(tv)) * size,
            "window_max": round_value(balance.window_max[family][size]),
            "curve": envelope(tv, (np.arange(len(tv)) + 0.5) * size, points),
        }
        for family, by_size in balance.window_tv.items()
        for size, tv in sorted(by_size.items())
    ]
    # One pass over all sizes: `measure` would take a pass for each of them.
    profiles = window_profile(characteristics, ordering, advance)
    return {
        "name": clean_text(about["name"]),
        "method": clean_text(about["method"]),
        "is_baseline": about["method"] == SHUFFLE,
        "info": as_json({key: about[key] for key in _SHOWN if key in about}),
        "prefix": [{"family": clean_text(family), **_curve(curve, points)} for family, curve in families.items()],
        "windows": windows,
        "profile": {
            clean_text(family): {
                offset: {name: round_values(values) for name, values in profile._asdict().items()}
                for offset, profile in offsets.items()
            }
            for family, offsets in profiles.items()
        },
        "heat_map": {
            clean_text(family): _heat_map(
                group_timeline(characteristics, family, ordering, num_bins=num_bins), group_names[family]
            )
            for family in families
        },
        "norm_drift": _curve(balance.norm_drift, points),
        "documents": _spread(balance.documents),
        "copies": _spread(balance.copies),
    }


def _spread(spread: DocumentSpread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    figures = spread.summary()
    windows = [{"window_size": int(size), **values} for size, values in figures.pop("windows").items()]
    return as_json({**figures, "windows": windows})


def _curve(values: Float64[np.ndarray, " position"], points: int) -> dict[str, Any]:
    """A curve and its largest distance from zero, which shortening would keep but for its last digits."""
    return {"max": round_value(np.abs(values).max()), "curve": envelope(values, max_points=points)}


def _heat_map(timeline: GroupTimeline, names: Sequence[str]) -> dict[str, Any]:
    numbers: list[int] = timeline.groups.tolist()
    groups = zip(numbers, timeline.target.tolist(), strict=True)
    return {
        "num_bins": timeline.share.shape[1],
        "bin_size": timeline.bin_size,
        "groups": [{"name": clean_text(names[group], 60), "target": round_value(target)} for group, target in groups],
        # Three digits are more than a colour shows.
        "share": [round_values(shares, 3) for shares in timeline.share],
    }


def reference_values(characteristics: Characteristics, advance: Advance) -> dict[str, Any]:
    """What profiles are drawn beside: the floor, the ideal token shuffle, the band of uniform shuffles by seed."""
    # One shuffle would not tell what is chance. Five profiles are cheap; all else is measured of the dataset's own.
    shuffles = [
        window_profile(characteristics, order(characteristics, SHUFFLE, seed=seed), advance)
        for seed in range(NUM_SEEDS)
    ]
    references = {}
    for family in characteristics.families:
        counts, target = characteristics.counts[family], characteristics.target_share(family)
        sizes, length = shuffles[0][family]["0"].sizes.tolist(), characteristics.sequence_length
        bands = {at: shuffle_band([shuffle[family][at] for shuffle in shuffles]) for at in shuffles[0][family]}
        references[clean_text(family)] = {
            "sizes": sizes,
            "floor": [round_value(window_floor(counts, target, size, length)) for size in sizes],
            "ideal": [round_value(ideal_token_shuffle(target, size, length)) for size in sizes],
            "shuffle": {"num_seeds": NUM_SEEDS, **bands},
        }
    return references


def shuffle_band(profiles: Sequence[WindowProfile]) -> dict[str, list[Any]]:
    """Where the shuffles' means, worst and best windows lie, over seeds."""
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
    window_tv: Mapping[str, WindowTVs], floors: Mapping[str, Mapping[int, float]], shuffles: Sequence[str]
) -> list[dict[str, Any]]:
    """Every ordering that is no shuffle against the first shuffle: its worst window and the shuffle's best.

    `window_tv` is ordering -> family -> window size -> TV of every window; `floors` are of their means.
    """
    return [
        _verdict(name, shuffles[0], family, size, tv, window_tv[shuffles[0]][family][size], floors[family][size])
        for name, families in window_tv.items()
        if shuffles and name not in shuffles
        for family, by_size in families.items()
        for size, tv in sorted(by_size.items())
        if len(tv) >= 2
    ]


def _verdict(
    name: str, baseline: str, family: str, size: int, tv: np.ndarray, shuffled: np.ndarray, floor: float
) -> dict[str, Any]:
    mean, baseline_mean = float(tv.mean()), float(shuffled.mean())
    verdict: dict[str, Any] = {
        "ordering": clean_text(name),
        "baseline": clean_text(baseline),
        "family": clean_text(family),
        "window_size": size,
        "num_windows": len(tv),
        "holds": bool(tv.max() < shuffled.min()),
        "worst": float(tv.max()),
        "baseline_best": float(shuffled.min()),
        "mean": mean,
        "baseline_mean": baseline_mean,
        "gap_closed": gap_or_none(mean, baseline_mean, floor),
    }
    # The sentence shows as many digits as tell the two figures apart: figures are compared before they are rounded.
    sentence = verdict_sentence(verdict)
    rounded = {key: round_value(value) if isinstance(value, float) else value for key, value in verdict.items()}
    return {**rounded, "sentence": sentence}


def main_verdicts(
    verdicts: Sequence[dict[str, Any]], main_ordering: str | None, size: int = 256
) -> list[dict[str, Any]]:
    """The verdicts that the summary is about, one a family: of one ordering, at the window size nearest to `size`."""
    # The settings' ordering may be a shuffle, or have too few windows to be judged: then the first that is judged.
    judged = [verdict["ordering"] for verdict in verdicts]
    name = clean_text(main_ordering or "")
    own = [verdict for verdict in verdicts if verdict["ordering"] == (name if name in judged else judged[0])]
    sizes = {verdict["window_size"] for verdict in own}
    # Near on a logarithmic scale; of two equally near sizes the smaller.
    nearest = min(sizes, key=lambda each: (abs(math.log(each / size)), each), default=0)
    return [verdict for verdict in own if verdict["window_size"] == nearest]

"""The values of the page on a run: what its schedule reads, when, and how balanced that is.

Plain JSON, small whatever the run's length; `?` marks what may be null. Positions count from 0, shares and TV are
between 0 and 1.

    format_version, title, version, num_positions
    datasets     [{path, num_sequences, sequence_length, positions, share, epochs}]; a share of the positions
    versions     [{version, positions, change, changed_at?}]; changed_at is the first of its positions that is another
                 than in the version before
    changes      [{version, position}]: where such a position is one of this version, too
    stretches    [{start, stop, parts [{dataset, epoch, share}]}]: which dataset (its place in the list) and which of
                 its epochs a stretch of the run reads
    measures     [{family, window_size, order, mean, worst, floor, gap_closed?}]; order is the run or its shuffle
    repeats      [{window_size, order, mean, floor}] of documents
    curves       [{family, window_size, order, curve}]: TV of the windows along the run, as `envelope` gives it
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from jax_diversity.dataset.measuring import compare_orderings
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.measures.comparison import Comparison
from jax_diversity.measures.documents import DOCUMENT
from jax_diversity.report.plain import clean_text, round_value
from jax_diversity.schedule.inspection import Places, places_before
from jax_diversity.schedule.measuring import choose_schedule
from jax_diversity.schedule.stored import RunSchedule

FORMAT_VERSION = 1
NUM_STRETCHES = 72


def run_values(
    run: RunSchedule, progress: Progress, windows: Sequence[int] = (), families: Sequence[str] = ()
) -> dict[str, Any]:
    """What this module's text lists; the same for the same schedule.

    Args:
        run: the schedule, in one of its versions.
        progress: is told what is measured.
        windows: window sizes, see `choose_schedule`.
        families: families to measure, see `choose_schedule`.

    Raises:
        UserError: a schedule without positions, and what `choose_schedule` raises.
    """
    if not len(run):
        raise UserError(f"Expected a schedule with positions at {run.root}, found none; make one of an epoch.")
    compared, curves = compare_orderings(choose_schedule(run, windows, families), progress)
    places = places_before(run, len(run))
    versions = [_version(run, number) for number in range(1, len(run.content.versions) + 1)]
    changes = [
        {"version": each["version"], "position": each["changed_at"]}
        for each in versions[1 : run.version]
        # Beyond the last position that both versions share, a later change has moved it.
        if each["changed_at"] <= run.agrees_until(each["version"])
    ]
    counts = np.bincount(places.dataset, minlength=len(run.members)).tolist()
    return {
        "format_version": FORMAT_VERSION,
        "title": clean_text(run.root.name) or "Untitled run",
        "version": run.version,
        "num_positions": len(run),
        "datasets": [
            {
                "path": clean_text(each.path),
                "num_sequences": each.num_sequences,
                "sequence_length": each.sequence_length,
                "positions": count,
                "share": round_value(count / len(run)),
                "epochs": round_value(count / max(each.num_sequences, 1)),
            }
            for each, count in zip(run.members, counts, strict=True)
        ],
        "versions": versions,
        "changes": changes,
        "stretches": stretches(places),
        "measures": _measures(compared),
        "repeats": _repeats(compared),
        "curves": [
            {"family": clean_text(family), "window_size": size, "order": clean_text(name), "curve": curve}
            for name, of_order in curves.items()
            for family, about in of_order.items()
            for size, curve in about.window_tv.items()
        ],
    }


def stretches(places: Places, number: int = NUM_STRETCHES) -> list[dict[str, Any]]:
    """What stretches of a run read, nearly equal in length: the share of every dataset's epoch."""
    total = len(places.dataset)
    bounds = np.unique(np.arange(number + 1) * total // number).tolist()
    found = []
    for start, stop in pairwise(bounds):
        pairs = np.stack([places.dataset[start:stop], places.epoch[start:stop]], axis=1)
        distinct, counts = np.unique(pairs, axis=0, return_counts=True)
        parts = [
            {"dataset": dataset, "epoch": epoch, "share": round_value(count / (stop - start))}
            for (dataset, epoch), count in zip(distinct.tolist(), counts.tolist(), strict=True)
        ]
        found.append({"start": start, "stop": stop, "parts": parts})
    return found


def _version(run: RunSchedule, number: int) -> dict[str, Any]:
    each = run.with_version(number)
    changed_at = each.agrees_until(number - 1) if number > 1 else None
    change = clean_text(run.content.versions[number - 1].change)
    return {"version": number, "positions": len(each), "change": change, "changed_at": changed_at}


def _measures(compared: Comparison) -> list[dict[str, Any]]:
    rows = []
    for row in compared.rows:
        if row.measure == "tv_mean" and row.offset == "0":
            at = (row.ordering, row.family)
            limits = {
                "floor": compared.value(*at, "tv_floor", row.window),
                "gap_closed": compared.value(*at, "gap_closed", row.window),
            }
            about = {
                "family": clean_text(row.family),
                "window_size": row.window,
                "order": clean_text(row.ordering),
                "mean": round_value(row.value),
                "worst": round_value(compared.value(*at, "tv_worst", row.window, "0")),
            }
            rows.append(about | {name: round_value(value) for name, value in limits.items()})
    return rows


def _repeats(compared: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "window_size": row.window,
            "order": clean_text(row.ordering),
            "mean": round_value(row.value),
            "floor": round_value(compared.value(row.ordering, DOCUMENT, "repeats_floor", row.window)),
        }
        for row in compared.rows
        if row.measure == "repeats_mean" and row.family == DOCUMENT
    ]

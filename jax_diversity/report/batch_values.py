"""The values of opened batches: which documents the best and the worst of an ordering hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax_diversity.report.aggregate import clean_text, round_value
from jax_diversity.report.inputs import BatchInputs, ReportInputs, RowInputs, SegmentInputs

MAX_DIFFERENCES = 6
MAX_ROWS = 12
MAX_SEGMENTS = 6
ALL_SEGMENTS = 1200
MAX_ID = 200


def shown_rows(segments_per_row: Sequence[int], num_batches: int) -> int:
    """How many of a batch's first rows are opened, at least one, where a page opens so many batches in all.

    Example:
        >>> shown_rows([2, 9, 4], 100)  # 2 + 6 segments fit into its 12, another 4 as well
        3
    """
    left, rows = ALL_SEGMENTS / max(num_batches, 1), 0
    for number in segments_per_row[:MAX_ROWS]:
        left -= min(number, MAX_SEGMENTS)
        if left < 0 and rows:
            break
        rows += 1
    return rows


def batches_values(inputs: ReportInputs) -> dict[str, Any] | None:
    """The best and the worst batches of every ordering in every family; None where none were opened."""
    if inputs.batch_size is None:
        return None
    return {
        "batch_size": int(inputs.batch_size),
        "orders": {
            clean_text(order.name): {
                clean_text(family): {
                    "best": [_batch(batch) for batch in extremes.best],
                    "worst": [_batch(batch) for batch in extremes.worst],
                }
                for family, extremes in order.batches.items()
            }
            for order in inputs.orderings
        },
    }


def _batch(batch: BatchInputs) -> dict[str, Any]:
    rows = batch.rows[:MAX_ROWS]
    return {
        "step": int(batch.step),
        "position": int(batch.position),
        "tv": round_value(batch.tv),
        "differences": [
            {"name": clean_text(name, 60), "share": round_value(share, 4), "target": round_value(target, 4)}
            for name, share, target in batch.differences[:MAX_DIFFERENCES]
        ],
        "rows": [_row(row) for row in rows],
        "num_more_rows": int(batch.num_more_rows) + len(batch.rows) - len(rows),
    }


def _row(row: RowInputs) -> dict[str, Any]:
    segments = row.segments[:MAX_SEGMENTS]
    return {
        "row": int(row.row),
        "sequence_index": int(row.sequence_index),
        "segments": [_segment(segment) for segment in segments],
        "num_more_segments": int(row.num_more_segments) + len(row.segments) - len(segments),
    }


def _segment(segment: SegmentInputs) -> dict[str, Any]:
    return {
        "document": clean_text(segment.document, MAX_ID),
        "title": clean_text(segment.title, 60),
        "source": clean_text(segment.source, 40),
        "language": None if segment.language is None else clean_text(segment.language, 20),
        "cluster": None if segment.cluster is None else clean_text(segment.cluster, 60),
        "tokens": int(segment.num_tokens),
    }

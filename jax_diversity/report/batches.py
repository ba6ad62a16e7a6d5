"""Compute the values of the best and the worst batches of every ordering, with their documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.counts import Characteristics
from jax_diversity.dataset.dataset import Dataset
from jax_diversity.figures.plain import clean_text, round_value
from jax_diversity.measures.windows import place, window_deviation
from jax_diversity.schema import Segments

MOST_BATCHES, MAX_DIFFERENCES, MAX_ROWS, MAX_SEGMENTS, ALL_SEGMENTS = 3, 6, 12, 6, 1200
_TITLE_CHARACTERS = 80


def shown_rows(segments_per_row: Sequence[int], num_batches: int) -> int:
    """Return how many rows are shown for a batch, at least one row, on a page with `num_batches` batches."""
    # Segments take most of the page's size: all batches together show ALL_SEGMENTS segments.
    left, rows = ALL_SEGMENTS / max(num_batches, 1), 0
    for number in segments_per_row[:MAX_ROWS]:
        left -= min(number, MAX_SEGMENTS)
        if left < 0 and rows:
            break
        rows += 1
    return rows


def batches_values(
    dataset: Dataset, orderings: Iterable[str], group_names: Mapping[str, Sequence[str]], size: int
) -> dict[str, Any] | None:
    """Choose every ordering's best and worst batches in each family, and look up their documents.

    There are at most three batches of each kind, and no batch is of both kinds. A single batch counts as a worst batch.
    Returns None if the sequences do not fill a batch.
    """
    chars, segments = dataset.characteristics, dataset.segments
    if chars.num_sequences < size:
        return None
    orders = {
        clean_text(name): {
            clean_text(family): _extremes(chars, family, dataset.orderings[name].indices, group_names[family], size)
            for family in chars.families
        }
        for name in orderings
    }
    batches = [
        batch for order in orders.values() for kinds in order.values() for kind in kinds.values() for batch in kind
    ]
    # The number of rows per batch depends on the number of batches, which is known only now.
    for batch in batches:
        batch["rows"] = _rows(segments, batch.pop("sequences"), len(batches))
        batch["num_more_rows"] = size - len(batch["rows"])
    # The documents of all batches are read in one pass over the files.
    rows = [row for batch in batches for row in batch["rows"]]
    shown = np.array([segment for row in rows for segment in row["segments"]], np.int64)
    wanted = np.unique(segments.document_index[shown])
    documents = dict(zip(wanted.tolist(), _documents(dataset, wanted), strict=True))
    for row in rows:
        held = np.array(row["segments"], np.int64)
        pairs = zip(segments.document_index[held].tolist(), segments.length[held].tolist(), strict=True)
        row["segments"] = [{**documents[document], "tokens": tokens} for document, tokens in pairs]
    return {"batch_size": size, "orders": orders}


def _extremes(
    chars: Characteristics, family: str, indices: Int64[np.ndarray, " position"], names: Sequence[str], size: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the best and the worst whole batches of an epoch, the most extreme first; earlier ones first if equal."""
    target, placed = chars.target_share(family), place(chars.counts[family], indices)
    tv = window_deviation(placed, target, size)
    # No batch is shown twice. If the number of batches is odd, there is one more worst batch than best batches, because
    # readers look for the worst batches first.
    num_best = min(MOST_BATCHES, len(tv) // 2)
    best = np.argsort(tv, kind="stable")[:num_best]  # stable, here and below: of equal batches the earlier is first
    worst = np.argsort(-tv, kind="stable")
    worst = worst[~np.isin(worst, best)][:MOST_BATCHES]

    def chosen(step: int) -> dict[str, Any]:
        rows = slice(step * size, (step + 1) * size)
        tokens = placed[rows].sum(axis=0).astype(np.float64)
        differences = difference_values(tokens / max(tokens.sum(), 1.0), target, names)
        position, deviation = step * size, round_value(tv[step])
        return {
            "step": step,
            "position": position,
            "tv": deviation,
            "differences": differences,
            "sequences": indices[rows],
        }

    return {"best": list(map(chosen, best.tolist())), "worst": list(map(chosen, worst.tolist()))}


def difference_values(
    share: Float64[np.ndarray, " group"], target: Float64[np.ndarray, " group"], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the groups whose share of a batch is farthest from the target; of equal groups the first is returned."""
    largest: list[int] = np.argsort(-np.abs(share - target), kind="stable")[:MAX_DIFFERENCES].tolist()
    return [
        {
            "name": clean_text(names[group], 60),
            "share": round_value(share[group], 4),
            "target": round_value(target[group], 4),
        }
        for group in largest
    ]


def _rows(segments: Segments, sequences: Int64[np.ndarray, " row"], num_batches: int) -> list[dict[str, Any]]:
    """Return the rows that are shown; their segments contain document numbers until the documents are read."""
    # Segments are sorted by sequence: the segments of a sequence are neighbours.
    starts, stops = (np.searchsorted(segments.sequence_index, sequences, side) for side in ("left", "right"))
    widths = (stops - starts).tolist()
    return [
        {
            "row": row,
            "sequence_index": int(sequences[row]),
            "segments": list(range(starts[row], starts[row] + min(widths[row], MAX_SEGMENTS))),
            "num_more_segments": max(widths[row] - MAX_SEGMENTS, 0),
        }
        for row in range(shown_rows(widths, num_batches))
    ]


def _documents(dataset: Dataset, wanted: Int64[np.ndarray, " document"]) -> list[dict[str, Any]]:
    """Return id, title (or first words), source, language and cluster of each wanted document."""
    store, assignments = dataset.document_store, dataset.assignments()
    rows = store.rows(wanted, ["id", "title", "source", "language"])
    # Texts may be long: they are read only for documents without a title.
    untitled = np.array([index for index, row in enumerate(rows) if not row["title"]], np.int64)
    for index, row in zip(untitled.tolist(), store.rows(wanted[untitled], ["text"]), strict=True):
        rows[index]["title"] = " ".join(row["text"][: 4 * _TITLE_CHARACTERS].split())[:_TITLE_CHARACTERS]
    names = [cluster["name"] for cluster in dataset.clusters()]
    clusters = [names[cluster] for cluster in assignments[wanted].tolist()]
    return [document_values(row, cluster) for row, cluster in zip(rows, clusters, strict=True)]


def document_values(about: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A document in a segment of a batch; its id is not shortened, so that `inspect --document` accepts it."""
    return {
        "document": clean_text(about["id"], 200),
        "title": clean_text(about["title"], 60),
        "source": clean_text(about["source"], 40),
        "language": None if about["language"] is None else clean_text(about["language"], 20),
        "cluster": clean_text(cluster, 60),
    }

"""The values of the best and the worst batches of every ordering, with the documents that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.dataset.dataset import Dataset
from jax_diversity.measures.windows import place, window_deviation
from jax_diversity.report.plain import clean_text, round_value
from jax_diversity.schema import Characteristics, Segments

MOST_BATCHES = 3
MAX_DIFFERENCES = 6
MAX_ROWS = 12
MAX_SEGMENTS = 6
ALL_SEGMENTS = 1200
_TITLE_CHARACTERS = 80


def shown_rows(segments_per_row: Sequence[int], num_batches: int) -> int:
    """How many of a batch's first rows are shown, at least one, where a page shows so many batches in all.

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


@dataclass
class _Batch:
    """A batch before its documents are read; `rows` are row, segments that are shown, and how many more it has."""

    step: int
    tv: float
    sequences: Int64[np.ndarray, " row"]
    differences: list[dict[str, Any]]
    rows: Sequence[tuple[int, Int64[np.ndarray, " segment"], int]] = ()


def batches_values(
    dataset: Dataset, orderings: Iterable[str], group_names: Mapping[str, Sequence[str]], size: int
) -> dict[str, Any] | None:
    """Choose every ordering's best and worst batches in each family, and look up what they hold.

    Args:
        dataset: its counts, orderings, segments and documents are read.
        orderings: their names.
        group_names: family -> names of its groups.
        size: sequences of a batch.

    Returns:
        What `values` lists; up to three batches of either kind, none of them both; a single batch is a worst one.
        None where the sequences do not fill a batch.
    """
    chars, segments = dataset.characteristics, dataset.segments
    if chars.num_sequences < size:
        return None
    chosen = {
        name: {
            family: _extremes(chars, family, dataset.orderings[name].indices, group_names[family], size)
            for family in chars.families
        }
        for name in orderings
    }
    batches = [batch for families in chosen.values() for both in families.values() for kind in both for batch in kind]
    # How many rows a batch shows depends on the number of batches, which is known only now.
    for batch in batches:
        batch.rows = _rows(segments, batch.sequences, len(batches))
    # The documents of all batches are read in one pass over the files.
    shown = [segment for batch in batches for _, held, _ in batch.rows for segment in held.tolist()]
    wanted = np.unique(segments.document_index[np.array(shown, np.int64)])
    documents = dict(zip(wanted.tolist(), _documents(dataset, wanted), strict=True))

    def opened(batch: _Batch) -> dict[str, Any]:
        return {
            "step": batch.step,
            "position": batch.step * size,
            "tv": round_value(batch.tv),
            "differences": batch.differences,
            "rows": [
                {
                    "row": row,
                    "sequence_index": int(batch.sequences[row]),
                    "segments": [
                        {
                            **documents[int(segments.document_index[segment])],
                            "tokens": int(segments.length[segment]),
                        }
                        for segment in held.tolist()
                    ],
                    "num_more_segments": num_more,
                }
                for row, held, num_more in batch.rows
            ],
            "num_more_rows": size - len(batch.rows),
        }

    orders = {
        clean_text(name): {
            clean_text(family): {
                kind: list(map(opened, found)) for kind, found in zip(("best", "worst"), both, strict=True)
            }
            for family, both in families.items()
        }
        for name, families in chosen.items()
    }
    return {"batch_size": size, "orders": orders}


def _extremes(
    chars: Characteristics,
    family: str,
    indices: Int64[np.ndarray, " position"],
    names: Sequence[str],
    size: int,
) -> tuple[list[_Batch], list[_Batch]]:
    """The best and the worst of an epoch's whole batches, each kind's extreme first; of equals the earlier."""
    counts, target = chars.counts[family], chars.target_share(family)
    placed = place(counts, indices)
    tv = window_deviation(placed, target, size)
    # Where there are few batches none is shown twice; an odd one is a worst one, which a reader looks for first.
    num_best = min(MOST_BATCHES, len(tv) // 2)
    best = np.argsort(tv, kind="stable")[:num_best]
    worst = np.argsort(-tv, kind="stable")
    worst = worst[~np.isin(worst, best)][:MOST_BATCHES]

    def chosen(step: int) -> _Batch:
        tokens = placed[step * size : (step + 1) * size].sum(axis=0).astype(np.float64)
        differences = difference_values(tokens / max(tokens.sum(), 1.0), target, names)
        return _Batch(step, float(tv[step]), indices[step * size : (step + 1) * size], differences)

    return list(map(chosen, best.tolist())), list(map(chosen, worst.tolist()))


def difference_values(
    share: Float64[np.ndarray, " group"], target: Float64[np.ndarray, " group"], names: Sequence[str]
) -> list[dict[str, Any]]:
    """The groups whose share of a batch is farthest from their target; of equals the first."""
    largest: list[int] = np.argsort(-np.abs(share - target), kind="stable")[:MAX_DIFFERENCES].tolist()
    return [
        {
            "name": clean_text(names[group], 60),
            "share": round_value(share[group], 4),
            "target": round_value(target[group], 4),
        }
        for group in largest
    ]


def _rows(
    segments: Segments, sequences: Int64[np.ndarray, " row"], num_batches: int
) -> list[tuple[int, Int64[np.ndarray, " segment"], int]]:
    """The rows that are shown: number, first segments, how many more there are."""
    # Segments are sorted by sequence: a sequence's are a run of rows.
    starts, stops = (np.searchsorted(segments.sequence_index, sequences, side) for side in ("left", "right"))
    widths = (stops - starts).tolist()
    held = [starts[row] + np.arange(min(width, MAX_SEGMENTS)) for row, width in enumerate(widths)]
    return [(row, held[row], widths[row] - len(held[row])) for row in range(shown_rows(widths, num_batches))]


def _documents(dataset: Dataset, wanted: Int64[np.ndarray, " document"]) -> list[dict[str, Any]]:
    """Id, title (or first words), source, language and cluster of some documents."""
    store, assignments = dataset.document_store, dataset.assignments()
    rows = store.rows(wanted, ["id", "title", "source", "language"])
    # Texts may be long: only those of documents without a title are read.
    untitled = np.array([index for index, row in enumerate(rows) if not row["title"]], np.int64)
    for index, row in zip(untitled.tolist(), store.rows(wanted[untitled], ["text"]), strict=True):
        rows[index]["title"] = " ".join(row["text"][: 4 * _TITLE_CHARACTERS].split())[:_TITLE_CHARACTERS]
    names = [cluster["name"] for cluster in dataset.clusters()]
    clusters = [names[cluster] for cluster in assignments[wanted].tolist()]
    return [document_values(row, cluster) for row, cluster in zip(rows, clusters, strict=True)]


def document_values(about: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A document as a segment of a batch shows it; its id is kept whole, for `inspect --document` takes it."""
    return {
        "document": clean_text(about["id"], 200),
        "title": clean_text(about["title"], 60),
        "source": clean_text(about["source"], 40),
        "language": None if about["language"] is None else clean_text(about["language"], 20),
        "cluster": clean_text(cluster, 60),
    }

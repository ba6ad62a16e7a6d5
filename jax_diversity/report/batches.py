"""Compute the values of the best and the worst batches of every ordering, with their documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.figures.plain import clean_text, round_value
from jax_diversity.ordering.measures.balance import Measurer
from jax_diversity.schema import Ordering, Segments
from jax_diversity.streaming.dataset.dataset import Dataset

MOST_BATCHES, MAX_DIFFERENCES, MAX_ROWS, MAX_SEGMENTS, ALL_SEGMENTS = 3, 6, 12, 6, 1200
_TITLE_CHARACTERS = 80
_SEQUENCES_TOGETHER = 1 << 20


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
    counts = dataset.token_counts()
    if counts.num_sequences < size:
        return None
    measurer = Measurer(counts, (size,))
    orders = {clean_text(name): _extremes(measurer, dataset.orderings[name], group_names, size) for name in orderings}
    batches = [
        batch for order in orders.values() for kinds in order.values() for kind in kinds.values() for batch in kind
    ]
    shown = [batch["sequences"][:MAX_ROWS] for batch in batches]
    segments = _segments_of(dataset, np.unique(np.concatenate([np.zeros(0, np.int64), *shown])))
    # The number of rows per batch depends on the number of batches, which is known only now.
    for batch in batches:
        batch["rows"] = _rows(segments, batch.pop("sequences")[:MAX_ROWS].tolist(), len(batches))
        batch["num_more_rows"] = size - len(batch["rows"])
    # The documents of all batches are read in one pass over the files.
    rows = [row for batch in batches for row in batch["rows"]]
    indices = np.unique(np.array([document for row in rows for document, _ in row["segments"]], np.int64))
    documents = dict(zip(indices.tolist(), _documents(dataset, indices), strict=True))
    for row in rows:
        row["segments"] = [{**documents[document], "tokens": tokens} for document, tokens in row["segments"]]
    return {"batch_size": size, "orders": orders}


def _extremes(
    measurer: Measurer, ordering: Ordering, group_names: Mapping[str, Sequence[str]], size: int
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return every family's best and worst whole batches of an epoch, the most extreme first; earlier ones if equal."""
    with measurer.placed(ordering) as blocks:
        tvs = {family: windows.tv for (family, _), windows in measurer.aligned_windows(blocks).items()}
        steps: dict[str, tuple[list[int], list[int]]] = {}
        for family, tv in tvs.items():
            # No batch is shown twice. If the number of batches is odd, there is one more worst batch than best batches,
            # because readers look for the worst batches first.
            num_best = min(MOST_BATCHES, len(tv) // 2)
            best = np.argsort(tv, kind="stable")[:num_best]  # stable, here and below: of equal batches the earlier
            worst = np.argsort(-tv, kind="stable")
            steps[family] = best.tolist(), worst[~np.isin(worst, best)][:MOST_BATCHES].tolist()
        tokens = {(family, step): 0.0 for family, (best, worst) in steps.items() for step in (*best, *worst)}
        for block in blocks():
            for family, of_family in steps.items():
                placed = block.counts(family)
                for step in (*of_family[0], *of_family[1]):
                    rows = slice(*(min(max(at * size - block.first, 0), len(block)) for at in (step, step + 1)))
                    tokens[family, step] = tokens[family, step] + placed[rows].sum(axis=0).astype(np.float64)

    def batch_of(family: str, step: int) -> dict[str, Any]:
        window_tokens, target = tokens[family, step], measurer.targets[family].shares[0]
        return {
            "step": step,
            "position": step * size,
            "tv": round_value(tvs[family][step]),
            "differences": difference_values(
                window_tokens / max(np.sum(window_tokens), 1.0), target, group_names[family]
            ),
            "sequences": ordering.indices[step * size : (step + 1) * size],
        }

    return {
        clean_text(family): {
            kind: [batch_of(family, step) for step in numbers]
            for kind, numbers in zip(("best", "worst"), steps_by_kind, strict=True)
        }
        for family, steps_by_kind in steps.items()
    }


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


def _segments_of(dataset: Dataset, sequences: Int64[np.ndarray, " wanted"]) -> dict[int, list[tuple[int, int]]]:
    """Return the document and the tokens of every segment of some sequences; the packing is read in blocks."""
    segments_of: dict[int, list[tuple[int, int]]] = {number: [] for number in sequences.tolist()}
    for first, segments in segment_blocks(dataset):
        chosen = sequences[(first <= sequences) & (sequences < first + segments.num_sequences)]
        rows = np.flatnonzero(np.isin(segments.sequence_index, chosen - first))
        columns = (first + segments.sequence_index[rows], segments.document_index[rows], segments.length[rows])
        for number, document, tokens in zip(*(column.tolist() for column in columns), strict=True):
            segments_of[number].append((document, tokens))
    return segments_of


def segment_blocks(dataset: Dataset) -> Iterator[tuple[int, Segments]]:
    """Yield the packing of the training sequences in blocks, with the first sequence of each.

    All segments may need more memory than the machine has.
    """
    for first in range(0, dataset.num_sequences, _SEQUENCES_TOGETHER):
        stop = min(first + _SEQUENCES_TOGETHER, dataset.num_sequences)
        yield first, dataset.segments_between("train", first, stop)


def _rows(
    segments_of: Mapping[int, list[tuple[int, int]]], sequences: Sequence[int], num_batches: int
) -> list[dict[str, Any]]:
    """Return the rows that are shown; their segments are document numbers and tokens until the documents are read."""
    widths = [len(segments_of[number]) for number in sequences]
    return [
        {
            "row": row,
            "sequence_index": sequences[row],
            "segments": segments_of[sequences[row]][:MAX_SEGMENTS],
            "num_more_segments": max(widths[row] - MAX_SEGMENTS, 0),
        }
        for row in range(shown_rows(widths, num_batches))
    ]


def _documents(dataset: Dataset, documents: Int64[np.ndarray, " document"]) -> list[dict[str, Any]]:
    """Return id, title (or first words), source, language and cluster of each wanted document."""
    store, assignments = dataset.document_store, dataset.assignments()
    rows = store.rows(documents, ["id", "title", "source", "language"])
    # Texts may be long: they are read only for documents without a title.
    untitled = np.array([index for index, row in enumerate(rows) if not row["title"]], np.int64)
    for index, row in zip(untitled.tolist(), store.rows(documents[untitled], ["text"]), strict=True):
        rows[index]["title"] = " ".join(row["text"][: 4 * _TITLE_CHARACTERS].split())[:_TITLE_CHARACTERS]
    names = [cluster["name"] for cluster in dataset.clusters()]
    clusters = [names[cluster] for cluster in assignments[documents].tolist()]
    return [document_values(row, cluster) for row, cluster in zip(rows, clusters, strict=True)]


def document_values(document: Mapping[str, Any], cluster: str) -> dict[str, Any]:
    """A document in a segment of a batch; its id is not shortened, so that `inspect --document` accepts it."""
    return {
        "document": clean_text(document["id"], 200),
        "title": clean_text(document["title"], 60),
        "source": clean_text(document["source"], 40),
        "language": None if document["language"] is None else clean_text(document["language"], 20),
        "cluster": clean_text(cluster, 60),
    }

"""The best and the worst batches of every ordering, opened to the documents that they are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.dataset import Dataset
from jax_diversity.foundation.stage import Context
from jax_diversity.measures.placing import place
from jax_diversity.measures.windows import window_deviation
from jax_diversity.report.batch_values import MAX_SEGMENTS, shown_rows
from jax_diversity.report.inputs import BatchInputs, ExtremeInputs, RowInputs, SegmentInputs
from jax_diversity.schema import Characteristics

_MOST_BATCHES = 3
_NUM_DIFFERENCES = 6
_TITLE_CHARACTERS = 80

Opened = Mapping[str, Mapping[str, ExtremeInputs]]
"""Ordering -> family -> batches."""


class _Chosen(NamedTuple):
    """A batch before its documents are known."""

    step: int
    tv: float
    sequences: Int64[np.ndarray, " row"]
    differences: list[tuple[str, float, float]]


class _Choice(NamedTuple):
    """The nearest to the corpus's mixture, the nearest first; the farthest, the farthest first."""

    best: list[_Chosen]
    worst: list[_Chosen]


def open_batches(
    context: Context, dataset: Dataset, names: Iterable[str], group_names: Mapping[str, Sequence[str]], size: int
) -> Opened:
    """Choose every ordering's best and worst batches by each family, and look up what stands in them.

    Args:
        context: of a build whose orderings are made.
        dataset: what it has built; its counts, orderings and segments are read.
        names: the orderings.
        group_names: family -> names of its groups.
        size: sequences of a batch.

    Returns:
        ordering -> family -> up to three batches of either kind, none of them both; a single batch is a worst one.
    """
    chars = dataset.characteristics
    chosen = {
        name: {
            family: _choose(chars, family, dataset.orderings[name].indices, group_names[family], size)
            for family in chars.families
        }
        for name in names
    }
    choices = [choice for by_family in chosen.values() for choice in by_family.values()]
    batches = [batch for choice in choices for batch in (*choice.best, *choice.worst)]
    opener = _Opener(dataset, batches)
    opener.read_documents(context)
    return {
        name: {
            family: ExtremeInputs(*([opener.open(batch) for batch in batches] for batches in choice))
            for family, choice in by_family.items()
        }
        for name, by_family in chosen.items()
    }


def _choose(
    chars: Characteristics,
    family: str,
    indices: Int64[np.ndarray, " position"],
    names: Sequence[str],
    size: int,
) -> _Choice:
    """The extremes among an epoch's whole batches; of equals the earlier."""
    counts, target = chars.counts[family], chars.target_share(family)
    tv = window_deviation(place(counts, indices), target, size)
    num_best = min(_MOST_BATCHES, len(tv) // 2)
    num_worst = min(_MOST_BATCHES, len(tv) - num_best)
    best = np.argsort(tv, kind="stable")[:num_best]
    worst = np.argsort(-tv, kind="stable")
    worst = worst[~np.isin(worst, best)][:num_worst]

    def chosen(step: int) -> _Chosen:
        sequences = indices[step * size : (step + 1) * size]
        tokens = np.asarray(counts[sequences].sum(axis=0), np.float64).ravel()
        differences = _differences(tokens / max(tokens.sum(), 1.0), target, names)
        return _Chosen(step, float(tv[step]), sequences, differences)

    return _Choice(list(map(chosen, best.tolist())), list(map(chosen, worst.tolist())))


def _differences(
    share: Float64[np.ndarray, " group"], target: Float64[np.ndarray, " group"], names: Sequence[str]
) -> list[tuple[str, float, float]]:
    largest = np.argsort(-np.abs(share - target), kind="stable")[:_NUM_DIFFERENCES]
    return [(names[int(group)], float(share[group]), float(target[group])) for group in largest]


class _Opener:
    """Looks up what stands in batches: first the segments of all, then their documents in one go."""

    def __init__(self, dataset: Dataset, batches: Sequence[_Chosen]) -> None:
        self._segments, self._num_batches = dataset.segments, len(batches)
        held = [rows for batch in batches for _, _, rows, _ in self._rows(batch)]
        self._wanted = np.unique(self._segments.document_index[np.concatenate([np.zeros(0, np.int64), *held])])
        self._about: dict[int, dict[str, Any]] = {}

    def read_documents(self, context: Context) -> None:
        """Ids, titles (or first words), sources, languages and clusters."""
        documents = context.dataset.document_store
        rows = documents.rows(self._wanted, ["id", "title", "source", "language"])
        untitled = np.array([index for index, row in enumerate(rows) if not row["title"]], np.int64)
        texts = documents.rows(self._wanted[untitled], ["text"])
        for index, text in zip(untitled.tolist(), texts, strict=True):
            rows[index]["title"] = " ".join(text["text"][: 4 * _TITLE_CHARACTERS].split())[:_TITLE_CHARACTERS]
        assignments = context.dataset.assignments()
        names = [cluster["name"] for cluster in context.dataset.clusters()]
        for document, row in zip(self._wanted.tolist(), rows, strict=True):
            self._about[document] = {**row, "cluster": names[assignments[document]]}

    def open(self, batch: _Chosen) -> BatchInputs:
        """A batch with its first rows."""
        rows = [
            RowInputs(row, sequence, [self._segment(index) for index in held.tolist()], num_more)
            for row, sequence, held, num_more in self._rows(batch)
        ]
        size = len(batch.sequences)
        position = batch.step * size
        return BatchInputs(batch.step, position, batch.tv, batch.differences, rows, size - len(rows))

    def _rows(self, batch: _Chosen) -> list[tuple[int, int, Int64[np.ndarray, " segment"], int]]:
        """The rows that are shown: number, sequence, first segments, how many more there are."""
        of_sequence = self._segments.sequence_index
        starts, stops = (np.searchsorted(of_sequence, batch.sequences, side) for side in ("left", "right"))
        widths = (stops - starts).tolist()
        rows = []
        for row, width in enumerate(widths[: shown_rows(widths, self._num_batches)]):
            held = starts[row] + np.arange(min(width, MAX_SEGMENTS))
            rows.append((row, int(batch.sequences[row]), held, width - len(held)))
        return rows

    def _segment(self, index: int) -> SegmentInputs:
        about = self._about[int(self._segments.document_index[index])]
        return SegmentInputs(
            document=about["id"],
            title=about["title"],
            source=about["source"],
            language=about["language"],
            cluster=about["cluster"],
            num_tokens=int(self._segments.length[index]),
        )

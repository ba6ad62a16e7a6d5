"""The order in which a trial reads its sequences."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int64

from jax_diversity.lab.group_losses import document_codes
from jax_diversity.ordering.base import order

if TYPE_CHECKING:
    from jax_diversity.dataset import Dataset
    from jax_diversity.lab.experiments.settings import TrialConfig

Order = Int64[np.ndarray, " position"]


def trial_order(config: TrialConfig, dataset: Dataset, num_sequences: int, seed: int) -> Order:
    """The order of one epoch of a trial.

    Args:
        config: the trial's settings.
        dataset: the dataset that it names.
        num_sequences: sequences of the trial's own packing, or of the dataset.
        seed: the epoch's.
    """
    if config.packing is not None:  # no token counts; settings allow the two methods that need none
        if config.order.method == "corpus_order":
            return np.arange(num_sequences)
        return np.random.default_rng(seed).permutation(num_sequences)
    settings = dataclasses.replace(config.order, seed=seed).for_batches(dataset.batch_size)
    objective = settings.resolve_objective(dataset.families)
    chars = dataset.characteristics
    if settings.weights:
        chars = chars.with_weights({name: settings.weights.get(name, 1.0) for name in dataset.families})
    options: dict[str, Any] = dict(settings.options)
    indices = order(chars, settings.method, seed=seed, objective=objective, **options).indices
    if settings.reverse:
        indices = indices[::-1]
    if config.documents == "as_ordered":
        return np.asarray(indices)
    return exchange_documents(np.asarray(indices), _cells(dataset), main_documents(dataset), config.documents, seed)


def exchange_documents(
    indices: Order,
    cells: Int64[np.ndarray, " sequence"],
    documents: Int64[np.ndarray, " sequence"],
    how: Literal["random", "clumped", "spread"],
    seed: int,
) -> Order:
    """Exchange sequences of one cell among their positions: every window keeps its mixture of cells.

    Args:
        indices: an order.
        cells: the cell of every sequence, such as its source and cluster.
        documents: its document.
        how: `random`; `clumped`, the sequences of a document one after another; `spread`, as far apart as can be.
        seed: of what is drawn: which document comes first, and where a document's first sequence lies.

    Example:
        >>> order = np.array([0, 1, 2, 3])
        >>> same, documents = np.zeros(4, int), np.array([7, 8, 7, 8])
        >>> documents[exchange_documents(order, same, documents, "clumped", 0)].tolist()
        [8, 8, 7, 7]
        >>> documents[exchange_documents(order, same, documents, "spread", 0)].tolist()
        [7, 8, 7, 8]
    """
    rng = np.random.default_rng(seed)
    number = len(indices)
    draw = rng.random(number)
    if how == "random":
        key = draw
    else:
        _, group, counts = np.unique(documents, return_inverse=True, return_counts=True)
        sequence = np.arange(number)
        by_document = np.lexsort((sequence, group))
        rank = np.empty(number)
        rank[by_document] = sequence - np.repeat(np.cumsum(counts) - counts, counts)
        start = rng.random(len(counts))[group]
        # Spread: the i-th of a document's n sequences at (i + u) / n of its cell's way.
        key = start if how == "clumped" else (rank + start) / counts[group]
    # Sequences by cell and key take the cell's positions in ascending order.
    sequences = np.lexsort((np.arange(number), key, cells))
    positions = np.lexsort((np.arange(number), cells[indices]))
    exchanged = np.empty_like(indices)
    exchanged[positions] = sequences
    return exchanged


def _cells(dataset: Dataset) -> Int64[np.ndarray, " sequence"]:
    """The cell of every sequence: the source and the cluster that hold most of its tokens."""
    cells = np.zeros(dataset.num_sequences, np.int64)
    for family in dataset.families:
        if family == "length":
            continue
        counts = dataset.characteristics.counts[family]
        cells = cells * (counts.shape[1] + 1) + np.asarray(counts.argmax(axis=1)).reshape(-1)
    return cells


def main_documents(dataset: Dataset) -> Int64[np.ndarray, " sequence"]:
    """The document that holds most tokens of every sequence."""
    segments = dataset.segments
    longest = np.lexsort((-segments.length, segments.sequence_index))
    first = longest[np.flatnonzero(np.diff(segments.sequence_index[longest], prepend=-1))]
    documents = np.full(segments.num_sequences, -1, np.int64)
    documents[segments.sequence_index[first]] = segments.document_index[first]
    return documents


def codes_of_tokens(dataset: Dataset, family: str, documents: np.ndarray) -> np.ndarray:
    """The groups of tokens whose documents are given; those without a document are in group 0."""
    codes = document_codes(dataset, family)
    return codes[np.maximum(documents, 0)].astype(np.int32)

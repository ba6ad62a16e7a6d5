"""The orders in which trials read their sequences."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int64

from evidence.sequences import PackedTokens
from jax_diversity.counts import Characteristics
from jax_diversity.ordering.base import order
from jax_diversity.schema import Segments

if TYPE_CHECKING:
    from evidence.settings import TrialConfig

Order = Int64[np.ndarray, " position"]


def trial_order(config: TrialConfig, packed: PackedTokens, seed: int) -> Order:
    """The order of one epoch of a trial; `seed` is the seed of the epoch."""
    indices = configured_order(config, packed, seed)
    if config.order.reverse:
        indices = indices[::-1]
    if config.documents == "as_ordered":
        return indices
    cells = _cells(packed.characteristics)
    return exchange_documents(indices, cells, main_documents(packed.segments), config.documents, seed)


def configured_order(config: TrialConfig, packed: PackedTokens, seed: int, **plan: Any) -> Order:
    """Make an order with the trial's method, objective and options; `plan` may have targets and consumed sequences."""
    settings, chars = dataclasses.replace(config.order, seed=seed), packed.characteristics
    return np.asarray(order(chars, settings.method, **settings.arguments(chars.families), **plan).indices)


def exchange_documents(
    indices: Order,
    cells: Int64[np.ndarray, " sequence"],
    documents: Int64[np.ndarray, " sequence"],
    how: Literal["random", "clumped", "spread"],
    seed: int,
) -> Order:
    """Exchange the sequences of each cell among their positions, so that every window keeps its mixture of cells.

    Args:
        indices: an order.
        cells: the cell of every sequence, such as its source and cluster.
        documents: the document of every sequence.
        how: `random`; `clumped`: the sequences of a document are neighbours; `spread`: they are as far apart as
            possible.
        seed: seed of the documents' order, and of the position of a document's first sequence.

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
        # Spread: the i-th of a document's n sequences at the fraction (i + u) / n of its cell's positions.
        key = start if how == "clumped" else (rank + start) / counts[group]
    # The sequences of a cell, sorted by key, take the cell's positions in ascending order.
    sequences = np.lexsort((np.arange(number), key, cells))
    positions = np.lexsort((np.arange(number), cells[indices]))
    exchanged = np.empty_like(indices)
    exchanged[positions] = sequences
    return exchanged


def _cells(characteristics: Characteristics) -> Int64[np.ndarray, " sequence"]:
    """The cell of every sequence: its largest group in each family except `length`."""
    cells = np.zeros(characteristics.num_sequences, np.int64)
    for family in characteristics.families:
        if family != "length":
            counts = characteristics.counts[family]
            cells = cells * (counts.shape[1] + 1) + np.asarray(counts.argmax(axis=1)).reshape(-1)
    return cells


def main_documents(segments: Segments) -> Int64[np.ndarray, " sequence"]:
    """The document with the most tokens in every sequence; -1 for an empty sequence."""
    longest = np.lexsort((-segments.length, segments.sequence_index))
    first = longest[np.flatnonzero(np.diff(segments.sequence_index[longest], prepend=-1))]
    documents = np.full(segments.num_sequences, -1, np.int64)
    documents[segments.sequence_index[first]] = segments.document_index[first]
    return documents

"""Documents of several sequences, and copies: how often a batch repeats them, and how even their distances are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

DOCUMENT, COPY = "document", "copy"
"""The names of documents and copies among the measured families."""
_FEWEST_PLACES = 8


@dataclass(frozen=True)
class DocumentSpread:
    """Where an order places the sequences of one document, or the sequences with copies of one document.

    Only documents with several positions are measured. For copies, "document" below means a group of copies.

    Attributes:
        repeats: window size -> int64 (num_positions // size,): in every aligned window, the number of positions with a
            document that has an earlier position in this window.
        repeats_floor: window size -> the lowest possible mean of the repeats.
        gaps: the distances, in positions, between consecutive parts of a document; sorted by document, then in the
            order of training.
        even_gaps: the same gaps if the positions of each document had equal distances.
        place_correlation: the correlation of a sequence's place in its document with its position in training. Only
            documents with at least 8 positions are used. It is 1 if every document is read from its start to its end.
            None for copies, and if there are no such documents.
    """

    repeats: Mapping[int, Int64[np.ndarray, " window"]]
    repeats_floor: Mapping[int, float]
    gaps: Int64[np.ndarray, " gap"]
    even_gaps: Float64[np.ndarray, " gap"]
    place_correlation: float | None

    def summary(self) -> dict[str, Any]:
        """Return the values of a table, as plain numbers.

        `gap_low` and `gap_median` are quantiles (5 % and 50 %) of the gaps divided by the even gaps. Both are near 1 if
        all gaps are equal, and .05 and .69 in a shuffle. They are None if no document has several positions.
        """
        parts = self.gaps / self.even_gaps
        low, median = np.quantile(parts, (0.05, 0.5)).tolist() if len(parts) else (None, None)
        return {
            "windows": {
                str(size): {
                    "repeats_mean": float(repeats.mean()),
                    "repeats_worst": float(repeats.max()),
                    "repeats_floor": self.repeats_floor[size],
                }
                for size, repeats in self.repeats.items()
            },
            "gap_smallest": int(self.gaps.min()) if len(self.gaps) else None,
            "gap_low": low,
            "gap_median": median,
            "place_correlation": self.place_correlation,
        }


class SpreadOfBlocks:
    """The spread of documents or copies, from blocks of consecutive positions.

    Args:
        is_of_documents: whether the groups are documents; else they are groups of copies.
    """

    def __init__(self, is_of_documents: bool) -> None:
        self._is_of_documents = is_of_documents
        none = np.zeros(0, np.int64)
        self._positions, self._groups = [none], [none]

    def add(self, first: int, groups: Int64[np.ndarray, "position ..."]) -> None:
        """Add the groups of the positions from `first` on."""
        position, group = _members(groups)
        self._positions.append(first + position)
        self._groups.append(group)

    def measured(self, indices: Int64[np.ndarray, " position"], windows: Sequence[int]) -> DocumentSpread:
        """Return the spread; `indices` are the sequences at all positions."""
        position, group = np.concatenate(self._positions), np.concatenate(self._groups)
        self._positions, self._groups = [], []  # they need as much memory as the arrays below
        return _spread(position, group, indices, windows, self._is_of_documents)


def document_spread(
    documents: Int64[np.ndarray, "sequence ..."], indices: Int64[np.ndarray, " position"], windows: Sequence[int]
) -> DocumentSpread:
    """Measure the spread of documents' sequences, or of copies.

    Args:
        documents: the document of every sequence, negative if a sequence contains several documents. Or the groups of
            copies (sequence, member) that every sequence contains, each group once; unused entries are negative.
        indices: the sequences in the order of training; a run may repeat and omit sequences.
        windows: window sizes, each at most the number of positions.

    Example:
        >>> spread = document_spread(np.array([5, 5, 5, -1]), np.array([0, 1, 3, 2]), windows=(2,))
        >>> spread.repeats[2].tolist(), spread.repeats_floor[2], spread.gaps.tolist()
        ([1, 0], 0.5, [1, 2])
    """
    return _spread(*_members(documents[indices]), indices, windows, documents.ndim == 1)


def _members(
    groups: Int64[np.ndarray, "position ..."],
) -> tuple[Int64[np.ndarray, " member"], Int64[np.ndarray, " member"]]:
    """Return the positions that have a group, and the groups."""
    groups = groups[:, None] if groups.ndim == 1 else groups
    position, member = np.nonzero(groups >= 0)
    return position, groups[position, member]


def _spread(
    position: Int64[np.ndarray, " member"],
    document: Int64[np.ndarray, " member"],
    indices: Int64[np.ndarray, " position"],
    windows: Sequence[int],
    is_of_documents: bool,
) -> DocumentSpread:
    num_positions = len(indices)
    # We sort by document, then in the order of training, so that the positions of a document are a run.
    by_document = np.argsort(document, kind="stable")
    position, document = position[by_document], document[by_document]
    starts = np.flatnonzero(np.diff(document, prepend=-1))
    sizes = np.diff(starts, append=len(document))
    same = np.diff(document) == 0
    gaps = np.diff(position)[same]
    size_of = np.repeat(sizes, sizes)
    repeats, floors = {}, {}
    for size in windows:
        num_windows = num_positions // size
        window = position // size
        # Within a run windows ascend: a position repeats its document if the previous position of the run is in the
        # same window.
        again = window[1:][same & (window[1:] == window[:-1])]
        repeats[size] = np.bincount(again, minlength=num_windows)[:num_windows].astype(np.int64)
        floors[size] = repeats_floor(sizes, num_positions, size)
    correlation = _place_correlation(indices, position, sizes) if is_of_documents else None
    return DocumentSpread(repeats, floors, gaps, num_positions / size_of[1:][same], correlation)


def num_repeats(groups: Int64[np.ndarray, "sequence ..."]) -> int:
    """Count the entries that repeat an earlier document or group of copies; negative numbers are ignored.

    Example:
        >>> num_repeats(np.array([[5, 7], [5, -1], [-1, -1]]))
        1
    """
    members = groups[groups >= 0]
    return len(members) - len(np.unique(members))


def repeats_floor(sizes: Int64[np.ndarray, " document"], num_positions: int, size: int) -> float:
    """Return the lowest possible mean of repeats: in each window, one position of a document is not a repeat.

    The number of windows is N / n and may be a fraction, so that all positions are included.
    """
    num_windows = num_positions / size
    return float(np.maximum(sizes - num_windows, 0.0).sum() / num_windows)


def _place_correlation(
    indices: Int64[np.ndarray, " position"], position: Int64[np.ndarray, " held"], sizes: Int64[np.ndarray, " document"]
) -> float | None:
    long = np.repeat(sizes >= _FEWEST_PLACES, sizes)
    if not long.any():
        return None
    # The sequences of a document have ascending indices. We subtract the mean of each document from positions and
    # places; the differences give the order within documents.
    run = np.repeat(np.arange(len(sizes)), sizes)[long]
    position, sequence = position[long], indices[position[long]]
    ranked = np.empty(len(run), np.int64)
    by_place = np.lexsort((sequence, run))
    # The rank within a run is the rank among all, minus the rank of the first element of the run.
    first = np.searchsorted(run, run)
    ranked[by_place] = np.arange(len(run)) - first
    counts = np.bincount(run)
    parts = []
    for values in (ranked.astype(np.float64), position.astype(np.float64)):
        means = np.bincount(run, values) / np.maximum(counts, 1)
        centred = values - means[run]
        # The weight of each document is its number of positions; the distances between positions do not change it.
        spread = np.sqrt(np.bincount(run, centred**2) / np.maximum(counts, 1))
        parts.append(centred / np.maximum(spread[run], 1e-12))
    return float((parts[0] * parts[1]).mean())

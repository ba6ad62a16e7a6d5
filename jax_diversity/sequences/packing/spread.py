"""Spread: the documents of a sequence come from different topic clusters.

Documents are taken one by one so that every cluster keeps its share all the time and is in a sequence no more often
than necessary. Then the documents are concatenated and split. If a cluster has half of the remaining documents, every
second document is taken from this cluster. The same rule rearranges a string so that equal letters do not touch.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.concat import concat
from jax_diversity.sequences.packing.pieces import end_to_end

_GOLDEN = (5**0.5 - 1) / 2
_ROWS_PER_ADVANCE = 1 << 14


def spread(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    last_sequence: Literal["drop", "pad"] = "drop",
    clusters: Int32[np.ndarray, " document"],
    advance: Advance = ignore,
) -> Iterable[Segments]:
    """Fill every sequence with documents of as many topics as possible.

    Two documents of one cluster are never neighbours, unless the cluster has more than half of the documents.
    Only the tokens of the unfilled last sequence can be lost.

    Example:
        >>> clusters = np.array([0, 0, 0, 1, 1, 1], np.int32)
        >>> (segments,) = spread(np.full(6, 2), np.arange(6), 4, clusters=clusters)
        >>> clusters[segments.document_index].tolist()
        [1, 0, 1, 0, 1, 0]
    """
    # We check this option here too, because `concat` checks it only after all documents are arranged.
    check_one_of("last_sequence", last_sequence, ("drop", "pad"))
    order = document_order[document_lengths[document_order] > 0]
    turns = _Turns(document_lengths[order], clusters[order], sequence_length)
    rows = np.empty(len(order), np.int64)
    for start in range(0, len(order), _ROWS_PER_ADVANCE):
        stop = min(start + _ROWS_PER_ADVANCE, len(order))
        rows[start:stop] = [turns.next_row() for _ in range(start, stop)]
        advance(stop - start)
    advance(len(document_order) - len(order))
    return concat(document_lengths, order[turns.document[rows]], sequence_length, last_sequence=last_sequence)


class _Turns:
    """The order of the documents: the next one has the earliest planned time among the clusters that may be taken.

    A cluster may be taken if the sequence contains fewer of its documents than its share. A cluster with
    remaining documents is in one of three places: `_ready`, a heap of the clusters' next rows, sorted by planned time;
    `_held`, the cluster that was taken last, until another cluster is taken; `_resting`, the clusters that have used
    their share of the sequence.
    """

    def __init__(
        self, lengths: Int64[np.ndarray, " document"], clusters: Int32[np.ndarray, " document"], sequence_length: int
    ) -> None:
        self.document = np.argsort(clusters, kind="stable")  # of every row: rows are sorted by cluster
        _, cluster, counts = np.unique(clusters[self.document], return_inverse=True, return_counts=True)
        length, first = lengths[self.document], end_to_end(counts)
        before, total = end_to_end(length), int(length.sum())
        tokens = np.diff(np.append(before[first], total))
        # `due` is the planned time of each row, in [0, 1]: the documents of a cluster have equal distances, measured in
        # tokens. Clusters begin at different times; otherwise the only documents of small clusters would all have the
        # same time. Multiples of the golden ratio, modulo 1, have nearly equal distances for any number of clusters.
        phase = np.modf((np.arange(len(counts)) + 1) * _GOLDEN)[0]
        due = (before - before[first][cluster] + phase[cluster] * length) / tokens[cluster]
        # How often each cluster may occur in a sequence: its average number of documents per sequence, rounded up.
        self._share = (-(-counts * sequence_length // max(total, 1))).tolist()
        # We use views, not lists: one Python object per document would need several times the memory.
        self._cluster, self._length, self._due = cluster.data, length.data, due.data
        self._head, self._stop = first.tolist(), (first + counts).tolist()
        self._ready = [(self._due[row], row) for row in self._head]
        heapify(self._ready)
        # A heap of minus the number of remaining documents, so the largest cluster is first. An entry is updated when
        # it reaches the top.
        self._sizes = [(-count, cluster) for cluster, count in enumerate(counts.tolist())]
        heapify(self._sizes)
        self._held: int | None = None
        self._last: int | None = None
        self._resting: dict[int, None] = {}  # a set that keeps its order
        self._taken: dict[int, int] = {}  # documents of each cluster in the sequence
        self._num_left = len(length)
        self._room = self._sequence_length = sequence_length

    def next_row(self) -> int:
        """Take the next document and return its row."""
        cluster, size = self._largest()
        # The number of documents of other clusters that are not needed to separate the documents of the largest
        # cluster.
        spare = self._num_left + 1 - 2 * size
        if spare < 0 and self._held == cluster:  # too few: somewhere two of its documents must be neighbours
            self._return_held()
        if spare:  # without spare documents, the largest cluster is taken now and every second time
            cluster = self._next_due()
        row = self._head[cluster]
        # The cluster's older entries in the heap are now out of date; `_next_due` skips them.
        self._head[cluster] += 1
        self._num_left -= 1
        self._resting.pop(cluster, None)
        if self._held == cluster:
            self._held = None
        self._return_held()
        self._room -= self._length[row]
        if self._room <= 0:  # a new sequence begins, with the rest of this document or with the next
            self._taken = {cluster: int(self._room % self._sequence_length != 0)}
            self._room = self._sequence_length - -self._room % self._sequence_length
            self._make_ready(list(self._resting))
        else:
            self._taken[cluster] = self._taken.get(cluster, 0) + 1
        self._last = cluster
        if self._head[cluster] < self._stop[cluster]:
            if self._taken[cluster] < self._share[cluster]:
                self._held = cluster
            else:
                self._resting[cluster] = None
        return row

    def _largest(self) -> tuple[int, int]:
        """Return the cluster with the largest number of remaining documents, and this number."""
        while True:
            size, cluster = self._sizes[0]
            now = self._head[cluster] - self._stop[cluster]
            if now == size:
                return cluster, -size
            heapreplace(self._sizes, (now, cluster))

    def _next_due(self) -> int:
        """Return the cluster with the earliest planned time; if all clusters have used their share, start anew."""
        while True:
            while self._ready:
                _, row = heappop(self._ready)
                cluster = self._cluster[row]
                if self._head[cluster] == row:  # else the row was taken earlier
                    return cluster
            other_clusters = [cluster for cluster in self._resting if cluster != self._last]
            if not other_clusters and self._last is not None:
                return self._last
            self._make_ready(other_clusters)

    def _return_held(self) -> None:
        if self._held is not None:
            self._make_ready([self._held])
            self._held = None

    def _make_ready(self, clusters: list[int]) -> None:
        for cluster in clusters:
            self._resting.pop(cluster, None)
            row = self._head[cluster]
            heappush(self._ready, (self._due[row], row))

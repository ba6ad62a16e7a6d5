"""Spread: the documents of a sequence come from different topic clusters.

Documents are dealt so that every cluster keeps its share all along and stands in a sequence no more often than it
must; then they are concatenated and split. A cluster that comes to hold half of what is left is dealt every other
time, as when a string is rearranged so that no two equal letters touch.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int32, Int64

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.packing.checks import one_of
from jax_diversity.packing.concat import concat
from jax_diversity.packing.pieces import end_to_end
from jax_diversity.schema import Segments

_GOLDEN = (5**0.5 - 1) / 2
_ROWS_PER_ADVANCE = 1 << 14


def spread(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    last_sequence: Literal["drop", "pad"] = "drop",
    *,
    clusters: Int32[np.ndarray, " document"],
    advance: Advance = ignore,
) -> Segments:
    """Bring as many topics together in a sequence as its documents allow.

    Two documents of one cluster never follow one another, unless the cluster has more than half of the documents.
    No token is lost but the unfilled last sequence's.

    Args:
        document_lengths: tokens of every document of the corpus, each ending with its end token.
        document_order: which documents; those of a cluster are dealt in this order.
        sequence_length: L.
        last_sequence: what becomes of the last sequence where it is not full.
        clusters: every document's cluster.
        advance: told the documents dealt.

    Example:
        >>> clusters = np.array([0, 0, 0, 1, 1, 1], np.int32)
        >>> segments = spread(np.full(6, 2), np.arange(6), 4, clusters=clusters)
        >>> clusters[segments.document_index].tolist()
        [1, 0, 1, 0, 1, 0]
    """
    one_of("last_sequence", last_sequence, ("drop", "pad"))
    order = document_order[document_lengths[document_order] > 0]
    queues = _queues(document_lengths[order], clusters[order], sequence_length)
    dealer = _Dealer(queues, sequence_length)
    dealt = np.empty(len(order), np.int64)
    for start in range(0, len(order), _ROWS_PER_ADVANCE):
        stop = min(start + _ROWS_PER_ADVANCE, len(order))
        dealt[start:stop] = [dealer.deal() for _ in range(start, stop)]
        advance(stop - start)
    advance(len(document_order) - len(order))
    return concat(document_lengths, order[queues.document[dealt]], sequence_length, last_sequence)


class _Queues(NamedTuple):
    """Documents in line, cluster after cluster.

    Attributes:
        document: which document stands in a row, as a place in the order wanted.
        length: its tokens.
        cluster: its cluster, 0 .. clusters - 1.
        due: when its turn is, in [0, 1]: a cluster's documents are spaced evenly by their tokens.
        first: the row where each cluster begins, and the number of rows.
        share: how often each cluster may stand in a sequence: as often as it must in the mean, rounded up.
    """

    document: Int64[np.ndarray, " row"]
    length: Int64[np.ndarray, " row"]
    cluster: Int64[np.ndarray, " row"]
    due: Float64[np.ndarray, " row"]
    first: Int64[np.ndarray, " cluster_and_end"]
    share: Int64[np.ndarray, " cluster"]


def _queues(
    lengths: Int64[np.ndarray, " document"], clusters: Int32[np.ndarray, " document"], sequence_length: int
) -> _Queues:
    document = np.argsort(clusters, kind="stable")
    _, cluster, counts = np.unique(clusters[document], return_inverse=True, return_counts=True)
    length = lengths[document]
    before = end_to_end(length)
    first = np.append(end_to_end(counts), len(length))
    ends = np.append(before, length.sum())
    tokens = np.diff(ends[first])
    # Clusters begin at different times: single documents would all be due in the middle otherwise.
    phase = np.modf((np.arange(len(counts)) + 1) * _GOLDEN)[0]
    due = (before - before[first[:-1]][cluster] + phase[cluster] * length) / tokens[cluster]
    share = -(-counts * sequence_length // max(int(length.sum()), 1))
    return _Queues(document, length, cluster, due, first, share)


class _Dealer:
    """Deals one document after another: the one due first whose cluster has not had its share of the sequence.

    A cluster is in one of four places: `ready` (a heap of rows by when they are due), `held` (it was dealt just now
    and waits for another to come between), `resting` (it had its share of the sequence), or used up.
    """

    def __init__(self, queues: _Queues, sequence_length: int) -> None:
        self._cluster, self._length = queues.cluster.tolist(), queues.length.tolist()
        self._due, self._share = queues.due.tolist(), queues.share.tolist()
        first = queues.first.tolist()
        self._head, self._stop = first[:-1], first[1:]
        self._ready = [(self._due[row], row) for row in self._head]
        heapify(self._ready)
        self._sizes = [
            (row - stop, cluster) for cluster, (row, stop) in enumerate(zip(self._head, self._stop, strict=True))
        ]
        heapify(self._sizes)  # largest cluster first; sizes are brought up to date when they come to the top
        self._held: int | None = None
        self._last: int | None = None
        self._resting: dict[int, None] = {}
        self._taken: dict[int, int] = {}
        self._num_left = len(self._length)
        self._room = self._sequence_length = sequence_length

    def deal(self) -> int:
        """The row of the next document."""
        cluster, size = self._largest()
        spare = self._num_left + 1 - 2 * size  # other documents than those needed to keep its own apart
        if spare < 0 and self._held == cluster:  # it must stand beside itself somewhere: so it may anywhere
            self._return_held()
        if spare:  # where none is to spare, it is dealt now and every other time
            cluster = self._next_due()
        row = self._head[cluster]
        self._place(cluster, self._length[row])
        return row

    def _largest(self) -> tuple[int, int]:
        """The cluster with the most documents left, and their number."""
        while True:
            size, cluster = self._sizes[0]
            now = self._head[cluster] - self._stop[cluster]
            if now == size:
                return cluster, -size
            heapreplace(self._sizes, (now, cluster))

    def _next_due(self) -> int:
        """The cluster whose turn it is."""
        while True:
            while self._ready:
                _, row = heappop(self._ready)
                cluster = self._cluster[row]
                if self._head[cluster] == row:  # else it was dealt out of turn
                    return cluster
            # All clusters had their share of this sequence.
            others = [cluster for cluster in self._resting if cluster != self._last]
            if not others and self._last is not None:
                return self._last
            self._wake(others)

    def _place(self, cluster: int, length: int) -> None:
        """Move on by a document of this cluster."""
        self._head[cluster] += 1
        self._num_left -= 1
        self._resting.pop(cluster, None)
        if self._held == cluster:
            self._held = None
        self._return_held()
        self._room -= length
        if self._room <= 0:
            starts_at_once = self._room % self._sequence_length == 0
            self._room = self._sequence_length - -self._room % self._sequence_length
            self._taken.clear()
            self._wake(list(self._resting))
            self._taken[cluster] = 0 if starts_at_once else 1
        else:
            self._taken[cluster] = self._taken.get(cluster, 0) + 1
        self._last = cluster
        if self._head[cluster] < self._stop[cluster]:
            if self._taken[cluster] < self._share[cluster]:
                self._held = cluster
            else:
                self._resting[cluster] = None

    def _return_held(self) -> None:
        if self._held is not None:
            self._push(self._held)
            self._held = None

    def _wake(self, clusters: list[int]) -> None:
        for cluster in clusters:
            del self._resting[cluster]
            self._push(cluster)

    def _push(self, cluster: int) -> None:
        row = self._head[cluster]
        heappush(self._ready, (self._due[row], row))

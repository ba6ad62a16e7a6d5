"""Spacing: one document or sequence after another, each the one that keeps the shares nearest to the target.

`document_spacing` orders whole documents before they are packed, `sequence_spacing` sequences of unequal lengths.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.ordering.groups import heaviest_groups
from jax_diversity.ordering.objective import Objective
from jax_diversity.progress import Advance, ignore
from jax_diversity.schema import Characteristics

_STEPS_PER_ADVANCE = 1024


def document_spacing(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
) -> Int64[np.ndarray, " document"]:
    """Documents one by one, each the one that leaves its own cluster nearest to its share.

    Rows are documents here, of any number of tokens. With T_c the tokens of cluster c placed so far, S all tokens
    placed, τ_c the cluster's share of the corpus's tokens and l_d a document's tokens, the next is

        argmin_d |(T_c + l_d) - τ_c (S + l_d)|,  c the cluster of d, ties to the lowest index.

    A document's cluster is its heaviest group in the first family, and all its tokens count there, in τ as well.
    Documents without tokens disturb nothing and come first; where all documents are of one cluster, the corpus's
    order stays. Neither seed nor objective is used.

    The rule looks at no cluster but the document's own, and a cluster that lacks next to nothing is served best by
    its shortest document: short documents tend to come first, and the longest are left for the end.

    A step costs as many operations as there are clusters, not documents: the rule asks each cluster for the
    document whose `(1 - τ_c) l_d` is nearest to what the cluster lacks, `τ_c S - T_c`, which is one of two
    neighbours among the cluster's documents sorted by length. What is lacking is computed anew at every step from
    whole numbers of tokens, in float64: no error adds up, and at 10^11 tokens it is right to 10^-4 of a token.

    Args:
        characteristics: token counts, a document a row; only the first family is read.
        seed: not used; every method takes one.
        objective: not used; every method takes one.
        advance: told the number of documents placed since it was last called.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[2, 0], [2, 0], [0, 2], [0, 2]]})
        >>> document_spacing(chars, objective=Objective()).tolist()
        [0, 2, 1, 3]
    """
    tokens = characteristics.tokens
    _, cluster = np.unique(
        heaviest_groups(characteristics.counts[characteristics.families[0]]), return_inverse=True
    )
    totals = np.bincount(cluster, weights=tokens).astype(np.float64)
    num_tokens = max(float(totals.sum()), 1.0)
    share = totals / num_tokens
    growth = ((num_tokens - totals) / num_tokens)[cluster] * tokens
    remaining = _Remaining(cluster, growth)
    placed, num_placed = np.zeros(len(share)), 0.0
    order = np.empty(len(tokens), np.int64)
    for step in range(len(order)):
        document = remaining.nearest(share * num_placed - placed)
        order[step] = document
        own = int(cluster[document])
        placed[own] += tokens[document]
        num_placed += float(tokens[document])
        remaining.take(document, own, float(share[own] * num_placed - placed[own]))
        if (step + 1) % _STEPS_PER_ADVANCE == 0:
            advance(_STEPS_PER_ADVANCE)
    advance(len(order) % _STEPS_PER_ADVANCE)
    return order


class _Remaining:
    """The documents that are left, a chain of nodes for each cluster.

    A node is the documents of one cluster and one *growth*, by which each raises its cluster's excess. A cluster's
    nodes are linked by ascending growth and end in a node of infinite growth that holds nobody; the last node of
    all is everyone's beginning, of growth minus infinity. `above` is every cluster's first node whose growth is at
    least what the cluster lacks: the nearest is there or one before. As more is placed, clusters lack more and
    their `above` moves up; only that of the cluster that was served moves down.

    Args:
        cluster: every document's cluster, each of 0 .. clusters - 1 having one.
        growth: finite, >= 0.
    """

    def __init__(self, cluster: Int64[np.ndarray, " document"], growth: Float64[np.ndarray, " document"]) -> None:
        num_documents, num_clusters = len(cluster), int(cluster.max(initial=-1)) + 1
        cluster = np.append(cluster, np.arange(num_clusters))
        growth = np.append(growth, np.full(num_clusters, np.inf))
        self.queue = np.lexsort((growth, cluster))  # stable: a node's documents by their index
        cluster, growth = cluster[self.queue], growth[self.queue]
        begins_cluster = np.diff(cluster, prepend=-1) != 0
        begins_node = begins_cluster | (np.diff(growth, prepend=-1.0) != 0)
        starts = np.flatnonzero(begins_node)
        num_nodes = len(starts)

        self.node_of = np.empty_like(self.queue)
        self.node_of[self.queue] = np.cumsum(begins_node) - 1
        self.place = starts.copy()
        self.end = np.append(starts[1:], len(self.queue))
        self.document = np.append(np.minimum(self.queue[starts], num_documents), num_documents)
        self.growth = np.append(growth[starts], -np.inf)
        self.after = np.arange(1, num_nodes + 2)
        self.before = np.where(begins_cluster[starts], num_nodes, np.arange(-1, num_nodes - 1))
        self.above = np.flatnonzero(begins_cluster[starts])
        self.cluster_starts = np.append(self.above, num_nodes)

    def nearest(self, lacking: Float64[np.ndarray, " cluster"]) -> int:
        """The document whose growth is nearest to what its cluster lacks, ties to the lowest index."""
        above = self.above
        behind = np.flatnonzero(self.growth[above] < lacking)
        above[behind] = self.after[above[behind]]
        # Most have arrived with one step; looking a place up costs more, but no more where it is far.
        for cluster in behind[self.growth[above[behind]] < lacking[behind]].tolist():
            above[cluster] = self._first_of_at_least(float(lacking[cluster]), cluster)
        nodes = np.stack([above, self.before[above]])
        misses = np.abs(self.growth[nodes] - lacking)
        return int(self.document[nodes[misses == misses.min()]].min())

    def take(self, document: int, cluster: int, lacking: float) -> None:
        """Remove a node's first document; `lacking` is what its cluster lacks from then on."""
        node = self.node_of[document]
        self.place[node] += 1
        if self.place[node] < self.end[node]:
            self.document[node] = self.queue[self.place[node]]
        else:
            before, after = self.before[node], self.after[node]
            self.after[before], self.before[after] = after, before
        self.above[cluster] = self._first_of_at_least(lacking, cluster)

    def _first_of_at_least(self, growth: float, cluster: int) -> int:
        """A cluster's first node that holds somebody (or is its end) and is of at least some growth."""
        start, end = self.cluster_starts[cluster], self.cluster_starts[cluster + 1]
        node = int(start + np.searchsorted(self.growth[start:end], growth))
        while self.place[node] == self.end[node]:
            # An empty node's link still leads up; halving the way keeps the next walk short.
            after = int(self.after[node])
            if self.place[after] == self.end[after]:
                self.after[node] = self.after[after]
            node = after
        return node


def sequence_spacing(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    objective: Objective,
    advance: Advance = ignore,
) -> Int64[np.ndarray, " sequence"]:
    """The published f1 for sequences of unequal lengths: exact greedy on the first family alone.

    Whatever objective is given, `Objective.f1()` is taken in its place: no norm column, no windows, self weight 1,
    weight 1. A sequence counts with the tokens that it has, `c_s - τ t_s`. Time grows with the square of the number
    of sequences; the result does not depend on `seed`.

    Args:
        characteristics: token counts; only the first family is read.
        seed: not used; every method takes one.
        objective: not used; every method takes one.
        advance: told the number of sequences placed since it was last called.
    """
    from jax_diversity.ordering.greedy import greedy

    return greedy(characteristics, seed=seed, objective=Objective.f1(), advance=advance)

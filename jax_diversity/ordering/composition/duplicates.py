"""Duplicates kept apart: documents are split into parts of equal mixture, and no part contains a document twice.

A document that occurs k times in a corpus should occur once in each of k epochs, not k times at random positions.
Therefore the *documents* are split before packing. There are as many parts as the largest group of duplicates has
documents. Each part is packed and ordered separately, and the parts follow one another (`compose.concatenate`).

In every part, each cluster should have the same share of tokens as in the corpus. `R[c, p]` is the number of tokens of
cluster c that part p lacks for an equal share; `R[p]` is the sum over all clusters:

1. Duplicates are assigned first: the largest groups first, and within a group the longest documents first. We consider
   only the parts without a document of the same group. Among these parts, the document goes to the part with the
   largest `R[c, p] + R[p]`. This choice lowers `Σ R[c, p]² + Σ R[p]²` most.
2. All other documents fill the parts. The documents of a cluster go one by one, the longest first, to the part that
   lacks most tokens. All clusters are processed at once, as lanes of one table (a large cluster has several lanes). If
   A lanes are active, each uses `R[c, p] + R[p] / A`, plus a small preference for a part that differs between lanes.

The time is proportional to documents x (log documents + parts). The memory, besides that of the documents, is
proportional to clusters x parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema.orderings import as_integers

_LANE_LENGTH = 4096
_DOCUMENTS_PER_ADVANCE = 16_384
_MAX_TABLE_ENTRIES = 2**27

Groups = Integer[np.ndarray, " document"] | Sequence[Integer[np.ndarray, " document"]]
"""For every document, its group of duplicates, or -1 without duplicates; or several such arrays (exact, near)."""


def separate_duplicates(
    groups: Groups,
    clusters: Integer[np.ndarray, " document"],
    lengths: Integer[np.ndarray, " document"],
    *,
    num_parts: SupportsIndex | None = None,
    advance: Advance = ignore,
) -> Int64[np.ndarray, " document"]:
    """Split documents into parts of equal mixture, so that no part contains two documents of a group.

    Args:
        groups: for every document, its group of duplicates. A document without duplicates has -1 or its own group.
            There may be several arrays, such as for exact and for near duplicates. Documents are kept apart if any
            array puts them into one group, directly or through other documents.
        clusters: for every document, its cluster or another kind of group; each part gets an equal mixture of them.
        lengths: for every document, its number of tokens.
        num_parts: the number of parts. None means the smallest possible number: the number of documents in the largest
            group.
        advance: called with the number of documents assigned since the last call.

    Returns:
        The part of every document, 0 .. num_parts - 1. Equal inputs give equal results.

    Raises:
        UserError: arrays of different lengths; numbers that are not whole; clusters or lengths below 0; groups
            below -1; fewer parts than documents in the largest group; too many clusters x parts.

    Example:
        >>> parts = separate_duplicates(np.array([0, -1, 0, -1]), np.array([0, 1, 0, 1]), np.array([5, 9, 5, 9]))
        >>> parts.tolist()
        [0, 1, 1, 0]
    """
    clusters, lengths = as_integers("clusters", clusters), as_integers("lengths", lengths)
    merged = merge_groups(groups)
    for name, column in {"clusters": clusters, "lengths": lengths}.items():
        if len(column) != len(merged):
            raise UserError(f"Expected {name} of {len(merged)} documents, as many as groups has, found {len(column)}.")
    sizes = np.bincount(merged[merged >= 0])
    largest = max(int(sizes.max(initial=1)), 1)
    num_parts = largest if num_parts is None else as_whole_number("num_parts", num_parts, 1)
    if num_parts < largest:
        raise UserError(
            f"Expected at least {largest} parts, the number of documents in the largest group, found {num_parts}."
        )
    names, clusters = np.unique(clusters, return_inverse=True)
    if num_parts * len(names) > _MAX_TABLE_ENTRIES:
        raise UserError(
            f"Expected clusters x parts of at most {_MAX_TABLE_ENTRIES:,}, found {len(names):,} x {num_parts:,}; "
            "remove duplicates from the largest groups first."
        )
    # float64 represents sums of tokens exactly up to 2^53. It is needed because equal shares are not always whole.
    parts = np.zeros(len(merged), np.int64)
    lacking = np.bincount(clusters, weights=lengths, minlength=len(names))[:, None] / num_parts
    lacking = np.repeat(lacking, num_parts, axis=1)
    if num_parts == 1:
        advance(len(parts))
        return parts
    _assign_duplicates(parts, lacking, merged, clusters, lengths, advance)
    _assign_others(parts, lacking, merged < 0, clusters, lengths, advance)
    return parts


def merge_groups(groups: Groups) -> Int64[np.ndarray, " document"]:
    """Return groups, numbered from 0, of the documents that are in one group of any array, directly or through others.

    Documents without duplicates have -1.

    Example:
        >>> merge_groups([np.array([7, 7, -1, -1]), np.array([-1, 0, 0, 3])]).tolist()
        [0, 0, 0, -1]
    """
    columns = [groups] if isinstance(groups, np.ndarray) else list(groups)
    if not columns:
        raise UserError("Expected at least one array of duplicate groups, found none.")
    columns = [as_integers("groups", column, least=-1) for column in columns]
    num_documents = num_nodes = len(columns[0])
    # We make a graph of documents and groups. Each document is connected to its groups. The connected components of the
    # graph are the merged groups.
    documents, nodes = [], []
    for column in columns:
        if len(column) != num_documents:
            raise UserError(f"Expected groups of {num_documents} documents in every array, found {len(column)}.")
        members = np.flatnonzero(column >= 0)
        names, group = np.unique(column[members], return_inverse=True)
        documents.append(members)
        nodes.append(num_nodes + group)
        num_nodes += len(names)
    rows, joined = np.concatenate(documents), np.concatenate(nodes)
    graph = coo_array((np.ones(len(rows), np.int8), (rows, joined)), shape=(num_nodes, num_nodes))
    component = connected_components(graph, directed=False)[1][:num_documents].astype(np.int64)
    alone = np.bincount(component, minlength=1)[component] == 1
    merged = np.full(num_documents, -1, np.int64)
    merged[~alone] = np.unique(component[~alone], return_inverse=True)[1]
    return merged


def _assign_duplicates(
    parts: Int64[np.ndarray, " document"],
    lacking: Float64[np.ndarray, "cluster part"],
    merged: Int64[np.ndarray, " document"],
    clusters: Int64[np.ndarray, " document"],
    lengths: Int64[np.ndarray, " document"],
    advance: Advance,
) -> None:
    """Do step 1, one document at a time; this writes to `parts` and `lacking`."""
    documents = np.flatnonzero(merged >= 0)
    group = merged[documents]
    sizes = np.bincount(group)
    tokens = np.bincount(group, weights=lengths[documents])
    # The largest groups have the fewest free parts, so they are assigned first. Ties are resolved by index.
    order = np.lexsort((documents, -lengths[documents], group, -tokens[group], -sizes[group]))
    documents, group = documents[order], group[order]
    begins = np.diff(group, prepend=-1) != 0
    lacking_in_all = lacking.sum(axis=0)
    taken = np.zeros(len(lacking_in_all))  # infinite for parts that already have a document of the group
    score = np.empty(len(lacking_in_all))
    # We use Python numbers: reading single values from NumPy arrays would take most of the loop's time.
    columns = (documents.tolist(), begins.tolist(), clusters[documents].tolist(), lengths[documents].tolist())
    for num_assigned, (document, begins_group, cluster, length) in enumerate(zip(*columns, strict=True), start=1):
        if begins_group:
            taken[:] = 0.0
        lacking_here = lacking[cluster]
        np.add(lacking_here, lacking_in_all, out=score)
        np.subtract(score, taken, out=score)
        part = score.argmax()
        parts[document] = part
        lacking_here[part] -= length
        lacking_in_all[part] -= length
        taken[part] = np.inf
        if num_assigned % _DOCUMENTS_PER_ADVANCE == 0:
            advance(_DOCUMENTS_PER_ADVANCE)
    advance(len(documents) % _DOCUMENTS_PER_ADVANCE)


def _assign_others(
    parts: Int64[np.ndarray, " document"],
    lacking: Float64[np.ndarray, "cluster part"],
    is_unassigned: Bool[np.ndarray, " document"],
    clusters: Int64[np.ndarray, " document"],
    lengths: Int64[np.ndarray, " document"],
    advance: Advance,
) -> None:
    """Do step 2, one document of every lane at a time; this writes to `parts`."""
    documents = np.flatnonzero(is_unassigned)
    documents = documents[np.lexsort((documents, -lengths[documents], clusters[documents]))]
    cluster = clusters[documents]
    per_cluster = np.bincount(cluster, minlength=len(lacking))
    lanes_of_cluster = np.maximum(-(-per_cluster // _LANE_LENGTH), 1)
    # Documents of a cluster go to its lanes in turn. Then, at every step, all lanes of the cluster have documents of
    # similar lengths.
    rank = np.arange(len(documents)) - np.repeat(np.cumsum(per_cluster) - per_cluster, per_cluster)
    first_lane = np.cumsum(lanes_of_cluster) - lanes_of_cluster
    lane = first_lane[cluster] + rank % lanes_of_cluster[cluster]
    lane_lengths = np.bincount(lane, minlength=int(lanes_of_cluster.sum()))
    # From here on, lanes are sorted: the lane with the most documents is the first.
    lane_order = np.argsort(-lane_lengths, kind="stable")
    documents = documents[np.argsort(np.argsort(lane_order)[lane], kind="stable")]
    lane_lengths = lane_lengths[lane_order]
    lane_starts = np.cumsum(lane_lengths) - lane_lengths
    lane_cluster = np.repeat(np.arange(len(per_cluster)), lanes_of_cluster)[lane_order]
    num_lanes, num_parts = len(lane_lengths), lacking.shape[1]
    lacking_in_all = lacking.sum(axis=0)
    by_lane = lacking[lane_cluster] / lanes_of_cluster[lane_cluster][:, None]
    # All lanes choose at the same time, without the other lanes' choices. If all parts lack similar amounts, all lanes
    # would put their longest documents into the same part. Therefore each lane prefers another part. The preference is
    # a fraction of the document's length, so it is small for the last, short documents.
    preference = (np.arange(num_parts) - np.arange(num_lanes)[:, None]) % num_parts / (2 * num_parts)
    shortest_last = -lane_lengths  # ascending, as `searchsorted` needs: lanes are sorted by length
    for step in range(int(lane_lengths.max(initial=0))):
        # Lanes are sorted by length, the longest first. So the lanes that still have a document are the first lanes.
        active = int(np.searchsorted(shortest_last, -step))
        chosen = documents[lane_starts[:active] + step]
        length = lengths[chosen].astype(np.float64)
        score = by_lane[:active] + lacking_in_all / active + preference[:active] * length[:, None]
        part = score.argmax(axis=1)
        parts[chosen] = part
        by_lane[np.arange(active), part] -= length
        lacking_in_all -= np.bincount(part, weights=length, minlength=num_parts)
        advance(active)

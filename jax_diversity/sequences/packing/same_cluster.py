"""Same cluster: the documents of a sequence have one topic.

Documents are concatenated and split separately in every topic cluster. The remaining tokens of all clusters are
concatenated and split too. So a sequence contains related documents, as with the method `nearest`, but this method
needs only a sort.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from jaxtyping import Float32, Int32, Int64

from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.neighbors import mean_units, nearest_rows, path_of_neighbors
from jax_diversity.sequences.packing.pieces import (
    cut_stream,
    end_to_end,
    fill,
    num_filled,
    reorder_sequences,
    whole_documents,
)

_NUM_NEIGHBORS = 10  # number of nearest clusters in which the path looks for the next cluster
_NUM_CANDIDATES = 4096


def same_cluster(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    last_sequence: Literal["drop", "pad"] = "drop",
    clusters: Int32[np.ndarray, " document"],
    vectors: Float32[np.ndarray, "document feature"] | None = None,
) -> Iterable[Segments]:
    """Fill every sequence from one cluster.

    At the end of every cluster less than one sequence of tokens remains. These remaining tokens are joined into the
    last sequences. With vectors, the remaining tokens of similar clusters follow one another; without vectors, the
    numbers of the clusters decide. Only the tokens of the unfilled last sequence can be lost. The other sequences are
    numbered in the order in which they become full when the documents are read one by one. So the packed order is as
    mixed as the order of the documents.

    Raises:
        UserError: a vector contains NaN or infinity.

    Example:
        >>> (segments,) = same_cluster(np.full(4, 2), np.arange(4), 4, clusters=np.array([0, 1, 1, 0], np.int32))
        >>> segments.sequence_index.tolist(), segments.document_index.tolist()
        ([0, 0, 1, 1], [1, 2, 0, 3])
    """
    by_cluster = document_order[np.argsort(clusters[document_order], kind="stable")]
    documents = whole_documents(document_lengths, by_cluster)
    codes, counts = np.unique(clusters[by_cluster], return_counts=True)
    ends = np.append(0, np.cumsum(documents.length))
    begins = ends[end_to_end(counts)]
    tokens = np.diff(begins, append=ends[-1])
    full = tokens // sequence_length * sequence_length
    rests = np.arange(len(codes))
    if vectors is not None:
        centers = mean_units(vectors, by_cluster, counts)
        rests = path_of_neighbors(nearest_rows(centers, _NUM_NEIGHBORS, _NUM_CANDIDATES))
    # Runs of the stream of documents, which are sorted by cluster: first the runs that fill sequences, then the
    # remaining tokens of each cluster.
    start = np.concatenate([begins, (begins + full)[rests]])
    length = np.concatenate([full, (tokens - full)[rests]])
    used = np.flatnonzero(length)
    pieces, _ = cut_stream(documents, start[used], length[used])
    num_sequences = num_filled(int(ends[-1]), sequence_length, last_sequence)
    segments = fill(pieces, end_to_end(pieces.length), num_sequences, sequence_length)
    num_full = int(full.sum()) // sequence_length
    # Full sequences are ordered by the place, in `document_order`, of the document that makes them full.
    place = np.empty(len(document_lengths), np.int64)
    place[document_order] = np.arange(len(document_order))
    last = np.searchsorted(segments.sequence_index, np.arange(num_full), side="right") - 1
    order = np.arange(num_sequences)
    order[:num_full] = np.argsort(place[segments.document_index[last]], kind="stable")
    return [reorder_sequences(segments, order)]

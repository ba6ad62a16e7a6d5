"""The report of a packing: numbers of kept, lost and padding tokens, of cut documents, and of topics in a sequence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.pieces import document_blocks, end_to_end, run_starts

_ROWS = 1 << 20  # segments counted together; the result does not depend on it


@dataclass(frozen=True)
class PackingReport:
    """The numbers of kept, lost and padding tokens of the packed documents.

    Every place of every sequence is counted once: `num_sequences` x (tokens per sequence) = `num_tokens_kept` +
    `num_tokens_repeated` + `num_inserted_ends` + `num_padding_tokens`.

    Attributes:
        num_documents: documents to pack, each counted once.
        num_tokens: tokens of these documents, kept and dropped.
        num_tokens_kept: tokens in a sequence, each counted once.
        num_tokens_dropped: tokens in no sequence.
        num_tokens_repeated: places with tokens that are already in another place (repeated documents, several epochs,
            overlapping sequences).
        num_inserted_ends: end tokens that packing inserted inside documents.
        num_padding_tokens: places without a token.
        num_documents_cut: documents that are in more than one sequence. If tokens are repeated: documents of which a
            segment contains only a part.
        num_sequences: sequences of the packing.
        num_segments: runs of documents' tokens in these sequences.
        clusters_per_sequence: mean number of topic clusters in a sequence; None without
            clusters or tokens.
        largest_cluster_share: mean share of a sequence's tokens that belong to its largest cluster; None likewise.
    """

    num_documents: int
    num_tokens: int
    num_tokens_kept: int
    num_tokens_dropped: int
    num_tokens_repeated: int
    num_inserted_ends: int
    num_padding_tokens: int
    num_documents_cut: int
    num_sequences: int
    num_segments: int
    clusters_per_sequence: float | None = None
    largest_cluster_share: float | None = None

    @classmethod
    def of_documents(
        cls, document_lengths: Int64[np.ndarray, " document"], documents: Int64[np.ndarray, " chosen"]
    ) -> PackingReport:
        """Return the report of the documents before the first block of their packing."""
        num_tokens = sum(int(document_lengths[block].sum()) for block in document_blocks(documents))
        return cls(len(documents), num_tokens, 0, num_tokens, *[0] * 6)

    def with_block(
        self, segments: Segments, document_lengths: Int64[np.ndarray, " document"], *, repeats: bool = False
    ) -> PackingReport:
        """Return the report of the packing up to this block. Numbers of topics are not counted.

        Args:
            segments: the next block. All segments of a document are in one block.
            document_lengths: tokens of every document of the corpus.
            repeats: whether a token may be in several sequences. Then one block must contain all segments.
        """
        num_ends = int(segments.inserted_ends(document_lengths).sum())
        num_taken = int(segments.length.sum())
        num_kept = num_taken - num_ends
        if repeats:
            length = segments.length - segments.inserted_ends(document_lengths)
            runs = Runs(segments.document_index, segments.document_offset, length)
            num_kept = int(distinct_runs(runs, document_lengths).length.sum())
        num_repeated = num_taken - num_ends - num_kept
        num_places = (segments.num_sequences - self.num_sequences) * segments.sequence_length
        num_cut = len(documents_cut(segments, document_lengths, repeats=num_repeated > 0))
        return replace(
            self,
            num_tokens_kept=self.num_tokens_kept + num_kept,
            num_tokens_dropped=self.num_tokens_dropped - num_kept,
            num_tokens_repeated=self.num_tokens_repeated + num_repeated,
            num_inserted_ends=self.num_inserted_ends + num_ends,
            num_padding_tokens=self.num_padding_tokens + num_places - num_taken,
            num_documents_cut=self.num_documents_cut + num_cut,
            num_sequences=segments.num_sequences,
            num_segments=self.num_segments + len(segments),
        )

    @property
    def mean_segments(self) -> float:
        """Mean number of segments in a sequence; 0 without sequences."""
        return self.num_segments / max(self.num_sequences, 1)


class ClusterMix(NamedTuple):
    """Topics in a sequence: means over all sequences that contain tokens."""

    clusters_per_sequence: float
    largest_share: float


def documents_cut(
    segments: Segments, document_lengths: Int64[np.ndarray, " document"], *, repeats: bool = False
) -> Int64[np.ndarray, " cut"]:
    """Find documents in more than one sequence; with `repeats`, documents that a segment contains only in part."""
    parts = np.flatnonzero(segments.length < document_lengths[segments.document_index])
    document = segments.document_index[parts]
    if repeats:
        return np.unique(document)
    # Rows are sorted by sequence. A stable sort by document keeps this, so we compare neighbours.
    by_document = np.argsort(document, kind="stable")
    document, sequence = document[by_document], segments.sequence_index[parts[by_document]]
    return np.unique(document[1:][(np.diff(document) == 0) & (np.diff(sequence) != 0)])


class Runs(NamedTuple):
    """Runs of documents' tokens, without inserted end tokens."""

    document_index: Int64[np.ndarray, " run"]
    document_offset: Int64[np.ndarray, " run"]
    length: Int64[np.ndarray, " run"]


def distinct_runs(runs: Runs, document_lengths: Int64[np.ndarray, " document"]) -> Runs:
    """Return the tokens that are in at least one run, each token once, in the order of the documents."""
    order = np.lexsort((runs.document_offset, runs.document_index))
    document = runs.document_index[order]
    # We put the tokens of all documents on one axis, one document after another. The tokens of a run after the ends of
    # all earlier runs are new.
    axis = end_to_end(document_lengths)[document]
    start = runs.document_offset[order] + axis
    stop = start + runs.length[order]
    reached = np.maximum.accumulate(np.concatenate([[0], stop]))[:-1]
    first = np.maximum(start, reached)
    is_new = stop > first
    return Runs(document[is_new], (first - axis)[is_new], (stop - first)[is_new])


def cluster_mix(segments: Segments, clusters: Int32[np.ndarray, " document"]) -> ClusterMix | None:
    """Compute the mean number of topics in a sequence and the mean share of the largest topic; None without tokens."""
    num_sequences, num_pairs, shares, start = 0, 0, 0.0, 0
    num_clusters = int(clusters.max(initial=0)) + 1
    sequence_index = segments.sequence_index
    while start < len(segments):
        stop = min(start + _ROWS, len(segments))
        # A block contains only whole sequences, even if a sequence has more than `_ROWS` segments.
        if stop < len(segments):
            whole = int(np.searchsorted(sequence_index, sequence_index[stop]))
            stop = whole if whole > start else int(np.searchsorted(sequence_index, sequence_index[stop], "right"))
        rows = slice(start, stop)
        # One number for each pair of a sequence and a cluster. Sequences are counted from the first of the block, so
        # the number stays far below 2^63.
        sequence = sequence_index[rows] - sequence_index[start]
        pair, place = np.unique(sequence * num_clusters + clusters[segments.document_index[rows]], return_inverse=True)
        tokens = np.bincount(place, weights=segments.length[rows])
        first = run_starts(pair // num_clusters)
        num_sequences += len(first)
        num_pairs += len(pair)
        shares += float((np.maximum.reduceat(tokens, first) / np.add.reduceat(tokens, first)).sum())
        start = stop
    return ClusterMix(num_pairs / num_sequences, shares / num_sequences) if num_sequences else None

"""Corpora for benchmarks of orderings: a synthetic corpus of any size, and the corpus of a built dataset.

The synthetic corpus resembles real corpora in the properties that matter to an ordering: documents of log-normal
length, topics of very unequal sizes (Zipf), documents that are cut at the end of a sequence.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64
from scipy import sparse

import jax_diversity as jd
from jax_diversity.sequences.characteristics.codes import Codes, length_bins
from jax_diversity.sequences.characteristics.counts import count_tokens, sequence_documents

# Mean and deviation of the logarithm of a document's number of tokens: the median is 518 tokens, the mean 1,064. With
# 1,000 clusters, 100 length bins and sequences of 2,048 tokens, a sequence has 5.7 non-zero counts in both families.
LOG_MEAN, LOG_DEVIATION = 6.25, 1.2
SHORTEST = 8
SEQUENCES_PER_CHUNK = 200_000  # packed and counted together; this limits memory and does not change the result


def synthetic(
    num_sequences: int,
    *,
    sequence_length: int = 2048,
    num_clusters: int = 1000,
    num_bins: int = 100,
    seed: int = 0,
) -> jd.Characteristics:
    """Clusters and length bins of exactly `num_sequences` full sequences, packed back to back.

    Documents' lengths are log-normal, their clusters Zipf (the k-th in proportion to 1/k) and independent of the
    lengths; the bins are quantiles of the documents' lengths. Ten million sequences take 30 to 60 s on one
    core, and 2.5 GB.

    Args:
        num_sequences: number of sequences.
        sequence_length: L in tokens.
        num_clusters: groups of the family `cluster`.
        num_bins: groups of the family `length`; fewer if lengths are equal.
        seed: seed of lengths and clusters.

    Example:
        >>> synthetic(1000)
        Characteristics(1,000 sequences of 2048; cluster: 1,000 groups, length: 100 groups)
    """
    num_tokens = num_sequences * sequence_length
    lengths, clusters = draw_documents(num_tokens, num_clusters, seed)
    codes = {
        "cluster": Codes(clusters, tuple(map(str, range(num_clusters)))),
        "length": length_bins(lengths, num_bins),
    }
    ends = np.cumsum(lengths)
    parts: dict[str, list[sparse.csr_array]] = {family: [] for family in codes}
    documents = []
    for first in range(0, num_sequences, SEQUENCES_PER_CHUNK):
        begin = first * sequence_length
        end = min(begin + SEQUENCES_PER_CHUNK * sequence_length, num_tokens)
        # The documents that overlap the chunk, cut at its ends.
        low, high = np.searchsorted(ends, begin, side="right"), np.searchsorted(ends, end, side="left") + 1
        held = np.minimum(ends[low:high], end) - np.maximum(ends[low:high] - lengths[low:high], begin)
        segments = jd.pack(held, sequence_length).segments
        own = sequence_documents(segments)
        documents.append(np.where(own < 0, own, own + low))
        for family, whole in codes.items():
            counts = count_tokens(segments, Codes(whole.group[low:high], whole.names))
            parts[family].append(with_int32_indices(counts))
    # The argument is not kept, so that the two families are never in memory twice.
    stacked = {family: sparse.vstack(parts.pop(family), format="csr") for family in codes}
    held_by = np.concatenate(documents)
    return jd.Characteristics.from_counts(stacked, sequence_length=sequence_length, documents=held_by)


def with_int32_indices(counts: sparse.csr_array) -> sparse.csr_array:
    """Return the same matrix with int32 indices, which have half the size."""
    indices, boundaries = counts.indices.astype(np.int32), counts.indptr.astype(np.int32)
    return sparse.csr_array((counts.data, indices, boundaries), shape=counts.shape)


def draw_documents(
    num_tokens: int, num_clusters: int, seed: int
) -> tuple[Int64[np.ndarray, " document"], Int32[np.ndarray, " document"]]:
    """Lengths and clusters of the first documents, as many as are needed for `num_tokens` tokens."""
    rng = np.random.default_rng(seed)
    mean = np.exp(LOG_MEAN + LOG_DEVIATION**2 / 2)
    blocks, drawn = [], 0
    while drawn < num_tokens:
        block = rng.lognormal(LOG_MEAN, LOG_DEVIATION, int((num_tokens - drawn) / mean) + 1000)
        blocks.append(np.maximum(block, SHORTEST).astype(np.int64))
        drawn += int(blocks[-1].sum())
    lengths = np.concatenate(blocks)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), num_tokens, side="left") + 1]
    popularity = np.cumsum(1 / np.arange(1, num_clusters + 1))
    clusters = np.searchsorted(popularity, rng.random(len(lengths)) * popularity[-1], side="right")
    return lengths, clusters.astype(np.int32)


def from_dataset(path: str | Path) -> jd.Characteristics:
    """The characteristics of a built dataset's training sequences.

    Raises:
        ValueError: there is no dataset at `path`, or its characteristics were never computed.
    """
    return jd.open_dataset(path).characteristics

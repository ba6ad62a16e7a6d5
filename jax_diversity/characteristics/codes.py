"""Documents' codes joined with segments: the sparse count matrix of every family.

A family gives every document one *code*, the number of its group. A sequence's count of a group is the number of
its tokens that belong to documents of that code; padding belongs to none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int32, Int64
from scipy import sparse

from jax_diversity.schema import Segments

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Codes:
    """One family's group of every document, and the groups' names."""

    group: Int32[np.ndarray, " document"]
    names: tuple[str, ...]


def categorical(values: Iterable[str | None]) -> Codes:
    """Groups by value, sorted by name; a missing value belongs to the group `unknown`."""
    labels = np.asarray([UNKNOWN if value is None else value for value in values], dtype=object)
    names, group = np.unique(labels.astype(str), return_inverse=True)
    return Codes(group.astype(np.int32), tuple(names.tolist()))


def length_bins(document_lengths: Int64[np.ndarray, " document"], num_bins: int) -> Codes:
    """Quantile bins of the documents' token counts, about as many documents in each.

    Lengths that many documents share fall into one bin, so that fewer bins than asked may come out.
    """
    if not len(document_lengths):
        return Codes(np.zeros(0, np.int32), ())
    quantiles = np.quantile(document_lengths, np.arange(1, num_bins) / num_bins, method="inverted_cdf")
    edges = np.unique(quantiles)
    _, group = np.unique(np.searchsorted(edges, document_lengths, side="left"), return_inverse=True)
    shortest = np.full(group.max() + 1, np.iinfo(np.int64).max)
    longest = np.zeros(group.max() + 1, np.int64)
    np.minimum.at(shortest, group, document_lengths)
    np.maximum.at(longest, group, document_lengths)
    names = tuple(f"{low}-{high}" for low, high in zip(shortest, longest, strict=True))
    return Codes(group.astype(np.int32), names)


def count_tokens(segments: Segments, codes: Codes) -> sparse.csr_array:
    """Tokens of every group in every sequence, int32 CSR (sequence, group), columns sorted.

    Args:
        segments: the packed training sequences.
        codes: one family's groups, for the corpus's documents.
    """
    entries = (segments.length, (segments.sequence_index, codes.group[segments.document_index]))
    counts = sparse.coo_array(entries, shape=(segments.num_sequences, max(len(codes.names), 1))).tocsr()
    counts.sum_duplicates()
    return sparse.csr_array(counts.astype(np.int32))


def save_counts(path: Path, counts: sparse.csr_array) -> None:
    """Write a count matrix as SciPy's .npz, the same bytes for the same counts."""
    with path.open("wb") as file:
        sparse.save_npz(file, counts)

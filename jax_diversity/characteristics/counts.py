"""Documents' codes joined with segments: tokens of every group in every sequence, a sparse matrix per family.

A sequence's count of a group is the number of its tokens that belong to documents of that code; padding belongs to
no document, start and end tokens belong to theirs.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64
from scipy import sparse

from jax_diversity.characteristics.codes import Codes
from jax_diversity.schema import Segments

_OWN_SHARE = 0.99
# A selector compares every candidate's groups of copies with the placed sequence's: there are few or none.
_MOST_COPIES = 4
_ODD = 0x9E3779B1  # 2^32 times the golden ratio: multiples are spread evenly


def count_tokens(segments: Segments, codes: Codes) -> sparse.csr_array:
    """Tokens of every group in every sequence, int32 CSR (sequence, group), columns sorted.

    Segments are sorted by sequence and are thus the rows of the matrix: only the few groups within a sequence need
    sorting.

    Args:
        segments: the packed training sequences.
        codes: one family's groups, for the corpus's documents.

    Raises:
        ValueError: a document's group has no name, or a segment's document has no group.
    """
    if len(codes.group) and not 0 <= codes.group.min() <= codes.group.max() < max(len(codes.names), 1):
        raise ValueError(
            f"Expected groups of 0 .. {len(codes.names) - 1}, found {codes.group.min()} .. {codes.group.max()}."
        )
    row_starts = np.append(0, np.cumsum(np.bincount(segments.sequence_index, minlength=segments.num_sequences)))
    # SciPy needs both index arrays of one type; the wide type is used only if the number of entries needs it.
    index_type = np.int32 if len(segments) < 2**31 else np.int64
    # int32 holds a row's sums: a sequence has at most 2^24 tokens.
    entries = (
        segments.length.astype(np.int32),
        codes.group[segments.document_index].astype(index_type),
        row_starts.astype(index_type),
    )
    counts = sparse.csr_array(entries, shape=(segments.num_sequences, max(len(codes.names), 1)))
    # Segments of one group within a sequence become one entry; columns are sorted within each row.
    counts.sum_duplicates()
    return counts


def sequence_documents(segments: Segments) -> Int64[np.ndarray, " sequence"]:
    """The document of every sequence: the one with 99 % of its tokens; -1 without such a document.

    Example:
        >>> segments.document_index.tolist(), segments.sequence_index.tolist()
        ([7, 7, 8], [0, 1, 1])
        >>> sequence_documents(segments).tolist()
        [7, -1]
    """
    num_sequences = segments.num_sequences
    tokens = np.bincount(segments.sequence_index, segments.length, minlength=num_sequences)
    # Packing may give one sequence several segments of one document: they are joined by sorting.
    order = np.lexsort((segments.document_index, segments.sequence_index))
    sequence, document = segments.sequence_index[order], segments.document_index[order]
    starts = np.flatnonzero((np.diff(sequence, prepend=-1) != 0) | (np.diff(document, prepend=-1) != 0))
    held = np.add.reduceat(segments.length[order], starts) if len(starts) else starts
    owns = held >= _OWN_SHARE * tokens[sequence[starts]]
    found = np.full(num_sequences, -1, np.int64)
    found[sequence[starts[owns]]] = document[starts[owns]]
    return found


def sequence_copies(
    segments: Segments,
    duplicate_group: Int64[np.ndarray, " document"],
    appearances: Int64[np.ndarray, " document"] | None = None,
) -> Int64[np.ndarray, "sequence member"]:
    """The groups of copies with parts in every sequence, ascending, then -1.

    A sequence with parts of more than four groups keeps the four that most sequences contain. Groups of one document
    that appears once, and groups within one sequence, are left out.

    Args:
        segments: the packed training sequences.
        duplicate_group: equal numbers for documents that are copies of one another, from 0 on.
        appearances: how often every document was packed; None means once.

    Example:
        >>> segments.document_index.tolist(), segments.sequence_index.tolist()
        ([0, 1, 2, 1], [0, 0, 1, 1])
        >>> sequence_copies(segments, np.array([3, 5, 3])).tolist()
        [[3], [3]]
    """
    num_copies = np.bincount(duplicate_group, appearances, minlength=1)
    held = duplicate_group[segments.document_index]
    copied = num_copies[held] > 1
    # One entry for each sequence and group, however many segments it has.
    entries = np.unique(np.stack([segments.sequence_index[copied], held[copied]], axis=1), axis=0)
    num_sequences = np.bincount(entries[:, 1], minlength=1)
    entries = entries[num_sequences[entries[:, 1]] > 1]
    entries = entries[np.lexsort((entries[:, 1], -num_sequences[entries[:, 1]], entries[:, 0]))]
    sequence, group = entries.T
    place = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    kept = place < _MOST_COPIES
    width = int(place[kept].max(initial=-1)) + 1
    members = np.full((segments.num_sequences, width), np.iinfo(np.int64).max)
    members[sequence[kept], place[kept]] = group[kept]
    members.sort(axis=1)
    return np.where(members == np.iinfo(np.int64).max, -1, members)


def sequence_turns(segments: Segments, appearances: Int64[np.ndarray, " document"]) -> Int64[np.ndarray, " sequence"]:
    """The turns of sequences that a repeated document fills; -1 for all other sequences.

    Every part of the document has its turn once, in a mixed order, then once more in the same order: equal tokens
    are as far apart as the number of appearances allows. Such sequences have equal counts in every
    family, so that an ordering may exchange them at no cost.

    Args:
        segments: the packed training sequences.
        appearances: how often every document was packed.
    """
    rows = np.flatnonzero((segments.length == segments.sequence_length) & (appearances[segments.document_index] > 1))
    length = segments.sequence_length - segments.overlap
    document, part = segments.document_index[rows], (segments.document_offset[rows] + length // 2) // length
    by_part = np.lexsort((part, document))
    begins = (np.diff(document[by_part], prepend=-1) != 0) | (np.diff(part[by_part], prepend=-1) != 0)
    starts = np.flatnonzero(begins)
    before = np.empty(len(rows), np.int64)
    before[by_part] = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    # Multiples of an odd number, modulo 2^32, mix the parts: their order differs from the text's.
    mixed = (part + document) * _ODD % 2**32
    turns = np.full(segments.num_sequences, -1)
    turns[segments.sequence_index[rows]] = before * 2**32 + mixed
    return turns

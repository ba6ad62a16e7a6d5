"""Documents' codes joined with segments: tokens of every group in every sequence, a sparse matrix a family.

A sequence's count of a group is the number of its tokens that belong to documents of that code; padding belongs to
none, a start token and an end token to their document.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64
from scipy import sparse

from jax_diversity.characteristics.codes import Codes
from jax_diversity.schema import Segments

_OWN_SHARE = 0.99
# A selector compares every candidate's groups of copies with those of the sequence placed: a few, or none.
_MOST_COPIES = 4
_ODD = 0x9E3779B1  # 2^32 times the golden ratio: multiples are spread evenly


def count_tokens(segments: Segments, codes: Codes) -> sparse.csr_array:
    """Tokens of every group in every sequence, int32 CSR (sequence, group), columns sorted.

    Segments are sorted by sequence, so that they are the rows of the matrix as they stand: nothing is sorted but
    the few groups within a sequence.

    Args:
        segments: the packed training sequences.
        codes: one family's groups, for the corpus's documents.

    Raises:
        ValueError: a document's group that has no name, or segments of documents without a group.
    """
    if len(codes.group) and not 0 <= codes.group.min() <= codes.group.max() < max(len(codes.names), 1):
        raise ValueError(
            f"Expected groups of 0 .. {len(codes.names) - 1}, found {codes.group.min()} .. {codes.group.max()}."
        )
    row_starts = np.append(0, np.cumsum(np.bincount(segments.sequence_index, minlength=segments.num_sequences)))
    # SciPy needs both index arrays of one type; the wide one is used only where the number of entries needs it.
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
    """The document of every sequence: the one that has 99 % of its tokens, -1 where there is none.

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
    """The groups of copies of which every sequence holds a part, ascending, then -1; a column for each that some hold.

    A sequence that holds parts of more than four has those that most sequences hold. Groups of one document that
    appears once, and those that lie in one sequence, are left out.

    Args:
        segments: the packed training sequences.
        duplicate_group: equal numbers for documents that are copies of one another, from 0 on.
        appearances: how often every document was packed; None where each was once.

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
    """Of the sequences that one document fills, which appears several times: the turn of each; -1 for all others.

    Every part of the document has its turn once, in a mixed order, then every part once more in the same order: so the
    same tokens come again after about as long as all appearances allow. Such sequences have equal counts in every
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
    # Multiples of an odd number, modulo 2^32, mix the parts: their order is not that of the text.
    mixed = (part + document) * _ODD % 2**32
    turns = np.full(segments.num_sequences, -1)
    turns[segments.sequence_index[rows]] = before * 2**32 + mixed
    return turns

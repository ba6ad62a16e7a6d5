"""Token counts: how many tokens of every group each sequence contains, as one sparse matrix per family.

A *family* is a kind of characteristics, such as document lengths or sources. A *group* is one value of a family, and a
document's *code* is the number of its group. A sequence's count of a group is the number of its tokens that belong to
documents of this group. Padding belongs to no document. Start and end tokens belong to the document that they start or
end.

The family `tokens` is different: its groups are the token ids themselves. It needs no document and no model, only the
stored tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64, UInt16
from scipy import sparse

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.codes import Codes
from jax_diversity.sequences.token_store.megatron import TokenStore, run_positions

MOST_TOKEN_GROUPS = 2048
"""Largest number of groups of the family `tokens`. A token id above it shares the group of the id modulo this number.

Byte-pair encoding gives low ids to frequent tokens, so frequent tokens do not share a group with one another.
"""
_OWN_SHARE = 0.99
_PADDING = np.uint16(2**16 - 1)
_TOKENS_PER_BLOCK = 1 << 20  # reading tokens needs about 20 bytes of memory per token
# A selector compares every candidate's groups of copies with the groups of the placed sequence. A small number of
# groups keeps this cheap.
_MAX_COPIES = 4
_ODD = 0x9E3779B1  # about 2^32 divided by the golden ratio: its multiples, modulo 2^32, are spread evenly


def count_tokens(segments: Segments, codes: Codes) -> sparse.csr_array:
    """Count the tokens of every group in every sequence: int32 CSR (sequence, group) with sorted columns.

    Segments are sorted by sequence, so they already are the entries of the matrix, row by row. Only the few groups
    within a sequence must be sorted.

    Args:
        segments: the packed training sequences.
        codes: the groups of the corpus's documents in one family.

    Raises:
        ValueError: a document's group has no name, or a segment's document has no group.
    """
    # Only the groups of these segments are read: the groups of all documents may be a memory map.
    group = codes.group[segments.document_index]
    if not 0 <= group.min(initial=0) <= group.max(initial=0) < max(len(codes.names), 1):
        raise ValueError(f"Expected groups of 0 .. {len(codes.names) - 1}, found {group.min()} .. {group.max()}.")
    row_starts = np.append(0, np.cumsum(np.bincount(segments.sequence_index, minlength=segments.num_sequences)))
    # SciPy needs the same type for both index arrays. We use int64 only if there are too many entries for int32.
    index_type = np.int32 if len(segments) < 2**31 else np.int64
    # int32 is enough for the sums of a row, because a sequence has at most 2^24 tokens.
    entries = (
        segments.length.astype(np.int32),
        group.astype(index_type),
        row_starts.astype(index_type),
    )
    counts = sparse.csr_array(entries, shape=(segments.num_sequences, max(len(codes.names), 1)))
    # Segments of one group within a sequence become one entry; columns are sorted within each row.
    counts.sum_duplicates()
    return counts


def count_loss(segments: Segments, store: TokenStore) -> sparse.csr_array:
    """Count every sequence's tokens in the groups of the family `loss`: int32 CSR (sequence, 2).

    An end token that packing inserted does not count towards the loss.
    """
    kept = segments.length - segments.inserted_ends(store.document_lengths)
    counted = store.num_loss_tokens_of(segments.document_index, segments.document_offset, kept)
    sums = [
        np.bincount(segments.sequence_index, tokens, segments.num_sequences)
        for tokens in (counted, segments.length - counted)
    ]
    return sparse.csr_array(np.stack(sums, axis=1).astype(np.int32))


def num_token_groups(vocab_size: int) -> int:
    """Return the number of groups of the family `tokens`: the vocabulary's size, at most `MOST_TOKEN_GROUPS`."""
    return max(min(vocab_size, MOST_TOKEN_GROUPS), 1)


def count_own_tokens(segments: Segments, store: TokenStore, vocab_size: int, end_id: int) -> sparse.csr_array:
    """Count every sequence's token ids: int32 CSR (sequence, group) with sorted columns; the family `tokens`.

    The group of a token is its id modulo the number of groups (the "hashing trick": Weinberger et al. 2009, "Feature
    hashing for large scale multitask learning"). An end token that packing inserted counts as `end_id`.

    Args:
        segments: the packed sequences.
        store: the tokens of the corpus's documents.
        vocab_size: number of token ids.
        end_id: the end token.

    Raises:
        UserError: a token is not below `vocab_size`; `end_id` is not a token.
    """
    end_id, num_groups = as_whole_number("end_id", end_id, 0), num_token_groups(vocab_size)
    columns, counts, widths = [], [], []
    for rows in _own_groups(segments, store, num_groups, end_id, vocab_size):
        rows.sort(axis=1)
        # Equal groups are neighbours now: every run of equal groups becomes one entry. Padding is sorted to the end.
        begins = np.ones(rows.shape, bool)
        np.not_equal(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=rows.size).astype(np.int32)
        groups = rows.ravel()[starts]
        used = groups != _PADDING
        columns.append(groups[used].astype(np.int32))
        counts.append(lengths[used])
        widths.append((begins & (rows != _PADDING)).sum(axis=1))
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *widths]))
    index_type = np.int32 if ends[-1] < 2**31 else np.int64
    entries = (
        np.concatenate([np.zeros(0, np.int32), *counts]),
        np.concatenate([np.zeros(0, np.int32), *columns]).astype(index_type, copy=False),
        ends.astype(index_type),
    )
    return sparse.csr_array(entries, shape=(segments.num_sequences, num_groups))


def total_own_tokens(
    segments: Segments, store: TokenStore, vocab_size: int, end_id: int
) -> Int64[np.ndarray, " group"]:
    """Return the column sums of `count_own_tokens`, without the matrix."""
    num_groups = num_token_groups(vocab_size)
    totals = np.zeros(num_groups, np.int64)
    for rows in _own_groups(segments, store, num_groups, end_id, vocab_size):
        totals += np.bincount(rows[rows != _PADDING], minlength=num_groups)
    return totals


def _own_groups(
    segments: Segments, store: TokenStore, num_groups: int, end_id: int, vocab_size: int
) -> Iterator[UInt16[np.ndarray, "row token"]]:
    """Yield the group of every token, for a block of sequences at a time; padding has the group `_PADDING`."""
    length = segments.sequence_length
    per_block = max(_TOKENS_PER_BLOCK // max(length, 1), 1)
    inserted = segments.inserted_ends(store.document_lengths)
    for first in range(0, segments.num_sequences, per_block):
        stop = min(first + per_block, segments.num_sequences)
        part = slice(*np.searchsorted(segments.sequence_index, [first, stop]).tolist())
        lengths = segments.length[part]
        # The last token of a segment in `inserted` was not stored: the token of the document that is read in its place
        # is replaced.
        tokens = np.array(store.gather(segments.document_index[part], segments.document_offset[part], lengths))
        tokens[(np.cumsum(lengths) - 1)[inserted[part]]] = end_id
        if len(tokens) and tokens.max() >= vocab_size:
            raise UserError(f"Expected token ids below the vocab_size {vocab_size}, found {tokens.max()}.")
        rows = np.full((stop - first) * length, _PADDING)
        start = (segments.sequence_index[part] - first) * length + segments.position[part]
        rows[run_positions(start, lengths)] = tokens % num_groups
        yield rows.reshape(stop - first, length)


def sequence_documents(segments: Segments) -> Int64[np.ndarray, " sequence"]:
    """Return, for every sequence, the document that has at least 99 % of its tokens; -1 if there is no such document.

    Example:
        >>> segments.document_index.tolist(), segments.sequence_index.tolist()
        ([7, 7, 8], [0, 1, 1])
        >>> sequence_documents(segments).tolist()
        [7, -1]
    """
    num_sequences = segments.num_sequences
    tokens = np.bincount(segments.sequence_index, segments.length, minlength=num_sequences)
    # A sequence may have several segments of one document. We sort the segments, so that they can be added up.
    order = np.lexsort((segments.document_index, segments.sequence_index))
    sequence, document = segments.sequence_index[order], segments.document_index[order]
    starts = np.flatnonzero((np.diff(sequence, prepend=-1) != 0) | (np.diff(document, prepend=-1) != 0))
    tokens_of_document = np.add.reduceat(segments.length[order], starts) if len(starts) else starts
    owns = tokens_of_document >= _OWN_SHARE * tokens[sequence[starts]]
    owner = np.full(num_sequences, -1, np.int64)
    owner[sequence[starts[owns]]] = document[starts[owns]]
    return owner


def sequence_copies(
    segments: Segments,
    duplicate_group: Int64[np.ndarray, " document"],
    appearances: Int64[np.ndarray, " document"] | None = None,
) -> Int64[np.ndarray, "sequence member"]:
    """Return, for every sequence, the groups of copies that it has parts of, ascending, then -1.

    If a sequence has parts of more than four groups, we keep the four groups that occur in the most sequences. We leave
    out groups of a single document that was packed once, and groups that occur in only one sequence.

    Args:
        segments: the packed training sequences.
        duplicate_group: for every document, the number of its group of copies, from 0. Copies have equal numbers.
        appearances: how often every document was packed; None means once.

    Example:
        >>> segments.document_index.tolist(), segments.sequence_index.tolist()
        ([0, 1, 2, 1], [0, 0, 1, 1])
        >>> sequence_copies(segments, np.array([3, 5, 3])).tolist()
        [[3], [3]]
    """
    pairs = copied_parts(segments, copied_groups(duplicate_group, appearances))
    return arrange_copies(pairs, segments.num_sequences)


def copied_groups(
    duplicate_group: Int64[np.ndarray, " document"], appearances: Int64[np.ndarray, " document"] | None
) -> Int64[np.ndarray, " document"]:
    """Return every document's group of copies; -1 for a document without copies that was packed once."""
    num_copies = np.bincount(duplicate_group, appearances, minlength=1)
    return np.where(num_copies[duplicate_group] > 1, duplicate_group, -1)


def copied_parts(segments: Segments, copied_group: Int64[np.ndarray, " document"]) -> Int64[np.ndarray, "part 2"]:
    """Return the pairs of a sequence and a group of copies that it has parts of; see `sequence_copies`."""
    group = copied_group[segments.document_index]
    copied = group >= 0
    # We make one pair for each sequence and group, even if the sequence has several segments.
    return np.unique(np.stack([segments.sequence_index[copied], group[copied]], axis=1), axis=0)


def arrange_copies(pairs: Int64[np.ndarray, "part 2"], num_sequences: int) -> Int64[np.ndarray, "sequence member"]:
    """Arrange the pairs of `copied_parts` by sequence; see `sequence_copies`."""
    frequency = np.bincount(pairs[:, 1], minlength=1)
    pairs = pairs[frequency[pairs[:, 1]] > 1]
    pairs = pairs[np.lexsort((pairs[:, 1], -frequency[pairs[:, 1]], pairs[:, 0]))]
    sequence, group = pairs.T
    place = np.arange(len(sequence)) - np.searchsorted(sequence, sequence)
    kept = place < _MAX_COPIES
    width = int(place[kept].max(initial=-1)) + 1
    members = np.full((num_sequences, width), np.iinfo(np.int64).max)
    members[sequence[kept], place[kept]] = group[kept]
    members.sort(axis=1)
    return np.where(members == np.iinfo(np.int64).max, -1, members)


def full_rows(segments: Segments, appearances: Int64[np.ndarray, " document"]) -> Int64[np.ndarray, "row 3"]:
    """Return the sequences that are filled by one document that was packed several times.

    A row has the sequence, the document, and the number of the document's part that fills the sequence.
    """
    rows = np.flatnonzero((segments.length == segments.sequence_length) & (appearances[segments.document_index] > 1))
    length = segments.sequence_length - segments.overlap
    part = (segments.document_offset[rows] + length // 2) // length
    return np.stack([segments.sequence_index[rows], segments.document_index[rows], part], axis=1)


def arrange_turns(rows: Int64[np.ndarray, "row 3"], num_sequences: int) -> Int64[np.ndarray, " sequence"]:
    """Return the turn of every sequence of `full_rows`; -1 for others.

    Turns are numbers that give the order of a document's sequences. First comes every part of the document once, in a
    mixed order. Then every part comes again, in the same order. In this way equal tokens are as far apart as possible
    for the number of times that the document was packed. These sequences have equal counts in every family of
    documents, so an ordering can exchange them without a change of these families' balance. Only `tokens` changes.

    Args:
        rows: the result of `full_rows`, in the order of the sequences.
        num_sequences: number of all sequences.
    """
    sequence, document, part = rows.T
    by_part = np.lexsort((part, document))
    begins = (np.diff(document[by_part], prepend=-1) != 0) | (np.diff(part[by_part], prepend=-1) != 0)
    starts = np.flatnonzero(begins)
    before = np.empty(len(rows), np.int64)
    before[by_part] = np.arange(len(rows)) - np.repeat(starts, np.diff(starts, append=len(rows)))
    # Multiples of an odd number, modulo 2^32, mix the parts, so that their order differs from the order in the text.
    mixed = (part + document) * _ODD % 2**32
    turns = np.full(num_sequences, -1)
    turns[sequence] = before * 2**32 + mixed
    return turns

"""First-fit packing: reads documents one by one and can add to any earlier sequence that has room.

It makes at most about 1.7 times as many sequences as the best possible packing (Johnson, "Near-optimal bin packing
algorithms", 1973).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.pieces import fill_bins, repeated, split_documents

_ROWS_PER_ADVANCE = 1 << 16


def first_fit(
    document_lengths: Int64[np.ndarray, " document"],
    document_order: Int64[np.ndarray, " chosen"],
    sequence_length: int,
    *,
    advance: Advance = ignore,
) -> Iterable[Segments]:
    """Put the documents, one by one, into the first sequence that has room.

    Documents longer than L are split into pieces of L tokens and a shorter last piece; shorter documents are never
    cut. No token is lost, and the free room of a sequence becomes padding. Unlike `best_fit`, this method keeps
    documents near their place in the order.

    Example:
        >>> (segments,) = first_fit(np.array([3, 2, 6, 1]), np.arange(4), sequence_length=4)
        >>> segments.sequence_index.tolist(), segments.document_index.tolist()
        ([0, 0, 1, 1, 2], [0, 3, 1, 2, 2])
    """
    pieces = split_documents(document_lengths, document_order, sequence_length)
    is_small = pieces.length < sequence_length
    lengths, document = pieces.length[is_small], pieces.document_index[is_small]
    several = np.isin(document, repeated(document))
    # Two neighbouring bins are never both half empty, because the pieces of the second bin would be in the first bin.
    # Only pieces of documents that appear several times can be an exception.
    most_bins = min(len(lengths), 2 * (int(lengths.sum()) // sequence_length + 1) + int(several.sum()))
    leaves = 1 << max(most_bins - 1, 0).bit_length()
    # A binary tree. Each node contains the largest free room below it. Node 1 is the root; nodes 2 i and 2 i + 1 are
    # the children of node i.
    rooms = [sequence_length] * (2 * leaves)
    bins = np.empty(len(lengths), np.int64)
    bins_of: dict[int, set[int]] = {number: set() for number in document[several].tolist()}
    for start in range(0, len(lengths), _ROWS_PER_ADVANCE):
        rows = slice(start, start + _ROWS_PER_ADVANCE)
        chunk = lengths[rows].tolist()
        if bins_of:
            taken = [bins_of.get(number) for number in document[rows].tolist()]
            bins[rows] = [_put(rooms, leaves, *piece) for piece in zip(chunk, taken, strict=True)]
        else:
            bins[rows] = [_put(rooms, leaves, length) for length in chunk]
        advance(len(chunk))
    return [fill_bins(pieces, bins, sequence_length)]


def _put(rooms: list[int], leaves: int, length: int, taken: set[int] | None = None) -> int:
    """Put a piece into the first bin with enough room that is not in `taken`; add the bin to `taken` and return it."""
    node = _first(rooms, leaves, length, 1)
    if taken is not None:
        while node - leaves in taken:
            # Find the next bin with enough room: go up until a subtree on the right has such a bin, then go down in
            # this subtree.
            while node % 2 or rooms[node + 1] < length:
                node >>= 1
            node = _first(rooms, leaves, length, node + 1)
        taken.add(node - leaves)
    return _take(rooms, leaves, length, node)


def _first(rooms: list[int], leaves: int, length: int, node: int) -> int:
    """Return the leaf of the first bin with room for `length` below `node`. There must be such a bin."""
    # Go left if the left side has enough room, so that the first such bin is found.
    while node < leaves:
        node *= 2
        if rooms[node] < length:
            node += 1
    return node


def _take(rooms: list[int], leaves: int, length: int, node: int) -> int:
    """Put a piece into the bin of a leaf and return the bin."""
    leaf = node
    rooms[node] -= length
    while node > 1:
        larger = max(rooms[node], rooms[node ^ 1])
        node >>= 1
        if rooms[node] == larger:  # then no higher node changes
            break
        rooms[node] = larger
    return leaf - leaves

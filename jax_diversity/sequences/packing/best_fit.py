"""Best-fit packing: documents that fit into a sequence are never cut.

Ding et al., "Fewer truncations improve language modeling", 2024 (https://arxiv.org/abs/2404.10830).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from jax_diversity.schema import Segments
from jax_diversity.sequences.packing.pieces import fill_bins, occurrences, split_documents


def best_fit(
    document_lengths: Int64[np.ndarray, " document"], document_order: Int64[np.ndarray, " chosen"], sequence_length: int
) -> Iterable[Segments]:
    """Put each piece, longest first, into the sequence with the least free room that is large enough.

    Documents longer than L are split into pieces of L tokens and a shorter last piece; shorter documents are never cut.
    No token is lost, and the free room of a sequence becomes padding. Documents of equal length are placed in their
    order. Sequences are numbered in the order of their documents. If a document is packed several times, its later
    copies are placed after the first copies of all documents of this length.

    Example:
        >>> (segments,) = best_fit(np.array([3, 2, 6, 1]), np.arange(4), sequence_length=4)
        >>> segments.sequence_index.tolist(), segments.document_index.tolist()
        ([0, 0, 1, 1, 2], [0, 3, 1, 2, 2])
    """
    pieces = split_documents(document_lengths, document_order, sequence_length)
    is_small = pieces.length < sequence_length
    lengths, appearance = pieces.length[is_small], occurrences(pieces.document_index[is_small])
    by_length = np.lexsort((appearance, -lengths))
    bins = np.empty(len(lengths), np.int64)
    bins[by_length] = _place(lengths[by_length], appearance[by_length], sequence_length)
    return [fill_bins(pieces, bins, sequence_length)]


def _place(
    lengths: Int64[np.ndarray, " piece"], appearance: Int64[np.ndarray, " piece"], capacity: int
) -> Int64[np.ndarray, " piece"]:
    """Return the bin of every piece by the algorithm best-fit decreasing.

    `lengths` are sorted from long to short, and `appearance` rises among pieces of equal length.

    Pieces of one length are placed together. The fullest bin that has room for a piece takes as many pieces as fit,
    because each piece makes the bin fuller. Bins with equal free room are interchangeable. So each step puts pieces of
    one length into bins with the same free room. Later appearances of a document go into bins without its earlier
    appearances.
    """
    bins = np.empty(len(lengths), np.int64)
    rooms = _Rooms(capacity)
    begins = (np.diff(lengths, prepend=-1) != 0) | (np.diff(appearance, prepend=-1) != 0)
    waiting_rooms: list[tuple[int, np.ndarray]] = []
    for start, stop in pairwise([*np.flatnonzero(begins).tolist(), len(lengths)]):
        length = int(lengths[start])
        if not appearance[start]:
            for of_room in waiting_rooms:
                rooms.put(*of_room)
            waiting_rooms.clear()
        # All pieces of a document that are shorter than L have the same length. The bins with such pieces are kept
        # aside until all pieces of this length are placed.
        is_repeated = appearance[start] > 0 or (stop < len(lengths) and appearance[stop] > 0)
        while start < stop:
            room = rooms.tightest(length)
            pieces_per_bin = min(room // length, stop - start)
            taken_bins = rooms.take(room, -(-(stop - start) // pieces_per_bin))
            # There may be fewer bins of this room than needed: then the loop continues with the next larger room.
            num_full = min(len(taken_bins), (stop - start) // pieces_per_bin)  # the last bin may take fewer pieces
            placed = np.repeat(taken_bins, pieces_per_bin)[: stop - start]
            bins[start : start + len(placed)] = placed
            start += len(placed)
            left = [
                (room - pieces_per_bin * length, taken_bins[:num_full]),
                (room - (len(placed) - num_full * pieces_per_bin) * length, taken_bins[num_full:]),
            ]
            if is_repeated:
                waiting_rooms += left
            else:
                for of_room in left:
                    rooms.put(*of_room)
    return bins


class _Rooms:
    """Bins, sorted by their free room. The number of empty bins is unlimited.

    Memory grows with the number of bins in use, not with their capacity.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._bins: dict[int, list[np.ndarray]] = {}
        self._rooms: list[int] = []  # the keys, rising
        self._num_bins = 0

    def tightest(self, length: int) -> int:
        """Return the smallest free room of at least `length` tokens.

        If no used bin has so much room, this is the capacity of an empty bin.
        """
        place = bisect_left(self._rooms, length)
        return self._rooms[place] if place < len(self._rooms) else self.capacity

    def take(self, room: int, max_bins: int) -> Int64[np.ndarray, " bin"]:
        """Take at most `max_bins` bins with exactly this free room; bins that were stored first are taken first."""
        if room == self.capacity:
            self._num_bins += max_bins
            return np.arange(self._num_bins - max_bins, self._num_bins)
        bins = np.concatenate(self._bins.pop(room))
        del self._rooms[bisect_left(self._rooms, room)]
        self.put(room, bins[max_bins:])
        return bins[:max_bins]

    def put(self, room: int, bins: Int64[np.ndarray, " bin"]) -> None:
        """Store bins under their present free room; full bins are not stored."""
        if not len(bins) or not room:
            return
        if room not in self._bins:
            insort(self._rooms, room)
        self._bins.setdefault(room, []).append(bins)

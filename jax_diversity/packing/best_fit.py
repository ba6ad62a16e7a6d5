"""Best-fit packing: documents that fit into a sequence are never cut.

Ding et al., "Fewer truncations improve language modeling", 2024 (https://arxiv.org/abs/2404.10830).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from jax_diversity.packing.pieces import fill_bins, occurrences, split_documents
from jax_diversity.schema import Segments


def best_fit(
    document_lengths: Int64[np.ndarray, " document"], document_order: Int64[np.ndarray, " chosen"], sequence_length: int
) -> Segments:
    """Put the longest pieces first, each into the sequence with the least room that still holds it.

    Documents longer than L are split into pieces of L tokens and a rest; shorter documents are never cut. No token is
    lost, and the rest of a sequence is padding. The places depend on lengths alone: within a length, documents keep
    their order, which is also the order of the sequences, and further appearances follow the first ones.

    Example:
        >>> segments = best_fit(np.array([3, 2, 6, 1]), np.arange(4), sequence_length=4)
        >>> segments.sequence_index.tolist(), segments.document_index.tolist()
        ([0, 0, 1, 1, 2], [0, 3, 1, 2, 2])
    """
    pieces = split_documents(document_lengths, document_order, sequence_length)
    is_small = pieces.length < sequence_length
    lengths, appearance = pieces.length[is_small], occurrences(pieces.document_index[is_small])
    by_length = np.lexsort((appearance, -lengths))
    bins = np.empty(len(lengths), np.int64)
    bins[by_length] = _place(lengths[by_length], appearance[by_length], sequence_length)
    return fill_bins(pieces, bins, sequence_length)


def _place(
    lengths: Int64[np.ndarray, " piece"], appearance: Int64[np.ndarray, " piece"], capacity: int
) -> Int64[np.ndarray, " piece"]:
    """Best-fit-decreasing: the bin of every piece; `lengths` fall, and `appearance` rises within a length.

    Pieces of one length are placed together. The tightest bin for one takes as many as it can hold, because each one
    makes it tighter, and bins with equal room are interchangeable. A step thus places one length into one room.
    Further appearances of a document go into bins without its earlier appearances.
    """
    bins = np.empty(len(lengths), np.int64)
    rooms = _Rooms(capacity)
    begins = (np.diff(lengths, prepend=-1) != 0) | (np.diff(appearance, prepend=-1) != 0)
    held: list[tuple[int, np.ndarray]] = []
    for start, stop in pairwise([*np.flatnonzero(begins).tolist(), len(lengths)]):
        length = int(lengths[start])
        if not appearance[start]:
            for of_room in held:
                rooms.put(*of_room)
            held.clear()
        # A document's pieces below L are all of one length: its bins are kept aside until all of them are placed.
        is_repeated = appearance[start] > 0 or (stop < len(lengths) and appearance[stop] > 0)
        while start < stop:
            room = rooms.tightest(length)
            each = min(room // length, stop - start)  # pieces for one bin
            some = rooms.take(room, -(-(stop - start) // each))
            # A step may fill fewer bins than are needed: the loop continues with the next larger room.
            full = min(len(some), (stop - start) // each)  # every bin takes that many, except perhaps the last
            taken = np.repeat(some, each)[: stop - start]
            bins[start : start + len(taken)] = taken
            start += len(taken)
            left = [
                (room - each * length, some[:full]),
                (room - (len(taken) - full * each) * length, some[full:]),
            ]
            if is_repeated:
                held += left
            else:
                for of_room in left:
                    rooms.put(*of_room)
    return bins


class _Rooms:
    """Bins by the room that they have left; there are always more empty bins.

    Memory grows with the number of bins in use, not with their capacity.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._bins: dict[int, list[np.ndarray]] = {}
        self._rooms: list[int] = []  # the keys, rising
        self._num_bins = 0

    def tightest(self, length: int) -> int:
        """The smallest room for that many tokens; an empty bin's if no other bin has it."""
        place = bisect_left(self._rooms, length)
        return self._rooms[place] if place < len(self._rooms) else self.capacity

    def take(self, room: int, most: int) -> Int64[np.ndarray, " bin"]:
        """Bins with exactly this room, the earliest first."""
        if room == self.capacity:
            self._num_bins += most
            return np.arange(self._num_bins - most, self._num_bins)
        bins = np.concatenate(self._bins.pop(room))
        del self._rooms[bisect_left(self._rooms, room)]
        self.put(room, bins[most:])
        return bins[:most]

    def put(self, room: int, bins: Int64[np.ndarray, " bin"]) -> None:
        """Store bins by their present room; full bins are dropped."""
        if not len(bins) or not room:
            return
        if room not in self._bins:
            insort(self._rooms, room)
        self._bins.setdefault(room, []).append(bins)

"""A compact set of ids."""

from __future__ import annotations

import hashlib
from array import array

import numpy as np
from jaxtyping import UInt64


class IdRegistry:
    """A set of ids as 8-byte hashes in one table. It needs 16 to 32 bytes per id.

    The probability that two of n different ids have the same hash is about n² / 4e19: one in 370,000 for ten million
    ids.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._num_ids = 0
        self._next_number: dict[int, int] = {}

    def add(self, id: str) -> bool:
        """Add an id. Return False if it is already in the set."""
        if 2 * (self._num_ids + 1) > len(self._slots):
            self._grow()
        value = _hash(id)
        slot = self._find(value)
        if self._slots[slot]:
            return False
        self._slots[slot] = value
        self._num_ids += 1
        return True

    def hashes(self) -> UInt64[np.ndarray, " id"]:
        """The hashes of all ids, in ascending order."""
        slots = np.frombuffer(self._slots, np.uint64)
        return np.sort(slots[slots > 0])

    def add_renamed(self, id: str) -> str:
        """Add `id#2`, or the id with the next free number, and return it."""
        key = _hash(id)
        number = self._next_number.get(key, 2)
        while not self.add(f"{id}#{number}"):
            number += 1
        self._next_number[key] = number + 1
        return f"{id}#{number}"

    # Open addressing (Knuth, The Art of Computer Programming, volume 3, section 6.4, algorithm L): the last bits of a
    # value give its slot. If this slot is used, the next free slot is taken. At most half of the slots are used, so a
    # search reads two or three slots. A `set` of Python integers would need about 90 bytes per id.
    def _find(self, value: int) -> int:
        """Return the slot of `value`, or the free slot where it belongs."""
        slots, last = self._slots, len(self._slots) - 1
        slot = value & last
        while slots[slot] and slots[slot] != value:
            slot = (slot + 1) & last
        return slot

    def _grow(self) -> None:
        values = self._slots  # all values get new slots, because a slot depends on the size of the table
        self._slots = array("Q", bytes(8 * 2 * len(values)))
        for value in values:
            if value:
                self._slots[self._find(value)] = value


def _hash(id: str) -> int:
    # A free slot contains 0, so no hash may be 0.
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little") or 1

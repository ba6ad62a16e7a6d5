"""A compact set of ids."""

from __future__ import annotations

import hashlib
from array import array


class IdRegistry:
    """A set of ids as 8-byte hashes in one table: 16 to 32 bytes an id.

    Two different ids share a hash with a chance of about n² / 4e19: one in 370,000 at ten million ids.
    """

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._num_ids = 0
        self._next_number: dict[int, int] = {}

    def add(self, id: str) -> bool:
        """Add an id; False if it is known already."""
        if 2 * (self._num_ids + 1) > len(self._slots):
            self._grow()
        value = _hash(id)
        slot = self._find(value)
        if self._slots[slot]:
            return False
        self._slots[slot] = value
        self._num_ids += 1
        return True

    def add_renamed(self, id: str) -> str:
        """Add `id#2`, or the id with the next free number, and return it."""
        key = _hash(id)
        number = self._next_number.get(key, 2)
        while not self.add(f"{id}#{number}"):
            number += 1
        self._next_number[key] = number + 1
        return f"{id}#{number}"

    # Open addressing (Knuth, The Art of Computer Programming, volume 3, section 6.4, algorithm L): the last bits of a
    # value give its slot; if it is taken, the next free slot is used. At most half of the slots are taken, so that a
    # search reads two or three. A `set` of Python integers would take some 90 bytes an id.
    def _find(self, value: int) -> int:
        """The slot of `value`, or the free slot where it belongs."""
        slots, last = self._slots, len(self._slots) - 1
        slot = value & last
        while slots[slot] and slots[slot] != value:
            slot = (slot + 1) & last
        return slot

    def _grow(self) -> None:
        values = self._slots  # the slots depend on the size of the table
        self._slots = array("Q", bytes(8 * 2 * len(values)))
        for value in values:
            if value:
                self._slots[self._find(value)] = value


def _hash(id: str) -> int:
    # 0 marks a free slot
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little") or 1

"""Memory for batches, used again when a batch is no longer in use."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
from jaxtyping import Int32


class BufferPool:
    """Hands out int32 arrays whose memory comes back by itself when nothing refers to it any more.

    Fresh memory has to be mapped page by page when it is first written, which costs several times what filling it
    does. Views, and JAX arrays that alias the memory, keep it in use. Any number of threads may take arrays.

    Example:
        >>> pool = BufferPool()
        >>> rows = pool.empty((64, 2048))
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = {}

    def empty(self, shape: tuple[int, int]) -> Int32[np.ndarray, "row token"]:
        """An array of that shape, its values not set."""
        size = shape[0] * shape[1]
        free = self._free.setdefault(size, deque())
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(size, np.int32)
        if not size:
            return memory.reshape(shape)
        # All views of `lease` refer to it and not to `memory` itself: it dies with the last of them.
        lease = np.frombuffer(memory.data, np.int32)
        weakref.finalize(lease, free.append, memory).atexit = False
        return lease.reshape(shape)

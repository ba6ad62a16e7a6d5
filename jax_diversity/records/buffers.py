"""Memory for batches, used again when a batch is no longer in use."""

from __future__ import annotations

import threading
import weakref
from collections import deque

import numpy as np
from jaxtyping import Int32

_MOST_ARRAYS = 48  # of one size: eight batches of six fields, more than are dropped at a time by one who trains
_MOST_SIZES = 4  # a loader has one or two; of several datasets, parts of batches have many


class BufferPool:
    """Hands out int32 arrays whose memory comes back by itself when nothing refers to it any more.

    Fresh memory has to be mapped page by page when it is first written, which costs several times what filling it
    does. Views, and JAX arrays that alias the memory, keep it in use. Any number of threads may take arrays. What
    comes back beyond a few batches goes to the system.

    Example:
        >>> pool = BufferPool()
        >>> rows = pool.empty((64, 2048))
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = {}
        self._lock = threading.Lock()  # of the sizes; memory comes back without it, at any time in any thread

    def empty(self, shape: tuple[int, int]) -> Int32[np.ndarray, "row token"]:
        """An array of that shape, its values not set."""
        size = shape[0] * shape[1]
        if (free := self._free.get(size)) is None:
            free = self._of_size(size)
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

    def _of_size(self, size: int) -> deque[np.ndarray]:
        """Where memory of a size waits; a size that is new takes the place of the oldest."""
        with self._lock:
            if size not in self._free:
                self._free[size] = deque(maxlen=_MOST_ARRAYS)
                if len(self._free) > _MOST_SIZES:
                    del self._free[next(iter(self._free))]
            return self._free[size]

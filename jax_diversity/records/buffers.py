"""Memory for batches, used again when nothing refers to a batch any more."""

from __future__ import annotations

import threading
import weakref
from collections import deque

import numpy as np
from jaxtyping import Int32

_MOST_ARRAYS = 48  # of one size: eight batches of six fields, more than a training loop drops at a time
_MOST_SIZES = 4  # a loader has one or two sizes; parts of batches of several datasets have many


class BufferPool:
    """Gives int32 arrays whose memory returns to the pool when nothing refers to it any more.

    The system maps fresh memory page by page when it is first written, which costs several times as much as filling
    it: with fresh memory a loader makes a third to four fifths as many batches. Views, and JAX arrays that alias the
    memory, keep it in use. Any number of threads may take arrays. What returns beyond a few batches is freed.

    Example:
        >>> pool = BufferPool()
        >>> rows = pool.empty((64, 2048))
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[np.ndarray]] = {}
        self._lock = threading.Lock()  # guards the sizes; memory returns without it, at any time in any thread

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
        # All views of `lease` refer to it and not to `memory` itself, so it is finalized with the last of them.
        lease = np.frombuffer(memory.data, np.int32)
        weakref.finalize(lease, free.append, memory).atexit = False
        return lease.reshape(shape)

    def _of_size(self, size: int) -> deque[np.ndarray]:
        """The free memory of a size; a new size replaces the oldest."""
        with self._lock:
            if size not in self._free:
                self._free[size] = deque(maxlen=_MOST_ARRAYS)
                if len(self._free) > _MOST_SIZES:
                    del self._free[next(iter(self._free))]
            return self._free[size]

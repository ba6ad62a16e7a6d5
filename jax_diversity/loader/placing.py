"""Batches as global arrays on a mesh: which rows a process reads, and how they reach its devices."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import numpy as np

from jax_diversity.errors import UserError


class Placement:
    """Puts a process's rows of the global batch on its devices, as its part of global arrays.

    Row j of the global batch is row j of the global array, whatever the number of processes and the order of their
    devices: a process reads the rows that the sharding gives its own devices, no others.

    Args:
        sharding: of the arrays (row, token); the first axis may be sharded over any axes of a mesh, and so may the
            second.
        shape: of the global arrays.

    Raises:
        UserError: a sharding that does not divide the batch.

    Example:
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> placement = Placement(NamedSharding(mesh, PartitionSpec("data")), (64, 2048))
    """

    def __init__(self, sharding: jax.sharding.Sharding, shape: tuple[int, int]) -> None:
        self.sharding, self.shape = sharding, shape
        try:
            indices = sharding.addressable_devices_indices_map(shape)
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"Expected a sharding that divides batches of {shape[0]} rows and {shape[1]} tokens, found "
                f"{sharding} ({reason}); choose another global_batch_size or mesh."
            ) from None
        self._indices: dict[Any, tuple[slice, slice]] = {
            device: (index[0], index[1] if len(index) > 1 else slice(None))
            for device, index in (indices or {}).items()
            if index is not None
        }

    @cached_property
    def row_numbers(self) -> tuple[int, ...]:
        """The rows of the global batch that this process's devices hold, ascending."""
        rows = [np.arange(self.shape[0])[index] for index, _ in self._indices.values()]
        return tuple(np.unique(np.concatenate([np.zeros(0, np.int64), *rows])).tolist())

    def place(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Global arrays of the rows `row_numbers`; the transfer goes on in the background."""
        return {field: self._place(rows) for field, rows in batch.items()}

    def _place(self, rows: np.ndarray) -> jax.Array:
        shards = [
            jax.device_put(rows[self._local(index), columns], device)
            for device, (index, columns) in self._indices.items()
        ]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, shards)

    def _local(self, index: slice) -> slice:
        """Where a run of the global batch's rows lies among those that were read."""
        start, stop, _ = index.indices(self.shape[0])
        first = int(np.searchsorted(self.row_numbers, start))
        return slice(first, first + stop - start)

"""Batches as global arrays on a mesh: which rows a process reads, and how they reach its devices."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jax_diversity.foundation.errors import UserError


class Placement:
    """Puts a process's rows of the global batch on its devices, as its part of global arrays.

    Row j of the global batch is row j of the global array, whatever the number of processes and the order of their
    devices: a process reads the rows that the sharding gives its own devices, no others.

    Args:
        sharding: of the arrays (row, token); the first axis may be sharded over any axes of a mesh, and so may the
            second. Fields of one number a row lie where their rows do.
        shape: of the global arrays (row, token).

    Raises:
        UserError: a sharding that does not divide the batch, or one of more axes than it has.

    Example:
        >>> mesh = jax.make_mesh((jax.device_count(),), ("data",))
        >>> placement = Placement(NamedSharding(mesh, PartitionSpec("data")), (64, 2048))
    """

    def __init__(self, sharding: jax.sharding.Sharding, shape: tuple[int, int]) -> None:
        self.sharding, self.shape = sharding, shape
        if isinstance(sharding, NamedSharding) and len(sharding.spec) > len(shape):
            raise UserError(
                f"Expected a sharding of arrays (row, token), such as PartitionSpec('data'), found {sharding.spec} "
                f"for {len(sharding.spec)} axes; leave out what comes after the second."
            )
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
        """Global arrays of the rows `row_numbers`; the transfer goes on in the background.

        Args:
            batch: fields of tokens (row, token), or of one number a row (row).

        Raises:
            UserError: numbers beyond int32, where JAX has no int64; a field of one number a row, and a sharding
                that does not tell its rows from its tokens.
        """
        return {field: self._place(field, rows) for field, rows in batch.items()}

    def _place(self, field: str, rows: np.ndarray) -> jax.Array:
        numbers = rows.ndim == 1
        sharding = self._of_rows if numbers else self.sharding
        rows = _held(field, rows) if numbers else rows
        shards = [
            jax.device_put(rows[self._local(index)] if numbers else rows[self._local(index), columns], device)
            for device, (index, columns) in self._indices.items()
        ]
        return jax.make_array_from_single_device_arrays(self.shape[: rows.ndim], sharding, shards)

    @cached_property
    def _of_rows(self) -> jax.sharding.Sharding:
        """Of fields of one number a row: that of the first axis."""
        if isinstance(sharding := self.sharding, NamedSharding):
            spec = PartitionSpec(*tuple(sharding.spec)[:1])
            return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
        if not sharding.is_fully_replicated:
            raise UserError(
                f"Expected a NamedSharding for batches that tell where their rows come from, found {sharding!r}."
            )
        return sharding

    def _local(self, index: slice) -> slice:
        """Where a run of the global batch's rows lies among those that were read."""
        start, stop, _ = index.indices(self.shape[0])
        first = int(np.searchsorted(self.row_numbers, start))
        return slice(first, first + stop - start)


def _held(field: str, numbers: np.ndarray) -> np.ndarray:
    """Numbers as the type that JAX holds them in, by default int32, which would cut larger ones."""
    held = numbers.astype(jax.dtypes.canonicalize_dtype(numbers.dtype))
    if (held != numbers).any():
        raise UserError(
            f"Expected numbers up to {np.iinfo(held.dtype).max} in {field}, found {numbers.max()}; let JAX hold "
            'larger ones with jax.config.update("jax_enable_x64", True).'
        )
    return held

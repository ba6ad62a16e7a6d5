"""Place batches on a mesh as global arrays: each process reads the rows of its own devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jax_diversity.foundation.errors import UserError, in_one_line


class DevicePlacement:
    """Puts a process's rows of the global batch on its devices, as its part of global arrays (row, token).

    Row j of the global batch is row j of the global array for any number of processes and any order of their
    devices. Both axes may be sharded over any axes of a mesh. Fields with one number per row are sharded like the first
    axis.

    Args:
        sharding: the sharding of arrays (row, token).
        num_rows: B, rows of the global batch.
        lengths: all sequence lengths L of the batches.
        expand: makes the arrays of stored rows on a device, see `device_decoding.expand`; None if rows are arrays.
    """

    def __init__(
        self,
        sharding: jax.sharding.Sharding,
        num_rows: int,
        lengths: Sequence[int],
        expand: Callable[..., dict[str, jax.Array]] | None = None,
    ) -> None:
        self.sharding, self.num_rows, self._expand = sharding, num_rows, expand
        if isinstance(sharding, NamedSharding) and len(sharding.spec) > 2:
            raise UserError(
                f"Expected a sharding of arrays (row, token), such as PartitionSpec('data'), found {sharding.spec} "
                f"for {len(sharding.spec)} axes; leave out all entries after the second."
            )
        # The rows and columns of every device, for each length. The rows are the same for all lengths.
        self._indices = {length: self._indices_of(length) for length in lengths}
        self._rows = {device: rows for device, (rows, _) in self._indices[lengths[0]].items()}

    def _indices_of(self, length: int) -> dict[Any, tuple[slice, slice]]:
        try:
            indices = self.sharding.addressable_devices_indices_map((self.num_rows, length))
        except ValueError as error:
            if isinstance(self.sharding, NamedSharding):
                spec, mesh = self.sharding.spec, self.sharding.mesh
                placement = f"the sharding {spec} over the axes {dict(mesh.shape)}"
            else:
                placement = in_one_line(error)
            raise UserError(
                f"Expected a sharding that divides batches of {self.num_rows} rows and {length} tokens evenly, found "
                f"{placement}; choose another global_batch_size or mesh."
            ) from None
        # If only the rows are sharded, a device has one slice, and all columns.
        return {
            device: (index[0], index[1] if len(index) > 1 else slice(None))
            for device, index in (indices or {}).items()
            if index is not None
        }

    @cached_property
    def row_numbers(self) -> tuple[int, ...]:
        """The rows of the global batch that are on this process's devices, ascending."""
        # Several devices may have the same row. It is read once, and copied to all of these devices.
        rows = [np.arange(self.num_rows)[index] for index in self._rows.values()]
        return tuple(np.unique(np.concatenate([np.zeros(0, np.int64), *rows])).tolist())

    def place(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Make global arrays from the rows `row_numbers`. The transfer continues in the background."""
        expanded: dict[str, jax.Array] = {}
        if self._expand is not None:
            stored = {field: rows for field, rows in batch.items() if rows.ndim > 1}
            batch = {field: rows for field, rows in batch.items() if rows.ndim == 1}
            expanded = self._expanded(stored)
        return expanded | {field: self._place(field, rows) for field, rows in batch.items()}

    def placed(self, spec: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes, types and shardings of the arrays that `place` makes."""
        return {
            field: jax.ShapeDtypeStruct(
                (self.num_rows, *rows.shape[1:]),
                jax.dtypes.canonicalize_dtype(rows.dtype),
                sharding=self.sharding if len(rows.shape) > 1 else self._row_sharding,
            )
            for field, rows in spec.items()
        }

    def _place(self, field: str, rows: np.ndarray) -> jax.Array:
        if rows.ndim == 1:
            sharding, rows = self._row_sharding, _narrowed(field, rows)
            parts = [rows[self._local(index)] for index in self._rows.values()]
        else:
            sharding, indices = self.sharding, self._indices[rows.shape[1]]
            parts = [rows[self._local(index), columns] for index, columns in indices.values()]
        # Each device gets its part of the rows that this process read. No process needs a row of another process.
        shards = [jax.device_put(part, device) for part, device in zip(parts, self._rows, strict=True)]
        return jax.make_array_from_single_device_arrays((self.num_rows, *rows.shape[1:]), sharding, shards)

    def _expanded(self, stored: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """Make the arrays of this process's rows. Every device expands its own rows, without other devices.

        One program over all devices would need the same order of programs in all processes, which threads that
        prefetch cannot keep.
        """
        assert self._expand is not None
        length = stored["tokens"].shape[1] - 1
        shards: dict[str, list[jax.Array]] = {}
        for device, (index, columns) in self._indices[length].items():
            rows = jax.device_put({field: array[self._local(index)] for field, array in stored.items()}, device)
            for field, part in self._expand(**rows, columns=columns.indices(length)[:2]).items():
                shards.setdefault(field, []).append(part)
        shape = (self.num_rows, length)
        return {
            field: jax.make_array_from_single_device_arrays(shape, self.sharding, parts)
            for field, parts in shards.items()
        }

    @cached_property
    def _row_sharding(self) -> jax.sharding.Sharding:
        """The sharding of the first axis only."""
        if isinstance(sharding := self.sharding, NamedSharding):
            spec = PartitionSpec(*tuple(sharding.spec)[:1])
            return NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)
        if not sharding.is_fully_replicated:
            raise UserError(
                f"Expected a NamedSharding for batches with dataset_index and sequence_index, found {sharding!r}."
            )
        return sharding

    def _local(self, index: slice) -> slice:
        """Convert neighbouring rows of the global batch to indices of the rows that this process read."""
        # All rows of a device were read, so they are also neighbours among the read rows.
        start, stop, _ = index.indices(self.num_rows)
        first = int(np.searchsorted(self.row_numbers, start))
        return slice(first, first + stop - start)


def _narrowed(field: str, numbers: np.ndarray) -> np.ndarray:
    """Convert numbers to JAX's type, by default int32. JAX itself would truncate larger numbers without an error."""
    values = numbers.astype(jax.dtypes.canonicalize_dtype(numbers.dtype))
    if (values != numbers).any():
        raise UserError(
            f"Expected numbers up to {np.iinfo(values.dtype).max} in {field}, found {numbers.max()}; to use larger "
            'numbers in JAX, call jax.config.update("jax_enable_x64", True).'
        )
    return values

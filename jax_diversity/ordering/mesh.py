"""One run on several devices, of one host or of many: arrays on a mesh, a step's collective, one checkpoint.

A run over a mesh of W devices does the arithmetic of one device, row by row, wherever a row is: the same order
comes out, ties included, for any W. Of the exact greedy device d holds the sequences d, W + d, 2 W + d ...; every
device holds the deviation and the order, which all update alike. Every process of several hosts runs the same
program; what it reads back are replicated arrays, of which it has a copy of its own.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32

from jax_diversity.foundation import devices
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.deviation import Row, Rows, read_row
from jax_diversity.ordering.running import Checkpoint

AXIS = "sequences"
EVERYWHERE: Any = PartitionSpec()
BY_ROW: Any = PartitionSpec(AXIS)
BY_COLUMN: Any = PartitionSpec(None, AXIS)
NOBODY = int(np.iinfo(np.int32).max)


def flat_mesh(mesh: Any) -> Mesh:
    """The devices of a mesh of any axes, as one axis of sequences.

    Raises:
        ValueError: no mesh of devices, or one without a device of this process.
    """
    return devices.flat_mesh(mesh, AXIS)


def assembled(mesh: Mesh, build: Callable[[int], Any], specs: Any) -> Any:
    """A tree of arrays over the mesh, of which device d holds the part `build(d)`; parts have equal shapes.

    Args:
        mesh: of one axis.
        build: makes the tree of one device's parts; asked for this process's devices alone.
        specs: tree of the axis of each array that the parts are laid along; what has none is the same on all.
    """
    parts = []
    for number, device in enumerate(mesh.devices.flat):
        if device.process_index == jax.process_index():
            with jax.default_device(device):
                parts.append(jax.device_put(build(number), device))

    def join(spec: PartitionSpec, *arrays: Array) -> Array:
        shape = list(arrays[0].shape)
        for number, axis in enumerate(spec):
            shape[number] *= mesh.size if axis == AXIS else 1
        return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), list(arrays))

    return jax.tree.map(join, specs, *parts)


def replicated(mesh: Mesh, tree: Any) -> Any:
    """The tree's arrays on every device; those that are on the mesh already stay as they are."""

    def put(array: Any) -> Array:
        if isinstance(array, Array) and isinstance(array.sharding, NamedSharding) and array.sharding.mesh == mesh:
            return array
        values = np.asarray(array)
        return assembled(mesh, lambda _: values, EVERYWHERE)

    return jax.tree.map(put, tree)


def part_of(tree: Any, mesh: Mesh, number: int) -> Any:
    """What device `number` of the mesh, one of this process's, holds of a tree of arrays."""
    device = mesh.devices.flat[number]
    return jax.tree.map(
        lambda array: next(shard.data for shard in array.addressable_shards if shard.device == device), tree
    )


def place_on(axis: str | None) -> tuple[Int32[Array, ""] | int, int]:
    """This device's number on the mesh's axis and the number of devices; (0, 1) without a mesh."""
    return (0, 1) if axis is None else (lax.axis_index(axis), lax.axis_size(axis))


def agree(best: Float32[Array, ""], first: Int32[Array, ""], axis: str | None) -> Int32[Array, ""]:
    """The sequence of the smallest score on any device, the lowest index of several.

    Args:
        best: the smallest score on this device.
        first: the lowest sequence index that has it.
        axis: the mesh's; None has one device.
    """
    if axis is None:
        return first
    gathered = lax.all_gather(jnp.stack([_bits(best), first]), axis)
    return _winner(_floats(gathered[:, 0]), gathered[:, 1])


def agree_on_rows(
    best: Float32[Array, ""],
    first: Int32[Array, ""],
    leaving: Sequence[Int32[Array, ""]],
    rows: Rows,
    num_columns: int,
    axis: str | None,
) -> tuple[Int32[Array, ""], Row, list[Row]]:
    """As `agree`, and the rows of the chosen sequence and of those that leave a window, whoever holds them.

    One collective: every device sends its best score and sequence, that sequence's row, and what it would read at
    the places of the leaving ones; all but the owners' is passed over.

    Args:
        best: the smallest score on this device.
        first: the lowest sequence index that has it.
        leaving: sequences that leave a window, known to all.
        rows: this device's own sequences, every W-th.
        num_columns: columns past the end stand for unused slots.
        axis: the mesh's; None has one device.
    """
    _, num_devices = place_on(axis)
    read = [read_row(rows, sequence // num_devices, num_columns) for sequence in (first, *leaving)]
    if axis is None:
        return first, read[0], read[1:]
    packed = [
        jnp.concatenate([row.columns, _bits(jnp.append(row.values, jnp.stack([row.norm, row.tokens])))]) for row in read
    ]
    gathered = lax.all_gather(jnp.concatenate([jnp.stack([_bits(best), first]), *packed]), axis)
    chosen = _winner(_floats(gathered[:, 0]), gathered[:, 1])
    width = rows.slots.shape[0]
    by_row = gathered[:, 2:].reshape(num_devices, len(read), 2 * width + 2)

    def unpacked(sequence: Int32[Array, ""], index: int) -> Row:
        entries = by_row[sequence % num_devices, index]
        values = _floats(entries[width:])
        return Row(entries[:width], values[:width], values[width], values[width + 1])

    moved = [unpacked(sequence, index) for index, sequence in enumerate((chosen, *leaving))]
    return chosen, moved[0], moved[1:]


def _winner(scores: Float32[Array, " device"], sequences: Int32[Array, " device"]) -> Int32[Array, ""]:
    return jnp.min(jnp.where(scores == jnp.min(scores), sequences, NOBODY))


def _bits(values: Float32[Array, "..."]) -> Int32[Array, "..."]:
    return lax.bitcast_convert_type(values, jnp.int32)


def _floats(bits: Int32[Array, "..."]) -> Float32[Array, "..."]:
    return lax.bitcast_convert_type(bits, jnp.float32)


def shared_checkpoint(checkpoint: Checkpoint, mesh: Mesh) -> Checkpoint:
    """The checkpoint of a run over the mesh: one process keeps it where there are several."""
    alone = len({device.process_index for device in mesh.devices.flat}) == 1
    return checkpoint if alone or checkpoint.path is None else SharedCheckpoint(checkpoint, mesh)


class SharedCheckpoint(Checkpoint):
    """A checkpoint that the process of the mesh's first device reads and writes alone, and tells the others of.

    The other hosts need not see its disk: their checkpoint has no file.
    """

    def __init__(self, checkpoint: Checkpoint, mesh: Mesh) -> None:
        self._mesh = mesh
        leads = mesh.devices.flat[0].process_index == jax.process_index()
        super().__init__(checkpoint.path if leads else None, checkpoint.identity)

    def load(self) -> Mapping[str, np.ndarray] | None:
        """The saved arrays, the same in all processes; None where there is no file.

        Raises:
            ValueError: what the first process found wrong with its file; in all processes.
        """
        try:
            saved = super().load()
            message = b"" if saved is None else b"+" + _packed(saved)
        except UserError as error:
            message = b"-" + str(error).encode()
        message = _told_by_the_first(self._mesh, message)
        if message[:1] == b"-":
            raise UserError(message[1:].decode())
        return _unpacked(message[1:]) if message else None


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _unpacked(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return dict(stored)


def _told_by_the_first(mesh: Mesh, message: bytes) -> bytes:
    """The message of the mesh's first device's process, to all; whatever others pass is not looked at."""
    size = int(_first_part(mesh, np.array([len(message)], np.int32))[0])
    content = np.zeros(size, np.uint8)
    own = np.frombuffer(message[:size], np.uint8)
    content[: len(own)] = own
    return _first_part(mesh, content).tobytes()


def _first_part(mesh: Mesh, own: np.ndarray) -> np.ndarray:
    parts = assembled(mesh, lambda _: own[None], BY_ROW)
    first = jax.jit(lambda gathered: gathered[0], out_shardings=NamedSharding(mesh, EVERYWHERE))
    return np.asarray(first(parts))

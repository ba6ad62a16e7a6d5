"""One run on one device (`mesh` is None), or on several devices of one or more hosts.

W devices do the same arithmetic for every sequence as one device, so they give the same order, ties included. Each
holds the deviation and the order and updates them in the same way; only candidates (and, in the exact greedy, rows) are
split. Each process of several hosts runs the same program and reads back only replicated arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32

from jax_diversity.foundation import devices
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.deviation import PaddedCounts, SequenceCounts, read_row
from jax_diversity.ordering.running import Checkpoint

AXIS = "sequences"
EVERYWHERE: Any = PartitionSpec()
BY_ROW: Any = PartitionSpec(AXIS)
BY_COLUMN: Any = PartitionSpec(None, AXIS)
NO_SEQUENCE = int(np.iinfo(np.int32).max)
"""The index of an empty place. It is the largest, so that a minimum over indices finds a real sequence first."""


def flat_mesh(mesh: Any) -> Mesh | None:
    """The devices of a mesh of any axes, as one axis of sequences; an error if none belongs to this process."""
    return None if mesh is None else devices.flat_mesh(mesh, AXIS)


def num_devices(mesh: Mesh | None) -> int:
    """The number of devices."""
    return 1 if mesh is None else mesh.size


def split(mesh: Mesh | None, build: Callable[[int], Any], specs: Any) -> Any:
    """A tree of arrays over the mesh; device d holds the part `build(d)`, and all parts have equal shapes.

    `specs` is a tree with the axis along which each array is split; without an axis, an array is the same on all
    devices.
    """
    if mesh is None:
        return build(0)
    # Each process builds only its devices' parts: no host needs memory for the whole corpus's tables.
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


def replicated(mesh: Mesh | None, tree: Any) -> Any:
    """The tree's arrays on every device; arrays that are already on the mesh stay unchanged."""
    if mesh is None:
        return tree

    def put(array: Any) -> Array:
        if isinstance(array, Array) and isinstance(array.sharding, NamedSharding) and array.sharding.mesh == mesh:
            return array
        # They are copied through the host: a process can only place data on its own devices, and all processes have
        # equal values.
        values = np.asarray(array)
        return split(mesh, lambda _: values, EVERYWHERE)

    return jax.tree.map(put, tree)


def on_every_device(
    mesh: Mesh | None, function: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """A function that each device runs with its parts of the arguments, and the mesh's axis or None as `axis`."""
    if mesh is None:
        return lambda *arguments: function(*arguments, axis=None)
    # The check of replicated outputs is off: each device computes the winner, and JAX cannot prove that all are equal.
    return jax.shard_map(
        lambda *arguments: function(*arguments, axis=AXIS),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )


def device_place(axis: str | None) -> tuple[Int32[Array, ""] | int, int]:
    """Inside such a function: this device's number on the axis, and the number of devices."""
    return (0, 1) if axis is None else (lax.axis_index(axis), lax.axis_size(axis))


def best_of_all(best: Float32[Array, ""], first: Int32[Array, ""], axis: str | None) -> Int32[Array, ""]:
    """The sequence with the smallest score of all devices, or the lowest of several; `best` is this device's own."""
    if axis is None:
        return first
    gathered = lax.all_gather(jnp.stack([_bits(best), first]), axis)
    return _winner(_floats(gathered[:, 0]), gathered[:, 1])


def best_row_of_all(
    best: Float32[Array, ""],
    first: Int32[Array, ""],
    leaving: Sequence[Int32[Array, ""]],
    rows: PaddedCounts,
    num_columns: int,
    axis: str | None,
) -> tuple[Int32[Array, ""], SequenceCounts, list[SequenceCounts]]:
    """As `best_of_all`; also the rows of the chosen sequence and of the sequences that leave a window."""
    # One collective: before the best device is known, every device sends its best score and sequence, that
    # sequence's row, and its rows of the leaving sequences.
    _, size = device_place(axis)
    read = [read_row(rows, sequence // size, num_columns) for sequence in (first, *leaving)]
    if axis is None:
        return first, read[0], read[1:]
    # Floats are sent as their bits beside the integers, in one message.
    packed = [
        jnp.concatenate([row.columns, row.apart, _bits(jnp.append(row.values, jnp.stack([row.norm, row.tokens])))])
        for row in read
    ]
    gathered = lax.all_gather(jnp.concatenate([jnp.stack([_bits(best), first]), *packed]), axis)
    chosen = _winner(_floats(gathered[:, 0]), gathered[:, 1])
    width, num_members = rows.slots.shape[0], rows.apart.shape[0]
    by_row = gathered[:, 2:].reshape(size, len(read), 2 * width + num_members + 2)

    # Device d owns the sequences whose index is d modulo the number of devices.
    def unpacked(sequence: Int32[Array, ""], index: int) -> SequenceCounts:
        entries = by_row[sequence % size, index]
        columns, apart, bits = jnp.split(entries, [width, width + num_members])
        values = _floats(bits)
        return SequenceCounts(columns, values[:width], values[width], values[width + 1], apart)

    moved = [unpacked(sequence, index) for index, sequence in enumerate((chosen, *leaving))]
    return chosen, moved[0], moved[1:]


def _winner(scores: Float32[Array, " device"], sequences: Int32[Array, " device"]) -> Int32[Array, ""]:
    # The same two reductions on every device: all find the same winner without another message.
    return jnp.min(jnp.where(scores == jnp.min(scores), sequences, NO_SEQUENCE))


def _bits(values: Float32[Array, "..."]) -> Int32[Array, "..."]:
    return lax.bitcast_convert_type(values, jnp.int32)


def _floats(bits: Int32[Array, "..."]) -> Float32[Array, "..."]:
    return lax.bitcast_convert_type(bits, jnp.float32)


def shared_checkpoint(checkpoint: Checkpoint, mesh: Mesh | None) -> Checkpoint:
    """The checkpoint of a run over the mesh: one process keeps it for all."""
    if mesh is None or not mesh.is_multi_process or checkpoint.path is None:
        return checkpoint
    return SharedCheckpoint(checkpoint, mesh)


class SharedCheckpoint(Checkpoint):
    """A checkpoint that only the process of the mesh's first device reads and writes, for all."""

    def __init__(self, checkpoint: Checkpoint, mesh: Mesh) -> None:
        self._mesh = mesh
        leads = mesh.devices.flat[0].process_index == jax.process_index()
        super().__init__(checkpoint.path if leads else None, checkpoint.identity)

    def read(self) -> bytes | None:
        """The file's content in all processes, or the error that the first process found."""
        # An error is sent as well: if the first process raised alone, all others would wait for it without end.
        try:
            content = super().read()
            message = b"" if content is None else b"+" + content
        except UserError as error:
            message = b"-" + str(error).encode()
        message = _broadcast(self._mesh, message)
        if message[:1] == b"-":
            raise UserError(message[1:].decode())
        return message[1:] if message else None


def _broadcast(mesh: Mesh, message: bytes) -> bytes:
    """Send the message of the process of the mesh's first device to all processes; their own values are ignored."""
    first = jax.jit(lambda gathered: gathered[0], out_shardings=NamedSharding(mesh, EVERYWHERE))
    # First its length: the arrays of a collective have one shape on all devices.
    size = int(first(split(mesh, lambda _: np.array([[len(message)]], np.int32), BY_ROW))[0])
    own = np.frombuffer(message[:size].ljust(size, b"\0"), np.uint8)
    return np.asarray(first(split(mesh, lambda _: own[None], BY_ROW))).tobytes()

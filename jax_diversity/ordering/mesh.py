"""One run on one device (`mesh` is None), or on several devices of one or more hosts.

W devices do the same arithmetic for every sequence as one device, so they give the same order, also if scores are
equal. Each device stores the deviation and the order and updates them in the same way. Only the candidates (and, in the
exact greedy, the rows) are divided among the devices. With several hosts, each process runs the same program and reads
back only replicated arrays.
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
"""The index of an empty place. It is the largest int32, so that a minimum over indices finds a real sequence first."""


def flat_mesh(mesh: Any) -> Mesh | None:
    """Return the devices of any mesh as a mesh with one axis; raise an error if no device belongs to this process."""
    return None if mesh is None else devices.flat_mesh(mesh, AXIS)


def num_devices(mesh: Mesh | None) -> int:
    """Return the number of devices."""
    return 1 if mesh is None else mesh.size


def split(mesh: Mesh | None, build: Callable[[int], Any], specs: Any) -> Any:
    """Make a tree of arrays over the mesh: device d has the part `build(d)`. All parts must have equal shapes.

    `specs` is a tree with the axis along which each array is split; without an axis, an array is the same on all
    devices.
    """
    if mesh is None:
        return build(0)
    # Each process builds only the parts of its own devices: no host needs memory for the whole corpus's tables.
    parts = []
    for number, device in enumerate(mesh.devices.flat):
        if device.process_index == jax.process_index():
            with jax.default_device(device):
                parts.append(jax.device_put(build(number), device))

    def join(spec: PartitionSpec, *arrays: Array) -> Array:
        shape = list(arrays[0].shape)
        for number, axis in enumerate(spec):
            shape[number] *= mesh.size if axis == AXIS else 1
        if 0 in shape:
            # A compiled program returns an array without entries undivided. If it were divided here, the second call
            # of the program would have other arguments than the first one, and JAX would compile it again.
            empty = np.zeros(shape, arrays[0].dtype)
            spec, arrays = EVERYWHERE, tuple(jax.device_put(empty, array.device) for array in arrays)
        return jax.make_array_from_single_device_arrays(tuple(shape), NamedSharding(mesh, spec), list(arrays))

    return jax.tree.map(join, specs, *parts)


def replicated(mesh: Mesh | None, tree: Any) -> Any:
    """Copy the tree's arrays to every device; arrays that are already on the mesh stay unchanged."""
    if mesh is None:
        return tree

    def put(array: Any) -> Array:
        if isinstance(array, Array) and isinstance(array.sharding, NamedSharding) and array.sharding.mesh == mesh:
            return array
        # The array is copied through the host. A process can only put data on its own devices, and all processes have
        # equal values.
        values = np.asarray(array)
        return split(mesh, lambda _: values, EVERYWHERE)

    return jax.tree.map(put, tree)


def on_every_device(
    mesh: Mesh | None, function: Callable[..., Any], in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """Make a function that each device runs with its parts of the arguments; `axis` is the mesh's axis or None."""
    if mesh is None:
        return lambda *arguments: function(*arguments, axis=None)
    # The check of replicated outputs is off: every device computes the best candidate, and JAX cannot prove that the
    # devices' results are equal.
    return jax.shard_map(
        lambda *arguments: function(*arguments, axis=AXIS),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )


def device_place(axis: str | None) -> tuple[Int32[Array, ""] | int, int]:
    """Return this device's number on the axis, and the number of devices; for use in `on_every_device`."""
    return (0, 1) if axis is None else (lax.axis_index(axis), lax.axis_size(axis))


def best_of_all(best: Float32[Array, ""], first: Int32[Array, ""], axis: str | None) -> Int32[Array, ""]:
    """Return the sequence with the smallest score on all devices; if scores are equal, the lowest sequence index.

    `best` and `first` are the smallest score and its sequence on this device.
    """
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
    """Like `best_of_all`, but also return the rows of the chosen sequence and of the sequences that leave a window."""
    # There is only one collective. Every device sends its best score and sequence, the row of this sequence, and its
    # rows of the leaving sequences, before the best device is known.
    _, size = device_place(axis)
    read = [read_row(rows, sequence // size, num_columns) for sequence in (first, *leaving)]
    if axis is None:
        return first, read[0], read[1:]
    # The bits of the floats are sent with the integers, in one message.
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
    # Every device does the same two reductions, so all find the same sequence without another message.
    return jnp.min(jnp.where(scores == jnp.min(scores), sequences, NO_SEQUENCE))


def _bits(values: Float32[Array, "..."]) -> Int32[Array, "..."]:
    return lax.bitcast_convert_type(values, jnp.int32)


def _floats(bits: Int32[Array, "..."]) -> Float32[Array, "..."]:
    return lax.bitcast_convert_type(bits, jnp.float32)


def from_all_processes(mesh: Mesh, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """Send lists of integer arrays to all processes; return the lists of all processes of the mesh, by their index.

    The numbers must be below 2^31.
    """
    lengths = _from_every_process(mesh, np.array([len(arrays), sum(map(len, arrays))], np.int32))
    # The arrays of a collective have the same shape on all devices.
    most, longest = np.max(lengths, axis=0)
    sizes, joined = np.zeros(most, np.int32), np.zeros(longest, np.int32)
    sizes[: len(arrays)] = list(map(len, arrays))
    joined[: sizes.sum()] = np.concatenate([*arrays, joined[:0]])
    messages = zip(lengths, _from_every_process(mesh, sizes), _from_every_process(mesh, joined), strict=True)
    return [
        np.split(values[:num_values].astype(np.int64), np.cumsum(sizes[:number])[:-1]) if number else []
        for (number, num_values), sizes, values in messages
    ]


def _from_every_process(mesh: Mesh, array: np.ndarray) -> list[np.ndarray]:
    """Send an array to all processes of the mesh; the arrays have the same shape in all of them."""
    together = jax.jit(lambda values: values, out_shardings=NamedSharding(mesh, EVERYWHERE))
    gathered = np.asarray(together(split(mesh, lambda _: array[None], BY_ROW)))
    # Every device of a process sends the same: we take one of them.
    of_devices = {device.process_index: values for device, values in zip(mesh.devices.flat, gathered, strict=True)}
    return [of_devices[process] for process in sorted(of_devices)]


def shared_checkpoint(checkpoint: Checkpoint, mesh: Mesh | None) -> Checkpoint:
    """Return the checkpoint of a run over the mesh: one process reads and writes it for all processes."""
    if mesh is None or not mesh.is_multi_process or checkpoint.path is None:
        return checkpoint
    return SharedCheckpoint(checkpoint, mesh)


class SharedCheckpoint(Checkpoint):
    """A checkpoint that only one process reads and writes for all: the process of the mesh's first device."""

    def __init__(self, checkpoint: Checkpoint, mesh: Mesh) -> None:
        self._mesh = mesh
        leads = mesh.devices.flat[0].process_index == jax.process_index()
        super().__init__(checkpoint.path if leads else None, checkpoint.identity)

    def read(self) -> bytes | None:
        """Return the file's content in all processes, or raise the error of the first process in all of them."""
        # An error is also sent. If only the first process raised it, the others would wait forever.
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
    """Send a message from the process of the mesh's first device to all processes; other messages are ignored."""
    first = jax.jit(lambda gathered: gathered[0], out_shardings=NamedSharding(mesh, EVERYWHERE))
    # The length is sent first, because the arrays of a collective have the same shape on all devices.
    size = int(first(split(mesh, lambda _: np.array([[len(message)]], np.int32), BY_ROW))[0])
    padded_message = np.frombuffer(message[:size].ljust(size, b"\0"), np.uint8)
    return np.asarray(first(split(mesh, lambda _: padded_message[None], BY_ROW))).tobytes()

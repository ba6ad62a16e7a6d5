"""A checkpoint's parameters and its batches on a mesh of devices: each device holds a part of both.

Of every parameter each device keeps an equal part, as in fully sharded data parallelism (Rajbhandari et al. 2020,
ZeRO stage 3); a block's parts come together when its turn comes. Rows of a batch are split over the devices, so
that a row is computed on one device whatever their number, with the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32

from jax_diversity.embedding.qwen3.architecture import CONFIG, Architecture
from jax_diversity.embedding.qwen3.checkpoint import Tensors
from jax_diversity.embedding.qwen3.model import Qwen3
from jax_diversity.foundation.errors import UserError

AXIS = "device"
_STACKED = "layers"


def flat_mesh(mesh: Any = None) -> Mesh:
    """The devices of a mesh of any axes as one axis; without a mesh, all devices of this process.

    Raises:
        UserError: no mesh of devices.
    """
    if mesh is None:
        devices = np.array(jax.local_devices())
    elif isinstance(mesh, Mesh):
        devices = mesh.devices.reshape(-1)
    else:
        raise UserError(
            f"Expected mesh to be a jax.sharding.Mesh, found {type(mesh).__name__}; "
            'make one with jax.make_mesh((8,), ("device",)).'
        )
    return Mesh(devices, (AXIS,), axis_types=(AxisType.Auto,))


@dataclass(frozen=True)
class PlacedModel:
    """A model whose parameters lie on a mesh, and the program that embeds batches with it.

    Attributes:
        mesh: of one axis.
        width: of an embedding.
        parameters: the model's, each with a part on every device.
        program: (parameters, tokens, lengths) -> embeddings; compiled once for each shape of the tokens.
    """

    mesh: Mesh
    width: int
    parameters: Any
    program: Any

    def embed(
        self, tokens: Int32[np.ndarray, "row token"], lengths: Int32[np.ndarray, " row"]
    ) -> Float32[Array, "row width"]:
        """The embeddings of a batch, on every device; not waited for.

        Args:
            tokens: ids, padded at the end with any id; the mesh's size divides the rows. Every process of several
                hosts passes the same.
            lengths: tokens of each row, 1 or more.
        """
        return self.program(self.parameters, *(_on_every_device(self.mesh, values) for values in (tokens, lengths)))


def place_model(architecture: Architecture, tensors: Tensors, mesh: Mesh, dtype: str) -> PlacedModel:
    """The model of a checkpoint on a mesh, every device's parts read from disk for it.

    Args:
        architecture: the sizes that the checkpoint's configuration gives.
        tensors: as `open_tensors` gives them; taken to `dtype` whatever the files hold.
        mesh: of one axis.
        dtype: of parameters and arithmetic.

    Raises:
        UserError: a tensor is missing, has another shape, or belongs to no Qwen3 model.
    """
    graph, shapes = abstract_model(architecture, dtype)
    parameters = _load(architecture, shapes, tensors, mesh)
    return PlacedModel(mesh, architecture.width, parameters, embedding_program(graph, mesh, dtype))


def abstract_model(architecture: Architecture, dtype: str) -> tuple[Any, Any]:
    """The model's structure and the shapes of its parameters; nothing is computed."""
    return nnx.split(nnx.eval_shape(lambda: Qwen3(architecture, jnp.dtype(dtype), nnx.Rngs(0))))


def embedding_program(graph: Any, mesh: Mesh, dtype: str) -> Any:
    """What embeds batches: jit-compiled, (parameters, tokens, lengths) -> embeddings.

    Args:
        graph: the model's structure.
        mesh: of one axis.
        dtype: of the arithmetic; float32 means float32 on every device, not the shorter products of some.
    """

    def place(*axes: str | None) -> Callable[[Any], Any]:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return lambda values: jax.tree.map(lambda array: lax.with_sharding_constraint(array, sharding), values)

    def embed(
        parameters: Any, tokens: Int32[Array, "row token"], lengths: Int32[Array, " row"]
    ) -> Float32[Array, "row width"]:
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            model = nnx.merge(graph, parameters)
            hidden = model(tokens, spread=place(AXIS), gather=place())
            return place()(model.last(hidden, place(AXIS)(lengths)))

    return jax.jit(embed)


def _load(architecture: Architecture, shapes: Any, tensors: Tensors, mesh: Mesh) -> Any:
    unread = dict(tensors)
    loaded = {}
    for path, variable in nnx.to_flat_state(shapes):
        stacked = path[0] == _STACKED
        shape = variable.get_value()
        names = _tensor_names(path, architecture.num_layers)
        views = [_take(unread, name, shape.shape[stacked:]) for name in names]
        loaded[path] = variable.replace(_assemble(views, shape, stacked, mesh))
    if unread:
        raise UserError(
            f"Expected the tensors of a plain Qwen3 model, found {min(unread)} besides them; adapters and variants "
            "of the model cannot be read."
        )
    return nnx.from_flat_state(loaded)


def _on_every_device(mesh: Mesh, values: np.ndarray) -> Array:
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def _tensor_names(path: tuple[Any, ...], num_layers: int) -> list[str]:
    """The tensors that a parameter consists of, one a layer where layers are stacked."""
    first, *rest = map(str, path[:-1])
    stem = ".".join([*rest, "weight"])
    if first == _STACKED:
        return [f"{first}.{number}.{stem}" for number in range(num_layers)]
    return [f"{first}.{stem}"]


def _take(tensors: dict[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of the model's shape, taken out of those that nobody has asked for yet."""
    tensor = tensors.pop(name, None)
    if tensor is None or tensor.shape != shape:
        found = "no such tensor" if tensor is None else f"the shape {list(tensor.shape)}"
        raise UserError(
            f"Expected the tensor {name} of the shape {list(shape)}, as {CONFIG} says, found {found} in the "
            "weights; download the checkpoint's files again, all from one place."
        )
    return tensor


def _assemble(views: list[np.ndarray], shape: Any, stacked: bool, mesh: Mesh) -> Array:
    """One array on the mesh of the tensors of all layers (or of one tensor)."""

    def read(index: Any) -> np.ndarray:  # a slice an axis
        parts = [view[index[stacked:]] for view in views]
        return np.stack(parts, dtype=shape.dtype, casting="unsafe") if stacked else parts[0].astype(shape.dtype)

    sharding = NamedSharding(mesh, _spec(shape.shape, stacked, mesh.size))
    return jax.make_array_from_callback(shape.shape, sharding, read)


def _spec(shape: tuple[int, ...], stacked: bool, num_devices: int) -> PartitionSpec:
    """How a parameter is divided: a block's by rows, which lie together on disk; the table of tokens by features,
    so that every device looks all tokens up; vectors (norms) are whole on every device."""
    whole = len(shape) - stacked < 2 or shape[1] % num_devices != 0
    return PartitionSpec() if whole else PartitionSpec(None, AXIS)

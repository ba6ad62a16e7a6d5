"""The Qwen3 transformer in Flax NNX, as far as embeddings need it, and its parameters on a mesh of devices.

Token ids -> hidden states, no head. Pre-normalised blocks (RMSNorm; Zhang and Sennrich 2019), attention with fewer key
heads than query heads (Ainslie et al. 2023), queries and keys normalised, then turned by rotary positions (Su et al.
2021), SwiGLU (Shazeer 2020): the model of the Qwen3 report (Yang et al. 2025). Attributes are named as checkpoints
name their tensors, so a parameter's path is its tensor's name.

Of every parameter each device keeps an equal part, as in fully sharded data parallelism (Rajbhandari et al. 2020,
ZeRO stage 3); a block's parts are gathered just before the block runs. Rows of a batch are split over the devices, so a
row is computed on one device whatever their number, with the same arithmetic.
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
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Float32, Int32

from jax_diversity.embedding.qwen3_checkpoint import CONFIG, Architecture, Tensors
from jax_diversity.foundation.errors import UserError

AXIS = "device"
_STACKED = "layers"
Place = Callable[[Any], Any]


class Qwen3(nnx.Module):
    """Token ids to hidden states.

    Args:
        architecture: the sizes.
        dtype: of parameters and arithmetic; norms, rotary positions and the softmax are computed in float32.
        rngs: asked for initial values; a checkpoint's replace them.
    """

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=architecture.num_layers)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(architecture, dtype, rngs)

        kinds: Any = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.architecture = architecture
        self.embed_tokens = nnx.Embed(architecture.vocab_size, architecture.width, **kinds)
        self.layers = stack(rngs)  # one block whose parameters have a first axis: the layers, compiled once
        self.norm = nnx.RMSNorm(architecture.width, epsilon=architecture.epsilon, **kinds)

    def __call__(
        self, tokens: Int32[Array, "row token"], spread: Place, gather: Place
    ) -> Float[Array, "row token width"]:
        """The hidden states after the last block, not normalised yet.

        Args:
            tokens: ids, padded at the end with any id.
            spread: lays the rows of the tokens' vectors out over devices.
            gather: brings together the parameters of a block, which may lie on several devices.
        """
        graph, layers = nnx.split(self.layers)
        rotation = rotations(tokens.shape[1], self.architecture)

        # A scan compiles one block for all layers, and gathers one block's parameters at a time.
        def apply(hidden: Array, layer: Any) -> tuple[Array, None]:
            return nnx.merge(graph, gather(layer))(hidden, rotation), None

        return lax.scan(apply, spread(self.embed_tokens(tokens)), layers)[0]

    def last(
        self, hidden: Float[Array, "row token width"], lengths: Int32[Array, " row"]
    ) -> Float32[Array, "row width"]:
        """The normalised hidden state of each row's last token, scaled to length 1: the embedding.

        Args:
            hidden: the hidden states after the last block.
            lengths: tokens of each row, 1 or more.
        """
        states = jax.vmap(lambda row, length: lax.dynamic_index_in_dim(row, length - 1, keepdims=False))
        # Scaled in float32: lengths of bfloat16 would be wrong by up to 0.4 %.
        vectors = self.norm(states(hidden, lengths)).astype(jnp.float32)
        norms = jnp.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / jnp.maximum(norms, 1e-12)


class Block(nnx.Module):
    """Attention, then a feed-forward part, each added to what it was computed from."""

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        norm: Any = {"epsilon": architecture.epsilon, "dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.input_layernorm = nnx.RMSNorm(architecture.width, **norm)
        self.self_attn = Attention(architecture, dtype, rngs)
        self.post_attention_layernorm = nnx.RMSNorm(architecture.width, **norm)
        self.mlp = FeedForward(architecture, dtype, rngs)

    def __call__(
        self, hidden: Float[Array, "row token width"], rotation: Float32[Array, "2 token half"]
    ) -> Float[Array, "row token width"]:
        """The hidden states after the block; `rotation` is that of `rotations`."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Attention(nnx.Module):
    """Causal attention; neighbouring query heads share a key and a value head."""

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        norm: Any = {"epsilon": architecture.epsilon, "dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.head_width = architecture.head_width
        query_width = architecture.num_heads * architecture.head_width
        key_width = architecture.num_key_heads * architecture.head_width
        self.q_proj = Projection(architecture.width, query_width, dtype, rngs)
        self.k_proj = Projection(architecture.width, key_width, dtype, rngs)
        self.v_proj = Projection(architecture.width, key_width, dtype, rngs)
        self.o_proj = Projection(query_width, architecture.width, dtype, rngs)
        self.q_norm = nnx.RMSNorm(architecture.head_width, **norm)
        self.k_norm = nnx.RMSNorm(architecture.head_width, **norm)

    def __call__(
        self, hidden: Float[Array, "row token width"], rotation: Float32[Array, "2 token half"]
    ) -> Float[Array, "row token width"]:
        """What attention adds to normalised hidden states."""
        heads = (*hidden.shape[:2], -1, self.head_width)
        queries = rotate(self.q_norm(self.q_proj(hidden).reshape(heads)), rotation)
        keys = rotate(self.k_norm(self.k_proj(hidden).reshape(heads)), rotation)
        values = self.v_proj(hidden).reshape(heads)
        # Padding is at the end of a row: with causal attention no token sees it, so no other mask is needed.
        mixed = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(mixed.reshape(*hidden.shape[:2], -1))


class FeedForward(nnx.Module):
    """SwiGLU: one projection gates another, a third leads back."""

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        self.gate_proj = Projection(architecture.width, architecture.inner_width, dtype, rngs)
        self.up_proj = Projection(architecture.width, architecture.inner_width, dtype, rngs)
        self.down_proj = Projection(architecture.inner_width, architecture.width, dtype, rngs)

    def __call__(self, hidden: Float[Array, "row token width"]) -> Float[Array, "row token width"]:
        """What the feed-forward part adds to normalised hidden states."""
        return self.down_proj(jax.nn.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Projection(nnx.Module):
    """A linear map without bias, kept as checkpoints keep it, output first: they are read without turning."""

    def __init__(self, num_inputs: int, num_outputs: int, dtype: Any, rngs: nnx.Rngs) -> None:
        initial = nnx.initializers.lecun_normal(in_axis=1, out_axis=0)
        self.weight = nnx.Param(initial(rngs.params(), (num_outputs, num_inputs), dtype))

    def __call__(self, values: Float[Array, "row token input"]) -> Float[Array, "row token output"]:
        """The values mapped."""
        return jnp.einsum("rti,oi->rto", values, self.weight[...])


def rotations(num_tokens: int, architecture: Architecture) -> Float32[Array, "2 token half"]:
    """Cosine and sine of every position's angles: position / θ^(2 i / head width) for i below half the width."""
    half = architecture.head_width // 2
    frequencies = architecture.rotary_base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(num_tokens, dtype=jnp.float32)[:, None] * frequencies
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)])


def rotate(
    heads: Float[Array, "row token head width"], rotation: Float32[Array, "2 token half"]
) -> Float[Array, "row token head width"]:
    """Turn each pair (i, i + half the width) of a head by its position's i-th angle."""
    cosines, sines = rotation[:, None, :, None, :]
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    # In float32 whatever the model's type: angles of late positions lose their fraction in bfloat16.
    turned = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return turned.astype(heads.dtype)


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
            tokens: ids, padded at the end with any id; the number of rows is a multiple of the mesh's size. Every
                process of several hosts passes the same.
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
    # The model's structure and its parameters' shapes; nothing is computed.
    graph, shapes = nnx.split(nnx.eval_shape(lambda: Qwen3(architecture, jnp.dtype(dtype), nnx.Rngs(0))))
    parameters = _load(architecture, shapes, tensors, mesh)
    return PlacedModel(mesh, architecture.width, parameters, _embedding_program(graph, mesh, dtype))


def _embedding_program(graph: Any, mesh: Mesh, dtype: str) -> Any:
    """The jit-compiled program that embeds batches: (parameters, tokens, lengths) -> embeddings."""

    def place(*axes: str | None) -> Callable[[Any], Any]:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return lambda values: jax.tree.map(lambda array: lax.with_sharding_constraint(array, sharding), values)

    def embed(
        parameters: Any, tokens: Int32[Array, "row token"], lengths: Int32[Array, " row"]
    ) -> Float32[Array, "row width"]:
        # Accelerators multiply float32 as shorter numbers unless told otherwise.
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
        # A stacked parameter's first axis is the layer; its tensors, one a layer, have the axes behind it.
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
    """A tensor of the model's shape, removed from those that are not used yet."""
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

    # The callback is asked for one device's slice at a time, so a host never holds the whole model.
    sharding = NamedSharding(mesh, _spec(shape.shape, stacked, mesh.size))
    return jax.make_array_from_callback(shape.shape, sharding, read)


def _spec(shape: tuple[int, ...], stacked: bool, num_devices: int) -> PartitionSpec:
    """How a parameter is divided over the devices."""
    # A block's parameters by rows, which lie together on disk; the table of tokens by features, because every device
    # looks up all tokens; vectors (norms) are whole on every device.
    whole = len(shape) - stacked < 2 or shape[1] % num_devices != 0
    return PartitionSpec() if whole else PartitionSpec(None, AXIS)

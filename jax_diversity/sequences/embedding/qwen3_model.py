"""The Qwen3 transformer in Flax NNX, without the head, and its parameters on a mesh of devices.

The model computes hidden states from token ids, as in the Qwen3 report (Yang et al. 2025). Its blocks are
pre-normalised (RMSNorm; Zhang and Sennrich 2019). Attention has fewer key heads than query heads (Ainslie et al. 2023).
Queries and keys are normalised and then turned by rotary positions (Su et al. 2021). The feed-forward part is SwiGLU
(Shazeer 2020). Attributes have the names of the tensors in checkpoints, so the path of a parameter is the name of its
tensor.

Each device keeps an equal part of every parameter, as in fully sharded data parallelism (Rajbhandari et al. 2020,
ZeRO stage 3). The parts of a block are gathered just before the block runs. Rows of a batch are split over the devices,
so each row is computed on one device, with the same arithmetic for any number of devices.
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

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.embedding.qwen3_checkpoint import CONFIG, Architecture, Tensors

AXIS = "device"
_STACKED = "layers"
Place = Callable[[Any], Any]
Hidden = Float[Array, "row token width"]
Heads = Float[Array, "row token head width"]
Rotation = Float32[Array, "2 token half"]


class Qwen3(nnx.Module):
    """The model from token ids to hidden states; norms, rotary positions and softmax are computed in float32."""

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=architecture.num_hidden_layers)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stack(rngs: nnx.Rngs) -> Block:
            return Block(architecture, dtype, rngs)

        kinds: Any = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.architecture = architecture
        self.embed_tokens = nnx.Embed(architecture.vocab_size, architecture.hidden_size, **kinds)
        self.layers = stack(rngs)  # one block, compiled once; the first axis of its parameters is the layer
        self.norm = nnx.RMSNorm(architecture.hidden_size, epsilon=architecture.rms_norm_eps, **kinds)

    def __call__(self, tokens: Int32[Array, "row token"], spread: Place, gather: Place) -> Hidden:
        """Return the hidden states after the last block, before the last normalisation.

        `spread` distributes the rows of the tokens' vectors over devices; `gather` collects the parameters of a block.
        """
        graph, layers = nnx.split(self.layers)  # a scan takes arrays; the block is rebuilt inside
        rotation = rotations(tokens.shape[1], self.architecture)

        # A scan compiles one block for all layers and gathers the parameters of one block at a time.
        def apply(hidden: Array, layer: Any) -> tuple[Array, None]:
            return nnx.merge(graph, gather(layer))(hidden, rotation), None

        return lax.scan(apply, spread(self.embed_tokens(tokens)), layers)[0]

    def last(self, hidden: Hidden, lengths: Int32[Array, " row"]) -> Float32[Array, "row width"]:
        """Return the embedding: the normalised hidden state of each row's last token, scaled to length 1."""
        # The end token is the last token of each row. Attention is causal, so only the state of the end token depends
        # on the whole text.
        states = jax.vmap(lambda row, length: lax.dynamic_index_in_dim(row, length - 1, keepdims=False))
        # We scale in float32: in bfloat16, lengths would be wrong by up to 0.4 %.
        vectors = self.norm(states(hidden, lengths)).astype(jnp.float32)
        return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


class Block(nnx.Module):
    """Attention, then a feed-forward part; the output of each is added to its input."""

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        norm: Any = {"epsilon": architecture.rms_norm_eps, "dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.input_layernorm = nnx.RMSNorm(architecture.hidden_size, **norm)
        self.self_attn = Attention(architecture, dtype, rngs)
        self.post_attention_layernorm = nnx.RMSNorm(architecture.hidden_size, **norm)
        self.mlp = FeedForward(architecture, dtype, rngs)

    def __call__(self, hidden: Hidden, rotation: Rotation) -> Hidden:
        """Return the hidden states after the block."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Attention(nnx.Module):
    """Causal attention; neighbouring query heads share a key and a value head."""

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        norm: Any = {"epsilon": architecture.rms_norm_eps, "dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.head_width = architecture.head_dim
        query_width = architecture.num_attention_heads * architecture.head_dim
        key_width = architecture.num_key_value_heads * architecture.head_dim
        self.q_proj = Projection(architecture.hidden_size, query_width, dtype, rngs)
        self.k_proj = Projection(architecture.hidden_size, key_width, dtype, rngs)
        self.v_proj = Projection(architecture.hidden_size, key_width, dtype, rngs)
        self.o_proj = Projection(query_width, architecture.hidden_size, dtype, rngs)
        self.q_norm = nnx.RMSNorm(architecture.head_dim, **norm)
        self.k_norm = nnx.RMSNorm(architecture.head_dim, **norm)

    def __call__(self, hidden: Hidden, rotation: Rotation) -> Hidden:
        """Return the output of attention for normalised hidden states."""
        heads = (*hidden.shape[:2], -1, self.head_width)
        queries = rotate(self.q_norm(self.q_proj(hidden).reshape(heads)), rotation)
        keys = rotate(self.k_norm(self.k_proj(hidden).reshape(heads)), rotation)
        values = self.v_proj(hidden).reshape(heads)
        # Padding is at the end of a row: with causal attention no token depends on it, so no other mask is needed.
        mixed = jax.nn.dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(mixed.reshape(*hidden.shape[:2], -1))


class FeedForward(nnx.Module):
    """SwiGLU: one projection gates a second projection, and a third projection maps back to the hidden size."""

    def __init__(self, architecture: Architecture, dtype: Any, rngs: nnx.Rngs) -> None:
        self.gate_proj = Projection(architecture.hidden_size, architecture.intermediate_size, dtype, rngs)
        self.up_proj = Projection(architecture.hidden_size, architecture.intermediate_size, dtype, rngs)
        self.down_proj = Projection(architecture.intermediate_size, architecture.hidden_size, dtype, rngs)

    def __call__(self, hidden: Hidden) -> Hidden:
        """Return the output of the feed-forward part for normalised hidden states."""
        return self.down_proj(jax.nn.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Projection(nnx.Module):
    """A linear map without bias, stored as in checkpoints (output, input), so it is read without a transposition."""

    def __init__(self, num_inputs: int, num_outputs: int, dtype: Any, rngs: nnx.Rngs) -> None:
        initial = nnx.initializers.lecun_normal(in_axis=1, out_axis=0)
        self.weight = nnx.Param(initial(rngs.params(), (num_outputs, num_inputs), dtype))

    def __call__(self, values: Float[Array, "row token input"]) -> Float[Array, "row token output"]:
        """Apply the linear map."""
        return jnp.einsum("rti,oi->rto", values, self.weight[...])


def rotations(num_tokens: int, architecture: Architecture) -> Rotation:
    """Compute cosine and sine of the angles of every position: position / θ^(2 i / head width), 0 <= i < width / 2."""
    half = architecture.head_dim // 2
    frequencies = architecture.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(num_tokens, dtype=jnp.float32)[:, None] * frequencies
    return jnp.stack([jnp.cos(angles), jnp.sin(angles)])


def rotate(heads: Heads, rotation: Rotation) -> Heads:
    """Turn each pair (i, i + half the width) of a head by the i-th angle of its position."""
    cosines, sines = rotation[:, None, :, None, :]
    first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
    # We compute in float32 for every type of model: in bfloat16, the angles of late positions lose their fraction.
    turned = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return turned.astype(heads.dtype)


@dataclass(frozen=True)
class PlacedModel:
    """A model whose parameters are on a mesh of one axis, and the program that embeds batches with this model."""

    mesh: Mesh
    width: int
    parameters: Any
    program: Any  # (parameters, tokens, lengths) -> embeddings; compiled once for each shape of the tokens

    def embed(
        self, tokens: Int32[np.ndarray, "row token"], lengths: Int32[np.ndarray, " row"]
    ) -> Float32[Array, "row width"]:
        """Compute the embeddings of a batch, on every device; the call returns before they are computed.

        The number of rows is a multiple of the size of the mesh. On several hosts, every process passes the same batch.
        """
        # Every device gets all token ids, which are small; the program itself distributes the rows of their vectors.
        sharding = NamedSharding(self.mesh, PartitionSpec())
        batch = [jax.make_array_from_callback(array.shape, sharding, array.__getitem__) for array in (tokens, lengths)]
        return self.program(self.parameters, *batch)


def place_model(architecture: Architecture, tensors: Tensors, mesh: Mesh, dtype: str) -> PlacedModel:
    """Put the model of a checkpoint on a mesh of one axis, as `dtype`; each device gets its parts from disk."""
    # This gives the structure of the model and the shapes of its parameters; nothing is computed.
    graph, shapes = nnx.split(nnx.eval_shape(lambda: Qwen3(architecture, jnp.dtype(dtype), nnx.Rngs(0))))
    parameters = _load(architecture, shapes, tensors, mesh)

    def place(*axes: str | None) -> Callable[[Any], Any]:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return lambda values: jax.tree.map(lambda array: lax.with_sharding_constraint(array, sharding), values)

    def embed(
        parameters: Any, tokens: Int32[Array, "row token"], lengths: Int32[Array, " row"]
    ) -> Float32[Array, "row width"]:
        # By default, accelerators multiply float32 with less precision.
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            model = nnx.merge(graph, parameters)
            hidden = model(tokens, spread=place(AXIS), gather=place())
            # The result is gathered on every device, so that on several hosts each process can read all rows.
            return place()(model.last(hidden, place(AXIS)(lengths)))

    return PlacedModel(mesh, architecture.hidden_size, parameters, jax.jit(embed))


def _load(architecture: Architecture, shapes: Any, tensors: Tensors, mesh: Mesh) -> Any:
    unread = dict(tensors)
    loaded = {}
    for path, variable in nnx.to_flat_state(shapes):
        first, *rest = map(str, path[:-1])
        stacked, shape = first == _STACKED, variable.get_value()
        # The first axis of a stacked parameter is the layer; its tensors, one per layer, have the other axes.
        stems = [f"{first}.{layer}" for layer in range(architecture.num_hidden_layers)] if stacked else [first]
        views = [_take(unread, ".".join([stem, *rest, "weight"]), shape.shape[stacked:]) for stem in stems]
        loaded[path] = variable.replace(_assemble(views, shape, stacked, mesh))
    if unread:
        raise UserError(
            f"Expected the tensors of a plain Qwen3 model, found {min(unread)} besides them; adapters and variants "
            "of the model cannot be read."
        )
    return nnx.from_flat_state(loaded)


def _take(tensors: dict[str, np.ndarray], name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Check the shape of a tensor, remove it from `tensors` and return it."""
    tensor = tensors.pop(name, None)
    if tensor is None or tensor.shape != shape:
        description = "no such tensor" if tensor is None else f"the shape {list(tensor.shape)}"
        raise UserError(
            f"Expected the tensor {name} of the shape {list(shape)}, as {CONFIG} says, found {description} in the "
            "weights; download the checkpoint's files again, all from one place."
        )
    return tensor


def _assemble(views: list[np.ndarray], shape: Any, stacked: bool, mesh: Mesh) -> Array:
    """Make one array on the mesh from the tensors of all layers (or from one tensor)."""

    def read(index: Any) -> np.ndarray:  # `index` has one slice per axis
        parts = [view[index[stacked:]] for view in views]
        return np.stack(parts, dtype=shape.dtype, casting="unsafe") if stacked else parts[0].astype(shape.dtype)

    # The parameters of a block are divided over devices by rows, which are contiguous on disk. The table of tokens is
    # divided by features, because every device looks up all tokens. Vectors (norms) are not divided: every device has
    # all of them.
    whole = len(shape.shape) - stacked < 2 or shape.shape[1] % mesh.size != 0
    sharding = NamedSharding(mesh, PartitionSpec() if whole else PartitionSpec(None, AXIS))
    # JAX calls `read` for the slice of one device at a time, so a host never has the whole model in memory.
    return jax.make_array_from_callback(shape.shape, sharding, read)

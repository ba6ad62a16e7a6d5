"""A small decoder-only transformer for packed sequences, and its loss.

Blocks are pre-normalised (RMSNorm; Zhang and Sennrich 2019). Positions restart at every segment and have no parameters:
they are rotary (Su et al. 2021) or linear biases (ALiBi; Press et al. 2022). Attention is causal within a segment. The
activation is the squared ReLU (So et al. 2021), and the embeddings are tied.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

_CHUNK_LOGITS = 2**22  # 16 MiB of float32: small enough that the same memory is reused
_ROTARY_BASE = 10_000.0
Positions = Literal["rotary", "alibi"]

Tokens = Int[Array, "row token"]
Hidden = Float[Array, "row token width"]
Heads = Float[Array, "row token head size"]


class Gpt(nnx.Module):
    """Maps token ids to hidden states; `cross_entropy` computes their loss without storing all logits.

    Args:
        vocab_size: number of token ids.
        width: size of a hidden state.
        num_layers: number of blocks.
        num_heads: attention heads of a block; 2 * num_heads divides the width.
        seed: seed of the first weights.
        positions: how attention represents positions.
        dtype: type of the computation; weights are float32.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        width: int,
        num_layers: int,
        num_heads: int,
        seed: int,
        positions: Positions = "rotary",
        dtype: DTypeLike = jnp.float32,
    ) -> None:
        rngs = nnx.Rngs(seed)
        normal = nnx.initializers.normal(0.02)
        self.embedding = nnx.Embed(vocab_size, width, embedding_init=normal, dtype=dtype, rngs=rngs)
        blocks = [Block(width, num_heads, num_layers, positions, dtype, rngs) for _ in range(num_layers)]
        self.blocks = getattr(nnx, "List", list)(blocks)  # Flax before 0.12 takes plain lists
        self.norm = nnx.RMSNorm(width, rngs=rngs)  # in float32: the logits' exponentials need this precision

    def __call__(self, inputs: Tokens, segmentation: Tokens, position: Tokens) -> Hidden:
        """The final hidden states.

        Args:
            inputs: token ids.
            segmentation: segment numbers from 1, 0 on padding.
            position: each token's position in its segment, from 0.
        """
        mask = segment_mask(segmentation)
        hidden = self.embedding(inputs)
        for block in self.blocks:
            hidden = block(hidden, mask, position)
        return self.norm(hidden)


class Block(nnx.Module):
    """Attention, then a two-layer perceptron, each added to its input."""

    def __init__(
        self, width: int, num_heads: int, num_layers: int, positions: Positions, dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        inner = nnx.initializers.normal(0.02)
        # Weights are scaled so that initially the sum over all blocks has the variance of one block's output (Radford
        # et al. 2019).
        outer = nnx.initializers.normal(0.02 / (2 * num_layers) ** 0.5)
        linear = partial(nnx.Linear, use_bias=False, dtype=dtype, rngs=rngs)
        self.num_heads, self.positions = num_heads, positions
        self.attention_norm = nnx.RMSNorm(width, dtype=dtype, rngs=rngs)
        self.query_key_value = linear(width, 3 * width, kernel_init=inner)
        self.attention_out = linear(width, width, kernel_init=outer)
        self.perceptron_norm = nnx.RMSNorm(width, dtype=dtype, rngs=rngs)
        self.perceptron_in = linear(width, 4 * width, kernel_init=inner)
        self.perceptron_out = linear(4 * width, width, kernel_init=outer)

    def __call__(self, hidden: Hidden, mask: Bool[Array, "row 1 token token"], position: Tokens) -> Hidden:
        """The hidden states after the block."""
        rows, tokens, width = hidden.shape
        heads = self.query_key_value(self.attention_norm(hidden))
        heads = heads.reshape(rows, tokens, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads[:, :, 0], heads[:, :, 1], heads[:, :, 2]
        if self.positions == "rotary":
            mixed = attend(rotate(query, position), rotate(key, position), value, mask)
        else:
            mixed = attend(query, key, value, mask, distance_bias(position, self.num_heads))
        hidden = hidden + self.attention_out(mixed.reshape(rows, tokens, width))
        active = jax.nn.relu(self.perceptron_in(self.perceptron_norm(hidden)))
        return hidden + self.perceptron_out(active * active)


def segment_mask(segmentation: Tokens) -> Bool[Array, "row 1 token token"]:
    """A mask of the tokens (last axis) that each token attends to: itself and the earlier tokens of its segment."""
    same = segmentation[:, :, None] == segmentation[:, None, :]
    return (same & jnp.tri(segmentation.shape[1], dtype=bool))[:, None]


def attend(
    query: Heads,
    key: Heads,
    value: Heads,
    mask: Bool[Array, "row 1 token token"],
    bias: Float[Array, "row head token token"] | float = 0.0,
) -> Heads:
    """Scaled dot-product attention. Heads are moved to the front: twice as fast on CPU as the library's einsums."""
    query, key, value = query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2)
    scores = (query @ key.swapaxes(2, 3)).astype(jnp.float32) / query.shape[-1] ** 0.5 + bias
    # Every token, even padding, attends at least to itself, so no row of the softmax is empty.
    shares = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min)).astype(value.dtype)
    return (shares @ value).swapaxes(1, 2)


def distance_bias(position: Tokens, num_heads: int) -> Float[Array, "row head token token"]:
    """The biases that ALiBi adds to the scores: -2^(-8 h / heads) times the distance of two tokens, for head h.

    Distances are correct within a segment; tokens of other segments are masked.
    """
    slope = 2.0 ** (-8 * jnp.arange(1, num_heads + 1) / num_heads)
    distance = position[:, :, None] - position[:, None, :]
    return -slope[:, None, None] * distance[:, None].astype(jnp.float32)


def rotate(heads: Heads, position: Tokens) -> Heads:
    """Rotate pairs of coordinates by angles proportional to the position; each pair has its own frequency."""
    half = heads.shape[-1] // 2
    frequency = _ROTARY_BASE ** (-jnp.arange(half) / half)
    angle = (position[:, :, None] * frequency)[:, :, None]
    cosine, sine = jnp.cos(angle).astype(heads.dtype), jnp.sin(angle).astype(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


@jax.custom_vjp
def cross_entropy(
    hidden: Float[Array, "token width"],
    embedding: Float[Array, "vocabulary width"],
    targets: Int[Array, " token"],
    weight: Float[Array, " token"],
) -> tuple[Float[Array, ""], Float[Array, " token"]]:
    """Sum of `weight * -log p(target)` in nats, and every token's `-log p(target)`; only the sum has a gradient.

    Logits, `hidden @ embedding.T`, exist for one chunk of tokens at a time. When a gradient is needed, a chunk's
    gradient is computed together with its loss, so that logits are neither stored nor computed twice.
    """
    # This body runs if no gradient is needed, as in validation; otherwise `_forward` replaces it.

    def normaliser(_: None, chunk: tuple[Array, Array]) -> tuple[None, Array]:
        return None, jax.nn.logsumexp(chunk[0] @ embedding.T, axis=-1)

    normalisers = jax.lax.scan(normaliser, None, _chunks(hidden, weight, len(embedding)))[1].reshape(-1)
    losses = normalisers[: len(hidden)] - jnp.sum(hidden * embedding[targets], axis=-1)
    return weight @ losses, losses


def _chunks(hidden: Array, weight: Array, vocab_size: int) -> tuple[Array, Array]:
    size = min(max(_CHUNK_LOGITS // vocab_size, 1), len(weight))
    missing = -len(weight) % size  # we add tokens of weight 0, which change neither loss nor gradients
    hidden = jnp.pad(hidden, ((0, missing), (0, 0)))
    return hidden.reshape(-1, size, hidden.shape[1]), jnp.pad(weight, (0, missing)).reshape(-1, size)


def _forward(
    hidden: Array, embedding: Array, targets: Array, weight: Array
) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
    def add(by_embedding: Array, chunk: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        hidden, weight = chunk
        logits = hidden @ embedding.T
        largest = logits.max(axis=-1, keepdims=True)  # it is subtracted so that no exponential overflows
        shares = jnp.exp(logits - largest)
        totals = shares.sum(axis=-1, keepdims=True)
        scale = weight[:, None] / totals
        # The shape (width, vocabulary) is twice as fast on CPU as the transpose.
        by_embedding += (scale * hidden).T @ shares
        return by_embedding, ((jnp.log(totals) + largest)[:, 0], scale * (shares @ embedding))

    # -log p(target) = log sum exp(logits) - logit(target). The first term comes from chunks of logits above; the second
    # needs only the targets' rows of the embedding.
    picked = embedding[targets]
    by_embedding, (normalisers, by_hidden) = jax.lax.scan(
        add, jnp.zeros_like(embedding.T), _chunks(hidden, weight, len(embedding))
    )
    losses = normalisers.reshape(-1)[: len(hidden)] - jnp.sum(hidden * picked, axis=-1)
    by_hidden = by_hidden.reshape(-1, hidden.shape[1])[: len(hidden)] - weight[:, None] * picked
    by_embedding = by_embedding.T.at[targets].add(-weight[:, None] * hidden)
    return (weight @ losses, losses), (by_hidden, by_embedding)


def _backward(gradients: tuple[Array, Array], scales: tuple[Array, Array]) -> tuple[Array | None, ...]:
    # The gradients were computed with the sum, which is a scalar, so they only have to be scaled. Targets and
    # weights have no gradients.
    by_hidden, by_embedding = gradients
    return scales[0] * by_hidden, scales[0] * by_embedding, None, None


cross_entropy.defvjp(_forward, _backward)

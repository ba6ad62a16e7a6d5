"""A recurrent model for contiguous batches: an LSTM whose state is carried from each batch to the next.

See Hochreiter and Schmidhuber 1997, "Long short-term memory". Embeddings are tied, as in the lab's transformer.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

Carry = Float[Array, "layer 2 row width"]
"""The state of every layer: its cells and its last outputs."""


class Lstm(nnx.Module):
    """Maps token ids and a state to hidden states and the next state.

    Args:
        vocab_size: number of token ids.
        width: size of a hidden state.
        num_layers: number of layers.
        seed: seed of the first weights.
    """

    def __init__(self, *, vocab_size: int, width: int, num_layers: int, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.embedding = nnx.Embed(vocab_size, width, embedding_init=nnx.initializers.normal(0.1), rngs=rngs)
        layers = [Layer(width, rngs) for _ in range(num_layers)]
        self.layers = getattr(nnx, "List", list)(layers)  # Flax before 0.12 takes plain lists

    def __call__(self, inputs: Int[Array, "row token"], carry: Carry) -> tuple[Float[Array, "row token width"], Carry]:
        """The final hidden states, and the state after the last token."""
        hidden, carries = self.embedding(inputs), []
        for layer, state in zip(self.layers, carry, strict=True):
            hidden, after = layer(hidden, state)
            carries.append(after)
        return hidden, jnp.stack(carries)


class Layer(nnx.Module):
    """One LSTM layer: input gate, forget gate, output gate, and the candidate values."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        scaled = nnx.initializers.variance_scaling(1.0, "fan_in", "uniform")
        self.from_input = nnx.Linear(width, 4 * width, kernel_init=scaled, rngs=rngs)
        self.from_output = nnx.Linear(width, 4 * width, use_bias=False, kernel_init=scaled, rngs=rngs)

    def __call__(
        self, inputs: Float[Array, "row token width"], carry: Float[Array, "2 row width"]
    ) -> tuple[Float[Array, "row token width"], Float[Array, "2 row width"]]:
        """The layer's outputs, and its state after the last token."""
        kernel = self.from_output.kernel[...]

        def step(carry: tuple[Array, Array], from_input: Array) -> tuple[tuple[Array, Array], Array]:
            cell, output = carry
            enters, forgets, leaves, candidate = jnp.split(from_input + output @ kernel, 4, axis=-1)
            # 1 is added, so the cell forgets little at first (Jozefowicz, Zaremba and Sutskever 2015).
            cell = jax.nn.sigmoid(forgets + 1) * cell + jax.nn.sigmoid(enters) * jnp.tanh(candidate)
            output = jax.nn.sigmoid(leaves) * jnp.tanh(cell)
            return (cell, output), output

        # The contribution of the inputs to the gates is one product over all tokens; only that of the outputs needs the
        # loop.
        projected = self.from_input(inputs).swapaxes(0, 1)
        after, outputs = jax.lax.scan(step, (carry[0], carry[1]), projected)
        return outputs.swapaxes(0, 1), jnp.stack(after)

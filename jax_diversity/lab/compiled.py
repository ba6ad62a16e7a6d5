"""A model's compiled functions: one step of training, the losses of a batch, the measures of gradients.

They depend only on the shape of the model, so all training runs of a process share one compilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jax_diversity.lab import gradients as measures
from jax_diversity.lab.model import Gpt, cross_entropy
from jax_diversity.lab.optimizer import adamw
from jax_diversity.lab.settings import WEIGHT_DECAY, Size

Batch = Mapping[str, Any]
"""The arrays of a batch by the loader's names: `inputs`, `targets`, `targets_segmentation`, which is 0 where a token
has no target, `inputs_segmentation` and `inputs_position`."""
Parameters = Any


class Losses(NamedTuple):
    """The losses of a batch, in nats.

    Attributes:
        total: the summed loss of all targets.
        num_targets: the number of targets.
        by_token: the loss of every token, also of tokens that are not targets.
    """

    total: Float[Array, ""]
    num_targets: Float[Array, ""]
    by_token: Float[Array, "row token"]

    @property
    def mean(self) -> Float[Array, ""]:
        """The mean loss per target; 0 if there is no target."""
        return self.total / jnp.maximum(self.num_targets, 1)


class CompiledModel:
    """The compiled functions of one shape of model.

    Weights and the optimiser's state are arguments and results. After `step`, its arguments cannot be used again,
    because it reuses their buffers.

    Args:
        vocab_size: number of token ids.
        size: width, layers and heads.

    Example:
        >>> model = compiled_model(2048, Size(64, 2, 2))
        >>> parameters, state = model.start(seed=0)
        >>> parameters, state, loss = model.step(parameters, state, batch, 3e-3)
        >>> float(loss)
        7.6...
    """

    def __init__(self, vocab_size: int, size: Size) -> None:
        self._vocab_size, self._size = vocab_size, size
        self._graph, _, self._others = nnx.split(self._model(0), nnx.Param, ...)
        self.step = jax.jit(self._step, donate_argnums=(0, 1))
        self.losses = jax.jit(self._losses)
        self.measure_gradients = jax.jit(self._measure_gradients)

    def _model(self, seed: int) -> nnx.Module:
        width, num_layers, num_heads = self._size
        return Gpt(vocab_size=self._vocab_size, width=width, num_layers=num_layers, num_heads=num_heads, seed=seed)

    def start(self, seed: int) -> tuple[Parameters, Any]:
        """Return the initial weights, and the state of the optimiser."""
        parameters = nnx.split(self._model(seed), nnx.Param, ...)[1]
        return parameters, adamw(1.0, WEIGHT_DECAY).init(parameters)

    def _merged(self, parameters: Parameters) -> Any:
        """The model with these weights."""
        return nnx.merge(self._graph, parameters, self._others)

    def _hidden(self, parameters: Parameters, batch: Batch) -> tuple[Array, Array]:
        """The hidden state of every token, and the embedding."""
        model = self._merged(parameters)
        hidden = model(batch["inputs"], batch["inputs_segmentation"], batch["inputs_position"])
        return hidden.reshape(-1, hidden.shape[-1]), model.embedding.embedding[...]

    def _losses(self, parameters: Parameters, batch: Batch) -> Losses:
        return token_losses(*self._hidden(parameters, batch), batch)

    def _step(
        self, parameters: Parameters, state: Any, batch: Any, rate: Array, weight_decay: Array | float = WEIGHT_DECAY
    ) -> tuple[Parameters, Any, Any]:
        """The new weights and state, and the batch's mean loss before the step."""

        def mean(parameters: Parameters) -> Array:
            return self._losses(parameters, batch).mean

        loss, gradient = jax.value_and_grad(mean)(parameters)
        return *updated(parameters, state, gradient, rate, weight_decay), loss

    def _summed_loss(self, parameters: Parameters, batch: Batch) -> Array:
        return self._losses(parameters, batch).total

    def _measure_gradients(self, parameters: Parameters, batch: Batch) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Diversity of the gradients of a batch's sequences, and the mean stable rank of the matrices of their sum."""
        diversity, gradient = self._diversity(parameters, batch)
        return diversity, measures.mean_stable_rank(gradient)

    def _diversity(self, parameters: Parameters, batch: Batch) -> tuple[Float[Array, ""], Any]:
        # The parts are the sequences. The loss of a part is its sum over tokens: the gradients add up to a multiple of
        # the step's gradient, and neither the diversity nor stable ranks depend on the factor.
        parts = {name: rows[:, None] for name, rows in batch.items()}
        return measures.gradient_diversity(self._summed_loss, parameters, parts)


def token_losses(hidden: Float[Array, "token width"], embedding: Float[Array, "id width"], batch: Batch) -> Losses:
    """The losses of a batch whose tokens have these hidden states."""
    weight = target_weight(batch)
    total, losses = cross_entropy(hidden, embedding, batch["targets"].reshape(-1), weight)
    return Losses(total, weight.sum(), losses.reshape(batch["inputs"].shape))


def target_weight(batch: Batch) -> Float[Array, " token"]:
    """1 for tokens whose target counts towards the loss, 0 for other tokens."""
    return (batch["targets_segmentation"] != 0).astype(jnp.float32).reshape(-1)


def updated(
    parameters: Parameters, state: Any, gradient: Any, rate: Array, weight_decay: Array | float
) -> tuple[Parameters, Any]:
    """The weights and the optimiser's state after a step along a gradient."""
    # Rate and weight decay are arguments, so one program is enough for all their values. The optimiser's own rate is 1.
    change, state = adamw(1.0, weight_decay).update(gradient, state, parameters)
    return jax.tree.map(lambda leaf, by: leaf + rate * by, parameters, change), state


compiled_model = lru_cache(maxsize=8)(CompiledModel)
"""A `CompiledModel` with these arguments, made once per process."""

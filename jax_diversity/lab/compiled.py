"""A model's compiled functions: one step of training, the losses of a batch, the measures of gradients.

They depend only on the shape of the model, so all training runs of a process share one compilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jax_diversity.lab import gradients as measures
from jax_diversity.lab.gradient_orders import sketch
from jax_diversity.lab.group_losses import group_losses
from jax_diversity.lab.lstm import Carry, Lstm
from jax_diversity.lab.model import Gpt, Positions, cross_entropy
from jax_diversity.lab.optimizer import adamw
from jax_diversity.lab.settings import WEIGHT_DECAY, Size

Batch = Mapping[str, Any]
"""The arrays of a batch by the loader's names: `inputs`, `targets` and `targets_segmentation`, which is 0 where a token
has no target; for a transformer also `inputs_segmentation` and `inputs_position`."""
Parameters = Any


class Losses(NamedTuple):
    """The losses of a batch, in nats.

    Attributes:
        total: the summed loss of all targets.
        num_targets: the number of targets.
        by_token: the loss of every token, also of tokens that are not targets.
        carry: an LSTM's state after the batch; None for a transformer.
    """

    total: Float[Array, ""]
    num_targets: Float[Array, ""]
    by_token: Float[Array, "row token"]
    carry: Carry | None

    @property
    def mean(self) -> Float[Array, ""]:
        """The mean loss per target; 0 if there is no target."""
        return self.total / jnp.maximum(self.num_targets, 1)


class StepResult(NamedTuple):
    """The result of a step of training, besides the new weights.

    Attributes:
        loss: the batch's mean loss before the step.
        groups: summed loss and number of targets of every group; empty if `num_groups` is 0.
        carry: an LSTM's state after the batch; None for a transformer.
        sketches: sketches of the sequences' gradients, if they were requested.
    """

    loss: Float[Array, ""]
    groups: tuple[Float[Array, " group"], Float[Array, " group"]]
    carry: Carry | None
    sketches: Float[Array, "row size"] | None


class CompiledModel:
    """The compiled functions of one shape of model.

    Weights and the optimiser's state are arguments and results. After `step`, its arguments cannot be used again,
    because it reuses their buffers.

    Args:
        vocab_size: number of token ids.
        size: width, layers and heads.
        kind: the transformer, or an LSTM that carries its state.
        positions: how the transformer's attention represents positions.
        precision: type of the computation; weights are float32.

    Example:
        >>> model = compiled_model(2048, Size(64, 2, 2))
        >>> parameters, state = model.start(seed=0)
        >>> parameters, state, result = model.step(parameters, state, batch, 3e-3)
        >>> float(result.loss)
        7.6...
    """

    def __init__(
        self,
        vocab_size: int,
        size: Size,
        kind: Literal["gpt", "lstm"] = "gpt",
        positions: Positions = "rotary",
        precision: str = "float32",
    ) -> None:
        self._size, self._kind, self._vocab_size = size, kind, vocab_size
        self._positions: Positions = positions
        self._dtype = jnp.dtype(precision)
        self._graph, _, self._others = nnx.split(self._model(0), nnx.Param, ...)
        self.step = jax.jit(self._step, static_argnames=("sketches", "num_groups"), donate_argnums=(0, 1))
        self.losses = jax.jit(self._losses)
        self.measure_gradients = jax.jit(self._measure_gradients)
        self.diagnose = jax.jit(self._diagnose)

    def _model(self, seed: int) -> Gpt | Lstm:
        width, num_layers, num_heads = self._size
        if self._kind == "lstm":
            return Lstm(vocab_size=self._vocab_size, width=width, num_layers=num_layers, seed=seed)
        return Gpt(
            vocab_size=self._vocab_size,
            width=width,
            num_layers=num_layers,
            num_heads=num_heads,
            seed=seed,
            positions=self._positions,
            dtype=self._dtype,
        )

    def start(self, seed: int) -> tuple[Parameters, Any]:
        """Return the initial weights, and the state of the optimiser."""
        parameters = nnx.split(self._model(seed), nnx.Param, ...)[1]
        return parameters, adamw(1.0, WEIGHT_DECAY).init(parameters)

    def first_carry(self, num_rows: int) -> Carry | None:
        """The state before the first token; None for a transformer."""
        return jnp.zeros((self._size.num_layers, 2, num_rows, self._size.width)) if self._kind == "lstm" else None

    def _hidden(self, parameters: Parameters, batch: Batch, carry: Carry | None) -> tuple[Array, Array, Carry | None]:
        model: Any = nnx.merge(self._graph, parameters, self._others)
        if self._kind == "lstm":
            hidden, carry = model(batch["inputs"], carry)
        else:
            hidden = model(batch["inputs"], batch["inputs_segmentation"], batch["inputs_position"])
        return hidden.reshape(-1, hidden.shape[-1]), model.embedding.embedding[...], carry

    def _losses(self, parameters: Parameters, batch: Batch, carry: Carry | None = None) -> Losses:
        hidden, embedding, after = self._hidden(parameters, batch, carry)
        weight = _weight(batch)
        total, losses = cross_entropy(hidden, embedding, batch["targets"].reshape(-1), weight)
        return Losses(total, weight.sum(), losses.reshape(batch["inputs"].shape), after)

    def _mean_loss(self, parameters: Parameters, batch: Batch, carry: Carry | None = None) -> tuple[Array, Losses]:
        losses = self._losses(parameters, batch, carry)
        return losses.mean, losses

    def _step(
        self,
        parameters: Parameters,
        state: Any,
        batch: Batch,
        rate: Array,
        carry: Any = None,
        weight_decay: Array | float = WEIGHT_DECAY,
        *,
        sketches: bool = False,
        num_groups: int = 0,
    ) -> tuple[Parameters, Any, StepResult]:
        # The model does not read the groups of the segments.
        groups = batch.get("groups")
        batch = {name: each for name, each in batch.items() if name != "groups"}
        sketched = None
        if sketches:
            # Gradients of single sequences; their weighted sum is the batch's gradient, which is not computed again.
            number = jnp.maximum(_num_targets(batch), 1).astype(jnp.float32)
            rows = {name: each[:, None] for name, each in batch.items()}

            def of_row(row: Batch) -> tuple[Array, Array, Array, Any]:
                (loss, losses), gradient = jax.value_and_grad(self._mean_loss, has_aux=True)(parameters, row)
                share = jnp.maximum(_num_targets(row), 1) / number
                scaled = jax.tree.map(lambda leaf: leaf * share, gradient)
                return loss * share, losses.by_token[0], sketch(gradient), scaled

            each, by_token, sketched, parts = jax.vmap(of_row)(rows)
            loss, after, gradient = each.sum(), None, jax.tree.map(lambda leaf: leaf.sum(axis=0), parts)
        else:
            (loss, losses), gradient = jax.value_and_grad(self._mean_loss, has_aux=True)(parameters, batch, carry)
            by_token, after = losses.by_token, losses.carry
        # Rate and weight decay are arguments, so one program is enough for all their values. The optimiser's own rate
        # is 1.
        change, state = adamw(1.0, weight_decay).update(gradient, state, parameters)
        parameters = jax.tree.map(lambda leaf, by: leaf + rate * by, parameters, change)
        by_group = (jnp.zeros(0), jnp.zeros(0))
        if groups is not None:
            by_group = group_losses(by_token, batch["targets_segmentation"], groups, num_groups)
        return parameters, state, StepResult(loss, by_group, after, sketched)

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

    def _diagnose(
        self, parameters: Parameters, batch: Batch, others: Batch, tasks: Mapping[str, Batch]
    ) -> dict[str, Float[Array, ""]]:
        """Measure a batch's gradient; `others` are further batches (batch, row, token); a task is one batch."""

        def mean(parameters: Parameters, part: Batch) -> Array:
            return self._mean_loss(parameters, part)[0]

        diversity, gradient = self._diversity(parameters, batch)
        found = {"gradient/diversity": diversity}
        found |= {f"stable_rank/{name}": rank for name, rank in measures.stable_ranks(gradient).items()}
        several = jax.lax.map(lambda part: jax.grad(mean)(parameters, part), others)
        found["gradient/variance"] = measures.between_batches(several)
        for name, part in tasks.items():
            # A custom derivative has no second derivative, so the Hessian needs the loss in plain operations.
            found[f"cosine/{name}"] = measures.cosine(gradient, jax.grad(mean)(parameters, part))
            plain = partial(self._plain_loss, batch=part)
            found[f"curvature/{name}"] = measures.curvature_along(plain, parameters, gradient)
        return found

    def _plain_loss(self, parameters: Parameters, batch: Batch) -> Array:
        hidden, embedding, _ = self._hidden(parameters, batch, None)
        weight = _weight(batch)
        logits = jax.nn.log_softmax(hidden @ embedding.T)
        picked = jnp.take_along_axis(logits, batch["targets"].reshape(-1, 1), axis=1)[:, 0]
        return -(weight @ picked) / jnp.maximum(weight.sum(), 1)


def _num_targets(batch: Batch) -> Array:
    return (batch["targets_segmentation"] != 0).sum()


def _weight(batch: Batch) -> Float[Array, " token"]:
    """1 for tokens whose target counts towards the loss, 0 for other tokens."""
    return (batch["targets_segmentation"] != 0).astype(jnp.float32).reshape(-1)


compiled_model = lru_cache(maxsize=8)(CompiledModel)
"""A `CompiledModel` with these arguments, made once per process."""

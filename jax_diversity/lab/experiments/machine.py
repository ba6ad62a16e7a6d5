"""A model's compiled functions: one step of training, the losses of a batch, the measures of gradients.

They depend on the shape of the model alone, so that all trials of a process share one compilation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jax_diversity.lab import gradients as measures
from jax_diversity.lab.experiments.settings import SIZES
from jax_diversity.lab.gradient_orders import sketch
from jax_diversity.lab.group_losses import group_losses
from jax_diversity.lab.lstm import Carry, Lstm
from jax_diversity.lab.model import Gpt, cross_entropy, summed_cross_entropy
from jax_diversity.lab.optimizer import adamw

Batch = Mapping[str, Any]
Parameters = Any


class Step(NamedTuple):
    """What one step of training leaves besides the new weights.

    Attributes:
        loss: the batch's mean loss before the step.
        groups: summed loss and number of targets of every group; of no group where none was asked for.
        carry: an LSTM's state after the batch; None of a transformer.
        sketches: of the sequences' gradients, where they were asked for.
    """

    loss: Float[Array, ""]
    groups: tuple[Float[Array, " group"], Float[Array, " group"]]
    carry: Carry | None
    sketches: Float[Array, "row size"] | None


class Machine:
    """One shape of model. Weights and the optimiser's state are passed in and out; those passed in are used up."""

    def __init__(self, kind: str, size: str, positions: Any, precision: str, vocab_size: int) -> None:
        self._shape = SIZES[kind][size]
        self._kind, self._positions, self._vocab_size = kind, positions, vocab_size
        self._dtype = jnp.dtype(precision)
        self._graph, _, self._others = nnx.split(self._model(0), nnx.Param, ...)
        # At rate 1: the step multiplies by its own rate, an argument, so that one program serves all rates.
        self._rule = adamw(1.0)
        self.step = jax.jit(self._step, static_argnames=("sketches", "num_groups"), donate_argnums=(0, 1))
        self.losses = jax.jit(self._token_losses)
        self.diagnose = jax.jit(self._diagnose)

    def _model(self, seed: int) -> Gpt | Lstm:
        width, num_layers, num_heads = self._shape
        if self._kind == "lstm":
            return Lstm(vocab_size=self._vocab_size, width=width, num_layers=num_layers, seed=seed)
        shape = {"width": width, "num_layers": num_layers, "num_heads": num_heads, "positions": self._positions}
        return Gpt(vocab_size=self._vocab_size, seed=seed, dtype=self._dtype, **shape)

    def start(self, seed: int) -> tuple[Parameters, Any]:
        """The first weights, and the state of the optimiser."""
        parameters = nnx.split(self._model(seed), nnx.Param, ...)[1]
        return parameters, self._rule.init(parameters)

    def first_carry(self, num_rows: int) -> Carry | None:
        """The state before anything was read; None of a transformer."""
        return jnp.zeros((self._shape.num_layers, 2, num_rows, self._shape.width)) if self._kind == "lstm" else None

    def _hidden(self, parameters: Parameters, batch: Batch, carry: Carry | None) -> tuple[Array, Array, Carry | None]:
        model: Any = nnx.merge(self._graph, parameters, self._others)
        if self._kind == "lstm":
            hidden, carry = model(batch["inputs"], carry)
        else:
            hidden = model(batch["inputs"], batch["segmentation"], batch["position"])
        return hidden.reshape(-1, hidden.shape[-1]), model.embedding.embedding[...], carry

    def _mean_loss(self, parameters: Parameters, batch: Batch, carry: Carry | None) -> tuple[Array, tuple]:
        hidden, embedding, after = self._hidden(parameters, batch, carry)
        weight = batch["is_target"].reshape(-1).astype(jnp.float32)
        loss, losses = cross_entropy(hidden, embedding, batch["targets"].reshape(-1), weight)
        return loss / jnp.maximum(weight.sum(), 1), (losses.reshape(batch["inputs"].shape), after)

    def _token_losses(self, parameters: Parameters, batch: Batch, carry: Carry | None = None) -> tuple[Array, Any]:
        return self._mean_loss(parameters, batch, carry)[1]

    def _step(
        self,
        parameters: Parameters,
        state: Any,
        batch: Batch,
        rate: Array,
        carry: Any = None,
        *,
        sketches: bool = False,
        num_groups: int = 0,
    ) -> tuple[Parameters, Any, Step]:
        # Which group every segment is of is no part of what the model reads.
        groups = batch.get("groups")
        batch = {name: each for name, each in batch.items() if name != "groups"}
        sketched = None
        if sketches:
            # Each sequence's gradient by itself; their weighted sum is the batch's, which is not computed again.
            number = jnp.maximum(batch["is_target"].sum(), 1).astype(jnp.float32)
            rows = {name: each[:, None] for name, each in batch.items()}

            def of_row(row: Batch) -> tuple[Array, Array, Array, Any]:
                (loss, (losses, _)), gradient = jax.value_and_grad(self._mean_loss, has_aux=True)(parameters, row, None)
                share = jnp.maximum(row["is_target"].sum(), 1) / number
                return loss * share, losses[0], sketch(gradient), jax.tree.map(lambda leaf: leaf * share, gradient)

            each, losses, sketched, parts = jax.vmap(of_row)(rows)
            loss, after, gradient = each.sum(), None, jax.tree.map(lambda leaf: leaf.sum(axis=0), parts)
        else:
            (loss, (losses, after)), gradient = jax.value_and_grad(self._mean_loss, has_aux=True)(
                parameters, batch, carry
            )
        change, state = self._rule.update(gradient, state, parameters)
        parameters = jax.tree.map(lambda leaf, by: leaf + rate * by, parameters, change)
        by_group = (jnp.zeros(0), jnp.zeros(0))
        if groups is not None:
            targets = jnp.where(batch["is_target"] > 0, batch["segmentation"], 0)
            by_group = group_losses(losses, targets, groups, num_groups)
        return parameters, state, Step(loss, by_group, after, sketched)

    def _diagnose(
        self, parameters: Parameters, batch: Batch, others: Batch, tasks: Mapping[str, Batch]
    ) -> dict[str, Float[Array, ""]]:
        """Measures of a batch's gradient; `others` are further batches (batch, row, token), tasks one batch each."""

        def summed(parameters: Parameters, part: Batch) -> Array:
            hidden, embedding, _ = self._hidden(parameters, part, None)
            weight = part["is_target"].reshape(-1).astype(jnp.float32)
            return summed_cross_entropy(hidden, embedding, part["targets"].reshape(-1), weight)

        def mean(parameters: Parameters, part: Batch) -> Array:
            return self._mean_loss(parameters, part, None)[0]

        diversity, gradient = measures.gradient_diversity(
            summed, parameters, {name: rows[:, None] for name, rows in batch.items()}
        )
        found = {"gradient/diversity": diversity}
        found |= {f"stable_rank/{name}": rank for name, rank in measures.stable_ranks(gradient).items()}
        several = jax.lax.map(lambda part: jax.grad(mean)(parameters, part), others)
        found["gradient/variance"] = measures.between_batches(several)
        for name, part in tasks.items():
            # A custom derivative gives no second one: the Hessian needs the loss in plain operations.
            found[f"cosine/{name}"] = measures.cosine(gradient, jax.grad(mean)(parameters, part))
            plain = partial(self._plain_loss, batch=part)
            found[f"curvature/{name}"] = measures.curvature_along(plain, parameters, gradient)
        return found

    def _plain_loss(self, parameters: Parameters, batch: Batch) -> Array:
        hidden, embedding, _ = self._hidden(parameters, batch, None)
        weight = batch["is_target"].reshape(-1).astype(jnp.float32)
        logits = jax.nn.log_softmax(hidden @ embedding.T)
        picked = jnp.take_along_axis(logits, batch["targets"].reshape(-1, 1), axis=1)[:, 0]
        return -(weight @ picked) / jnp.maximum(weight.sum(), 1)


@lru_cache(maxsize=8)
def machine(kind: str, size: str, positions: str, precision: str, vocab_size: int) -> Machine:
    """The compiled functions of a shape of model, made once in a process."""
    return Machine(kind, size, positions, precision, vocab_size)

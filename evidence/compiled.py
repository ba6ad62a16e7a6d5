"""The compiled functions of a trial's model: the lab's, and what only experiments compute.

The model is the lab's GPT, also with other positions or in half precision, or an LSTM. If the trial needs them, a step
also returns the losses of groups and sketches of the sequences' gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from evidence import gradients as measures
from evidence.gradient_orders import SKETCH_SIZE
from evidence.lstm import Carry, Lstm
from jax_diversity.lab.compiled import Batch, CompiledModel, Losses, Parameters, target_weight, token_losses, updated
from jax_diversity.lab.explaining.sketching import sketch
from jax_diversity.lab.group_losses import group_losses
from jax_diversity.lab.model import Gpt, Positions
from jax_diversity.lab.settings import WEIGHT_DECAY, Size


@partial(jax.tree_util.register_dataclass, data_fields=["arrays", "carry"], meta_fields=["sketches", "num_groups"])
@dataclass(frozen=True)
class Given:
    """A batch, and options of its training step.

    Attributes:
        arrays: the input of the model; an LSTM needs no segments and positions.
        carry: the state of an LSTM before the batch; None for a transformer.
        sketches: whether the step also sketches the sequences' gradients.
        num_groups: number of groups whose losses the step sums; `arrays["groups"]` then has the group of every segment.
    """

    arrays: Batch
    carry: Any = None
    sketches: bool = False
    num_groups: int = 0


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


class TrialModel(CompiledModel):
    """The compiled functions of one kind and shape of model; the batch of a `step` is a `Given`.

    Args:
        vocab_size: number of token ids.
        size: width, layers and heads.
        kind: the transformer, or an LSTM that carries its state.
        positions: how the transformer's attention represents positions.
        precision: type of the computation; weights are float32.
    """

    def __init__(
        self,
        vocab_size: int,
        size: Size,
        kind: Literal["gpt", "lstm"] = "gpt",
        positions: Positions = "rotary",
        precision: str = "float32",
    ) -> None:
        self._kind: Literal["gpt", "lstm"] = kind
        self._positions: Positions = positions
        self._dtype = jnp.dtype(precision)
        super().__init__(vocab_size, size)
        self.losses_after = jax.jit(self._losses_after)
        self.diagnose = jax.jit(self._diagnose)

    def _model(self, seed: int) -> nnx.Module:
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

    def first_carry(self, num_rows: int) -> Carry | None:
        """The state before the first token; None for a transformer."""
        return jnp.zeros((self._size.num_layers, 2, num_rows, self._size.width)) if self._kind == "lstm" else None

    def _losses_after(self, parameters: Parameters, batch: Batch, carry: Carry | None) -> tuple[Losses, Carry | None]:
        """The losses of a batch, and an LSTM's state after it."""
        if self._kind == "gpt":
            return self._losses(parameters, batch), None
        model = self._merged(parameters)
        hidden, carry = model(batch["inputs"], carry)
        return token_losses(hidden.reshape(-1, hidden.shape[-1]), model.embedding.embedding[...], batch), carry

    def _mean_loss(self, parameters: Parameters, batch: Batch, carry: Carry | None = None) -> tuple[Array, Any]:
        losses, after = self._losses_after(parameters, batch, carry)
        return losses.mean, (losses.by_token, after)

    def _step(
        self, parameters: Parameters, state: Any, batch: Given, rate: Array, weight_decay: Array | float = WEIGHT_DECAY
    ) -> tuple[Parameters, Any, StepResult]:
        # The model does not read the groups of the segments.
        groups = batch.arrays.get("groups")
        arrays = {name: array for name, array in batch.arrays.items() if name != "groups"}
        after = sketched = None
        if batch.sketches:
            # Gradients of single sequences; their weighted sum is the batch's gradient, which is not computed again.
            number = jnp.maximum(_num_targets(arrays), 1).astype(jnp.float32)
            rows = {name: array[:, None] for name, array in arrays.items()}

            def of_row(row: Batch) -> tuple[Array, Array, Array, Any]:
                (loss, (by_token, _)), gradient = jax.value_and_grad(self._mean_loss, has_aux=True)(parameters, row)
                share = jnp.maximum(_num_targets(row), 1) / number
                scaled = jax.tree.map(lambda leaf: leaf * share, gradient)
                return loss * share, by_token[0], sketch(gradient, SKETCH_SIZE), scaled

            losses, by_token, sketched, parts = jax.vmap(of_row)(rows)
            loss, gradient = losses.sum(), jax.tree.map(lambda leaf: leaf.sum(axis=0), parts)
        else:
            differentiated = jax.value_and_grad(self._mean_loss, has_aux=True)
            (loss, (by_token, after)), gradient = differentiated(parameters, arrays, batch.carry)
        parameters, state = updated(parameters, state, gradient, rate, weight_decay)
        by_group = (jnp.zeros(0), jnp.zeros(0))
        if groups is not None:
            by_group = group_losses(by_token, arrays["targets_segmentation"], groups, batch.num_groups)
        return parameters, state, StepResult(loss, by_group, after, sketched)

    def _diagnose(
        self, parameters: Parameters, batch: Batch, others: Batch, tasks: Mapping[str, Batch]
    ) -> dict[str, Float[Array, ""]]:
        """Measure a batch's gradient; `others` are further batches (batch, row, token); a task is one batch."""

        def mean(parameters: Parameters, part: Batch) -> Array:
            return self._losses(parameters, part).mean

        diversity, gradient = self._diversity(parameters, batch)
        values = {"gradient/diversity": diversity}
        values |= {f"stable_rank/{name}": rank for name, rank in measures.stable_ranks(gradient).items()}
        several = jax.lax.map(lambda part: jax.grad(mean)(parameters, part), others)
        values["gradient/variance"] = measures.between_batches(several)
        for name, part in tasks.items():
            # A custom derivative has no second derivative, so the Hessian needs the loss in plain operations.
            values[f"cosine/{name}"] = measures.cosine(gradient, jax.grad(mean)(parameters, part))
            plain = partial(self._plain_loss, batch=part)
            values[f"curvature/{name}"] = measures.curvature_along(plain, parameters, gradient)
        return values

    def _plain_loss(self, parameters: Parameters, batch: Batch) -> Array:
        hidden, embedding = self._hidden(parameters, batch)
        weight = target_weight(batch)
        logits = jax.nn.log_softmax(hidden @ embedding.T)
        picked = jnp.take_along_axis(logits, batch["targets"].reshape(-1, 1), axis=1)[:, 0]
        return -(weight @ picked) / jnp.maximum(weight.sum(), 1)


def _num_targets(batch: Batch) -> Array:
    return (batch["targets_segmentation"] != 0).sum()


trial_model = lru_cache(maxsize=8)(TrialModel)
"""A `TrialModel` with these arguments, made once per process."""

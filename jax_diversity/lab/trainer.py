"""The training loop: one compiled step for each batch, with a learning rate for each step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_diversity.lab.compiled import CompiledModel
from jax_diversity.lab.settings import WEIGHT_DECAY


class Taken(NamedTuple):
    """A step that was started; on an accelerator its results may not be computed yet.

    Attributes:
        step: its number, from 0.
        batch: its batch.
        result: the third result of the model's `step`: its loss, or a tuple with the loss and further values.
        waited: seconds that the loop waited for the batch.
        started: when the step was started, by `time.perf_counter`.
    """

    step: int
    batch: Any
    result: Any
    waited: float
    started: float


class Trainer:
    """A model in training.

    Args:
        model: the compiled functions.
        give: returns the batch of a step; steps are requested one after another.
        seed: seed of the first weights.
        weight_decay: AdamW's weight decay.

    Attributes:
        parameters: the weights.
        state: the optimiser's state.
    """

    def __init__(
        self, model: CompiledModel, give: Callable[[int], Any], seed: int, weight_decay: float = WEIGHT_DECAY
    ) -> None:
        self.model, self._give = model, give
        self._weight_decay = jnp.float32(weight_decay)
        self.parameters, self.state = model.start(seed)

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.parameters))

    def steps(
        self,
        first: int,
        last: int,
        rate: Callable[[int], Any],
        before: Callable[[int, Any], None] = lambda step, batch: None,
    ) -> Iterator[Taken]:
        """Run the steps `first` to `last - 1`.

        Args:
            first: number of steps already done.
            last: number of steps of the whole run.
            rate: the learning rate of a step.
            before: called before every step, with its number and batch.
        """
        for step in range(first, last):
            start = time.perf_counter()
            batch = self._give(step)
            waited = time.perf_counter() - start
            before(step, batch)
            start = time.perf_counter()
            self.parameters, self.state, result = self.model.step(
                self.parameters, self.state, batch, jnp.float32(rate(step)), self._weight_decay
            )
            yield Taken(step, batch, result, waited, start)

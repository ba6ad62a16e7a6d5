"""The training loop: batches from a source, one compiled step, and a learning rate for each step.

The command `train` and the trials of experiments use this loop. They log, measure and store different values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from jax_diversity.lab.compiled import Batch, CompiledModel, StepResult
from jax_diversity.lab.settings import WEIGHT_DECAY


class Given(NamedTuple):
    """A batch, and options of its training step.

    Attributes:
        arrays: the input of the model.
        carry: the state of an LSTM before the batch; None for a transformer.
        sketches: whether the step also sketches the sequences' gradients.
        num_groups: number of groups whose losses the step sums; `arrays["groups"]` then has the group of every segment.
    """

    arrays: Batch
    carry: Any = None
    sketches: bool = False
    num_groups: int = 0


@runtime_checkable
class Source(Protocol):
    """The batches of a training run, one after another."""

    def give(self, step: int) -> Given:
        """The batch of a step; steps are requested one after another."""
        ...

    def observe(self, step: int, result: StepResult) -> Mapping[str, float]:
        """Called with the result of a step before the next batch is requested; returns named values to store."""
        ...


class Taken(NamedTuple):
    """A step that was started; on an accelerator its results may not be computed yet.

    Attributes:
        step: its number, from 0.
        given: its batch.
        result: its loss, and the other values that the source requested.
        values: the values that `Source.observe` returned.
        waited: seconds that the loop waited for the batch.
        started: when the step was started, by `time.perf_counter`.
    """

    step: int
    given: Given
    result: StepResult
    values: Mapping[str, float]
    waited: float
    started: float

    @property
    def num_targets(self) -> int:
        """Number of tokens that count towards the loss."""
        return int(np.count_nonzero(self.given.arrays["targets_segmentation"]))


class Trainer:
    """A model in training.

    Args:
        model: the compiled functions.
        source: the batches.
        seed: seed of the first weights.
        weight_decay: AdamW's weight decay.

    Attributes:
        parameters: the weights.
        state: the optimiser's state.
    """

    def __init__(self, model: CompiledModel, source: Source, seed: int, weight_decay: float = WEIGHT_DECAY) -> None:
        self.model, self.source = model, source
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
        before: Callable[[int, Given], None] = lambda step, given: None,
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
            given = self.source.give(step)
            waited = time.perf_counter() - start
            before(step, given)
            start = time.perf_counter()
            self.parameters, self.state, result = self.model.step(
                self.parameters,
                self.state,
                given.arrays,
                jnp.float32(rate(step)),
                given.carry,
                self._weight_decay,
                sketches=given.sketches,
                num_groups=given.num_groups,
            )
            yield Taken(step, given, result, self.source.observe(step, result), waited, start)

"""Sources of a trial's batches: an order, an order learnt from gradients, a mixture changed by losses, or a stream.

A source gives a batch and then observes the result of its step. A learnt order or a changing mixture uses the result to
choose the next batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64, Integer

from evidence.compiled import Given, StepResult, TrialModel
from evidence.gradient_orders import GradientOrder
from evidence.mixture_rules import MixtureRule
from evidence.orders import Order, configured_order, trial_order
from evidence.sequences import PackedTokens, rotated_rows
from evidence.settings import TrialConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.group_losses import groups_of_segments
from jax_diversity.ordering.shortages import UnmetTargets

if TYPE_CHECKING:
    from jax_diversity.streaming.dataset import Dataset

_NEXT_EPOCH = 1_000_003
"""Difference between the seeds of two epochs, so that different order seeds give different epochs."""


class Ordered:
    """Give sequences in one order, or in a new order in each epoch, which may be learnt from gradients."""

    def __init__(self, config: TrialConfig, packed: PackedTokens) -> None:
        self._config, self.packed = config, packed
        self.steps_per_epoch = len(packed.sequences) // config.batch_size
        _check_batches(self.steps_per_epoch, config)
        self._learner: GradientOrder | None = None
        self.order: Order = np.zeros(0, np.int64)
        self.rows: Order = self.order
        self.upcoming: Order = self.order
        """The sequences of the epoch after the current batch."""

    def give(self, step: int) -> Given:
        """The next sequences of the order."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if place == 0:
            self.order = self._epoch_order(epoch)
        size = self._config.batch_size
        self.rows = self.order[place * size : (place + 1) * size]
        self.upcoming = self.order[(place + 1) * size :]
        return Given(self.packed.sequences.batch(self.rows), sketches=self._learner is not None)

    def _epoch_order(self, epoch: int) -> Order:
        config = self._config
        if self._learner is not None:
            return self._learner.next_epoch()
        if epoch and config.epoch_orders == "same":
            return self.order
        seed = config.order_seed + (_NEXT_EPOCH * epoch if config.epoch_orders == "fresh" else 0)
        order = trial_order(config, self.packed, seed)
        if config.learner != "none":
            self._learner = GradientOrder(order, config.learner)
        return order

    def observe(self, step: int, result: StepResult) -> Mapping[str, float]:
        """Learn the next epoch's order from gradients, if the trial does so."""
        if self._learner is not None and result.sketches is not None:
            self._learner.observe(result.sketches)
        return {}


class Mixed(Ordered):
    """An order that is renewed every few steps, with the groups' shares that a rule computes from losses.

    Args:
        config: settings of the trial.
        packed: the sequences.
        rule: computes shares from losses.
        names: names of the groups.
        codes: the group of every document.
    """

    def __init__(
        self,
        config: TrialConfig,
        packed: PackedTokens,
        rule: MixtureRule,
        names: tuple[str, ...],
        codes: Int64[np.ndarray, " document"],
    ) -> None:
        super().__init__(config, packed)
        self._rule, self._names, self._codes = rule, names, codes
        # Losses are added up when the order is renewed, because reading a loss waits for the device.
        self._waiting: list[tuple[Any, Any]] = []

    def give(self, step: int) -> Given:
        """The next sequences of the order, with their segments' groups."""
        batch = super().give(step)
        groups = groups_of_segments(self.packed.segments, self._codes, self.rows)
        return replace(batch, arrays={**batch.arrays, "groups": groups}, num_groups=len(self._names))

    def observe(self, step: int, result: StepResult) -> Mapping[str, float]:
        """Store the losses; after `replan_every` steps make a new order of the rest of the epoch."""
        self._waiting.append(result.groups)
        if (step + 1) % self._config.replan_every:
            return {}
        sums, counts = (
            np.sum([np.asarray(sums_and_counts, np.float64) for sums_and_counts in part], axis=0)
            for part in zip(*self._waiting, strict=True)
        )
        self._waiting = []
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        shares = self._rule.update(means, counts.astype(np.int64))
        self._plan_again(shares, step)
        family = self._config.mixture_family
        return {f"share/{family}/{name}": share for name, share in zip(self._names, shares.tolist(), strict=True)}

    def _plan_again(self, shares: Float64[np.ndarray, " group"], step: int) -> None:
        """Order the rest of the epoch by the shares; sequences that were read keep their positions."""
        config = self._config
        seen = self.order[: len(self.order) - len(self.upcoming)]
        with warnings.catch_warnings():
            # A group may be used up before the epoch ends; then training ends earlier or reads the other groups.
            warnings.simplefilter("ignore", UnmetTargets)
            targets, seed = {config.mixture_family: shares}, config.order_seed + step
            self.order = configured_order(config, self.packed, seed, targets=targets, consumed=seen)


class Contiguous:
    """The corpus as one stream, cut into rows, for a model that carries its state."""

    def __init__(self, config: TrialConfig, model: TrialModel, dataset: Dataset) -> None:
        self._config, self._model, self._length = config, model, dataset.sequence_length
        self._stream = _stream(dataset)
        self._row_length = len(self._stream) // config.batch_size
        self.steps_per_epoch = max(self._row_length - 1, 0) // self._length
        _check_batches(self.steps_per_epoch, config)
        self._carry: Any = None
        self._rows: Integer[np.ndarray, "row token"] = np.zeros((0, 0), np.int32)

    def give(self, step: int) -> Given:
        """The next columns of all rows."""
        config = self._config
        epoch, column = divmod(step, self.steps_per_epoch)
        if column == 0:
            self._carry = self._model.first_carry(config.batch_size)
            offsets = np.zeros(config.batch_size, np.int64)
            if config.layout == "rotated":
                rng = np.random.default_rng((config.order_seed, epoch))
                offsets = rng.integers(self._row_length, size=config.batch_size)
            self._rows = rotated_rows(self._stream, config.batch_size, offsets)
        return Given(stream_batch(self._rows, column * self._length, self._length), self._carry)

    def observe(self, step: int, result: StepResult) -> Mapping[str, float]:
        """Store the state for the next batch."""
        self._carry = result.carry
        return {}


def stream_batch(
    rows: Integer[np.ndarray, "row column"], start: int, length: int
) -> dict[str, Integer[np.ndarray, "row token"]]:
    """Return some columns of a stream's rows as a batch, in which every token has a target."""
    tokens = rows[:, start : start + length + 1].astype(np.int32)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:], "targets_segmentation": np.ones_like(tokens[:, 1:])}


def _stream(dataset: Dataset) -> Integer[np.ndarray, " token"]:
    """The tokens of all training documents, end to end, in the corpus's order."""
    documents: Int64[np.ndarray, " document"] = np.unique(dataset.segments.document_index)
    return np.concatenate([np.asarray(dataset.tokens.document(index)) for index in documents.tolist()])


def _check_batches(steps_per_epoch: int, config: TrialConfig) -> None:
    if steps_per_epoch < 1:
        raise UserError(
            f"Expected a dataset with at least one batch of {config.batch_size} sequences, found fewer; lower "
            "trial.batch_size."
        )

"""Run one trial: train a small model on one order; the result is a row of numbers."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from evidence.averaging import MeanOfWeights
from evidence.batches import Contiguous, Mixed, Ordered, stream_batch
from evidence.compiled import Given, trial_model
from evidence.evaluation import Documents, Evaluation
from evidence.mixture_rules import make_rule
from evidence.results import Measure, TrialRow
from evidence.sequences import (
    PackedTokens,
    Sequences,
    pack_documents,
    rotated_rows,
    training_sequences,
)
from evidence.settings import SIZES, VERSION, Trial, TrialConfig
from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.group_losses import document_codes
from jax_diversity.lab.noise import loss_noise
from jax_diversity.lab.trainer import Trainer

if TYPE_CHECKING:
    from jax_diversity.streaming.dataset import Dataset

_EVALUATION_ROWS = 32
_NOISE = "noise"
"""`noise/k` is the standard deviation of the mean training loss of k steps, in the second half of a run."""
_STEPS_BETWEEN_CHECKS = 50
"""Number of steps between checks for a finite loss: each check waits for the device."""
_CURVE_POINTS = 100
"""Number of mean losses that a row stores for each epoch."""
_STREAM_ROWS = 8
"""Number of rows into which a text is cut for a model with a state."""
_OTHER_BATCHES = 4
"""Number of batches after the current one that measure the gradients' variance."""


def run_trial(trial: Trial, material: Material, experiment: str) -> TrialRow:
    """Train one model and measure it; a run stops if its loss becomes infinite or NaN, and also gives a row."""
    started = time.perf_counter()
    run = _Run(trial.config, material)
    run.train()
    return TrialRow(
        identity=trial.identity,
        experiment=experiment,
        arm=trial.arm,
        varied=dict(trial.varied),
        order_seed=trial.config.order_seed,
        weight_seed=trial.config.weight_seed,
        settings=dataclasses.asdict(trial.config),
        data=material.fingerprint,
        version=VERSION,
        status="diverged" if run.diverged else "done",
        num_parameters=run.trainer.num_parameters,
        num_steps=run.num_steps,
        num_tokens=run.num_tokens,
        seconds=time.perf_counter() - started,
        device=_device(),
        digest=run.digest(),
        measures=tuple(run.measures),
        document_losses=run.document_losses,
        document_tokens=run.document_tokens,
        document_groups=run.document_groups,
    )


def learning_rate(config: TrialConfig, num_steps: int, step: int) -> float:
    """The learning rate of a step, counted from 0: linear warm-up, then half a cosine to `end_rate`, or the peak."""
    warmup = round(config.warmup * num_steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.decay == "constant":
        return config.learning_rate
    part = (step - warmup) / max(num_steps - warmup, 1)
    return config.learning_rate * (config.end_rate + (1 - config.end_rate) * 0.5 * (1 + np.cos(np.pi * part)))


def _device() -> str:
    device = jax.local_devices()[0]
    return f"{device.platform}:{device.device_kind}, jax {jax.__version__}"


class Material:
    """The objects that all trials of an experiment on one dataset use: the dataset, the evaluation, the sequences."""

    def __init__(self, dataset: Dataset, evaluation: Evaluation, macro: str) -> None:
        self.dataset, self.evaluation, self.macro = dataset, evaluation, macro
        self._held: tuple[str, PackedTokens] | None = None

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokens of training and evaluation; it does not depend on the machine or the paths."""
        dataset = self.dataset
        digest = hashlib.sha256(training_sequences(dataset, dataset.segments).inputs.tobytes())
        for name, documents in {"": self.evaluation.validation, **self.evaluation.tasks}.items():
            digest.update(name.encode() + documents.sequences.inputs.tobytes())
        return digest.hexdigest()[:16]

    def packed(self, config: TrialConfig) -> PackedTokens:
        """The sequences that a trial reads. They stay in memory, because the next trial often reads the same ones."""
        key = repr((config.packing, config.attention, config.packing and config.order_seed))
        if self._held is None or self._held[0] != key:
            self._held = key, pack_documents(self.dataset, config.packing, config.attention, config.order_seed)
        return self._held[1]


class _Run:
    """A trial while it runs."""

    def __init__(self, config: TrialConfig, material: Material) -> None:
        self.config, self.material, self.dataset = config, material, material.dataset
        size = SIZES[config.model][config.size]
        self.model = trial_model(self.dataset.vocab_size, size, config.model, config.positions, config.precision)
        self.diverged = False
        self.measures: list[Measure] = []
        self.num_tokens = 0
        self.document_losses = np.zeros(0, np.float32)
        self.document_tokens = np.zeros(0, np.int32)
        self.document_groups: list[str] = []
        self._losses: list[Any] = []
        self.source = self._make_source()
        self.num_steps = config.num_steps or self.source.steps_per_epoch * config.num_epochs
        self.trainer = Trainer(self.model, self.source.give, config.weight_seed, config.weight_decay)
        self._means: dict[int, MeanOfWeights] = {}

    def _make_source(self) -> Ordered | Contiguous:
        config, dataset = self.config, self.dataset
        if config.layout != "sequences":
            return Contiguous(config, self.model, dataset)
        packed = self.material.packed(config)
        if config.mixture == "fixed":
            return Ordered(config, packed)
        names = dataset.group_names[config.mixture_family]
        codes = document_codes(dataset, config.mixture_family)
        counts = np.bincount(codes[packed.segments.document_index], packed.segments.length, len(names))
        prior = counts / counts.sum()
        reference = self._reference(names) if config.mixture == "excess_loss" else None
        return Mixed(config, packed, make_rule(config.mixture, prior, reference), names, codes)

    def _reference(self, names: tuple[str, ...]) -> np.ndarray:
        """Every group's loss at the end of DoReMi's reference run: the same model on the corpus's own mixture."""
        plain = dataclasses.replace(self.config, mixture="fixed", evaluate_at=(1.0,), diagnose_at=())
        run = _Run(plain, self.material)
        run.train()
        final = {measure.name: measure.value for measure in run.measures}
        # A group without a validation loss gets an infinite reference, so that its excess is 0.
        return np.array([final.get(f"loss/{self.config.mixture_family}/{name}", np.inf) for name in names])

    def digest(self) -> str:
        """A hash of the run's losses, bit for bit."""
        losses = np.array([np.float32(loss) for loss in self._losses], np.float32)
        return hashlib.sha256(losses.tobytes() + self.document_losses.tobytes()).hexdigest()[:16]

    def train(self) -> None:
        """Do all steps, and measure losses and gradients at the configured points of training."""
        config = self.config
        evaluations = {max(round(share * self.num_steps), 1) for share in config.evaluate_at}
        diagnoses = {max(round(share * self.num_steps), 1) for share in config.diagnose_at}
        if config.averaging:
            self._means = {step: MeanOfWeights(step, config.averaging) for step in evaluations}
        for taken in self.trainer.steps(0, self.num_steps, partial(learning_rate, config, self.num_steps)):
            done, loss = taken.step + 1, taken.result.loss
            self._losses.append(loss)
            self.num_tokens += int(np.count_nonzero(taken.batch.arrays["targets_segmentation"]))
            values = self.source.observe(taken.step, taken.result)
            self.measures += [Measure(done, name, value) for name, value in values.items()]
            if done % _STEPS_BETWEEN_CHECKS == 0 or done == self.num_steps:
                self.diverged = not np.isfinite(float(loss))
            if done in diagnoses and not self.diverged:
                self._diagnose(done, taken.batch)
            for mean in self._means.values():
                mean.add(done, self.trainer.parameters)
            if done in evaluations and not self.diverged:
                self._evaluate(done)
            if self.diverged:
                break
        self._keep_curve()

    # ---- Measures.
    def _evaluate(self, step: int) -> None:
        mean = self._means.pop(step, None)
        weights = self.trainer.parameters if mean is None else mean.weights
        if self.config.layout != "sequences":
            self._evaluate_stream(step, weights)
            return
        evaluation, macro = self.material.evaluation, self.material.macro
        validation = evaluation.validation
        sums, counts = validation.by_document(self._losses_of(validation.sequences, weights))
        measures = validation.measures(sums, counts, macro)
        for name, task in evaluation.tasks.items():
            total, number = task.by_document(self._losses_of(task.sequences, weights))
            measures[f"loss/task/{name}"] = float(total.sum() / number.sum())
        self.measures += [Measure(step, name, value) for name, value in measures.items()]
        self.document_losses = (sums / np.maximum(counts, 1)).astype(np.float32)
        self.document_tokens = counts.astype(np.int32)
        self.document_groups = validation.groups[macro].tolist()
        self.diverged = not np.isfinite(measures["loss/validation"])

    def _losses_of(self, sequences: Sequences, weights: Any) -> np.ndarray:
        padded = sequences.padded(_EVALUATION_ROWS)
        batches = (padded.batch(rows) for rows in np.arange(len(padded)).reshape(-1, _EVALUATION_ROWS))
        parts = [self.model.losses(weights, batch).by_token for batch in batches]
        return np.concatenate([np.asarray(part, np.float64) for part in parts])[: len(sequences)]

    def _evaluate_stream(self, step: int, weights: Any) -> None:
        """Measure an LSTM, which reads each text as one stream; blocks of the stream are used in place of documents."""
        evaluation = self.material.evaluation
        texts = {"validation": evaluation.validation} | dict(evaluation.tasks)
        for name, documents in texts.items():
            losses = self._stream_losses(documents, weights)
            mean = float(losses.mean())
            self.measures.append(
                Measure(step, "loss/validation" if name == "validation" else f"loss/task/{name}", mean)
            )
            if name == "validation":
                self.measures.append(Measure(step, "loss/macro", mean))
                self.document_losses = losses.mean(axis=1).astype(np.float32)
                self.document_tokens = np.full(len(losses), losses.shape[1], np.int32)
                self.document_groups = ["validation"] * len(losses)
                self.diverged = not np.isfinite(mean)

    def _stream_losses(self, documents: Documents, weights: Any) -> np.ndarray:
        length = self.dataset.sequence_length
        stream = np.concatenate(documents.texts)
        rows = rotated_rows(stream, _STREAM_ROWS, np.zeros(_STREAM_ROWS, np.int64))
        carry, token_losses = self.model.first_carry(_STREAM_ROWS), []
        for start in range(0, rows.shape[1] - length, length):
            losses, carry = self.model.losses_after(weights, stream_batch(rows, start, length), carry)
            token_losses.append(np.asarray(losses.by_token, np.float64))
        if not token_losses:
            raise UserError(
                f"Expected a validation text of at least {_STREAM_ROWS * (length + 1)} tokens, found {len(stream)}."
            )
        return np.concatenate(token_losses)

    def _diagnose(self, step: int, batch: Given) -> None:
        """Measure the gradient of the step's batch, with the weights after the step."""
        if not isinstance(self.source, Ordered):
            return
        size, sequences = self.config.batch_size, self.source.packed.sequences
        number = min(_OTHER_BATCHES, len(self.source.upcoming) // size)
        rows = self.source.upcoming[: number * size]
        if number < 2:  # at the end of an epoch: the dataset's first sequences, the same in all arms
            number = _OTHER_BATCHES
            rows = np.arange(number * size) % len(sequences)
        other_arrays = {name: array.reshape(number, size, -1) for name, array in sequences.batch(rows).items()}
        evaluation = self.material.evaluation
        chosen = {"validation": evaluation.validation} | dict(evaluation.tasks)
        tasks = {name: task.sequences.padded(size).batch(np.arange(size)) for name, task in chosen.items()}
        measures = self.model.diagnose(self.trainer.parameters, batch.arrays, other_arrays, tasks)
        self.measures += [Measure(step, name, float(value)) for name, value in measures.items()]

    def _keep_curve(self) -> None:
        """Store the mean training loss of every hundredth of an epoch, and the noise of the losses' second half."""
        losses = np.array([float(loss) for loss in self._losses])
        width = max(self.source.steps_per_epoch / _CURVE_POINTS, 1)
        block = (np.arange(len(losses)) / width).astype(int)
        for number in np.unique(block):
            of_block = block == number
            last = int(np.flatnonzero(of_block)[-1]) + 1
            self.measures.append(Measure(last, "loss/train", float(losses[of_block].mean())))
        if not self.diverged:
            deviations = loss_noise(losses[len(losses) // 2 :]).deviations
            self.measures += [Measure(len(losses), f"{_NOISE}/{number}", value) for number, value in deviations.items()]

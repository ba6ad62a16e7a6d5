"""A training run: batches from the loader, AdamW, a log, and checkpoints from which it continues exactly."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Float64, Int64

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.dataset.orderings import is_file_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import hold
from jax_diversity.foundation.progress import Advance, Progress, compiling, ignore
from jax_diversity.lab.checkpoints import Checkpoints
from jax_diversity.lab.gradients import gradient_diversity, mean_stable_rank
from jax_diversity.lab.metrics import JsonLinesWriter, TensorBoardWriter, require_tensorboard
from jax_diversity.lab.model import Gpt, summed_cross_entropy
from jax_diversity.lab.optimizer import adamw
from jax_diversity.lab.settings import TrainConfig
from jax_diversity.loader.iteration import Batch
from jax_diversity.loader.loader import make_loader
from jax_diversity.loader.watching import BatchMetrics, MetricsWriter, Writers

_FIELDS = ("inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position")

# Settings that do not change the losses; the ordering is checked by its fingerprint instead of its name.
_NO_LOSS = {"ordering", "checkpoint_every", "validate_every", "validation_batches", "diagnose_every", "metrics"}

_ALWAYS = {"step", "loss", "tokens_per_second", "step_seconds", "input_wait_seconds"}
"""What the record of every step has, and `TrainingRun` reads."""


@dataclass(frozen=True)
class TrainingRun:
    """The result of a run.

    Attributes:
        ordering: the ordering that was trained on.
        num_parameters: numbers that the model learns.
        num_steps: steps done in all.
        steps: their records in the log; none where the log was lost and no step was left to do. Each has
            `step` (from 0), `loss` and, where it was measured, `validation_loss` (nats a token), `learning_rate`,
            `tokens_per_second`, `step_seconds`, `input_wait_seconds`, `input_wait_share`; `batch_tv/FAMILY`,
            `groups_per_batch/FAMILY`, `prefix_l2/FAMILY` (see `BatchMetrics`); and, where the gradients were
            measured, `gradient_diversity` and `stable_rank`.
    """

    ordering: str
    num_parameters: int
    num_steps: int
    steps: Sequence[Mapping[str, Any]]

    @property
    def loss(self) -> float | None:
        """The last step's loss, in nats a token; None where the log has no step."""
        return self.steps[-1]["loss"] if self.steps else None

    @property
    def validation_loss(self) -> float | None:
        """The last validation loss, in nats a token; None where none was measured."""
        measured = [step["validation_loss"] for step in self.steps if "validation_loss" in step]
        return measured[-1] if measured else None

    @property
    def tokens_per_second(self) -> float | None:
        """Target tokens per second, the median over the steps; None where the log has no step."""
        return float(np.median([step["tokens_per_second"] for step in self.steps])) if self.steps else None

    @property
    def input_wait_share(self) -> float:
        """Share of the time spent waiting for batches, without the first step and its compilation."""
        steps = self.steps[1:] or self.steps
        waited = sum(step["input_wait_seconds"] for step in steps)
        return waited / max(waited + sum(step["step_seconds"] for step in steps), 1e-9)

    def curve(self, name: str) -> tuple[Int64[np.ndarray, " step"], Float64[np.ndarray, " step"]]:
        """The steps at which a value was measured, and the values, ready to plot.

        Raises:
            UserError: no step has a value of that name.

        Example:
            >>> plt.plot(*run.curve("loss"))
        """
        measured = [(step["step"], step[name]) for step in self.steps if name in step]
        if not measured:
            known = sorted({key for step in self.steps for key in step} - {"step"})
            raise UserError(f"Expected a value among {', '.join(known) or 'none'}, found {name!r}.")
        steps, values = zip(*measured, strict=True)
        return np.array(steps, np.int64), np.array(values, np.float64)

    def __str__(self) -> str:
        text = f"Trained {self.num_parameters:,} parameters on {self.ordering!r} for {self.num_steps} steps"
        if not self.steps:
            return f"{text}; the log of their losses is gone."
        validation = "" if self.validation_loss is None else f", validation loss {self.validation_loss:.3f}"
        first = self.steps[0]
        since = "" if first["step"] == 0 else f"from step {first['step']} on, "
        return (
            f"{text}: {since}loss {first['loss']:.3f} -> {self.loss:.3f}{validation}; "
            f"{self.tokens_per_second:,.0f} tokens/s, {self.input_wait_share:.1%} of the time waiting for input."
        )


def train(
    dataset: Dataset,
    config: TrainConfig,
    folder: Path,
    *,
    advance: Advance = ignore,
    on_step: Callable[[Mapping[str, Any]], None] = lambda step: None,
    writers: Sequence[MetricsWriter] = (),
) -> TrainingRun:
    """Train the lab's GPT on an ordering of a dataset, from the last checkpoint in the folder where there is one.

    A run that was interrupted and is started again with the same settings sees the same batches and has the same
    losses as one that was not. `folder/log.jsonl` (see `read_log`) gets a header and one line for each step,
    `folder/checkpoints` the last two checkpoints, and, where `config.metrics` says so, `folder/tensorboard` files for
    TensorBoard, which begin with the steps in the log when they are new. One process trains.

    Args:
        dataset: a built dataset.
        config: model, run and ordering.
        folder: of this run alone.
        advance: called with 1 after every step, and at the start with the number of steps already done.
        on_step: called with the record of every step, as in the log.
        writers: called with every step and its values, after the log. When one raises, a warning is given and it is
            not called again; no step is repeated and no checkpoint lost.

    Raises:
        UserError: settings that are not valid, or a folder whose checkpoint is of another dataset, ordering or
            settings (only how often to save and to measure, and what, may change); a damaged checkpoint; a folder that
            cannot be written, or that another process trains in; an extra that is not installed.

    Example:
        >>> run = train(open_dataset("out"), TrainConfig(num_steps=100, diagnose_every=10), Path("run"))
        >>> steps, ranks = run.curve("stable_rank")
    """
    config.check()
    if "tensorboard" in config.metrics:
        require_tensorboard()
    if dataset.sequence_length < 2:
        raise UserError(f"Expected sequences of at least 2 tokens, found {dataset.sequence_length}.")
    loader = make_loader(
        dataset,
        ordering=config.ordering,
        global_batch_size=config.batch_size,
        num_epochs=None,
        fields=_FIELDS,
        loss_on=config.loss_on,
    )
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in _NO_LOSS}
    settings["vocab_size"] = dataset.vocab_size
    shape = {name: settings[name] for name in ("vocab_size", "width", "num_layers", "num_heads", "seed", "positions")}
    model = Gpt(**shape)
    schedule = _schedule(config)
    optimizer = nnx.Optimizer(model, adamw(schedule), wrt=nnx.Param)
    ordering = loader.run.fingerprint
    header = {"dataset": dataset.fingerprint, "ordering": ordering, "settings": settings}
    metrics = BatchMetrics.of_loader(loader)
    # Closed in reverse order also when a step raises: log and writers, the loader, and then the folder is free again.
    with ExitStack() as stack:
        stack.enter_context(hold(folder))
        checkpoints = Checkpoints(folder / "checkpoints", settings)
        batches = stack.enter_context(closing(iter(loader)))
        # Before the log is opened, which drops the steps from `first` on.
        first = checkpoints.restore(model, optimizer, batches)
        log = stack.enter_context(closing(JsonLinesWriter(folder / "log.jsonl", header, first)))
        steps = [record for record in log.steps if record.keys() >= _ALWAYS]  # others are damaged
        advance(first)
        compiling(advance)
        if "tensorboard" in config.metrics:
            tensorboard = stack.enter_context(closing(TensorBoardWriter(folder / "tensorboard", first)))
            for record in steps if tensorboard.is_first else ():
                tensorboard(record["step"], {name: value for name, value in record.items() if name != "step"})
            writers = (tensorboard, *writers)
        write = Writers(*writers)  # the log is none of them: a run stops where its log cannot be written
        validation = _validation_batches(dataset, config)
        for step in range(first, config.num_steps):
            position, start = batches.position, time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - start
            diagnosis = {}
            if config.diagnose_every and (step + 1) % config.diagnose_every == 0:
                # With the weights before the update, and not counted in the step; kept where they are defined.
                measured = zip(("gradient_diversity", "stable_rank"), measure_gradients(model, batch), strict=True)
                diagnosis = {name: float(value) for name, value in measured if np.isfinite(value)}
            start = time.perf_counter()
            result = train_step(model, optimizer, batch)
            balance = metrics.values(position)  # while the device computes: JAX has returned before the loss is known
            loss = float(result)
            seconds = time.perf_counter() - start
            if not np.isfinite(loss):
                raise UserError(
                    f"Expected a finite loss, found {loss} at step {step}; lower train.learning_rate "
                    f"({config.learning_rate}) and delete {folder} to start a new run."
                )
            values = {
                "loss": loss,
                "learning_rate": float(np.asarray(schedule(step))),
                "tokens_per_second": float(np.count_nonzero(batch["targets_segmentation"]) / (seconds + waited)),
                "step_seconds": seconds,
                "input_wait_seconds": waited,
                "input_wait_share": waited / (seconds + waited),
                **balance,
                **diagnosis,
            }
            if validation and _is_due(step, config.validate_every, config):
                # Summed losses and targets of all batches in float64: a mean of the batches' means would weigh the last
                # one, which has fewer targets, like the others.
                parts = np.array([batch_loss(model, part) for part in validation], np.float64)
                values["validation_loss"] = float(parts[:, 0].sum() / max(parts[:, 1].sum(), 1))
            steps.append({"step": step, **values})
            # The log is written before the checkpoint: a run that is killed between the two repeats the step, and
            # the log drops its first record. In the other order the log would lack the step.
            log(step, values)
            write(step, values)
            if _is_due(step, config.checkpoint_every, config):
                checkpoints.save(step + 1, model, optimizer, batches)
            advance(1)
            on_step(steps[-1])
    return TrainingRun(config.ordering, count_parameters(model), config.num_steps, tuple(steps))


def _is_due(step: int, every: int, config: TrainConfig) -> bool:
    """Whether the number of steps done after this one is a multiple of `every`, or all steps are done."""
    return (step + 1) % every == 0 or step + 1 == config.num_steps


def count_parameters(model: nnx.Module) -> int:
    """Numbers that a model learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


@nnx.jit
def train_step(model: Gpt, optimizer: nnx.Optimizer, batch: Mapping[str, Any]) -> Float[Array, ""]:
    """Update the model by a batch of the loader; returns its mean loss before, in nats a target token."""

    def mean_loss(model: Gpt) -> Array:
        loss, num_targets = batch_loss(model, batch)
        return loss / jnp.maximum(num_targets, 1)

    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    return loss


@nnx.jit
def batch_loss(model: Gpt, batch: Mapping[str, Any]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Summed loss in nats and number of targets; a segment's last token and padding have none."""
    hidden = model(batch["inputs"], batch["inputs_segmentation"], batch["inputs_position"])
    weight = (batch["targets_segmentation"] != 0).astype(jnp.float32).reshape(-1)
    loss = summed_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]), model.embedding.embedding[...], batch["targets"].reshape(-1), weight
    )
    return loss, weight.sum()


@nnx.jit
def measure_gradients(model: Gpt, batch: Mapping[str, Any]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Diversity of the gradients of the batch's sequences, and the mean stable rank of the matrices of their sum."""
    # The parts are the sequences, each with its summed loss: their gradients add up to a multiple of the step's
    # gradient, and neither value depends on the factor.
    graph, parameters, others = nnx.split(model, nnx.Param, ...)

    def loss(parameters: Any, part: Mapping[str, Array]) -> Array:
        return batch_loss(nnx.merge(graph, parameters, others), part)[0]

    parts = {name: rows[:, None] for name, rows in batch.items()}
    diversity, gradient = gradient_diversity(loss, parameters, parts)
    return diversity, mean_stable_rank(gradient)


def _schedule(config: TrainConfig) -> optax.Schedule:
    """Linear warm-up, then half a cosine down to a tenth."""
    # At least one step is left for the cosine: optax refuses one without steps.
    warmup = min(config.warmup_steps, config.num_steps - 1)
    return optax.warmup_cosine_decay_schedule(
        0.0 if warmup else config.learning_rate,
        config.learning_rate,
        warmup,
        decay_steps=config.num_steps,
        end_value=config.learning_rate / 10,
    )


def _validation_batches(dataset: Dataset, config: TrainConfig) -> list[Batch]:
    """The first validation sequences in batches of one size, the last filled up with padding: one compilation."""
    records, size = dataset.validation_records, config.batch_size
    number = min(len(records), config.validation_batches * size)

    def batch(start: int) -> Batch:
        rows = np.arange(start, min(start + size, number))
        part = records.read_batch(rows, expected=rows, fields=_FIELDS, loss_on=config.loss_on)
        return {field: np.pad(array, ((0, size - len(rows)), (0, 0))) for field, array in part.items()}

    return [batch(start) for start in range(0, number, size)]


def train_dataset(out: str | Path, config: TrainConfig, progress: Progress) -> TrainingRun:
    """Train on one ordering of a built dataset; log and checkpoints stand in `out/training/ORDERING`.

    Those of an ordering from a .npy file stand under the file's name and the first digits of its fingerprint.
    """
    dataset, name = open_dataset(out), config.ordering
    if dataset.remote is not None:
        raise UserError(
            f"Expected a dataset in a folder to train in, found the address {out}; copy it to this machine."
        )
    if is_file_name(name):
        name = f"{Path(name).stem}-{dataset.find_ordering(name).fingerprint[:8]}"
    with progress.task(f"train on {name}", config.num_steps, "steps") as advance:
        return train(dataset, config, dataset.root / "training" / name, advance=advance)

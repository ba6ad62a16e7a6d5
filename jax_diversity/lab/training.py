"""A training run: it trains the lab's model, logs every step, and continues exactly from its checkpoints."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Float64, Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside, refuse_links
from jax_diversity.foundation.locks import hold
from jax_diversity.foundation.progress import Advance, Progress, compiling, ignore
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.checkpoints import Checkpoints
from jax_diversity.lab.compiled import compiled_model
from jax_diversity.lab.evaluation import Evaluator
from jax_diversity.lab.metrics import TensorBoardWriter, require_tensorboard
from jax_diversity.lab.settings import Size, TrainConfig
from jax_diversity.lab.trainer import Trainer
from jax_diversity.lab.training_log import TrainingLog, training_folder
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.loader.iteration import Batch, BatchIterator
from jax_diversity.streaming.loader.loader import make_loader
from jax_diversity.streaming.loader.watching import BatchMetrics, MetricsWriter, Writers
from jax_diversity.streaming.run.run import Datasets, Run, as_run, make_run

FIELDS = ("inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position")
"""The arrays of a batch that the lab's model reads."""

# Settings that do not change the losses; the ordering is checked by its fingerprint instead of its name.
_NO_LOSS = {"ordering", "checkpoint_every", "validate_every", "validation_batches", "diagnose_every", "metrics"}

_ALWAYS = {"step", "loss", "tokens_per_second", "step_seconds", "input_wait_seconds"}
"""Names of the values that every complete record has and `TrainingRun` reads."""


@dataclass(frozen=True)
class TrainingRun:
    """The result of a training run.

    Attributes:
        run: the name of the ordering, or of the stored run, that fed the model.
        num_parameters: number of weights.
        num_steps: number of all steps that were done.
        steps: the records of the steps in the log; empty if the log was lost after the last step. Each record has
            `step` (from 0), `loss` and, if it was measured, `validation_loss` (nats per token) with its interval and by
            source (see `Evaluated.values`), `learning_rate`,
            `tokens_per_second`, `step_seconds`, `input_wait_seconds`, `input_wait_share`; `batch_tv/FAMILY`,
            `groups_per_batch/FAMILY`, `prefix_l2/FAMILY` (see `BatchMetrics`); and, if gradients were
            measured, `gradient_diversity` and `stable_rank`.
    """

    run: str
    num_parameters: int
    num_steps: int
    steps: Sequence[Mapping[str, Any]]

    @property
    def loss(self) -> float | None:
        """The last step's loss, in nats per token; None if the log has no step."""
        return self.steps[-1]["loss"] if self.steps else None

    @property
    def validation_loss(self) -> float | None:
        """The last validation loss, in nats per token; None if no validation loss was measured."""
        measured = [step["validation_loss"] for step in self.steps if "validation_loss" in step]
        return measured[-1] if measured else None

    @property
    def tokens_per_second(self) -> float | None:
        """The number of target tokens per second (median of the steps); None if the log has no step."""
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
            UserError: no step has a value with this name.

        Example:
            >>> plt.plot(*run.curve("loss"))
        """
        measured = [(step["step"], step[name]) for step in self.steps if name in step]
        if not measured:
            names = sorted({key for step in self.steps for key in step} - {"step"})
            raise UserError(f"Expected a value among {', '.join(names) or 'none'}, found {name!r}.")
        steps, values = zip(*measured, strict=True)
        return np.array(steps, np.int64), np.array(values, np.float64)

    def __str__(self) -> str:
        text = (
            f"Trained {counted(self.num_parameters, 'parameter')} on {self.run!r} for {counted(self.num_steps, 'step')}"
        )
        if not self.steps:
            return f"{text}; the log of the losses is lost."
        validation = "" if self.validation_loss is None else f", validation loss {self.validation_loss:.3f}"
        first = self.steps[0]
        since = "" if first["step"] == 0 else f"from step {first['step']} on, "
        return (
            f"{text}: {since}loss {first['loss']:.3f} -> {self.loss:.3f}{validation}; "
            f"{self.tokens_per_second:,.0f} tokens/s, {self.input_wait_share:.1%} of the time waiting for input."
        )


def train(
    datasets: Datasets | Run,
    config: TrainConfig,
    folder: Path,
    *,
    advance: Advance = ignore,
    on_step: Callable[[Mapping[str, Any]], None] = lambda step: None,
    writers: Sequence[MetricsWriter] = (),
) -> TrainingRun:
    """Train the lab's GPT on a run, from the last checkpoint in the folder if there is one.

    A training run that was interrupted and is started again with the same settings has the same batches and the
    same losses as an uninterrupted run. `folder/log.jsonl` (see `read_log`) gets a header and one line for each step,
    `folder/checkpoints` the last two checkpoints, and, if `config.metrics` says so, `folder/tensorboard` files for
    TensorBoard; new files begin with the steps in the log. Only one process may train.

    Args:
        datasets: a run, such as a stored run; or a built dataset, its folder or its address, which is read in the
            ordering `config.ordering`.
        config: model, length and learning rate.
        folder: a folder that only this training run uses.
        advance: called with 1 after every step, and at the start with the number of steps already done.
        on_step: called with the record of every step, as in the log.
        writers: called with every step and its values, after the log. If a writer raises, a warning is given and it is
            not called again; no step is repeated and no checkpoint is lost.

    Raises:
        UserError: settings that are not valid, or a folder whose checkpoint is of another dataset, ordering or
            settings (only the options of saving and measuring may change); a damaged checkpoint; a folder that
            cannot be written, or in which another process trains; an extra that is not installed.

    Example:
        >>> run = train("out", TrainConfig(num_steps=100, diagnose_every=10), Path("run"))
        >>> steps, ranks = run.curve("stable_rank")
    """
    config.check()
    if "tensorboard" in config.metrics:
        require_tensorboard()
    run = as_run(datasets, config.ordering)
    if (shortest := min(length for _, length in run.lengths)) < 2:
        raise UserError(f"Expected sequences of at least 2 tokens, found {shortest}.")
    if config.batch_size > len(run):
        raise UserError(
            f"Expected train.batch_size in 1 .. {len(run)} (the sequences of the run), found {config.batch_size}."
        )
    loader = make_loader(
        run, global_batch_size=config.batch_size, num_epochs=None, fields=FIELDS, loss_mask=config.loss_mask
    )
    vocab_size = max(dataset.vocab_size for dataset in run.datasets)
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in _NO_LOSS}
    settings["vocab_size"] = vocab_size
    model = compiled_model(vocab_size, Size(config.width, config.num_layers, config.num_heads))
    rate = jax.jit(_schedule(config))
    metrics = BatchMetrics.of_loader(loader)
    # Closed in reverse order, also if a step raises: log and writers, then the loader, then the lock of the folder.
    with ExitStack() as stack:
        stack.enter_context(hold(folder))
        checkpoints = Checkpoints(refuse_links(folder, "checkpoints"), settings)
        source = _Loaded(stack.enter_context(closing(iter(loader))))
        trainer = Trainer(model, source.give, config.seed)
        first = checkpoints.restore(trainer, source.batches)
        log = stack.enter_context(TrainingLog(run, folder=folder, settings=settings))
        # Later steps are done again, and records without these values are damaged.
        steps = [record for record in log.steps if record["step"] < first and record.keys() >= _ALWAYS]
        advance(first)
        compiling(advance)
        if "tensorboard" in config.metrics:
            tensorboard = stack.enter_context(closing(TensorBoardWriter(inside(folder, "tensorboard"), first)))
            for record in steps if tensorboard.is_first else ():
                tensorboard(record["step"], {name: value for name, value in record.items() if name != "step"})
            writers = (tensorboard, *writers)
        write = Writers(*writers)  # without the log, because a training run stops if its log cannot be written
        validate = _evaluator(run, config)
        diagnosis: dict[str, float] = {}

        def token_losses(batch: Batch) -> jax.Array:
            return model.losses(trainer.parameters, batch).by_token

        def diagnose(step: int, batch: Batch) -> None:
            """Measure the gradients with the weights before the update; the step's time does not include this."""
            diagnosis.clear()
            if config.diagnose_every and (step + 1) % config.diagnose_every == 0:
                values = model.measure_gradients(trainer.parameters, batch)
                measured = zip(("gradient_diversity", "stable_rank"), map(float, values), strict=True)
                diagnosis.update({name: value for name, value in measured if np.isfinite(value)})

        for taken in trainer.steps(first, config.num_steps, rate, diagnose):
            step, waited = taken.step, taken.waited
            balance = metrics.values(source.position)  # while the device computes: JAX returns before the loss is known
            loss = float(taken.result)
            seconds = time.perf_counter() - taken.started
            num_targets = int(np.count_nonzero(taken.batch["targets_segmentation"]))
            if not np.isfinite(loss):
                raise UserError(
                    f"Expected a finite loss, found {loss} at step {step}; lower train.learning_rate "
                    f"({config.learning_rate}) and delete {folder} to start a new run."
                )
            values = {
                "loss": loss,
                "learning_rate": float(rate(step)),
                "tokens_per_second": num_targets / (seconds + waited),
                "step_seconds": seconds,
                "input_wait_seconds": waited,
                "input_wait_share": waited / (seconds + waited),
                **balance,
                **diagnosis,
            }
            if validate is not None and _is_due(step, config.validate_every, config):
                values |= validate(token_losses, config.validation_batches).values()
            steps.append({"step": step, **values})
            # The log is written before the checkpoint: a run that is killed between the two repeats the step, and
            # the log drops the first record of it. In the other order the log would lack the step.
            log(step, values)
            write(step, values)
            if _is_due(step, config.checkpoint_every, config):
                checkpoints.save(step + 1, trainer, source.batches)
            advance(1)
            on_step(steps[-1])
    return TrainingRun(run.name, trainer.num_parameters, config.num_steps, tuple(steps))


def _is_due(step: int, every: int, config: TrainConfig) -> bool:
    """Whether the number of steps done after this one is a multiple of `every`, or all steps are done."""
    return (step + 1) % every == 0 or step + 1 == config.num_steps


class _Loaded:
    """The batches of a loader as a source of training; `position` is the position of the last one."""

    def __init__(self, batches: BatchIterator) -> None:
        self.batches, self.position = batches, batches.position

    def give(self, step: int) -> Batch:
        """The next batch of the run."""
        self.position = self.batches.position
        batch = next(self.batches)
        return {name: batch[name] for name in FIELDS}


def _schedule(config: TrainConfig) -> optax.Schedule:
    """Linear warm-up, then half a cosine down to a tenth."""
    # At least one step is left for the cosine: optax refuses a schedule without steps.
    warmup = min(config.warmup_steps, config.num_steps - 1)
    return optax.warmup_cosine_decay_schedule(
        0.0 if warmup else config.learning_rate,
        config.learning_rate,
        warmup,
        decay_steps=config.num_steps,
        end_value=config.learning_rate / 10,
    )


def _evaluator(run: Run, config: TrainConfig) -> Evaluator | None:
    """The evaluation of the validation documents of all datasets, also by source; None if there is none."""
    datasets = [dataset for dataset in run.datasets if config.validation_batches and len(dataset.validation_records)]
    loaders = (
        make_loader(
            dataset,
            split="validation",
            global_batch_size=config.batch_size,
            fields=FIELDS,
            loss_mask=config.loss_mask,
        )
        for dataset in datasets
    )
    by = ("source",) if all("source" in dataset.group_names for dataset in datasets) else ()
    return Evaluator(*loaders, by=by) if datasets else None


def train_in_place(datasets: Datasets | Run, config: TrainConfig, progress: Progress) -> TrainingRun:
    """Train on a run; log and checkpoints are stored with the dataset or the stored run, see `training_folder`."""
    run = as_run(datasets, config.ordering)
    folder = training_folder(run)
    with progress.task(f"train on {run.name}", config.num_steps, "step") as advance:
        return train(run, dataclasses.replace(config, ordering=None), folder, advance=advance)


def train_on_each(
    dataset: Dataset,
    config: TrainConfig,
    folder: Path,
    orderings: Sequence[str] = ("uniform_shuffle", "balance"),
    *,
    advance: Advance = ignore,
) -> dict[str, TrainingRun]:
    """Train one model on each ordering, with the same first weights, settings and validation sequences.

    Each training run has its own folder, `folder/ORDERING`, and continues where it was interrupted; a finished one is
    read from its log. With `folder = dataset.root / "training"` the report draws them.

    Args:
        dataset: a built dataset.
        config: model, length and learning rate; its ordering is not used.
        folder: the folder for the training runs' folders.
        orderings: names of the dataset's orderings.
        advance: called with 1 after every step of every run, and with the steps already done when a run continues.

    Returns:
        Ordering -> run, in the given order.

    Raises:
        UserError: no ordering, a repeated ordering, or an ordering that the dataset lacks; also the errors of `train`.

    Example:
        >>> runs = train_on_each(dataset, TrainConfig(num_steps=200, diagnose_every=10), Path("runs"))
        >>> for name, run in runs.items():
        ...     plt.plot(*run.curve("stable_rank"), label=name)
    """
    if not orderings or len(set(orderings)) < len(orderings):
        raise UserError(f"Expected different orderings, at least one, found {list(orderings)}.")
    alone = dataclasses.replace(config, ordering=None)
    runs = {name: make_run(dataset, name) for name in orderings}
    return {name: train(run, alone, folder / name, advance=advance) for name, run in runs.items()}

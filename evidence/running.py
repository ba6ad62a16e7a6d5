"""Run an experiment: trials without a row run in parallel, and each trial writes its row when it ends."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from evidence.evaluation import common_runs, make_evaluation
from evidence.results import FILE, TrialRow, append_rows, check_data, read_rows, stored_identities
from evidence.settings import Experiment, ExperimentConfig, Trial
from evidence.statistics import smallest_detectable
from evidence.trial import Material, run_trial
from jax_diversity.foundation.artifacts import remove_leftovers
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder, refuse_links
from jax_diversity.foundation.locks import hold
from jax_diversity.foundation.processes import map_in_processes
from jax_diversity.foundation.progress import Progress
from jax_diversity.streaming.dataset import Dataset, open_dataset

_WAITING = "finished"
"""Folder for rows that are not in the file yet, one file for each."""
_MOST_IN_COMMON = 0.01
"""Largest share of a task's text that may also be in the training documents."""


class SmallDesign(UserWarning):
    """A warning: the experiment has too few pairs to detect its `smallest_effect`."""


class SeenTask(UserWarning):
    """A warning: the text of a task is also in the training data."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    datasets: Mapping[str, Dataset],
    *,
    data: Path = Path(),
    num_processes: int = 1,
    arms: Sequence[str] = (),
    num_trials: int | None = None,
    progress: Progress | None = None,
) -> dict[str, TrialRow]:
    """Run the trials of an experiment that have no row in `folder`, and return all rows by identity.

    Trials run in worker processes. Without an accelerator each process has one core, so its losses are bitwise
    the same whatever else runs. A trial's row is on disk when the trial ends. After a kill the next call repeats only
    the trials that were running.

    Args:
        experiment: an experiment that `read_experiment` returned.
        folder: the folder of `results.parquet`.
        datasets: the experiment's datasets by name.
        data: the folder to which tasks' paths are relative.
        num_processes: number of trials in parallel.
        arms: the arms to run; empty means all arms.
        num_trials: the largest number of trials to run; None means all trials.
        progress: shows the progress.

    Raises:
        UserError: invalid settings, rows of another version, with different numbers or of other tokens, a task without
            text.

    Warns:
        SmallDesign: the minimal detectable effect of the pairs is larger than `smallest_effect`.
        SeenTask: a task's text is in the training data.
    """
    config, progress = experiment.config, progress or Progress(quiet=True)
    sentence, is_enough = design_sentence(experiment)
    if not is_enough:
        warnings.warn(sentence, SmallDesign, stacklevel=2)
    for arm in arms:
        if arm not in experiment.arms:
            raise UserError(f"Expected arms among {', '.join(experiment.arms)}, found {arm!r}.")
    make_folder(folder)
    waiting = refuse_links(folder, _WAITING)
    with hold(folder):
        _collect(folder, waiting, ends=True)
        rows = read_rows(folder)
        missing = [trial for trial in experiment.trials if trial.identity not in rows]
        missing = [trial for trial in missing if not arms or trial.arm in arms][:num_trials]
        if not missing:
            return rows
        for name in dict.fromkeys(trial.config.dataset for trial in missing):
            material = _material_of(datasets[name], config, data)
            check_data(experiment, rows, {name: material.fingerprint})
            _check_tasks(material)
        make_folder(waiting)
        jobs = [
            (trial, datasets[trial.config.dataset].root, config, data.absolute(), experiment.name, waiting)
            for trial in missing
        ]
        with progress.task(f"lab {experiment.name}", len(jobs), "run") as advance:
            environment = _SHARED_MEMORY if num_processes > 1 else None
            for _ in map_in_processes(
                _work, jobs, num_processes, what="lab", setting="--processes", environment=environment
            ):
                _collect(folder, waiting)
                advance(1)
        _collect(folder, waiting, ends=True)
        return read_rows(folder)


def design_sentence(experiment: Experiment) -> tuple[str, bool]:
    """A sentence on the smallest difference that the pairs can find, and whether it is small enough."""
    config, pairs = experiment.config, experiment.num_pairs
    if pairs < 2:
        return f"{experiment.name}: one pair of runs gives no interval; add seeds.", False
    effect = smallest_detectable(config.pair_deviation, pairs)
    sentence = (
        f"{experiment.name}: {pairs} pairs with a standard deviation of {config.pair_deviation:g} detect a difference "
        f"of {effect:.3g} in {config.measures[0]} with a power of 80 %; the smallest effect that matters is "
        f"{config.smallest_effect:g}."
    )
    if effect > config.smallest_effect:
        sentence += " Add seeds, or read a smaller difference as inconclusive."
    return sentence, effect <= config.smallest_effect


def _collect(folder: Path, waiting: Path, *, ends: bool = False) -> None:
    """Move finished rows into the file; a row that a kill left in both places is kept once."""
    if not waiting.is_dir():
        return
    if rows := read_rows(waiting):
        stored = stored_identities(folder / FILE)
        if not stored.isdisjoint(rows):
            read_rows(folder, waiting)  # raises an error if the numbers differ
        append_rows(folder / FILE, [row for identity, row in rows.items() if identity not in stored])
        for identity in rows:
            (waiting / f"{identity}.parquet").unlink(missing_ok=True)
    if ends:  # no process writes to this folder now
        remove_leftovers(waiting)
        with suppress(OSError):
            waiting.rmdir()


def _material_of(dataset: Dataset, config: ExperimentConfig, data: Path) -> Material:
    """The material that all trials of an experiment on one dataset use; tasks' paths are relative to `data`."""
    return Material(dataset, make_evaluation(dataset, config, data), config.validation.macro)


def _check_tasks(material: Material) -> None:
    for name, task in material.evaluation.tasks.items():
        share = common_runs(material.dataset, task)
        if share > _MOST_IN_COMMON:
            warnings.warn(
                f"{share:.0%} of the task {name!r}, by runs of 32 tokens, is also in the training documents: its loss "
                "also measures memory. Remove these documents from training (the step `decontaminate`), or choose "
                "another text.",
                SeenTask,
                stacklevel=3,
            )


_SHARED_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""If several processes use one accelerator, none may take most of its memory in advance."""
_material: dict[tuple[Path, str], Material] = {}
"""The shared material of this process's trials; the key is the dataset and the settings as text."""


def _work(trial: Trial, root: Path, config: ExperimentConfig, data: Path, experiment: str, waiting: Path) -> None:
    """Run one trial in a worker process and write its row."""
    _take_one_core()
    if (key := (root, repr(config))) not in _material:
        _material.clear()
        _material[key] = _material_of(open_dataset(root), config, data)
    append_rows(waiting / f"{trial.identity}.parquet", [run_trial(trial, _material[key], experiment)])


@lru_cache(maxsize=1)
def _take_one_core() -> None:
    """Restrict this process to one core, before JAX starts its threads, so that processes do not compete.

    The number of threads also determines how sums are divided, and therefore the last bits of a loss.
    """
    if accelerator():
        return
    cores = sorted(os.sched_getaffinity(0))
    number = (multiprocessing.current_process()._identity or (1,))[-1]
    os.sched_setaffinity(0, {cores[(number - 1) % len(cores)]})


def accelerator() -> bool:
    """Whether this machine has an accelerator, according to device files: a call of JAX would start JAX's threads."""
    return any(Path(path).exists() for path in ("/dev/nvidia0", "/dev/accel0", "/dev/vfio/0"))

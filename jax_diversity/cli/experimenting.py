"""The commands `lab run` and `lab show`, which train the models of an experiment and print the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_diversity.cli.options import LabOptions, LabRunOptions, LabShowOptions
from jax_diversity.corpus.settings import PYTHON_ENVIRONMENT
from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import check_folder_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.own_functions import give
from jax_diversity.foundation.processes import num_cores
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.foundation.terminal import show
from jax_diversity.lab.experiments.evaluation import at
from jax_diversity.lab.experiments.results import read_rows
from jax_diversity.lab.experiments.settings import Experiment, read_experiment
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig


def run_lab(options: LabRunOptions) -> str:
    """Build the missing datasets, do the missing runs, and return a summary."""
    from jax_diversity.lab.experiments.running import accelerator, design_sentence, run_experiment

    experiment = _experiment(options)
    check_folder_name("out", options.out)
    if options.processes < 0 or (options.runs is not None and options.runs < 1):
        raise UserError(f"Expected --processes >= 0 and --runs >= 1, found {options.processes} and {options.runs}.")
    progress, data = Progress(options.quiet), Path(options.data)
    sentence, is_enough = design_sentence(experiment)
    if is_enough and not options.quiet:  # otherwise it is a warning
        show(sentence)
    needed = [trial.config.dataset for trial in experiment.trials if not options.arms or trial.arm in options.arms]
    datasets = {
        name: _dataset(name, experiment.datasets[name], Path(options.out), data, progress)
        for name in dict.fromkeys(needed)
    }
    rows = run_experiment(
        experiment,
        Path(options.out) / experiment.name,
        datasets,
        data=data,
        num_processes=options.processes or (1 if accelerator() else num_cores()),
        arms=options.arms,
        num_trials=options.runs,
        progress=progress,
    )
    done = sum(trial.identity in rows for trial in experiment.trials)
    return f"{experiment.name}: {done} of {len(experiment.trials)} runs done; `jax-diversity lab show {options.file}`"


def show_lab(options: LabShowOptions) -> str:
    """Return the results of an experiment as text; with `--page` they are also written as a page."""
    from jax_diversity.lab.experiments.page import experiment_text, write_page

    experiment = _experiment(options)
    rows = read_rows(Path(options.out) / experiment.name)
    if options.page is not None:
        write_page(experiment, rows, Path(options.page))
    return experiment_text(experiment, rows)


def _experiment(options: LabOptions) -> Experiment:
    if not options.file:
        raise UserError("Expected the file of an experiment, found no file; name a file of configs/experiments.")
    return read_experiment(options.file, options.size)


def _dataset(name: str, settings: Any, out: Path, data: Path, progress: Progress) -> Dataset:
    """Return a dataset of an experiment. It is built if it is missing; experiments with equal settings share it."""
    plain = dict(settings)
    corpus = dict(plain.get("corpus") or {})
    paths = corpus.get("paths") or []
    corpus["paths"] = [path if path == PYTHON_ENVIRONMENT else at(data, path) for path in paths]
    folder = out / "datasets" / f"{name}-{fingerprint(settings)[:8]}"
    plain |= {"corpus": corpus, "out": str(folder), "orders": []}
    give(plain)
    Build(settings_from_plain(BuildConfig, plain, f"datasets.{name}"), progress).run_all()
    return open_dataset(folder)

"""The commands `run`, `show` and `summary`: train the models of an experiment, print results, and compare claims."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jax_diversity.foundation.checks import check_folder_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.terminal import show

if TYPE_CHECKING:
    from evidence.settings import Experiment
    from jax_diversity.streaming.dataset import Dataset

_Size = Literal["tiny", "mini", "small", "gpu"]


def run(
    file: str = "",
    /,
    *,
    out: str = "lab",
    size: _Size | None = None,
    data: str = ".",
    processes: int = 0,
    arms: tuple[str, ...] = (),
    runs: int | None = None,
    quiet: bool = False,
) -> None:
    """Make the missing training runs of an experiment.

    Args:
        file: The experiment's file, such as configs/experiments/orders.yaml.
        out: Folder of all experiments: rows are in OUT/NAME/results.parquet, datasets in OUT/datasets.
        size: Size of all models (230 thousand, 2, 10 and 161 million parameters); None means the size in the file.
        data: The folder to which the paths of corpora and tasks are relative.
        processes: Number of parallel runs, each on one core; 0 means the number of cores, or 1 on an accelerator.
        arms: Run only these arms.
        runs: Largest number of runs to do now.
        quiet: Show no progress.
    """
    from evidence.running import accelerator, design_sentence, run_experiment
    from jax_diversity.foundation.processes import num_cores

    experiment = _experiment(file, size)
    check_folder_name("out", out)
    if processes < 0 or (runs is not None and runs < 1):
        raise UserError(f"Expected --processes >= 0 and --runs >= 1, found {processes} and {runs}.")
    progress, place = Progress(quiet), Path(data)
    sentence, is_enough = design_sentence(experiment)
    if is_enough and not quiet:  # otherwise it is a warning
        show(sentence)
    needed = [trial.config.dataset for trial in experiment.trials if not arms or trial.arm in arms]
    datasets = {
        name: _dataset(name, experiment.datasets[name], Path(out), place, progress) for name in dict.fromkeys(needed)
    }
    rows = run_experiment(
        experiment,
        Path(out) / experiment.name,
        datasets,
        data=place,
        num_processes=processes or (1 if accelerator() else num_cores()),
        arms=arms,
        num_trials=runs,
        progress=progress,
    )
    done = sum(trial.identity in rows for trial in experiment.trials)
    show(f"{experiment.name}: {done} of {len(experiment.trials)} runs done; `python -m evidence show {file}`")


def show_results(file: str = "", /, *, out: str = "lab", size: _Size | None = None, page: str | None = None) -> None:
    """Show an experiment: tables, figures, a page.

    Args:
        file: The experiment's file, such as configs/experiments/orders.yaml.
        out: Folder of all experiments: rows are in OUT/NAME/results.parquet, datasets in OUT/datasets.
        size: Size of all models (230 thousand, 2, 10 and 161 million parameters); None means the size in the file.
        page: Write the experiment's page (Markdown) and figures (SVG) into this folder.
    """
    from evidence.page import experiment_text, write_page
    from evidence.results import read_rows

    experiment = _experiment(file, size)
    rows = read_rows(Path(out) / experiment.name)
    if page is not None:
        write_page(experiment, rows, Path(page))
    show(experiment_text(experiment, rows))


def summarize(files: tuple[str, ...] = (), /, *, out: str = "lab", page: str | None = None) -> None:
    """Show the claims of several experiments in one table: verdict, effect, pairs, minimal detectable effect.

    Args:
        files: The experiments' files, such as configs/experiments/*.yaml; experiments without rows are left out.
        out: Folder of all experiments, as for `show`.
        page: Write a figure (SVG) of all effects into this folder.
    """
    from evidence.judging import Judge
    from evidence.results import read_rows
    from evidence.summary import judged_claims, summary_text, write_figure

    if not files:
        raise UserError("Expected files of experiments, found none; name files of configs/experiments.")
    experiments = [_experiment(file, None) for file in files]
    claims = judged_claims([Judge(experiment, read_rows(Path(out) / experiment.name)) for experiment in experiments])
    if not claims:
        raise UserError(f"Expected rows of the experiments in {out}, found none; run `python -m evidence run`.")
    if page is not None:
        write_figure(claims, Path(page))
    show(summary_text(claims))


def _experiment(file: str, size: _Size | None) -> Experiment:
    if not file:
        raise UserError("Expected the file of an experiment, found no file; name a file of configs/experiments.")
    from evidence.settings import read_experiment

    return read_experiment(file, size)


def _dataset(name: str, settings: Any, out: Path, data: Path, progress: Progress) -> Dataset:
    """Return a dataset of an experiment. It is built if it is missing; experiments with equal settings share it."""
    from evidence.evaluation import at
    from jax_diversity.foundation.artifacts import fingerprint
    from jax_diversity.foundation.own_functions import give
    from jax_diversity.foundation.settings import settings_from_plain
    from jax_diversity.pipeline.build import Build
    from jax_diversity.pipeline.settings import BuildConfig
    from jax_diversity.preparation.settings import PYTHON_ENVIRONMENT
    from jax_diversity.streaming.dataset import open_dataset

    plain = dict(settings)
    corpus = dict(plain.get("corpus") or {})
    paths = corpus.get("paths") or []
    corpus["paths"] = [path if path == PYTHON_ENVIRONMENT else at(data, path) for path in paths]
    folder = out / "datasets" / f"{name}-{fingerprint(settings)[:8]}"
    plain |= {"corpus": corpus, "out": str(folder), "orders": []}
    give(plain)
    Build(settings_from_plain(BuildConfig, plain, f"datasets.{name}"), progress).run_all()
    return open_dataset(folder)

"""The commands that build a dataset: all stages, one stage, one more ordering, another packing; and `verify`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jax_diversity.foundation.artifacts import read_json
from jax_diversity.foundation.checks import as_whole_number, check_folder_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.finding import existing_dataset
from jax_diversity.foundation.object_store import is_address
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.stage import Stage
from jax_diversity.foundation.tables import wrapped
from jax_diversity.foundation.terminal import show
from jax_diversity.foundation.wording import counted
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.execution import ExecutionConfig
from jax_diversity.pipeline.settings import BuildConfig, demo_config

if TYPE_CHECKING:
    from jax_diversity.pipeline.build import StageResult
    from jax_diversity.streaming.dataset import Dataset

_FOR_EVALUATION = (
    "All documents are held out, so there is no order of training and no report. Read the dataset with "
    'make_loader(..., split="validation").'
)
_MOST_FAULTS = 5
"""The largest number of damaged files in the error of `verify`."""


def build(
    settings: BuildConfig, execution: ExecutionConfig, *, quiet: bool = False, open: bool = False, all: bool = False
) -> None:
    """Make everything, from the documents to records and report.

    Args:
        quiet: Show no progress.
        open: Show the report in the browser.
        all: Print every measure of every ordering at every window size.
    """
    _build(settings, execution, quiet, open, all, trains=False)


def demo(
    settings: BuildConfig = demo_config(),  # noqa: B008 - settings are frozen
    execution: ExecutionConfig = ExecutionConfig(),  # noqa: B008
    *,
    quiet: bool = False,
    open: bool = False,
    all: bool = False,
) -> None:
    """Build a dataset from installed Python packages and train on it.

    Args:
        quiet: Show no progress.
        open: Show the report in the browser.
        all: Print every measure of every ordering at every window size.
    """
    _build(settings, execution, quiet, open, all, trains=True)


def _build(
    settings: BuildConfig, execution: ExecutionConfig, quiet: bool, opens: bool, shows_all: bool, *, trains: bool
) -> None:
    from jax_diversity.pipeline.build import Build
    from jax_diversity.pipeline.guidance import next_steps, show_report
    from jax_diversity.pipeline.tables import build_table, held_out_line, training_line
    from jax_diversity.streaming.dataset import open_dataset

    progress = Progress(quiet)
    build = Build(settings, progress, execution.executor())
    results = build.run_all(report=not trains)
    run = None
    if trains:
        from jax_diversity.lab.training import train_in_place

        run = train_in_place(settings.out, settings.train, progress)
        results.append(build.run_stage("report"))  # with the run's losses
    show(build_table(results))
    _show_funnel(results, build.folder.root)
    dataset = open_dataset(build.folder.root)
    if line := held_out_line(dataset):
        show(f"\n{line}")
    if not dataset.num_sequences:
        show(f"\n{wrapped(_FOR_EVALUATION)}")
        return
    _show_verdict(dataset, settings.out, shows_all, [None])
    if run is not None:
        show(f"\n{training_line(run)}")
    show_report(build.folder.root, opens)
    if run is not None:
        show(f"\nTry next:\n{next_steps(settings)}")


def run_stage(stage: Stage, settings: BuildConfig, execution: ExecutionConfig, *, quiet: bool = False) -> None:
    """Run one stage of a build.

    Args:
        quiet: Show no progress.
    """
    from jax_diversity.pipeline.build import Build
    from jax_diversity.pipeline.tables import build_table

    build = Build(settings, Progress(quiet), execution.executor())
    results = [build.run_stage(stage.name)]
    show(build_table(results))
    _show_funnel(results, build.folder.root)


def prepare(
    stage: Stage,
    settings: BuildConfig,
    execution: ExecutionConfig,
    *,
    quiet: bool = False,
    dry_run: bool = False,
    sample: int | None = None,
) -> None:
    """Run the first stage, or show what it would keep.

    Args:
        quiet: Show no progress.
        dry_run: Show what the steps would keep, and write nothing.
        sample: In a dry run: approximate number of documents to read, from all files; by default all documents.
    """
    if sample is not None and not dry_run:
        raise UserError(
            "Expected --sample only together with --dry-run, found --sample alone; a dataset contains all documents: "
            "add --dry-run, or leave --sample out."
        )
    if dry_run:
        _run_dry(settings, Progress(quiet), sample)
    else:
        run_stage(stage, settings, execution, quiet=quiet)


def report(
    stage: Stage,
    settings: BuildConfig,
    execution: ExecutionConfig,
    *,
    quiet: bool = False,
    open: bool = False,
    version: int | None = None,
    families: tuple[str, ...] = (),
    target: str | None = None,
) -> None:
    """Write the report of a dataset, or of a run.

    Args:
        quiet: Show no progress.
        open: Show the page in the browser.
        version: Of a run: its version; the last by default.
        families: For a run: families to measure; by default all families that the datasets balance.
        target: For a run: the folder for report.html and report.json; by default the run's folder.
    """
    from jax_diversity.pipeline.guidance import show_report
    from jax_diversity.streaming.run.commands import is_run

    if is_run(settings.out):
        if replace(settings, out="", windows=()) != BuildConfig(out="", windows=()):
            raise UserError(
                f"Expected no settings of a build except windows for the report of the run in {settings.out}, found "
                "others; leave them out."
            )
        folder = _report_of_run(settings, version, families, target, Progress(quiet))
    else:
        for name, value in (("version", version), ("families", families), ("target", target)):
            if value not in (None, ()):
                raise UserError(
                    f"Expected a run in {settings.out} because of --{name}, found a dataset; leave --{name} out."
                )
        run_stage(stage, settings, execution, quiet=quiet)
        folder = Path(settings.out)
    show_report(folder, open)


def order(
    methods: tuple[str, ...] = (),
    /,
    config: OrderConfig = OrderConfig(),
    *,
    out: str = "out",
    quiet: bool = False,
    all: bool = False,
    page: bool = True,
) -> None:
    """Compute and measure more orderings.

    Args:
        methods: Methods, or published objectives (f1 f2 f3) of the method `greedy`: an ordering each, with the same
            other options. Without them, one ordering by --method.
        out: The dataset's folder.
        quiet: Show no progress.
        all: Print every measure of every ordering at every window size.
        page: Draw the report again, if the dataset has one.
    """
    from jax_diversity.pipeline.build import Build, recorded_config
    from jax_diversity.pipeline.tables import build_table
    from jax_diversity.streaming.dataset import open_dataset

    build = Build(recorded_config(existing_dataset(out)), Progress(quiet))
    configs = _orderings_of(methods, config)
    has_report = "report" in build.folder.stages
    results = build.run_orders(configs)
    if has_report and page:  # it would show the orderings as they were
        results.append(build.run_stage("report"))
    show(build_table(results))
    _show_verdict(open_dataset(build.folder.root), out, all, [config.file_name for config in configs])


def _orderings_of(methods: Sequence[str], config: OrderConfig) -> list[OrderConfig]:
    """Return the settings of an ordering for each of some methods or published objectives."""
    if not methods:
        return [config]
    default = OrderConfig()
    if config.method != default.method:
        raise UserError(
            f"Expected methods either as words or with --method, found {methods[0]} and --method {config.method}; "
            "leave one out."
        )
    if config.name is not None and len(methods) > 1:
        raise UserError(
            f"Expected --name only with one method, found {len(methods)}; make this ordering with a command of its own."
        )
    published = [method for method in methods if method in Objective.BASES]
    if published and config.objective != default.objective:
        raise UserError(
            f"Expected either the published objective {published[0]} or options of --objective, found both; leave one "
            "out."
        )
    configs = {
        method: replace(config, method="greedy", objective=getattr(Objective, method)(), name=config.name or method)
        if method in published
        else replace(config, method=method)
        for method in methods
    }
    return list(configs.values())


def repack(
    *,
    out: str = "out",
    to: str = "repacked",
    seed: int = 1,
    sequence_length: int | None = None,
    quiet: bool = False,
) -> None:
    """Pack a dataset's documents again, into a new dataset.

    Args:
        out: The dataset's folder.
        to: The new dataset's folder.
        seed: Seed of the packing.
        sequence_length: L, the length of the new sequences; by default the length of the dataset's sequences.
        quiet: Show no progress.
    """
    from jax_diversity.pipeline import repacking

    settings = {"seed": seed, "sequence_length": sequence_length}
    dataset = repacking.repack(existing_dataset(out), to, **settings, progress=Progress(quiet))
    show(f"{counted(dataset.num_sequences, 'sequence')} of {counted(dataset.sequence_length, 'token')}: {dataset.root}")


def verify(*, out: str = "out", quiet: bool = False) -> None:
    """Compare every stored file with its size and hash.

    Args:
        out: The dataset's folder.
        quiet: Show no progress.
    """
    from jax_diversity.foundation.artifacts import OutputFolder
    from jax_diversity.lab.checkpoints import verify_training
    from jax_diversity.streaming.dataset import open_dataset

    place = existing_dataset(out)
    folder = open_dataset(place).stored if is_address(place) else OutputFolder(place)
    sizes = [description["bytes"] for entry in folder.stages.values() for description in entry["files"].values()]
    if not sizes:
        raise UserError(f"Expected a dataset in {out}, found no dataset; run `jax-diversity build` first.")
    with Progress(quiet).task("verify", sum(sizes), "byte") as advance:
        faults = folder.verify(advance) + verify_training(folder.root)
    if faults:
        named = "; ".join(map(str, faults[:_MOST_FAULTS]))
        if len(faults) > _MOST_FAULTS:
            show("\n".join(map(str, faults)))
            named += " and others (standard output has the full list)"
        raise UserError(
            f"Expected all files in {out} unchanged, found {counted(len(faults), 'file')} damaged or missing: "
            f"{named}; restore what is damaged, or delete it and make it again (`jax-diversity "
            "build`, or `train` for a checkpoint)."
        )
    show(f"{out}: {counted(len(sizes), 'file')}, {counted(sum(sizes), 'byte')}, all unchanged.")


def _show_funnel(results: Sequence[StageResult], root: Path) -> None:
    """Show the documents that preparation removed, if preparation ran now."""
    from jax_diversity.pipeline.tables import funnel_table

    for result in results:
        if "preparation" in result.counts and not result.kept:
            show(f"\n{funnel_table(read_json(root / 'preparation' / 'funnel.json', result.stage))}")


def _show_verdict(dataset: Dataset, out: str, shows_all: bool, orderings: Sequence[str | None]) -> None:
    """Show whether orderings are better than a shuffle, and how; with `shows_all`, also all numbers."""
    from jax_diversity.pipeline.tables import orderings_table, orderings_verdict

    show(f"\n{orderings_verdict(dataset, orderings)}")
    if shows_all:
        show(f"\n{orderings_table(dataset)}")
    else:
        show(f"More: jax-diversity measure --out {shlex.quote(out)} --all")


def _run_dry(config: BuildConfig, progress: Progress, sample: int | None) -> None:
    """Run the steps of preparation, show the remaining documents, and write nothing."""
    from jax_diversity.foundation.attempts import time_limit
    from jax_diversity.pipeline.tables import funnel_table
    from jax_diversity.preparation.readers.reading import input_size, read_documents, sample_documents
    from jax_diversity.preparation.readers.records import ReadReport

    if sample is not None:
        as_whole_number("--sample", sample, 1)
    config.check({"corpus", "preparation"})
    chain = config.preparation.chain()
    if chain is None:
        raise UserError(
            "Expected steps to try, found no steps; set preparation.steps in a file for --config, or pass "
            "--preparation.recipe fineweb."
        )
    corpus, record = config.corpus, ReadReport()
    limit = time_limit(config.preparation.seconds_per_document)
    with limit, progress.task("try preparation", None if sample else input_size(corpus), "byte") as advance:
        if sample is None:
            documents = read_documents(corpus, record, advance)
        else:
            documents = sample_documents(corpus, sample, record, advance)
        for _ in chain.through(documents):
            pass
    show(funnel_table(chain.account()))


def _report_of_run(
    config: BuildConfig, version: int | None, families: tuple[str, ...], target: str | None, progress: Progress
) -> Path:
    from jax_diversity.report.page import write_report
    from jax_diversity.report.run import run_values
    from jax_diversity.streaming.run.stored import open_schedule

    run = open_schedule(config.out, version)
    values = run_values(run, progress, config.windows, families)
    if target is not None:
        check_folder_name("target", target)
    folder = run.root if target is None else Path(target)
    write_report(folder, values)
    return folder

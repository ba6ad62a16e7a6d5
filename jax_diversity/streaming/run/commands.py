"""The commands `inspect`, `measure` and `schedule`, and the run that a command is about."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.finding import existing_dataset
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.terminal import show
from jax_diversity.foundation.wording import counted
from jax_diversity.streaming.run.settings import SCHEDULE_FILE, ScheduleConfig

if TYPE_CHECKING:
    from jax_diversity.streaming.run.run import Run

_LAST_POSITION = 2**62
"""The largest position that `inspect` accepts; positions are 64-bit integers."""


def is_run(out: str) -> bool:
    """Whether a folder contains a stored run."""
    return bool(out) and "://" not in out and (Path(out) / SCHEDULE_FILE).is_file()


def open_run(out: str, version: int | None, ordering: str | None = None) -> Run:
    """Open the run in a folder: a stored run, or a dataset with an ordering."""
    from jax_diversity.streaming.run.run import make_run
    from jax_diversity.streaming.run.stored import open_schedule

    if is_run(out):
        if ordering is not None:
            raise UserError(f"Expected no ordering, because the run in {out} has its own, found {ordering}; omit it.")
        return open_schedule(out, version)
    if version is not None:
        raise UserError(f"Expected a run in {out} with --version {version}, found a dataset.")
    return make_run(existing_dataset(out), ordering)


def schedule(
    settings: ScheduleConfig, *, seen: int | None = None, out: str = "seen.parquet", quiet: bool = False
) -> None:
    """Make, change or show the schedule of a run.

    Args:
        seen: Also write the documents that training has read before this position.
        out: The file that `--seen` writes.
        quiet: Show no progress.
    """
    from jax_diversity.streaming.run import making
    from jax_diversity.streaming.run.run import open_datasets
    from jax_diversity.streaming.run.stored import open_schedule

    exists, progress = (Path(settings.path) / SCHEDULE_FILE).is_file(), Progress(quiet)
    settings.check(exists)
    datasets = open_datasets(settings.datasets) if settings.datasets else []
    if (seen or 0) < 0:
        raise UserError(f"Expected --seen >= 0, found {seen}.")
    if not exists and not settings.datasets:
        open_schedule(settings.path)  # raises an error if the run is missing
    with progress.task("order epochs", None, "sequence") as advance:
        if not exists:
            if settings.position is not None or settings.skip:
                raise UserError(
                    f"Expected a schedule at {settings.path} for --position or --skip, found none; make it first."
                )
            first = settings.ordering
            run = making.create_schedule(
                settings.path, datasets, ordering=first, **settings.arguments(datasets), advance=advance
            )
        elif settings.skip:
            run = making.skip_positions(open_schedule(settings.path), *settings.skip)
        elif settings.position is not None:
            position = None if settings.position == -1 else settings.position
            run = open_schedule(settings.path)
            change = settings.arguments([*run.datasets, *datasets])
            run = making.extend_schedule(run, position=position, datasets=datasets, **change, advance=advance)
        else:
            run = open_schedule(settings.path)
        if settings.background:
            run.wait()
    show(str(run))
    if seen is not None:
        table = run.seen(seen, out)
        show(f"\n{counted(table.num_rows, 'document')} were read before position {seen:,}: {out}")


def measure(
    *,
    out: str = "out",
    quiet: bool = False,
    orderings: tuple[str, ...] = (),
    order: tuple[str, ...] = (),
    windows: tuple[int, ...] = (),
    families: tuple[str, ...] = (),
    version: int | None = None,
    targets: str | None = None,
    all: bool = False,
    curves: bool = False,
    profile: bool = False,
    relative_to: str | None = None,
    json: bool = False,
    markdown: bool = False,
) -> None:
    """Measure the balance of orderings.

    Args:
        out: The folder of a dataset, or of a run.
        quiet: Show no progress.
        orderings: Names of the dataset's orderings, or .npy files; default: all orderings of the dataset.
        order: Your own orderings, which are also measured: .npy files of sequence indices.
        windows: Window sizes in sequences, such as your batch size; default: the sizes that the dataset was built
            with, except sizes of which fewer than two windows fit into the dataset.
        families: Families to measure; each stored family is allowed; default: the families that the dataset balances.
            The norm drift is measured in the first family.
        version: The version of a run; the last by default.
        targets: An ordering (name or .npy file) that was made with targets: also compare every window with these
            targets.
        all: Print every measure, by family and window size, and the curves.
        curves: Also draw every ordering along training.
        profile: Also list the deviation at the window sizes 1, 2, 4 ... up to all sequences.
        relative_to: The name of an ordering: print every number as a ratio to this ordering's number.
        json: Print the values and curves as JSON.
        markdown: Print the tables in Markdown, without curves.
    """
    if json and (markdown or relative_to):
        raise UserError(f"Expected --json or {'--markdown' if markdown else '--relative-to'}, found both; choose one.")
    if targets is not None and relative_to is not None:
        raise UserError("Expected --targets or --relative-to, found both; measures against targets have no ratios.")
    from jax_diversity.streaming.run import measuring
    from jax_diversity.streaming.run.measures_text import (
        measures_legend,
        profile_tables,
        targets_table,
        training_curves,
    )

    if is_run(out):
        for name, value in (("orderings", orderings), ("order", order), ("targets", targets)):
            if value:
                raise UserError(
                    f"Expected no --{name} with the run in {out}, which has its own order; leave --{name} out."
                )
        run = open_run(out, version)
        compared = measuring.choose({run.name: run}, windows, families)
    else:
        if version is not None:
            open_run(out, version)  # raises an error for a dataset with --version
        compared = measuring.choose_orderings(existing_dataset(out), orderings, order, windows, families, targets)
    progress = Progress(quiet)
    if json:
        show(dumps(measuring.measure_orderings(compared, progress, profile=profile), indent=2))
        return
    comparison, along = measuring.compare_orderings(compared, progress)
    if markdown or relative_to is not None:
        comparison = comparison if relative_to is None else comparison.relative_to(relative_to)
        show(comparison.markdown() if markdown else comparison.table())
    else:
        verdict = comparison.verdict()
        show(str(verdict if verdict is not None else comparison))
        if all:
            show(f"\n{measures_legend(compared)}\n\n{comparison.table()}")
        if all or curves:
            show(f"\n{training_curves(along)}")
        if not (all or curves or profile):
            show("More: --all (every measure), --curves (along training), --profile (all sizes)")
    if compared.followed is not None:
        beside = measuring.measure_targets(compared, compared.followed, progress)
        show(f"\n{targets_table(compared.followed.name, beside, markdown)}")
    if profile and not markdown:
        show(f"\n{profile_tables(measuring.profile_orderings(compared, progress))}")


def inspect(
    *,
    out: str = "out",
    ordering: str | None = None,
    version: int | None = None,
    step: int = 0,
    batch_size: int | None = None,
    rank: int | None = None,
    num_hosts: int = 1,
    document: str | None = None,
    rows: int = 10,
    compare: bool = True,
    json: bool = False,
) -> None:
    """Show a batch and its deviation, or the uses of a document.

    Args:
        out: The folder of a dataset, or of a run.
        ordering: The ordering that training follows, or a .npy file of sequence indices; `balance` by default.
        version: The version of a run; the last by default.
        step: The step of training, counted from 0 over all epochs.
        batch_size: Number of sequences in a batch over all hosts; by default the batch size of the dataset, or 64 (or
            all sequences, if there are fewer).
        rank: Show only the rows that this host reads; hosts are counted from 0. This needs `num_hosts`.
        num_hosts: Number of hosts that share the batch.
        document: The id of a document: show where training reads it, instead of a batch.
        rows: The largest number of listed sequences.
        compare: Show the batch's rank among all batches of the ordering. This reads the counts of the whole dataset.
        json: Print JSON, with all sequences of the batch.
    """
    if rank is None and num_hosts != 1:
        raise UserError(f"Expected --rank with --num-hosts {num_hosts}, found no --rank; say which host.")
    if rows < 0:
        raise UserError(f"Expected --rows >= 0, found {rows}.")
    from jax_diversity.foundation.folders import valid_name
    from jax_diversity.streaming.dataset import open_dataset
    from jax_diversity.streaming.run.history import document_history
    from jax_diversity.streaming.run.inspection import Inspector, chat_turns, unknown_document
    from jax_diversity.streaming.run.inspection_text import (
        AllBatches,
        batch_json,
        batch_table,
        document_json,
        history_text,
        turns_text,
        uses_table,
    )

    if document is not None:
        document = valid_name(document)  # ids that contain file names are stored in this form
    if document is not None and not is_run(out):
        dataset = open_dataset(existing_dataset(out))
        if not dataset.orderings:  # the build has not reached the stage `order`, so a run does not exist yet
            history = document_history(dataset, document)
            if history.decision is None and not history.is_stored:
                raise unknown_document([dataset], document)
            if json:
                show(document_json([history], []))
                return
            kept = ["Preparation kept it. There is no ordering yet: finish the dataset with `jax-diversity build`."]
            show(history_text(document, [*history.sentences, *(kept if history.is_stored else [])], ""))
            return
    run = open_run(out, version, ordering)
    usual = run.datasets[0].batch_size or max(min(64, len(run)), 1)
    size = usual if batch_size is None else batch_size
    if step * size > _LAST_POSITION:
        raise UserError(f"Expected --step of at most {_LAST_POSITION // size} with --batch-size {size}, found {step}.")
    inspector = Inspector(run, size)
    if document is not None:
        histories = [document_history(dataset, document) for dataset in run.datasets]
        is_removed = any(history.decision is not None for history in histories) and not any(
            history.is_stored for history in histories
        )
        uses = [] if is_removed else inspector.uses(document)  # an error for an id that nothing knows
        if json:
            show(document_json(histories, uses))
            return
        sentences = [sentence for history in histories for sentence in history.sentences]
        absence = "" if is_removed or uses else inspector.absence(document)
        where = "" if is_removed else uses_table(document, run, uses, inspector.appearances(document), absence)
        turns = [turns_text(chat_turns(dataset, document)) for dataset in run.datasets]
        show("\n".join([history_text(document, sentences, where), *filter(None, turns)]))
        return
    host = {"host_index": rank or 0, "num_hosts": num_hosts}
    batch = inspector.batch(step, **host, compare=compare)
    all_batches = None
    if compare:
        all_batches = AllBatches(len(run) // size, inspector.deviations(**host), inspector.steps_with_repeats(**host))
    show(batch_json(batch, all_batches) if json else batch_table(batch, run, rows, all_batches))

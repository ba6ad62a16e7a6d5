"""The stage `write`: it gathers the tokens of the sequences and writes them as records. A file is a job."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from jax_diversity.foundation.jobs import Job, Work, finished
from jax_diversity.foundation.progress import reached
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.wording import counted
from jax_diversity.streaming.records.settings import RecordsConfig
from jax_diversity.streaming.records.stored import RECORDS

_SPOOL = "spool"
"""The folder of the files between the two passes of the ordered layout, which are removed in the end."""


def write_sequences(context: Context, partial: Path) -> Counts:
    """Gather the sequences' tokens and write the records."""
    from jax_diversity.streaming.records.codec import VERSION
    from jax_diversity.streaming.records.jobs import write_file
    from jax_diversity.streaming.records.writing import file_counts

    config: RecordsConfig = context.config.records
    is_ordered = config.layout == "ordered"
    packed = context.counts("pack")
    sizes = {"train": packed["num_sequences"], "validation": packed["num_validation_sequences"]}
    jobs: list[Job] = [
        (name, (context.opened, part, first, stop))
        for part in (("validation",) if is_ordered else sizes)
        for name, first, stop in _files(partial, part, sizes[part], config.sequences_per_file)
    ]
    _run(context, "write records", write_file, jobs, sum(sizes.values()) - is_ordered * sizes["train"])
    if is_ordered:
        _write_ordered(context, partial, sizes["train"])
    counts = {
        "records": {part: list(file_counts(size, config.sequences_per_file)) for part, size in sizes.items()},
        "dtype": context.counts("tokenize")["token_dtype"],
        "identity": context.folder.stages["pack"]["fingerprint"],
        "format": VERSION,
    }
    if context.dataset.has_loss_mask:
        counts["has_loss_mask"] = True
    return {"layout": config.layout, "ordering": config.ordering if is_ordered else None, **counts}


def _write_ordered(context: Context, partial: Path, num_sequences: int) -> None:
    """Write the training records in an order: sort runs of sequences, then write the files from the runs."""
    from jax_diversity.streaming.records import sorting
    from jax_diversity.streaming.records.jobs import record_kind

    config, dataset, spool = context.config.records, context.opened, partial / _SPOOL
    run = sorting.run_length(record_kind(context.dataset).num_bytes)
    runs, places = _slices(num_sequences, run), _slices(num_sequences, sorting.places_length(run))
    files: list[Job] = [
        (name, (dataset, config.ordering, str(spool), len(runs), first, stop))
        for name, first, stop in _files(partial, "train", num_sequences, config.sequences_per_file)
    ]
    # After the last file, a kill may have left a part of the spool, which nobody needs any more.
    if any(finished(sorting.write_ordered_file, name) is None for name, _ in files):
        spool.mkdir(exist_ok=True)
        names = [str(spool / f"places-{number:06d}") for number in range(len(places))]
        inverted: list[Job] = [
            (name, (dataset, config.ordering, first, stop)) for name, (first, stop) in zip(names, places, strict=True)
        ]
        _run(context, "invert the order", sorting.invert, inverted, num_sequences)
        sorted_runs: list[Job] = []
        for number, (first, stop) in enumerate(runs):
            source = first // places[0][1]
            arguments = (dataset, f"{names[source]}.npy", places[source][0], first, stop)
            sorted_runs.append((str(sorting.run_name(spool, number)), arguments))
        _run(context, "sort sequences", sorting.sort_run, sorted_runs, num_sequences)
        _run(context, "write records", sorting.write_ordered_file, files, num_sequences)
    if spool.exists():
        shutil.rmtree(spool)


def _run(context: Context, task: str, work: Work, jobs: Sequence[Job], num_sequences: int) -> None:
    """Run jobs, whose results are the numbers of their sequences."""
    done = 0
    with context.progress.task(task, num_sequences, "sequence") as advance:
        for number in context.executor.map(work, jobs):
            done += number
            reached(advance, done)


def _files(folder: Path, part: str, size: int, per_file: int) -> Iterator[tuple[str, int, int]]:
    """Yield each record file of a part: its path without ending, its first record, and the record after its last."""
    from jax_diversity.streaming.records.writing import record_paths

    slices = _slices(size, per_file)
    for path, (first, stop) in zip(record_paths(folder, part, len(slices)), slices, strict=True):
        yield str(path.with_suffix("")), first, stop


def _slices(size: int, length: int) -> list[tuple[int, int]]:
    """Divide 0 ... size - 1 into slices of one length; the last may be shorter."""
    return [(first, min(first + length, size)) for first in range(0, size, length)]


def summary(counts: Counts) -> str:
    """Return one line: the numbers of records and record files, and the order."""
    records = counts["records"]
    where = f"in the order of {counts['ordering']!r}" if counts["layout"] == "ordered" else "as packed"
    num_files = sum(map(len, records.values()))
    return (
        f"{sum(records['train']):,} + {sum(records['validation']):,} records in {counted(num_files, 'file')}, {where}"
    )


def _inputs(context: Context) -> tuple[str, ...]:
    config: RecordsConfig = context.config.records
    needs = ("tokenize", "pack")
    return (*needs, f"order/{config.ordering}") if config.layout == "ordered" else needs


WRITE = Stage(
    "write",
    help="Write the sequences as ArrayRecord files.",
    section="records",
    destination=RECORDS,
    run=write_sequences,
    summary=summary,
    settings=lambda config: {"records": dataclasses.asdict(config.records)},
    inputs=_inputs,
    resumable=True,
    packages=("array_record",),
    version=2,
)

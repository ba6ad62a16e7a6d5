"""A run's schedule, as the command line prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jax_diversity.cli.tables import end_of, plain_table, printed
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.terminal import clean

if TYPE_CHECKING:
    from jax_diversity.schedule.stored import RunSchedule

_MOST_DOCUMENTS = 3


def schedule_table(run: RunSchedule) -> str:
    """Its datasets, how often each comes, and its versions."""
    dataset, _ = run.places(np.arange(len(run)))
    counts = np.bincount(dataset, minlength=len(run.members))
    datasets = plain_table("dataset", "sequences", "positions", "share", "epochs", numbers=("sequences", "positions"))
    for member, count in zip(run.members, counts.tolist(), strict=True):
        epochs = count / member.num_sequences if member.num_sequences else 0.0
        cells = (f"{member.num_sequences:,}", f"{count:,}", f"{count / max(len(run), 1):.1%}", f"{epochs:.2f}")
        datasets.add_row(end_of(clean(member.path), 36), *cells)
    versions = plain_table("version", "positions", "change", numbers=("version", "positions"))
    for number, version in enumerate(run.content.versions, start=1):
        length = sum(len(each) for each in version.slices if not each.skipped)
        versions.add_row(str(number), f"{length:,}", clean(version.change))
    return f"{printed(datasets)}\n\n{printed(versions)}"


def batch_of_schedule(run: RunSchedule, step: int, batch_size: int) -> str:
    """The rows of a step's batch: dataset, sequence, epoch of the dataset, documents."""
    size = whole_number("--batch-size", batch_size, 1, max(len(run), 1))
    first = whole_number("--step", step, 0, max(len(run) // size - 1, 0)) * size
    positions = np.arange(first, min(first + size, len(run)))
    dataset, sequence = run.places(positions)
    # With what was skipped before: it counts as come.
    used = np.searchsorted(run.offsets, run.history(first), side="right") - 1
    given = np.bincount(used, minlength=len(run.members))
    table = plain_table(
        "position", "dataset", "epoch", "sequence", "documents", numbers=("position", "epoch", "sequence")
    )
    names = [list(each.document_store.ids()) for each in run.datasets]
    for position, index, number in zip(positions.tolist(), dataset.tolist(), sequence.tolist(), strict=True):
        member, segments = run.members[index], run.datasets[index].segments
        epoch = int(given[index]) // member.num_sequences
        given[index] += 1
        low, high = np.searchsorted(segments.sequence_index, [number, number + 1])
        held = np.unique(segments.document_index[low:high]).tolist()
        documents = [clean(names[index][each]) for each in held[:_MOST_DOCUMENTS]]
        more = f" and {len(held) - _MOST_DOCUMENTS} more" if len(held) > _MOST_DOCUMENTS else ""
        cells = (end_of(clean(member.path), 16), str(epoch), f"{number:,}", ", ".join(documents) + more)
        table.add_row(f"{position:,}", *cells)
    return printed(table)

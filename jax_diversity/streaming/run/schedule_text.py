"""Format the output of the command `schedule`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jax_diversity.foundation.tables import end_of, plain_table, printed, wrapped
from jax_diversity.foundation.terminal import clean

if TYPE_CHECKING:
    from jax_diversity.streaming.run.stored import StoredRun


def schedule_table(run: StoredRun) -> str:
    """Tables of the datasets of a run, their shares, and the versions of the run.

    If a dataset was checked against files of evaluation texts, these files are listed for every dataset.
    """
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
    parts = [printed(datasets), printed(versions)]
    if any(member.checked_against for member in run.members):
        lists = (f"{member.path}: {'; '.join(member.checked_against) or 'none'}" for member in run.members)
        words = "Evaluation texts that the datasets were checked against:"
        parts.insert(1, "\n".join([words, *(wrapped(clean(each)) for each in lists)]))
    return "\n\n".join(parts)

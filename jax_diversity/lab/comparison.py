"""The same small model on several orderings: what differs between the runs is the order alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jax_diversity.dataset import Dataset
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.lab.run import TrainingRun, train
from jax_diversity.lab.settings import TrainConfig


def train_on_each(
    dataset: Dataset,
    config: TrainConfig,
    folder: Path,
    orderings: Sequence[str] = ("uniform_shuffle", "balance"),
    *,
    advance: Advance = ignore,
) -> dict[str, TrainingRun]:
    """Train one model anew on each ordering: same first weights, settings and validation sequences.

    Each run has a folder of its own, `folder/ORDERING`, and goes on where it was cut off; one that is done is read
    from its log. With `folder = dataset.root / "training"` the report draws them.

    Args:
        dataset: a built dataset.
        config: model and run; its own ordering plays no part.
        folder: takes the runs' folders.
        orderings: names of the dataset's orderings.
        advance: told 1 after every step of every run, and of a run that goes on the steps that were already done.

    Returns:
        Ordering -> run, in the order given.

    Raises:
        UserError: no ordering, one twice, or one that the dataset lacks; see `train` for the rest.

    Example:
        >>> runs = train_on_each(dataset, TrainConfig(num_steps=200, diagnose_every=10), Path("runs"))
        >>> for name, run in runs.items():
        ...     plt.plot(*run.curve("stable_rank"), label=name)
    """
    if not orderings or len(set(orderings)) < len(orderings):
        raise UserError(f"Expected different orderings, at least one, found {list(orderings)}.")
    for name in orderings:
        dataset.orderings.check(name)
    return {
        name: train(dataset, dataclasses.replace(config, ordering=name), folder / name, advance=advance)
        for name in orderings
    }

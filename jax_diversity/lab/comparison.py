"""One small model trained on several orderings: the runs differ in the order alone."""

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
    """Train one model on each ordering, with the same first weights, settings and validation sequences.

    Each run has its own folder, `folder/ORDERING`, and continues where it was interrupted; a finished run is read
    from its log. With `folder = dataset.root / "training"` the report draws the runs.

    Args:
        dataset: a built dataset.
        config: model and run; its ordering is not used.
        folder: of the folders of the runs.
        orderings: names of the dataset's orderings.
        advance: called with 1 after every step of every run, and with the steps already done when a run continues.

    Returns:
        Ordering -> run, in the given order.

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

"""A training run on a built dataset, in the dataset's own folder."""

from __future__ import annotations

from pathlib import Path

from jax_diversity import training
from jax_diversity.config import TrainConfig
from jax_diversity.dataset import open_dataset
from jax_diversity.progress import Progress


def train(out: str | Path, config: TrainConfig, progress: Progress) -> training.TrainingRun:
    """Train on one ordering; log and checkpoints stand in `out/training/ORDERING`.

    Raises:
        UserError: no such dataset or ordering, settings that cannot be, a checkpoint of something else.
    """
    dataset = open_dataset(out)
    folder = Path(out) / "training" / config.ordering
    with progress.task(f"train on {config.ordering}", config.num_steps, "steps") as advance:
        return training.train(dataset, config, folder, advance=advance)

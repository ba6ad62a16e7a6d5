"""The commands `train` and `lab explain`. JAX is imported after the checks, so that mistakes appear at once."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.checks import check_folder_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.terminal import show
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.settings import TrainConfig


def train(
    *, out: str = "out", version: int | None = None, quiet: bool = False, train: TrainConfig = TrainConfig()
) -> None:
    """Train the lab's small GPT, from its last checkpoint if any.

    Args:
        out: The dataset's folder, or the folder of a run.
        version: Of a run: its version; the last by default.
        quiet: Show no progress.
    """
    from jax_diversity.lab.training import train_in_place
    from jax_diversity.streaming.run.commands import open_run

    run = open_run(out, version, train.ordering)
    trained = train_in_place(run, replace(train, ordering=None), Progress(quiet))
    show(textwrap.fill(str(trained), width=80, break_on_hyphens=False))


def lab_explain(
    *,
    out: str = "out",
    checkpoint: str | None = None,
    sequences: int = 4096,
    batch_size: int | None = None,
    picture: str | None = None,
    quiet: bool = False,
) -> None:
    """Say what an order gives a trained model.

    Args:
        out: The dataset's folder.
        checkpoint: A checkpoint's folder, such as out/training/balance/checkpoints/200, or the folder of a training
            run. The default is the last checkpoint of the dataset's training runs.
        sequences: Number of training sequences whose gradients are explained.
        batch_size: Number of sequences in a batch of training. The default is the batch size of the dataset's build,
            or 256.
        picture: Write the picture (SVG) to this file.
        quiet: Show no progress.
    """
    from jax_diversity.lab.explaining.chosen import batch_or_usual, choose_sequences, find_checkpoint
    from jax_diversity.streaming.dataset import open_dataset

    check_folder_name("out", out)
    file = None if picture is None else Path(picture)
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):  # before minutes of work
        raise UserError(f"Expected a file in an existing folder for the picture, found {file}; name another file.")
    dataset = open_dataset(out)
    folder = find_checkpoint(dataset, None if checkpoint is None else Path(checkpoint))
    size = batch_or_usual(batch_size, dataset, sequences)
    choose_sequences(dataset, sequences, size)
    from jax_diversity.lab.explaining.checkpoint import explain_checkpoint

    num_steps, explained = explain_checkpoint(
        dataset, folder, num_sequences=sequences, batch_size=size, progress=Progress(quiet)
    )
    if file is not None:
        write_text(file, explained.picture)
    show(f"At the checkpoint after {counted(num_steps, 'step')}:\n{explained}")

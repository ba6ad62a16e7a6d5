"""The command `lab explain`. JAX is imported after the checks, so that mistakes appear at once."""

from __future__ import annotations

from pathlib import Path

from jax_diversity.cli.options import LabExplainOptions
from jax_diversity.dataset import open_dataset
from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.checks import check_folder_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.wording import counted
from jax_diversity.lab.explaining.chosen import batch_or_usual, choose_sequences, find_checkpoint


def explain_lab(options: LabExplainOptions) -> str:
    """Return what the orders of a dataset give a trained model, as text; with `--picture` also as a picture."""
    check_folder_name("out", options.out)
    picture = None if options.picture is None else Path(options.picture)
    if picture is not None and (picture.is_dir() or not picture.absolute().parent.is_dir()):  # before minutes of work
        raise UserError(f"Expected a file in an existing folder for the picture, found {picture}; name another file.")
    dataset = open_dataset(options.out)
    checkpoint = find_checkpoint(dataset, None if options.checkpoint is None else Path(options.checkpoint))
    batch_size = batch_or_usual(options.batch_size, dataset, options.sequences)
    choose_sequences(dataset, options.sequences, batch_size)
    from jax_diversity.lab.explaining.checkpoint import explain_checkpoint  # imports JAX, after the checks

    num_steps, explained = explain_checkpoint(
        dataset,
        checkpoint,
        num_sequences=options.sequences,
        batch_size=batch_size,
        progress=Progress(options.quiet),
    )
    if picture is not None:
        write_text(picture, explained.picture)
    return f"At the checkpoint after {counted(num_steps, 'step')}:\n{explained}"

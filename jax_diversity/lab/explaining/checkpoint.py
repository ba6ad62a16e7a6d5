"""Explain the gradients of a model that the lab trained, at one of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Array, Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.lab.checkpoints import DamagedCheckpoint, read_checkpoint, restore_arrays
from jax_diversity.lab.compiled import Parameters, compiled_model
from jax_diversity.lab.explaining.chosen import batch_or_usual, choose_sequences, find_checkpoint
from jax_diversity.lab.explaining.explain import Explanation, explain_gradients
from jax_diversity.lab.explaining.sketching import Loss
from jax_diversity.lab.explaining.stored import store_explanation
from jax_diversity.lab.settings import Size
from jax_diversity.lab.training import FIELDS
from jax_diversity.streaming.dataset import Dataset

_ROWS = 64


@dataclass(frozen=True)
class _Rows:
    """The batches of some training sequences; they can be read several times."""

    dataset: Dataset
    sequences: Int64[np.ndarray, " row"]
    loss_mask: Literal["all", "answers"]

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(self.sequences), _ROWS):
            part = self.sequences[start : start + _ROWS]
            yield self.dataset.records.read_sequences(part, fields=FIELDS, loss_mask=self.loss_mask)


def explain_checkpoint(
    dataset: Dataset,
    checkpoint: Path | None = None,
    *,
    num_sequences: int = 4096,
    batch_size: int | None = None,
    progress: Progress,
) -> tuple[int, Explanation]:
    """Explain the gradients of random training sequences at a checkpoint of the lab's GPT.

    If the checkpoint belongs to a training run in the dataset's folder, the explanation is stored with the run, and the
    report shows it.

    Args:
        dataset: a built dataset.
        checkpoint: a checkpoint's folder, such as `out/training/balance/checkpoints/200`, or the folder of a training
            run, whose last checkpoint is used. None means the last checkpoint of the dataset's training runs.
        num_sequences: number of sequences; all sequences if the dataset has fewer.
        batch_size: number of sequences in a batch of training; None means the batch size of the dataset's build, or
            256 if the build named none or one of more than `num_sequences`.
        progress: shows the progress.

    Returns:
        The checkpoint's number of steps, and the explanation.

    Raises:
        UserError: no checkpoint, or a damaged one; a checkpoint of another vocabulary, or of a run that diverged; the
            errors of `explain_gradients`.

    Example:
        >>> num_steps, explained = explain_checkpoint(jd.open_dataset("out"), progress=Progress())
        >>> print(explained.table)
    """
    path = find_checkpoint(dataset, checkpoint)
    batch_size = batch_or_usual(batch_size, dataset, num_sequences)
    sequences = choose_sequences(dataset, num_sequences, batch_size)
    try:
        description = read_checkpoint(path)
    except DamagedCheckpoint as error:
        raise UserError(f"{error}; name another checkpoint.") from None
    settings = description["settings"]
    if settings["vocab_size"] != dataset.vocab_size:
        raise UserError(
            f"Expected a checkpoint of a model with the dataset's {dataset.vocab_size:,} token ids, found "
            f"{settings['vocab_size']:,} in {path}; name a checkpoint of this dataset."
        )
    size = Size(settings["width"], settings["num_layers"], settings["num_heads"])
    model = compiled_model(dataset.vocab_size, size)
    parameters, _ = restore_arrays(path, model.start(0))
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(parameters)):
        raise UserError(
            f"Expected finite weights in the checkpoint {path}, found NaN or infinite ones: the run diverged; name an "
            "earlier checkpoint or another run."
        )
    rows = _Rows(dataset, sequences, settings["loss_mask"])
    devices = jax.devices()
    with progress.task("explain the gradients, in two passes", 2 * len(sequences), "gradient") as advance:
        explained = explain_gradients(
            gpt_loss(dataset.vocab_size, size),
            parameters,
            rows,
            dataset.characteristics.take(sequences),
            batch_size=batch_size,
            mesh=jax.make_mesh((len(devices),), ("data",)) if len(devices) > 1 else None,
            advance=advance,
        )
    store_explanation(dataset.root, path, description, explained.values)
    return description["num_steps"], explained


def gpt_loss(vocab_size: int, size: Size) -> Loss:
    """The mean loss per target of one sequence, as a function of the lab's weights and a row of a batch."""
    model = compiled_model(vocab_size, size)

    def loss(parameters: Parameters, row: Any) -> Array:
        return model.losses(parameters, {name: values[None] for name, values in row.items()}).mean

    return loss

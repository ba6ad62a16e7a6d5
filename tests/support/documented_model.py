"""The model that the documentation trains, fed with the batches that its examples make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax_diversity as jd
from jax_diversity.lab.compiled import compiled_model
from jax_diversity.lab.settings import Size

FIELDS = {"inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position"}


def train_on(batch: Any) -> None:
    """Two steps of the documented model on a batch of the folder's dataset, wherever the batch lies."""
    if not isinstance(batch, Mapping) or not batch.keys() >= FIELDS:
        return  # an example that asks for other fields or names shows no batch to train on
    model = compiled_model(jd.open_dataset("dataset").vocab_size, Size(32, 1, 2))
    parameters, state = model.start(seed=0)
    losses = []
    for _ in range(2):
        parameters, state, result = model.step(parameters, state, {name: batch[name] for name in FIELDS}, 1e-3)
        losses.append(float(result.loss))
    assert losses[1] < losses[0], losses

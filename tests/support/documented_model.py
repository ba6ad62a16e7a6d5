"""The model that the documentation trains, fed with the batches that its examples make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import jax_diversity as jd
from jax_diversity.lab.compiled import compiled_model
from jax_diversity.lab.settings import Size

FIELDS = {"inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position"}


def train_on(batch: Any) -> None:
    """Two steps of the documented model on a batch of the folder's dataset, wherever the batch lies."""
    if not isinstance(batch, Mapping) or not batch.keys() >= FIELDS:
        return  # an example that asks for other fields or names shows no batch to train on
    _train({name: batch[name] for name in FIELDS}, jd.open_dataset("dataset").vocab_size)


def train_on_tokens(batch: Mapping[str, Any], vocab_size: int) -> None:
    """The same with a batch of inputs and targets alone, of any vocabulary."""
    ones = np.ones_like(batch["inputs"])
    positions = np.broadcast_to(np.arange(ones.shape[1], dtype=np.int32), ones.shape)
    segmentation = dict.fromkeys(("inputs_segmentation", "targets_segmentation"), ones)
    _train({**batch, **segmentation, "inputs_position": positions}, vocab_size)


def _train(batch: dict[str, Any], vocab_size: int) -> None:
    model = compiled_model(vocab_size, Size(32, 1, 2))
    parameters, state = model.start(seed=0)
    losses = []
    for _ in range(2):
        parameters, state, loss = model.step(parameters, state, batch, 1e-3)
        losses.append(float(loss))
    assert losses[1] < losses[0], losses

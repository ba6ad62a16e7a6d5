"""The model that the documentation trains, fed with the batches that its examples make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optax
from flax import nnx

import jax_diversity as jd
from jax_diversity.lab.model import Gpt
from jax_diversity.lab.run import train_step

FIELDS = {"inputs", "targets", "inputs_segmentation", "targets_segmentation", "inputs_position"}


def train_on(batch: Any) -> None:
    """Two steps of the documented model on a batch of the folder's dataset, wherever the batch lies."""
    if not isinstance(batch, Mapping) or not batch.keys() >= FIELDS:
        return  # an example that asks for other fields or names shows no batch to train on
    model = Gpt(vocab_size=jd.open_dataset("dataset").vocab_size, width=32, num_layers=1, num_heads=2, seed=0)
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)
    first, second = (float(train_step(model, optimizer, {name: batch[name] for name in FIELDS})) for _ in range(2))
    assert second < first, (first, second)

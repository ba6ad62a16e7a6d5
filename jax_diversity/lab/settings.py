"""The settings of a training run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from jax_diversity.foundation.checks import check_at_least, check_one_of, check_seed
from jax_diversity.foundation.errors import UserError

_MOST = 2**31 - 1
"""JAX counts steps and rows with 32 bits."""
WEIGHT_DECAY = 0.1
"""AdamW's weight decay, as in Brown et al. 2020, *Language models are few-shot learners*, appendix B."""
_MOST_NUMBERS = 10**9
"""Weights, gradients and two moments need 16 bytes per weight: 16 GB. The lab is for small models."""


class Size(NamedTuple):
    """The shape of a model; an LSTM has no heads."""

    width: int
    num_layers: int
    num_heads: int


@dataclass(frozen=True)
class TrainConfig:
    """The lab's small GPT and its training run."""

    ordering: str | None = None
    """The dataset's ordering that training follows, or a .npy file of sequence indices; `balance` by default. Not for
    a stored run, which has its own order."""
    num_steps: int = 200
    """Number of optimiser steps."""
    batch_size: int = 16
    """Number of sequences in a step."""
    loss_mask: Literal["all", "answers"] = "all"
    """The tokens that count towards the loss: all, or only the answers of chats."""
    num_layers: int = 2
    """Number of transformer blocks."""
    num_heads: int = 4
    """Number of attention heads."""
    width: int = 128
    """Size of a hidden state."""
    learning_rate: float = 3e-3
    """Highest learning rate: the peak of the cosine schedule."""
    warmup_steps: int = 20
    """Number of steps of linear warm-up."""
    checkpoint_every: int = 100
    """Number of steps between checkpoints of model, optimiser and input position."""
    validate_every: int = 50
    """Number of steps between validation losses."""
    validation_batches: int = 8
    """Largest number of batches in a validation loss; 0 means no validation."""
    diagnose_every: int = 0
    """Number of steps between measurements of the gradients: the diversity among the batch's sequences, and the stable
    rank. Each measurement takes about as much time as a step; 0 means no measurements."""
    metrics: tuple[Literal["tensorboard"], ...] = ()
    """Where to write values in addition to the log: `tensorboard` (needs the extra of that name)."""
    seed: int = 0
    """Seed of the first weights."""

    def check(self) -> None:
        """Raise a `UserError` for settings that are wrong for every dataset."""
        check_at_least(1, "train", self, "num_steps", "batch_size", "num_layers", "num_heads", "width")
        check_at_least(1, "train", self, "validate_every", "checkpoint_every")
        check_at_least(0, "train", self, "warmup_steps", "validation_batches", "diagnose_every", "seed")
        check_seed("train", self.seed)
        for name in ("num_steps", "batch_size", "num_layers", "width", "warmup_steps", "validation_batches"):
            if getattr(self, name) > _MOST:
                raise UserError(f"Expected train.{name} <= {_MOST}, found {getattr(self, name)}.")
        check_one_of("train.loss_mask", self.loss_mask, ("all", "answers"))
        for name in self.metrics:
            check_one_of("train.metrics", name, ("tensorboard",))
        if self.width % (2 * self.num_heads):
            raise UserError(
                f"Expected train.width to be a multiple of twice train.num_heads ({2 * self.num_heads}), "
                f"found {self.width}."
            )
        # Each block has 4 width² weights in attention and 8 width² in the perceptron.
        if (numbers := 12 * self.num_layers * self.width**2) > _MOST_NUMBERS:
            raise UserError(
                f"Expected a model whose blocks have at most {_MOST_NUMBERS:,} weights, found {numbers:,}; lower "
                f"train.width ({self.width}) or train.num_layers ({self.num_layers})."
            )
        if not 0 < self.learning_rate < math.inf:
            raise UserError(f"Expected train.learning_rate to be finite and > 0, found {self.learning_rate}.")

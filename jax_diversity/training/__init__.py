"""A small laboratory: train a GPT on an ordering, resume it exactly, look at its losses."""

from jax_diversity.training.model import Gpt
from jax_diversity.training.run import TrainingRun, train

__all__ = ["Gpt", "TrainingRun", "train"]

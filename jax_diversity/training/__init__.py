"""A small laboratory: train a GPT on an ordering, resume it exactly, look at its losses.

Names are imported when first used, so that reading a run's log (`jax_diversity.training.log`) costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_diversity.training.comparison import train_on_each as train_on_each
    from jax_diversity.training.gradients import gradient_diversity as gradient_diversity
    from jax_diversity.training.gradients import mean_stable_rank as mean_stable_rank
    from jax_diversity.training.gradients import stable_rank as stable_rank
    from jax_diversity.training.log import read_log as read_log
    from jax_diversity.training.metrics import JsonLinesWriter as JsonLinesWriter
    from jax_diversity.training.metrics import TensorBoardWriter as TensorBoardWriter
    from jax_diversity.training.model import Gpt as Gpt
    from jax_diversity.training.run import TrainingRun as TrainingRun
    from jax_diversity.training.run import train as train

_HOMES = {
    "Gpt": "model",
    "JsonLinesWriter": "metrics",
    "TensorBoardWriter": "metrics",
    "TrainingRun": "run",
    "gradient_diversity": "gradients",
    "mean_stable_rank": "gradients",
    "read_log": "log",
    "stable_rank": "gradients",
    "train": "run",
    "train_on_each": "comparison",
}
__all__ = [
    "Gpt",
    "JsonLinesWriter",
    "TensorBoardWriter",
    "TrainingRun",
    "gradient_diversity",
    "mean_stable_rank",
    "read_log",
    "stable_rank",
    "train",
    "train_on_each",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""A small laboratory: train a GPT on an ordering, resume it exactly, look at its losses.

Names are imported when first used, so that reading a run's log (`jax_diversity.training.log`) costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_diversity.training.log import read_log as read_log
    from jax_diversity.training.model import Gpt as Gpt
    from jax_diversity.training.run import TrainingRun as TrainingRun
    from jax_diversity.training.run import train as train

_HOMES = {"Gpt": "model", "TrainingRun": "run", "read_log": "log", "train": "run"}
__all__ = ["Gpt", "TrainingRun", "read_log", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

"""A training run's values: its losses, what its gradients said, and its waits for input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax_diversity.measures.curves import envelope
from jax_diversity.report import words
from jax_diversity.report.aggregate import clean_text, round_value
from jax_diversity.report.inputs import TrainingInputs

_LOSSES = ("loss", "validation_loss")
_EXTRAS = {
    "gradient_diversity": "gradient_diversity",
    "stable_rank": "stable_rank",
    "input_wait": "input_wait_seconds",
}
"""Name in the values -> name in a step's record."""


def training_values(run: TrainingInputs) -> dict[str, Any]:
    """Curves of what the run's log holds; None for what it does not."""
    values: dict[str, Any] = {"ordering": clean_text(run.ordering), "num_nonfinite": 0}
    values["num_steps"] = int(max((row["step"] for row in run.steps), default=0))
    for name in _LOSSES:
        steps, losses = _column(run.steps, name)
        finite = losses[np.isfinite(losses)]
        values["num_nonfinite"] += len(losses) - len(finite)
        best = round_value(finite.min()) if len(finite) else None
        values[name] = {**_curve(steps, losses), "best": best}
    for name, logged in _EXTRAS.items():
        steps, found = _column(run.steps, logged)
        values[name] = _curve(steps, found) if np.isfinite(found).any() else None
    return {**values, "sentence": words.training_sentence(values)}


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps that hold a value of this name, and the values."""
    found = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
    return np.array([step for step, _ in found], float), np.array([value for _, value in found], float)


def _curve(steps: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    return {
        "number": len(finite),
        "first": round_value(finite[0]) if len(finite) else None,
        "last": round_value(finite[-1]) if len(finite) else None,
        "curve": envelope(values, steps),
    }

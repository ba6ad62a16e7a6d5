"""Compute the values of training runs: losses and their noise, measures of the gradients, waiting times for input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.figures.plain import as_json, clean_text, round_value
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.stage import Context
from jax_diversity.lab.explaining.stored import read_explanations
from jax_diversity.lab.metrics import LOG_FILE, logs_of_runs, read_log
from jax_diversity.lab.noise import find_outliers, loss_noise
from jax_diversity.ordering.measures.curves import envelope
from jax_diversity.report.words import training_sentence

Steps = Sequence[Mapping[str, Any]]
"""The record of one step: `step`, counted from 0, and some of the values below."""
_LOSSES = ("loss", "validation_loss")
_EXTRAS = {"gradient_diversity": "gradient_diversity", "stable_rank": "stable_rank", "input_wait": "input_wait_seconds"}
"""Name in the values -> name in a step's record."""
_INTERVAL = ("validation_loss_low", "validation_loss_high")
_EXPECTED = "loss_expected"
_OF_GROUP = "validation_loss/"
_MOST_GROUPS = 12


def training_runs(context: Context, orderings: Iterable[str]) -> dict[str, Steps]:
    """Ordering -> the steps of its training run on these records, with the values that are shown.

    The run may be finished or still running.
    """
    if "write" not in context.folder.stages:
        return {}
    runs = {}
    for name in orderings:
        # The name of a folder is only the name of the ordering: the log may be from an earlier dataset or ordering.
        mark = context.counts(f"order/{name}")["fingerprint"]
        path = inside(context.root, "training", name, LOG_FILE)
        if steps := logged_steps(path, context.dataset.fingerprint, lambda of, mark=mark: of == mark):
            runs[name] = steps
    return runs


def logs_of_others(context: Context, orderings: Iterable[str]) -> list[str]:
    """Return the orderings whose training folder has a log of an earlier dataset or ordering, which is not shown."""
    logs, shown = logs_of_runs(context.root), training_runs(context, orderings)
    return [name for name in orderings if name in logs and name not in shown and read_log(logs[name])[1]]


def explanations(context: Context, ordering: str) -> list[dict[str, Any]]:
    """What `lab explain` found at checkpoints of an ordering's training run, by ascending step."""
    fingerprints = context.dataset.fingerprint, context.counts(f"order/{ordering}")["fingerprint"]
    return read_explanations(context.root, ordering, *fingerprints)


def logged_steps(path: Path, dataset: str, is_ordering: Callable[[str], bool]) -> Steps:
    """The steps in a log, with the values that are shown; empty if the log is of another dataset or ordering."""
    header, steps = read_log(path)
    if header.get("dataset") != dataset or not is_ordering(header.get("ordering", "")):
        return []
    shown = {"step", *_LOSSES, *_INTERVAL, _EXPECTED, *_EXTRAS.values()}
    return [{key: value for key, value in step.items() if key in shown or key.startswith(_OF_GROUP)} for step in steps]


def training_values(ordering: str, steps: Steps, explained: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Curves of the values in a run's log, None for absent values; and what `explanations` returned."""
    values: dict[str, Any] = {"ordering": clean_text(ordering), "num_nonfinite": 0}
    # A log may lack steps (a writer may write every tenth): the last step gives the number of steps.
    values["num_steps"] = int(max((row["step"] for row in steps), default=-1)) + 1
    for name in _LOSSES:
        at, losses = _column(steps, name)
        finite = losses[np.isfinite(losses)]
        # Curves leave out values that are not finite; their number shows that a run diverged.
        values["num_nonfinite"] += len(losses) - len(finite)
        values[name] = {**_curve(at, losses), "best": round_value(finite.min()) if len(finite) else None}
    for name, logged in _EXTRAS.items():
        at, logged_values = _column(steps, logged)
        values[name] = _curve(at, logged_values) if np.isfinite(logged_values).any() else None
    ends = {end: _column(steps, name) for end, name in zip(("low", "high"), _INTERVAL, strict=True)}
    values["validation_interval"] = None
    if all(np.isfinite(curve).any() for _, curve in ends.values()):
        values["validation_interval"] = {end: envelope(curve, at) for end, (at, curve) in ends.items()}
    groups = sorted({name for row in steps for name in row if name.startswith(_OF_GROUP)})
    values["groups"] = {
        clean_text(name.removeprefix(_OF_GROUP)): _curve(*_column(steps, name)) for name in groups[:_MOST_GROUPS]
    }
    values["num_more_groups"] = max(len(groups) - _MOST_GROUPS, 0)
    values |= _noise_values(steps)
    return {**values, "sentence": training_sentence(values), "explained": as_json(explained)}


def _noise_values(steps: Steps) -> dict[str, Any]:
    """The noise of the second half of the training losses without spikes, and the spikes and hard batches of all."""
    rows = [row for row in steps if np.isfinite(row.get("loss", np.nan))]
    losses = np.array([row["loss"] for row in rows], float)
    expected = np.array([row.get(_EXPECTED, np.nan) for row in rows], float)
    is_known = len(expected) > 0 and bool(np.isfinite(expected).all())
    places = [int(row["step"]) for row in rows]
    # Where steps are missing, the means of k values are not those of k steps.
    is_whole = all(after == before + 1 for before, after in pairwise(places))
    outliers = find_outliers(losses, expected if is_known else None)
    usual = np.delete(np.arange(len(losses)), outliers.spikes)
    filled = np.interp(np.arange(len(losses)), usual, losses[usual]) if len(usual) else losses
    noise = loss_noise(filled[len(losses) // 2 :] if is_whole else [])
    return {
        "noise": [
            {"steps": number, "deviation": round_value(deviation), "difference": round_value(difference)}
            for (number, deviation), difference in zip(
                noise.deviations.items(), noise.smallest_differences.values(), strict=True
            )
        ],
        "spikes": [places[index] for index in outliers.spikes],
        "hard_batches": [places[index] for index in outliers.hard_batches] if is_known else None,
    }


def _column(steps: Steps, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps with a value of this name, and the values."""
    points = [(row["step"], row[name]) for row in steps if row.get(name) is not None]
    return np.array([step for step, _ in points], float), np.array([value for _, value in points], float)


def _curve(steps: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    return {
        "number": len(finite),
        "first": round_value(finite[0]) if len(finite) else None,
        "last": round_value(finite[-1]) if len(finite) else None,
        "curve": envelope(values, steps),
    }

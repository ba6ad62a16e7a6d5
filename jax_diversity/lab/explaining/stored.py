"""Explanations that are stored beside the training run that they explain: `explained/STEPS.json`, one a checkpoint."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import write_json
from jax_diversity.foundation.folders import inside, make_folder, refuse_links

_FOLDER = "explained"
_SHARE = {"of": str, "family": str, "num_groups": int, "value": float, "low": float, "high": float, "by_chance": float}
_WINDOW = {"of": str, "order": str, "window_size": int, "value": float, "low": float, "high": float, "by_chance": float}
_VALUES = {"num_steps": int, "sentence": str, "num_sequences": int, "batch_size": int, "noise_scale": float}


def store_explanation(root: Path, checkpoint: Path, description: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Store an explanation, if its checkpoint belongs to a training run in the dataset's folder that can be written.

    Args:
        root: the folder of the dataset.
        checkpoint: the folder of the checkpoint.
        about: the checkpoint's description, as `read_checkpoint` returns it.
        values: `Explanation.values`.
    """
    run = checkpoint.resolve().parent.parent
    if run.parent != (root / "training").resolve() or not os.access(run, os.W_OK):
        return
    folder = inside(root, "training", run.name, _FOLDER)
    make_folder(folder)
    of = {name: description["input"][name] for name in ("dataset", "ordering")}
    write_json(
        inside(folder, f"{description['num_steps']}.json"), {**of, "num_steps": description["num_steps"], **values}
    )


def read_explanations(root: Path, run: str, dataset: str, ordering: str) -> list[dict[str, Any]]:
    """Return the stored explanations of a training run, by ascending number of steps.

    Files that are damaged, or that belong to other sequences or to another ordering, are left out.

    Args:
        root: the folder of the dataset.
        run: the name of the run's folder, which is the name of its ordering.
        dataset: the fingerprint of the sequences.
        ordering: the fingerprint of the ordering.
    """
    explanations = []
    for path in refuse_links(root, "training", run, _FOLDER).glob("*.json"):
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if (stored["dataset"], stored["ordering"]) == (dataset, ordering):
                tables = {"shares": _SHARE, "windows": _WINDOW}
                rows = {name: [_typed(row, kinds) for row in stored[name]] for name, kinds in tables.items()}
                explanations.append({**_typed(stored, _VALUES), **rows})
        except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            continue
    return sorted(explanations, key=lambda explanation: explanation["num_steps"])


def _typed(values: Mapping[str, Any], kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the named values with their types; a number that is not finite is None."""
    fields = {name: None if values[name] is None else kind(values[name]) for name, kind in kinds.items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }

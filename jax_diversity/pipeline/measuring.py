"""Measuring orderings of a built dataset, by name or from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_diversity.config import BuildConfig
from jax_diversity.dataset import open_dataset
from jax_diversity.errors import UserError
from jax_diversity.measures import measure
from jax_diversity.pipeline.sequences import usable_windows
from jax_diversity.progress import Progress
from jax_diversity.schema import Ordering


def measure_orderings(
    out: str | Path, orderings: tuple[str, ...], windows: tuple[int, ...], progress: Progress
) -> dict[str, dict[str, Any]]:
    """Measure some orderings, all of the dataset's where none is named, at the usual window sizes unless given.

    Returns:
        name -> `Balance.summary()`.

    Raises:
        UserError: no dataset, an unknown or broken ordering, or one of another dataset; a window size outside
            its range.
    """
    dataset = open_dataset(out)
    chars = dataset.characteristics
    chosen = {
        name: _load(name) if name.endswith(".npy") else dataset.orderings[name]
        for name in orderings or dataset.orderings
    }
    windows = windows or usable_windows(BuildConfig().windows, chars.num_sequences)
    total = chars.num_sequences * len(chars.families) * len(chosen)
    with progress.task("measure", total, "positions") as advance:
        return {name: measure(chars, ordering, windows, advance).summary() for name, ordering in chosen.items()}


def _load(path: str) -> Ordering:
    try:
        return Ordering.load(path)
    except ValueError as error:
        raise UserError(str(error)) from None

"""The artifacts of the stages `measure/NAME`: JSON files with how an ordering was made and its measured values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages

ORDERINGS = "orderings"
_STAGE = "measure/"


def measured_orderings(stored: StoredStages) -> list[str]:
    """Return the names of the orderings that were measured, sorted."""
    return sorted(stage.removeprefix(_STAGE) for stage in stored.stages if stage.startswith(_STAGE))


def figures_name(name: str) -> str:
    """Return the name of the file with the measured values of an ordering."""
    return f"{name}.json"


def curves_name(name: str) -> str:
    """Return the name of the file with the curves of an ordering, which only large datasets have."""
    return f"{name}.curves.json"


def curves_file(stored: StoredStages, name: str) -> Path:
    """Return the path of the file with the curves of an ordering."""
    return stored.file(f"{_STAGE}{name}", f"{ORDERINGS}/{curves_name(name)}")


def figures_file(stored: StoredStages, name: str) -> Path:
    """Return the path of the file with the measured values of an ordering."""
    return stored.file(f"{_STAGE}{name}", f"{ORDERINGS}/{figures_name(name)}")


def fetch_figures(stored: StoredStages, name: str) -> bool:
    """Fetch an ordering's measured values to the folder of its .npy without a check; False if it was not measured."""
    is_measured = f"{_STAGE}{name}" in stored.stages
    if is_measured:
        stored.fetch(f"{ORDERINGS}/{figures_name(name)}")
    return is_measured

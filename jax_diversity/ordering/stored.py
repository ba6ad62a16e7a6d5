"""The artifacts of the stages `order/NAME`: one permutation each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jax_diversity.foundation.checks import check_file_name

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages

ORDERINGS = "orderings"
_STAGE = "order/"


def array_name(name: str) -> str:
    """The file of an ordering."""
    return f"{name}.npy"


def ordering_path(stored: StoredStages, name: str) -> Path:
    """The path of an ordering, which may not be there yet; a manifest may name it."""
    check_file_name("an ordering's name", name)
    return stored.root / ORDERINGS / array_name(name)


def ordering_paths(stored: StoredStages) -> dict[str, Path]:
    """The paths of all orderings by name."""
    names = sorted(stage.removeprefix(_STAGE) for stage in stored.stages if stage.startswith(_STAGE))
    return {name: ordering_path(stored, name) for name in names}


def ordering_file(stored: StoredStages, name: str) -> tuple[Path, str]:
    """An ordering's path, fetched but not hashed, and the fingerprint of its numbers."""
    path = stored.file(f"{_STAGE}{name}", f"{ORDERINGS}/{array_name(name)}", checked=False)
    return path, stored.counts(f"{_STAGE}{name}")["fingerprint"]


def counted_characteristics(stored: StoredStages) -> set[str]:
    """The fingerprints of the token counts from which the orderings were made."""
    return {entry["counts"]["characteristics"] for stage, entry in stored.stages.items() if stage.startswith(_STAGE)}

"""The artifacts of the stages `order/NAME`: each stage stores one permutation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jax_diversity.foundation.checks import check_file_name

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages

ORDERINGS = "orderings"
_STAGE = "order/"
VALIDATION = "validation"
VALIDATION_FILE = "order.npy"
VALIDATION_STAGE = "order_validation"


def array_name(name: str) -> str:
    """Return the file name of an ordering."""
    return f"{name}.npy"


def ordering_path(stored: StoredStages, name: str) -> Path:
    """Return the path of an ordering. The file may not exist yet; a manifest may still name it."""
    check_file_name("an ordering's name", name)
    return stored.root / ORDERINGS / array_name(name)


def ordering_paths(stored: StoredStages) -> dict[str, Path]:
    """Return name -> path, for all orderings."""
    names = sorted(stage.removeprefix(_STAGE) for stage in stored.stages if stage.startswith(_STAGE))
    return {name: ordering_path(stored, name) for name in names}


def ordering_file(stored: StoredStages, name: str) -> tuple[Path, str]:
    """Return the path of an ordering's file and its fingerprint. The file is downloaded if needed, but not hashed."""
    path = stored.file(f"{_STAGE}{name}", f"{ORDERINGS}/{array_name(name)}", checked=False)
    return path, stored.counts(f"{_STAGE}{name}")["fingerprint"]


def validation_order_file(stored: StoredStages) -> tuple[Path, str] | None:
    """Return the path of the validation sequences' order and its fingerprint; None if it was not made."""
    if VALIDATION_STAGE not in stored.stages:
        return None
    path = stored.file(VALIDATION_STAGE, f"{VALIDATION}/{VALIDATION_FILE}", checked=False)
    return path, stored.counts(VALIDATION_STAGE)["fingerprint"]


def counted_characteristics(stored: StoredStages) -> set[str]:
    """Return the fingerprints of the token counts from which the orderings were made.

    Orderings of large datasets have no such fingerprint: it is a hash of all counts together.
    """
    counts = [entry["counts"] for stage, entry in stored.stages.items() if stage.startswith(_STAGE)]
    return {values["characteristics"] for values in counts if "characteristics" in values}

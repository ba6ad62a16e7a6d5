"""The clusterings of a dataset, as they are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32

from jax_diversity.foundation.artifacts import read_array, read_json
from jax_diversity.foundation.errors import UserError


def ending(family: str) -> str:
    """What tells the files of a further clustering from the main one's."""
    return family.removeprefix("cluster")


def read_assignments(folder: Path, family: str, num_clusters: int) -> Int32[np.ndarray, " document"]:
    """Every document's cluster in a clustering such as `cluster` or `cluster_100`; a damaged file is a `UserError`."""
    path = folder / f"assignments{ending(family)}.npy"
    assignments = read_array(path, "cluster")
    if len(assignments) and not 0 <= assignments.min() <= assignments.max() < num_clusters:
        raise UserError(
            f"{path} is damaged: expected clusters of 0 .. {num_clusters - 1}, found {assignments.min()} .. "
            f"{assignments.max()}; run `jax-diversity cluster` again."
        )
    return assignments


def read_clusters(folder: Path, family: str) -> list[dict[str, Any]]:
    """What is known of every cluster of a clustering: name, terms, titles ..."""
    return read_json(folder / f"clusters{ending(family)}.json", "cluster")

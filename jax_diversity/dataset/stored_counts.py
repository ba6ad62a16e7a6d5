"""The public functions of counts in files: they also take a built dataset or its folder or address."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from jax_diversity.dataset.dataset import Dataset, open_dataset
from jax_diversity.foundation.object_store import is_address
from jax_diversity.measures import files as _files
from jax_diversity.ordering import out_of_core as _out_of_core


@functools.wraps(_out_of_core.order_files)
def order_files(files: Any, path: str | Path, **settings: Any) -> dict[str, Any]:  # noqa: D103 - documented there
    return _out_of_core.order_files(_opened(files), path, **settings)


@functools.wraps(_files.measure_files)
def measure_files(files: Any, *arguments: Any, **settings: Any) -> dict[str, Any]:  # noqa: D103
    return _files.measure_files(_opened(files), *arguments, **settings)


def _opened(given: Any) -> Any:
    """The counts of a dataset; files of counts pass."""
    if isinstance(given, str | Path) and (is_address(given) or (Path(given) / "manifest.json").is_file()):
        given = open_dataset(given)
    return given.stored_counts() if isinstance(given, Dataset) else given

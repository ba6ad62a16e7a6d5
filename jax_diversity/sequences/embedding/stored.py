"""The artifacts of the stage `embed`: the vectors of the documents, and the fitted state of the embedder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from jax_diversity.foundation.artifacts import read_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stacked import Rows, StackedRows

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages

EMBEDDINGS = "embeddings"
VECTORS = "embeddings"
FITTED = "embedding.npz"


def vectors_name(number: int) -> str:
    """Return the name of the file with the vectors of the file of documents of this number."""
    return f"{VECTORS}-{number:05d}.npy"


def read_embeddings(stored: StoredStages, number: int | None = None) -> Float32[Rows, "document feature"]:
    """Read the vectors of the documents, or of the file of documents of this number, as memory maps.

    Raises:
        UserError: a file is damaged.
    """
    names = stored.names("embed", f"{EMBEDDINGS}/{VECTORS}-", ".npy")
    paths = [stored.file("embed", name) for name in (names if number is None else [names[number]])]
    arrays = [read_array(path, "embed", mmap=True) for path in paths]
    width = stored.counts("embed")["dimensions"]
    for path, vectors in zip(paths, arrays, strict=True):
        if vectors.ndim != 2 or vectors.shape[1] != width or vectors.dtype != np.float32:
            raise UserError(
                f"{path} is damaged: expected float32 vectors of {width} numbers, found {vectors.dtype} of the shape "
                f"{vectors.shape}; run `jax-diversity embed` again."
            )
    num_documents, found = stored.counts("prepare")["num_documents"], sum(map(len, arrays))
    if number is None and found != num_documents:
        raise UserError(
            f"{paths[0].parent} is damaged: expected a vector for each of {num_documents} documents, found {found}; "
            "run `jax-diversity embed` again."
        )
    return arrays[0] if len(arrays) == 1 else StackedRows(arrays)


def fitted_file(stored: StoredStages) -> Path | None:
    """Return the path of the embedder's fitted state; None if the embedder stores no state."""
    name = f"{EMBEDDINGS}/{FITTED}"
    return stored.file("embed", name) if stored.names("embed", name) else None

"""The artifacts of the stage `embed`: the vectors of the documents, and the fitted state of the embedder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32

from jax_diversity.foundation.artifacts import read_array
from jax_diversity.foundation.errors import UserError

if TYPE_CHECKING:
    from jax_diversity.foundation.stored import StoredStages

EMBEDDINGS = "embeddings"
VECTORS = "embeddings.npy"
FITTED = "embedding.npz"


def read_embeddings(stored: StoredStages) -> Float32[np.ndarray, "document feature"]:
    """Read the vectors of the documents as a memory map; a damaged file is a `UserError`."""
    path = stored.file("embed", f"{EMBEDDINGS}/{VECTORS}")
    vectors = read_array(path, "embed", mmap=True)
    num_documents = stored.counts("prepare")["num_documents"]
    if vectors.ndim != 2 or len(vectors) != num_documents or vectors.dtype != np.float32:
        raise UserError(
            f"{path} is damaged: expected a float32 vector for each of {num_documents} documents, found "
            f"{vectors.dtype} of the shape {vectors.shape}; run `jax-diversity embed` again."
        )
    return vectors


def fitted_file(stored: StoredStages) -> Path | None:
    """Return the path of the embedder's fitted state; None if the embedder stores no state."""
    name = f"{EMBEDDINGS}/{FITTED}"
    return stored.file("embed", name) if stored.names("embed", name) else None

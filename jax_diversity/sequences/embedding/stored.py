"""The artifacts of the stage `embed`: the vectors of the documents, and the fitted state of the embedder."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

from jax_diversity.foundation.artifacts import read_array
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.stacked import Rows, StackedRows
from jax_diversity.foundation.stored import Artifact, StoredStages, StoredValue, path_of

EMBEDDINGS = "embeddings"
VECTORS = "embeddings"
FITTED = Artifact("embed", f"{EMBEDDINGS}/embedding.npz", path_of)
"""The fitted state of the embedder; not stored for an embedder without a state."""


def vectors_name(number: int) -> str:
    """Return the name of the file with the vectors of the file of documents of this number."""
    return f"{VECTORS}-{number:05d}.npy"


def _read_embeddings(stored: StoredStages) -> Float32[Rows, "document feature"]:
    paths = stored.document_files("embed", f"{EMBEDDINGS}/{VECTORS}-", ".npy")
    arrays = [read_array(path, "embed", mmap=True) for path in paths]
    width = stored.counts("embed")["dimensions"]
    for path, vectors in zip(paths, arrays, strict=True):
        if vectors.ndim != 2 or vectors.shape[1] != width or vectors.dtype != np.float32:
            raise UserError(
                f"{path} is damaged: expected float32 vectors of {width} numbers, found {vectors.dtype} of the shape "
                f"{vectors.shape}; run `jax-diversity embed` again."
            )
    num_documents, num_vectors = stored.counts("prepare")["num_documents"], sum(map(len, arrays))
    if stored.number_of_file is None and num_vectors != num_documents:
        raise UserError(
            f"{paths[0].parent} is damaged: expected a vector for each of {num_documents} documents, found "
            f"{num_vectors}; run `jax-diversity embed` again."
        )
    return arrays[0] if len(arrays) == 1 else StackedRows(arrays)


class EmbeddingArtifacts:
    """The artifacts of the stage `embed`."""

    embeddings = StoredValue(_read_embeddings)
    """The embedding vectors of the documents, memory-mapped; with several files a `StackedRows`."""

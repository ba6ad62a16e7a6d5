"""The settings of the stage `embed`: how documents become vectors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from jax_diversity.foundation.checks import at_least, seed
from jax_diversity.foundation.errors import UserError


@dataclass(frozen=True)
class EmbeddingConfig:
    """How documents become vectors."""

    method: str = "tfidf_svd"
    """`tfidf_svd`, `hashing`, `qwen3` (a folder with a Qwen3-Embedding checkpoint), `precomputed` (vectors from
    files), or `module:name` of an embedder of your own; docs/embeddings.md says which when."""
    dimensions: int = 128
    """Width of a document's vector, at most 8192 (tfidf_svd, hashing)."""
    max_tokens: int = 1024
    """Only a document's first tokens are read."""
    fit_documents: int = 20_000
    """Documents that an embedder learns from (tfidf_svd: the vocabulary, its weights and the SVD)."""
    max_terms: int = 50_000
    """Terms kept, the most frequent first (tfidf_svd)."""
    path: str | None = None
    """The checkpoint's folder (qwen3), or the vectors (precomputed): a .npy, or Parquet files or a glob of them."""
    column: str = "embedding"
    """The Parquet column that holds the vectors (precomputed)."""
    id_column: str | None = "id"
    """The Parquet column that holds the documents' ids (precomputed); where the files have no such column, or for
    None, rows follow the documents' stored order."""
    batch_tokens: int = 16_384
    """Tokens of a batch, padding included (qwen3)."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of a checkpoint's weights and activations (qwen3)."""
    seed: int = 0
    """Seed of what is drawn: documents to fit on, the randomised SVD, the projection."""

    def check(self) -> None:
        """Refuse settings that no corpus could satisfy.

        Raises:
            UserError: the first such setting.
        """
        _check_embedding(self)


_EMBEDDERS = ("tfidf_svd", "hashing", "qwen3", "precomputed")
_MOST_DIMENSIONS = 8192
"""Beyond, the directions of the terms alone would take gigabytes; one document's topic needs a few hundred."""
_EMBEDDING_OPTIONS = {
    "max_terms": ("tfidf_svd",),
    "path": ("qwen3", "precomputed"),
    "column": ("precomputed",),
    "id_column": ("precomputed",),
    "batch_tokens": ("qwen3",),
    "dtype": ("qwen3",),
}
"""Settings that some embedders alone read; one of the user's own (`module:name`) may read any."""


def _check_embedding(embedding: EmbeddingConfig) -> None:
    at_least(1, "embedding", embedding, "dimensions", "max_tokens", "fit_documents", "max_terms", "batch_tokens")
    seed("embedding", embedding.seed)
    if not embedding.method:
        raise UserError("Expected embedding.method to name a method, found nothing; leave it out for tfidf_svd.")
    if embedding.method not in _EMBEDDERS and ":" not in embedding.method:
        raise UserError(
            f"Expected embedding.method to be one of {', '.join(_EMBEDDERS)}, or `module:name` of an embedder of "
            f"your own, found {embedding.method!r}."
        )
    if embedding.dimensions > _MOST_DIMENSIONS:
        raise UserError(
            f"Expected embedding.dimensions <= {_MOST_DIMENSIONS}, found {embedding.dimensions}; 128 to 1024 are usual."
        )
    for name, methods in _EMBEDDING_OPTIONS.items():
        value = getattr(embedding, name)
        ignored = embedding.method in _EMBEDDERS and embedding.method not in methods
        if ignored and value != getattr(EmbeddingConfig, name):
            raise UserError(
                f"Expected embedding.{name} only with embedding.method={', '.join(methods)} or a `module:name` of "
                f"your own, found {value} with {embedding.method}; leave the setting out, or choose a method that "
                "reads it."
            )
    if embedding.method in ("qwen3", "precomputed") and not embedding.path:
        what = "the checkpoint's folder" if embedding.method == "qwen3" else "the file with the vectors"
        raise UserError(
            f"Expected embedding.path with embedding.method={embedding.method}, found nothing; name {what}."
        )
    if embedding.method == "qwen3" and not os.path.isdir(os.path.expanduser(embedding.path or "")):
        raise UserError(
            f"Expected embedding.path to be a checkpoint's folder with embedding.method=qwen3, found no folder at "
            f"{embedding.path}; name one that exists."
        )

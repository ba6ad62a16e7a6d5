"""The settings of the stage `embed`: how documents become vectors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jax_diversity.foundation.checks import check_at_least, check_seed
from jax_diversity.foundation.settings import adopt_settings


@dataclass(frozen=True)
class EmbeddingConfig:
    """How documents become vectors."""

    method: str = "tfidf_svd"
    """`tfidf_svd`, `hashing`, `qwen3` (a folder with a Qwen3-Embedding checkpoint), `precomputed` (vectors from files),
    or `module:name` for an embedder of your own; docs/embeddings.md compares the methods."""
    options: dict[str, int | float | bool | str | None] = field(default_factory=dict)
    """Options of the method, such as `dimensions 256` or `path vectors.npy`; other options have their defaults."""
    max_tokens: int = 1024
    """Only the first tokens of a document are read; tokens are words (`tfidf_svd`, `hashing`), or tokens of the model's
    tokenizer."""
    seed: int = 0
    """Seed of the choice of documents to fit on, of the randomised SVD and of the projection."""

    def adopt(self, other: EmbeddingConfig) -> EmbeddingConfig:
        """Return the settings of the dataset in `features_from`.

        The locations of files stay as given: all options of precomputed vectors, and the `path` of a model.

        Raises:
            UserError: the settings differ from the settings of that dataset.
        """
        from jax_diversity.sequences.embedding.base import brings_vectors

        if brings_vectors(other.method):
            other = replace(other, options=self.options)
        elif "path" in self.options:
            other = replace(other, options=other.options | {"path": self.options["path"]})
        return adopt_settings("embedding", self, other)

    def check(self) -> None:
        """Check the settings; the files that the method reads must exist."""
        from jax_diversity.sequences.embedding.base import check_method

        check_at_least(1, "embedding", self, "max_tokens")
        check_seed("embedding", self.seed)
        check_method(self.method, self.options)

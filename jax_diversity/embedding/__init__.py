"""Documents -> vectors that put topics near each other; one method a file.

`tfidf_svd` learns from the corpus, `hashing` learns nothing, `qwen3` runs a language model, `precomputed` reads
vectors from files; `base` says what an embedder is and makes the one that the settings name.
"""

from jax_diversity.embedding.base import METHODS, PRECOMPUTED, Embedder, embed_texts, make_embedder
from jax_diversity.embedding.hashing import HashingEmbedder
from jax_diversity.embedding.outside import outside_files
from jax_diversity.embedding.precomputed import PrecomputedVectors, open_precomputed
from jax_diversity.embedding.tfidf_svd import TfidfSvd

__all__ = [
    "METHODS",
    "PRECOMPUTED",
    "Embedder",
    "HashingEmbedder",
    "PrecomputedVectors",
    "TfidfSvd",
    "embed_texts",
    "make_embedder",
    "open_precomputed",
    "outside_files",
]

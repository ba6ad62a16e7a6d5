"""Documents -> vectors that put topics near each other; one method a file."""

from jax_diversity.embedding.tfidf_svd import TfidfSvd

__all__ = ["TfidfSvd"]

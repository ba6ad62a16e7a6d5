"""Documents' codes joined with segments: the sparse count matrix of every family."""

from jax_diversity.characteristics.codes import Codes, categorical, count_tokens, length_bins, save_counts

__all__ = ["Codes", "categorical", "count_tokens", "length_bins", "save_counts"]

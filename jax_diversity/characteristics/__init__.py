"""Documents' codes joined with segments: the sparse count matrix of every family."""

from jax_diversity.characteristics.codes import (
    OTHER,
    UNIQUE,
    UNKNOWN,
    Codes,
    categorical,
    copies,
    field_codes,
    hosts,
    length_bins,
    numeric_bins,
)
from jax_diversity.characteristics.counts import count_tokens, save_counts

__all__ = [
    "OTHER",
    "UNIQUE",
    "UNKNOWN",
    "Codes",
    "categorical",
    "copies",
    "count_tokens",
    "field_codes",
    "hosts",
    "length_bins",
    "numeric_bins",
    "save_counts",
]

"""A synthetic corpus's token counts: log-normal document lengths, Zipf clusters, quantile length bins."""

from __future__ import annotations

from typing import Literal

import numpy as np

from jax_diversity.counts import Characteristics
from jax_diversity.sequences.characteristics.codes import Codes, length_bins
from jax_diversity.sequences.characteristics.counts import count_tokens, sequence_documents
from jax_diversity.sequences.packing.base import pack


def synthetic_characteristics(
    num_sequences: int,
    *,
    sequence_length: int = 2048,
    num_clusters: int = 100,
    num_bins: int = 20,
    last_sequence: Literal["drop", "pad"] = "drop",
    documents: bool = False,
    seed: int = 0,
) -> Characteristics:
    """Clusters and lengths of about `num_sequences` packed sequences, and the documents that they are a part of."""
    rng = np.random.default_rng(seed)
    num_documents = num_sequences * sequence_length // 900 + 1
    lengths = np.maximum(8, rng.lognormal(6.2, 1.2, num_documents)).astype(np.int64)
    lengths = lengths[: np.searchsorted(np.cumsum(lengths), num_sequences * sequence_length) + 1]
    popularity = 1 / np.arange(1, num_clusters + 1)
    clusters = rng.choice(num_clusters, len(lengths), p=popularity / popularity.sum()).astype(np.int32)
    segments = pack(lengths, sequence_length, last_sequence=last_sequence).segments
    codes = {"cluster": Codes(clusters, tuple(map(str, range(num_clusters))))}
    codes["length"] = length_bins(lengths, num_bins)
    return Characteristics.from_counts(
        {family: count_tokens(segments, family_codes) for family, family_codes in codes.items()},
        sequence_length=sequence_length,
        documents=sequence_documents(segments) if documents else None,
    )

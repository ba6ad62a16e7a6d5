"""The token counts of a built dataset, read in blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_diversity.characteristics import stored
from jax_diversity.characteristics.sequence_clusters import count_sequence_clusters
from jax_diversity.schema import Segments
from jax_diversity.schema.count_files import CountBlock, StoredCounts

_TOKENS_SHIFT = 4


@dataclass(frozen=True)
class DatasetCounts(StoredCounts):
    """The counts of a dataset's training sequences.

    They are equal to `Dataset.characteristics` or `Dataset.count_families`, without turns. The counts of documents'
    families are stored. The family `tokens` is counted from the tokens when a block is read.

    Attributes:
        dataset: the dataset.
    """

    dataset: Any

    @property
    def num_sequences(self) -> int:
        """Number of training sequences."""
        return self.dataset.num_sequences

    @property
    def sequences_together(self) -> int:
        """See `StoredCounts.sequences_together`; a sequence has far more counts of tokens than of other groups."""
        return super().sequences_together >> (_TOKENS_SHIFT if stored.TOKENS in self.num_groups else 0)

    def read(self, first: int, stop: int) -> CountBlock:
        """See `StoredCounts.read`."""
        whole = self.dataset.stored
        counts: dict[str, Any] = {}
        for family, number in self.num_groups.items():
            if family == stored.TOKENS:
                counts[family] = self.dataset.count_own_tokens(self._segments(first, stop))
            elif family == stored.SEQUENCE_CLUSTER:
                clusters = self._rows(stored.SEQUENCE_CLUSTERS, first, stop)
                counts[family] = count_sequence_clusters(self._segments(first, stop), clusters, number)
            else:
                counts[family] = stored.read_counts_between(whole, family, first, stop)
        documents, copies = (
            self._rows(name, first, stop) for name in (stored.SEQUENCE_DOCUMENTS, stored.SEQUENCE_COPIES)
        )
        return CountBlock.of(counts, documents, copies)

    def _segments(self, first: int, stop: int) -> Segments:
        return self.dataset.segments_between("train", first, stop)

    def _rows(self, name: str, first: int, stop: int) -> np.ndarray:
        return np.array(stored.read_sequence_array(self.dataset.stored, name, mmap=True)[first:stop])

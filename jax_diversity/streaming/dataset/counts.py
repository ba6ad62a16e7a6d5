"""The token counts of a built dataset, which are read in blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics, StoredCounts
from jax_diversity.foundation.artifacts import read_array
from jax_diversity.foundation.stored import Artifact
from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics import stored
from jax_diversity.sequences.characteristics.sequence_clusters import count_sequence_clusters


@dataclass(frozen=True)
class DatasetCounts(StoredCounts):
    """The counts of a dataset's training sequences.

    The counts of documents' families are stored. The family `tokens` is counted from the tokens when a block is read.

    Attributes:
        dataset: the dataset.
    """

    dataset: Any

    @property
    def num_sequences(self) -> int:
        """Number of training sequences."""
        return self.dataset.num_sequences

    @property
    def most_entries(self) -> int:
        """See `TokenCounts.most_entries`; the entries of the family `tokens` are not counted."""
        most_tokens = self.num_sequences * min(self.sequence_length, self.num_groups.get(stored.TOKENS, 0))
        return self._stored_entries + most_tokens

    @property
    def num_entries(self) -> int:
        """See `TokenCounts.num_entries`."""
        if stored.TOKENS not in self.num_groups:
            return self._stored_entries
        return self._stored_entries + self.dataset.num_token_entries

    @property
    def _stored_entries(self) -> int:
        """The entries of all families but `tokens`."""
        total = 0
        for family in self.num_groups:
            if family == stored.SEQUENCE_CLUSTER:
                total += self.num_sequences
            elif family != stored.TOKENS:
                total += stored.num_entries(self.dataset.stored, family)
        return total

    @cached_property
    def totals(self) -> Mapping[str, Int64[np.ndarray, " group"]]:
        """See `TokenCounts.totals`; they are stored."""
        totals = self.dataset.group_tokens
        return {
            family: np.pad(totals[family], (0, number - len(totals[family])))
            for family, number in self.num_groups.items()
        }

    def rows(self, first: int, stop: int) -> Characteristics:
        """See `TokenCounts.rows`."""
        dataset = self.dataset
        if (first, stop) == (0, self.num_sequences):  # kept by the dataset, because several functions need it
            is_balanced = self.families == dataset.families
            whole = dataset.characteristics if is_balanced else dataset._counts_in_memory(self.families)
            return whole.with_weights(self.weights)
        counts: dict[str, Any] = {}
        for family, number in self.num_groups.items():
            if family == stored.TOKENS:
                counts[family] = dataset.count_segments(self._segments(first, stop))
            elif family == stored.SEQUENCE_CLUSTER:
                clusters = self._array(stored.SEQUENCE_CLUSTERS, first, stop)
                counts[family] = count_sequence_clusters(self._segments(first, stop), clusters, number)
            else:
                counts[family] = stored.read_counts_between(dataset.stored, family, first, stop)
        documents = self._array(stored.CharacteristicArtifacts.sequence_documents, first, stop)
        copies = self._array(stored.CharacteristicArtifacts.sequence_copies, first, stop)
        turns = None
        if dataset.appearances is not None:
            turns = self._array(stored.CharacteristicArtifacts.sequence_turns, first, stop)
        return self.checked(counts, documents, copies, turns)

    def _segments(self, first: int, stop: int) -> Segments:
        return self.dataset.segments_between("train", first, stop)

    def _array(self, artifact: Artifact[Any], first: int, stop: int) -> np.ndarray:
        return np.array(read_array(artifact.path(self.dataset.stored), "characterize", mmap=True)[first:stop])

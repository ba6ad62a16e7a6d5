"""Token counts on a disk, which are read in blocks: files of counts, or a built dataset."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array

from jax_diversity.counts.characteristics import Characteristics, as_weights
from jax_diversity.counts.token_counts import TokenCounts


@dataclass(frozen=True)
class StoredCounts(TokenCounts):
    """The token counts of one corpus on a disk.

    Attributes:
        num_groups: family -> its number of groups.
        weights: family -> λ, the weight of the family's squared deviations.
        sequence_length: L in tokens.
        batch_size: the global batch size of training; None if it is unknown.
        names: family -> the names of its groups, of families whose groups have names.
    """

    num_groups: Mapping[str, int]
    weights: Mapping[str, float]
    sequence_length: int
    batch_size: int | None
    names: Mapping[str, tuple[str, ...]]

    def with_weights(self, weights: Mapping[str, float]) -> Self:
        """See `TokenCounts.with_weights`."""
        return replace(self, weights=as_weights(weights, self.num_groups))

    @abstractmethod
    def rows(self, first: int, stop: int) -> Characteristics:
        """See `TokenCounts.rows`."""

    def checked(
        self,
        counts: Mapping[str, csr_array],
        documents: Int64[np.ndarray, " sequence"] | None,
        copies: Int64[np.ndarray, "sequence member"] | None,
        turns: Int64[np.ndarray, " sequence"] | None,
    ) -> Characteristics:
        """Return some sequences after the checks of `Characteristics.from_counts`.

        Raises:
            UserError: the counts of a sequence are not those of one sequence of this corpus.
        """
        return Characteristics.of_matrices(
            counts,
            weights=self.weights,
            sequence_length=self.sequence_length,
            documents=documents,
            copies=copies,
            turns=turns,
            batch_size=self.batch_size,
            names=self.names,
        )

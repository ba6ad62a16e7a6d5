"""Token counts on a disk, which are read in blocks: files of counts, or (in the folder `dataset`) a built dataset."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array

from jax_diversity.counts.characteristics import Characteristics
from jax_diversity.counts.files import ParquetCounts
from jax_diversity.counts.token_counts import TokenCounts, as_weights


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

    def with_weights(self, weights: Mapping[str, float]) -> StoredCounts:
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


@dataclass(frozen=True)
class CountFiles(StoredCounts):
    """Files of counts, see `Characteristics.save`.

    Attributes:
        files: the files.
    """

    files: ParquetCounts

    @classmethod
    def open(cls, files: Any) -> CountFiles:
        """Open a folder (its `*.parquet`, by name), a file, or several files in the given order.

        Raises:
            UserError: no files; a file that is absent, damaged or of another format; files of different families.
        """
        opened = ParquetCounts.open(files)
        described = opened.num_groups, opened.weights, opened.sequence_length, opened.batch_size, opened.names
        return cls(*described, opened)

    @property
    def num_sequences(self) -> int:
        """Number of sequences of all files."""
        return self.files.num_sequences

    @property
    def num_entries(self) -> int:
        """See `TokenCounts.num_entries`; read from the metadata of the files."""
        return self.files.num_entries

    def rows(self, first: int, stop: int) -> Characteristics:
        """See `TokenCounts.rows`."""
        narrowed = self.files.read(first, stop)
        counts = narrowed.counts(self.num_groups)
        return self.checked(counts, narrowed.documents, narrowed.copies, narrowed.turns)

"""The token counts of a built dataset, read in blocks: `order_files` and `measure_files` also take a dataset."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.characteristics import stored
from jax_diversity.characteristics.sequence_clusters import count_sequence_clusters
from jax_diversity.dataset.dataset import Dataset, open_dataset
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.object_store import is_address
from jax_diversity.measures import files as _files
from jax_diversity.ordering import out_of_core as _out_of_core
from jax_diversity.packing.stored import stored_length
from jax_diversity.schema import Segments
from jax_diversity.schema.count_files import CountBlock, StoredCounts


@dataclass(frozen=True)
class DatasetCounts(StoredCounts):
    """The counts of a dataset's training sequences, in the families that orderings balance.

    They are equal to `Dataset.characteristics`, without turns. The counts of documents' families are stored. The family
    `tokens` is counted from the tokens when a block is read.

    Attributes:
        dataset: the dataset.
    """

    dataset: Dataset

    @classmethod
    def of(cls, dataset: Dataset) -> DatasetCounts:
        """Open the counts of a dataset.

        Raises:
            UserError: the dataset has no characteristics, or they are damaged; only a part of a dataset is given.
        """
        if type(dataset) is not Dataset:
            raise UserError(
                f"Expected a whole dataset, found {dataset!r}; a part of a dataset has its counts in memory: use "
                "jd.order or jd.measure."
            )
        names, weights = dataset.group_names, dataset.counts("characterize")["weights"]
        families = dataset.families
        return cls(
            # As matrices have it: a family without groups has one column.
            {family: max(len(names[family]), 1) for family in families},
            {family: float(weights[family]) for family in families},
            stored_length(dataset.stored),
            dataset.batch_size,
            dataset,
        )

    @property
    def num_sequences(self) -> int:
        """Number of training sequences."""
        return self.dataset.num_sequences

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


@functools.wraps(_out_of_core.order_files)
def order_files(files: Any, path: str | Path, **settings: Any) -> dict[str, Any]:  # noqa: D103 - documented there
    return _out_of_core.order_files(_opened(files), path, **settings)


@functools.wraps(_files.measure_files)
def measure_files(files: Any, *arguments: Any, **settings: Any) -> dict[str, Any]:  # noqa: D103
    return _files.measure_files(_opened(files), *arguments, **settings)


def _opened(given: Any) -> Any:
    """The counts of a dataset; files of counts pass."""
    if isinstance(given, str | Path) and (is_address(given) or (Path(given) / "manifest.json").is_file()):
        given = open_dataset(given)
    return DatasetCounts.of(given) if isinstance(given, Dataset) else given

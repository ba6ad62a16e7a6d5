"""The validation sequences of a dataset, read like a dataset of their own."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array

from jax_diversity.characteristics import stored as characterized
from jax_diversity.characteristics.stored import TOKENS
from jax_diversity.dataset.dataset import Dataset
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Ordering, Segments

if TYPE_CHECKING:
    from jax_diversity.records.reading import RecordReader


class ValidationPart(Dataset):
    """The validation sequences of a dataset. Sequences, segments, characteristics and records are theirs.

    Documents, tokens and groups are those of the whole dataset, so groups have the same meaning. It has no orderings:
    its sequences are in the order of the packing.

    Args:
        whole: the dataset.

    Raises:
        UserError: the dataset has no validation sequences.
    """

    def __init__(self, whole: Dataset) -> None:
        super().__init__(whole.root, whole.remote, memory_map=whole._memory_map)
        self._whole = whole
        if not self.num_sequences:
            raise UserError(
                f"Expected validation documents in {whole.address}, found none; build the dataset with "
                "packing.validation_fraction above 0."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._whole,)

    @property
    def num_sequences(self) -> int:
        """Number of validation sequences."""
        return self.stored.number("pack", "num_validation_sequences")

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents of the sequences."""
        return fingerprint("validation", self._whole.fingerprint)

    @cached_property
    def segments(self) -> Segments:
        """The packing of the validation sequences."""
        return self.validation_segments

    @cached_property
    def appearances(self) -> None:
        """None: validation documents are packed once."""
        return None

    @cached_property
    def sequence_documents(self) -> Int64[np.ndarray, " sequence"]:
        """For every sequence, the document that has at least 99 % of its tokens; -1 if there is no such document."""
        from jax_diversity.characteristics.counts import sequence_documents

        return sequence_documents(self.segments)

    @cached_property
    def sequence_copies(self) -> Int64[np.ndarray, "sequence member"]:
        """For every sequence, the groups of copies that it has parts of, then -1."""
        from jax_diversity.characteristics.counts import sequence_copies

        return sequence_copies(self.segments, self.duplicate_groups)

    def _counts_of(self, family: str) -> csr_array:
        import pyarrow.parquet as pq

        from jax_diversity.characteristics.codes import Codes
        from jax_diversity.characteristics.counts import count_tokens

        if family == TOKENS:
            return self.count_own_tokens(self.segments)
        if family not in self.group_names:
            raise UserError(f"Expected a family among {', '.join(self.group_names)}, found {family!r}.")
        groups = pq.read_table(characterized.codes_file(self.stored), columns=[family])[family].to_numpy()
        return count_tokens(self.segments, Codes(groups.astype(np.int32), self.group_names[family]))

    def check_origin(self, ordering: Ordering, path: Path | None = None) -> None:
        """Accept every ordering: no ordering of validation sequences is stored with a dataset."""

    @property
    def layout_ordering(self) -> None:
        """None: the records are in the order of the packing."""
        return None

    @cached_property
    def records(self) -> RecordReader:
        """The validation records."""
        return self.validation_records

"""A dataset's sequences as rows of arrays, by their index or by their position in an ordering."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.dataset.orderings import is_file_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.orders import resolve_order
from jax_diversity.records.decoding import FIELDS, Arrays
from jax_diversity.records.reading import Rows


class Sequences:
    """The training sequences of a built dataset, in any order, from any process.

    It pickles as the dataset's folder and opens the records where it arrives, also after a fork.

    Args:
        out: the dataset's folder or address, or the dataset itself.
        fingerprint: that the dataset must have; None takes any.

    Raises:
        UserError: no dataset there, one without records, or another one than the fingerprint's.

    Example:
        >>> Sequences("out").read(np.array([7, 3]))["inputs"].shape
        (2, 512)
    """

    def __init__(self, out: str | Path | Dataset, fingerprint: str | None = None) -> None:
        self.dataset = out if isinstance(out, Dataset) else open_dataset(out)
        self.fingerprint = self.dataset.fingerprint
        self._process = os.getpid()
        if fingerprint not in (None, self.fingerprint):
            raise UserError(
                f"Expected the dataset of fingerprint {str(fingerprint)[:16]} at {self.dataset.root}, found "
                f"{self.fingerprint[:16]}: it was built again meanwhile; open it again."
            )

    def __len__(self) -> int:
        return self.dataset.num_sequences

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._elsewhere, self.fingerprint)

    @property
    def _elsewhere(self) -> Path | Dataset:
        """What finds the dataset in a process with another working folder."""
        return self.dataset.root.absolute() if self.dataset.remote is None else self.dataset

    @property
    def sequence_length(self) -> int:
        """L, the tokens of a row."""
        return self.dataset.sequence_length

    def read(self, sequences: Rows, fields: Sequence[str] = FIELDS, merge_segments: bool = False) -> Arrays:
        """Some sequences, in the order asked for: the arrays and errors of `RecordReader.read_sequences`."""
        if self._process != os.getpid():
            # This process was forked off: another thread of the parent may have held a lock of the opened dataset.
            self.dataset, self._process = pickle.loads(pickle.dumps(self.dataset)), os.getpid()
        return self.dataset.records.read_sequences(sequences, fields=fields, merge_segments=merge_segments)


class OrderedSequences(Sequences):
    """The training sequences in an ordering's order.

    A dataset's own ordering is mapped from its file, not held in memory, and refused when the file was written to.

    Args:
        out: the dataset's folder or address, or the dataset itself.
        ordering: the name of one of its orderings, or a .npy file of sequence indices.
        ordering_fingerprint: that the ordering must have; None takes any.
        fingerprint: that the dataset must have; None takes any.

    Raises:
        UserError: no such ordering, one of another dataset, or another one than the fingerprint's.

    Example:
        >>> OrderedSequences("out", "balance").read_positions(np.arange(64))["inputs"].shape
        (64, 512)
    """

    def __init__(
        self,
        out: str | Path | Dataset,
        ordering: str | Path = "balance",
        ordering_fingerprint: str | None = None,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(out, fingerprint)
        if is_file_name(ordering):  # a pickle may be read in another working folder
            ordering = Path(ordering).absolute()
        self.ordering_name = ordering
        self._order = resolve_order(ordering, len(self), self.dataset)
        self.ordering_fingerprint = found = self._order.fingerprint
        if ordering_fingerprint not in (None, found):
            raise UserError(
                f"Expected the ordering {str(ordering)!r} of fingerprint {str(ordering_fingerprint)[:16]}, found "
                f"{found[:16]}: it was made again meanwhile; restart what was following the earlier one."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._elsewhere, self.ordering_name, self.ordering_fingerprint, self.fingerprint)

    def at(self, positions: Rows) -> Rows:
        """The sequences at some positions; IndexError: no such position."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(
                f"Expected positions in 0 .. {len(self) - 1}, found {positions.min()} .. {positions.max()}."
            )
        return self._order.at(positions)

    def read_positions(self, positions: Rows, fields: Sequence[str] = FIELDS, merge_segments: bool = False) -> Arrays:
        """The sequences at some positions, as `read` gives them."""
        return self.read(self.at(positions), fields, merge_segments)

    def stream(
        self, start: int, stop: int, num_rows: int, fields: Sequence[str] = FIELDS, merge_segments: bool = False
    ) -> Iterator[Arrays]:
        """The positions from start to stop, so many rows at a time."""
        for first in range(start, stop, num_rows):
            yield self.read_positions(np.arange(first, min(first + num_rows, stop)), fields, merge_segments)

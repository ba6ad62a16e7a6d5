"""A dataset's sequences as rows of arrays, by their index or by their position in an ordering."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.dataset import open_dataset
from jax_diversity.foundation.errors import UserError
from jax_diversity.records.decoding import FIELDS, Arrays
from jax_diversity.records.reading import Rows


class Sequences:
    """The training sequences of a built dataset, in any order, from any process.

    It pickles as the dataset's folder and opens the records where it arrives, also after a fork.

    Args:
        out: the dataset's folder.
        fingerprint: that the dataset must have; None takes any.

    Raises:
        UserError: no dataset there, one without records, or another one than the fingerprint's.

    Example:
        >>> Sequences("out").read(np.array([7, 3]))["inputs"].shape
        (2, 512)
    """

    def __init__(self, out: str | Path, fingerprint: str | None = None) -> None:
        self.dataset = open_dataset(out)
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
        return type(self), (self.dataset.root, self.fingerprint)

    @property
    def sequence_length(self) -> int:
        """L, the tokens of a row."""
        return self.dataset.sequence_length

    def read(self, sequences: Rows, fields: Sequence[str] = FIELDS, merge_segments: bool = False) -> Arrays:
        """Some sequences, in the order asked for: the arrays and errors of `RecordReader.read_sequences`."""
        if self._process != os.getpid():
            # This process was forked off: another thread of the parent may have held a lock of the opened dataset.
            self.dataset, self._process = open_dataset(self.dataset.root), os.getpid()
        return self.dataset.records.read_sequences(sequences, fields=fields, merge_segments=merge_segments)


class OrderedSequences(Sequences):
    """The training sequences in an ordering's order.

    The ordering is mapped from its file, not held in memory.

    Args:
        out: the dataset's folder.
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
        out: str | Path,
        ordering: str = "balance",
        ordering_fingerprint: str | None = None,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(out, fingerprint)
        # Checked through a dataset of its own, so that the memory of what it reads is freed.
        found = open_dataset(out).find_ordering(ordering)
        self.ordering_name, self.ordering_fingerprint = ordering, found.fingerprint
        if ordering_fingerprint not in (None, found.fingerprint):
            raise UserError(
                f"Expected the ordering {ordering!r} of fingerprint {str(ordering_fingerprint)[:16]}, found "
                f"{found.fingerprint[:16]}: it was made again meanwhile; restart what was following the earlier one."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.dataset.root, self.ordering_name, self.ordering_fingerprint, self.fingerprint)

    @cached_property
    def order(self) -> np.ndarray:
        """The sequence at every position: integers mapped from the file."""
        name = self.ordering_name
        # Checked when this object was made; unpickled, it checks the fingerprint again in `__init__`.
        return np.load(name if name.endswith(".npy") else self.dataset.orderings.paths[name], mmap_mode="r")

    def at(self, positions: Rows) -> Rows:
        """The sequences at some positions; IndexError: no such position."""
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(
                f"Expected positions in 0 .. {len(self) - 1}, found {positions.min()} .. {positions.max()}."
            )
        return np.asarray(self.order[positions], np.int64)

    def read_positions(self, positions: Rows, fields: Sequence[str] = FIELDS, merge_segments: bool = False) -> Arrays:
        """The sequences at some positions, as `read` gives them."""
        return self.read(self.at(positions), fields, merge_segments)

    def stream(
        self, start: int, stop: int, num_rows: int, fields: Sequence[str] = FIELDS, merge_segments: bool = False
    ) -> Iterator[Arrays]:
        """The positions from start to stop, so many rows at a time."""
        for first in range(start, stop, num_rows):
            yield self.read_positions(np.arange(first, min(first + num_rows, stop)), fields, merge_segments)

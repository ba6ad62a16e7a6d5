"""A dataset's sequences as rows of arrays, by their index or by their position in an ordering."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.foundation.errors import UserError
from jax_diversity.records.decoding import FIELDS
from jax_diversity.records.reading import RecordReader
from jax_diversity.schema import Ordering

Rows = dict[str, Int32[np.ndarray, "row token"]]
"""Arrays by field name; `jax_diversity.records.FIELDS` are the fields."""


class Sequences:
    """The training sequences of a built dataset, in any order, from any process.

    It pickles as the dataset's folder and opens the records anew where it arrives, also after a fork.

    Args:
        out: the dataset's folder.

    Raises:
        UserError: no dataset there, or one without records.

    Example:
        >>> Sequences("out").read(np.array([7, 3]))["inputs"].shape
        (2, 512)
    """

    def __init__(self, out: str | Path) -> None:
        self.dataset = open_dataset(out)
        self.fingerprint = self.dataset.fingerprint
        self._process = os.getpid()

    def __len__(self) -> int:
        return self.dataset.num_sequences

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), self._arguments, self.fingerprint)

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return (self.dataset.root,)

    @property
    def sequence_length(self) -> int:
        """L, the tokens of a row."""
        return self.dataset.sequence_length

    def read(
        self,
        sequence_indices: Int64[np.ndarray, " row"],
        fields: Sequence[str] = FIELDS,
        merge_segments: bool = False,
    ) -> Rows:
        """Some sequences, in the order asked for; see `RecordReader.read_batch`.

        Raises:
            IndexError: no such sequence.
            UserError: records that are missing, damaged or another build's.
        """
        places = sequence_indices
        if len(places) and (places.min() < 0 or places.max() >= len(self)):
            raise IndexError(f"Expected sequences in 0 .. {len(self) - 1}, found {places.min()} .. {places.max()}.")
        if self.dataset.layout_ordering is not None:
            places = self._place_of[places]
        return self._records.read_batch(places, expected=sequence_indices, fields=fields, merge_segments=merge_segments)

    @property
    def _records(self) -> RecordReader:
        if self._process != os.getpid():
            # Files and locks that were in use when this process was forked off are the parent's.
            self.dataset, self._process = open_dataset(self.dataset.root), os.getpid()
        return self.dataset.records

    @cached_property
    def _place_of(self) -> Int64[np.ndarray, " sequence"]:
        """Where each sequence's record lies, of records that lie in an ordering's order."""
        order = self.dataset.orderings[str(self.dataset.layout_ordering)].indices
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return place


class OrderedSequences(Sequences):
    """The training sequences in an ordering's order.

    The ordering is mapped from its file, not held in memory.

    Args:
        out: the dataset's folder.
        ordering: the name of one of its orderings, or a .npy file of sequence indices.
        ordering_fingerprint: that the ordering must have; None takes any.

    Raises:
        UserError: no such ordering, one of another dataset, or another than the fingerprint's.

    Example:
        >>> OrderedSequences("out", "balance").read_positions(np.arange(64))["inputs"].shape
        (64, 512)
    """

    def __init__(self, out: str | Path, ordering: str = "balance", ordering_fingerprint: str | None = None) -> None:
        super().__init__(out)
        found = read_ordering(open_dataset(out), ordering)  # of a dataset that is not kept, nor what it has read
        self.ordering_name, self.ordering_fingerprint = ordering, found.fingerprint
        if ordering_fingerprint not in (None, found.fingerprint):
            raise UserError(
                f"Expected the ordering {ordering!r} of fingerprint {str(ordering_fingerprint)[:16]}, found "
                f"{found.fingerprint[:16]}: it was made anew; start anew what followed the former one."
            )

    @property
    def _arguments(self) -> tuple[Any, ...]:
        return self.dataset.root, self.ordering_name, self.ordering_fingerprint

    @cached_property
    def order(self) -> np.ndarray:
        """The sequence at every position: integers mapped from the file."""
        if self.ordering_name.endswith(".npy"):
            return np.load(self.ordering_name, mmap_mode="r")
        return np.load(self.dataset.orderings.paths[self.ordering_name], mmap_mode="r")

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions.

        Raises:
            IndexError: no such position.
        """
        if len(positions) and (positions.min() < 0 or positions.max() >= len(self)):
            raise IndexError(
                f"Expected positions in 0 .. {len(self) - 1}, found {positions.min()} .. {positions.max()}."
            )
        return np.asarray(self.order[positions], np.int64)

    def read_positions(
        self, positions: Int64[np.ndarray, " row"], fields: Sequence[str] = FIELDS, merge_segments: bool = False
    ) -> Rows:
        """The sequences at some positions, as `read` gives them."""
        return self.read(self.at(positions), fields, merge_segments)

    def stream(
        self, start: int, stop: int, num_rows: int, fields: Sequence[str] = FIELDS, merge_segments: bool = False
    ) -> Iterator[Rows]:
        """The positions from start to stop, so many rows at a time."""
        for first in range(start, stop, num_rows):
            yield self.read_positions(np.arange(first, min(first + num_rows, stop)), fields, merge_segments)


def read_ordering(dataset: Dataset, name: str) -> Ordering:
    """One of a dataset's orderings by name, or an ordering for it from a .npy file.

    Raises:
        UserError: unknown, broken, of another number of sequences, or one of another dataset's.
    """
    return dataset.find_ordering(name)


def _reopen(kind: type[Sequences], arguments: tuple[Any, ...], fingerprint: str) -> Sequences:
    opened = kind(*arguments)
    if opened.fingerprint != fingerprint:
        raise UserError(
            f"Expected the dataset of fingerprint {fingerprint[:16]} at {opened.dataset.root}, found "
            f"{opened.fingerprint[:16]}: it was written anew meanwhile; open it again."
        )
    return opened

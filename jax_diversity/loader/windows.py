"""The arithmetic of the window contract: which positions a host reads, where batches begin and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.errors import UserError

ENDLESS = 2**62
"""Positions of a run without a last epoch."""


@dataclass(frozen=True)
class Windows:
    """Which positions a host reads for the batch at a position, and where batches end.

    Attributes:
        num_sequences: N, positions of an epoch.
        global_batch_size: B.
        end: the position after the last epoch.
        start_position: the first batch's.
        drop_remainder: whether a last batch that is not full is left out.
        host_index: h.
        num_hosts: H.
        first_batch: the first batch read, counted from the start position: a worker's number.
        batch_step: every how many-th batch is read: the number of workers.
        row_numbers: the rows of the global batch that are read here, ascending; None: the host's.

    Raises:
        UserError: numbers that do not fit one another.
    """

    num_sequences: int
    global_batch_size: int
    end: int
    start_position: int = 0
    drop_remainder: bool = True
    host_index: int = 0
    num_hosts: int = 1
    first_batch: int = 0
    batch_step: int = 1
    row_numbers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.global_batch_size <= self.num_sequences:
            raise UserError(
                f"Expected a global batch size in 1 .. {self.num_sequences} (the positions of an epoch), "
                f"found {self.global_batch_size}."
            )
        if self.num_hosts < 1 or self.global_batch_size % self.num_hosts:
            raise UserError(
                f"Expected a number of hosts that divides the global batch of {self.global_batch_size}, "
                f"found {self.num_hosts}."
            )
        if not 0 <= self.host_index < self.num_hosts:
            raise UserError(f"Expected a host index in 0 .. {self.num_hosts - 1}, found {self.host_index}.")
        if self.end < 1:
            raise UserError(f"Expected num_epochs >= 1 or None, found {self.end // self.num_sequences}.")
        if not 0 <= self.start_position <= self.end:
            raise UserError(f"Expected a start position in 0 .. {self.end}, found {self.start_position}.")

    @property
    def rows(self) -> int:
        """Rows of this host's part of a batch."""
        return self.global_batch_size // self.num_hosts if self.row_numbers is None else len(self.row_numbers)

    def position(self, index: int) -> int:
        """Where the index-th batch begins."""
        return self.start_position + (self.first_batch + index * self.batch_step) * self.global_batch_size

    def next_position(self, position: int) -> int:
        """Where the batch after the one at a position begins."""
        return min(position + self.batch_step * self.global_batch_size, self.end)

    def own_position(self, position: int) -> int:
        """Where to go on from a saved position: there, or, among several workers, at the next batch of this one's.

        Raises:
            UserError: several workers, and the position is not one at which this batch size has a batch begin.
        """
        if self.batch_step == 1 or position == self.end:
            return position
        index, rest = divmod(position - self.start_position, self.global_batch_size)
        if rest:
            raise UserError(
                f"Expected the state of worker processes with batches of {self.global_batch_size}, found position "
                f"{position}, where none of them begins; keep the batch size, or use threads alone."
            )
        return min(self.position(max(-(-(index - self.first_batch) // self.batch_step), 0)), self.end)

    def num_batches(self, position: int) -> int:
        """Batches from a position, where one begins, to the end."""
        left = max(self.end - position, 0)
        whole = left // self.global_batch_size if self.drop_remainder else -(-left // self.global_batch_size)
        return -(-whole // self.batch_step)

    def positions(self, position: int) -> Int64[np.ndarray, " row"]:
        """This host's positions in the batch at `position`; fewer than `rows` where the last epoch ends."""
        if self.row_numbers is None:
            first = position + self.host_index * self.rows
            return np.arange(first, max(first, min(first + self.rows, self.end)), dtype=np.int64)
        positions = position + np.array(self.row_numbers, np.int64)
        return positions[positions < self.end]

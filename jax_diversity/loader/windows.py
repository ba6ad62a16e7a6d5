"""The arithmetic of the window contract: which positions a host reads for a batch, and where batches end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.settings import LoaderSettings


@dataclass(frozen=True)
class Windows:
    """The positions of a run and how batches divide them.

    Attributes:
        num_positions: N, positions of an epoch.
        settings: the loader's.
        row_numbers: the rows of the global batch that are read here, ascending; None: those of the host.

    Raises:
        UserError: settings that do not fit one another or the number of positions.
    """

    num_positions: int
    settings: LoaderSettings
    row_numbers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        if settings.global_batch_size > self.num_positions:
            raise UserError(
                f"Expected a global batch size in 1 .. {self.num_positions} (the positions of an epoch), "
                f"found {settings.global_batch_size}."
            )
        if settings.global_batch_size % settings.num_hosts:
            raise UserError(
                f"Expected a number of hosts that divides the global batch of {settings.global_batch_size}, "
                f"found {settings.num_hosts}."
            )
        if settings.host_index >= settings.num_hosts:
            raise UserError(f"Expected a host index in 0 .. {settings.num_hosts - 1}, found {settings.host_index}.")
        if settings.start_position > self.end:
            raise UserError(f"Expected a start position in 0 .. {self.end}, found {settings.start_position}.")

    @cached_property
    def end(self) -> int:
        """The position after the last epoch."""
        return self.settings.end(self.num_positions)

    @property
    def global_batch_size(self) -> int:
        """B, sequences of a batch over all hosts."""
        return self.settings.global_batch_size

    @property
    def num_rows(self) -> int:
        """Rows of this host's part of a batch."""
        if self.row_numbers is None:
            return self.settings.global_batch_size // self.settings.num_hosts
        return len(self.row_numbers)

    def num_batches(self, position: int) -> int:
        """The number of batches from a position, where one begins, to the end."""
        left = max(self.end - position, 0)
        size = self.settings.global_batch_size
        return left // size if self.settings.drop_remainder else -(-left // size)

    def positions(self, position: int) -> Int64[np.ndarray, " row"]:
        """This host's positions in the batch at `position`; fewer than `num_rows` where the last epoch ends."""
        # A host reads neighbouring rows, [hB/H, (h+1)B/H), not every H-th: neighbours are one range of a file.
        if self.row_numbers is None:
            first = position + self.settings.host_index * self.num_rows
            return np.arange(first, max(first, min(first + self.num_rows, self.end)), dtype=np.int64)
        positions = position + np.array(self.row_numbers, np.int64)
        return positions[positions < self.end]

"""Token counts in the order of positions, in blocks of consecutive positions.

Counts of one chunk are one block. Counts in memory are taken by index. Stored counts of several chunks are read once:
the pairs of sequence and position are divided by chunk, the rows of a chunk are spooled by the block of their
positions, and the blocks are read one after another.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from scipy.sparse import csr_array

from jax_diversity.counts import Characteristics, TokenCounts
from jax_diversity.counts.spool import Rows, Spool
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import space_for
from jax_diversity.ordering.measures.windows import place

_PAIRS = "pairs-"


@dataclass(frozen=True)
class PlacedBlock:
    """Some consecutive positions.

    Attributes:
        first: the first position.
        indices: the sequence at every position.
        source: the counts that have the sequences.
        rows: the row of every position in `source`.
    """

    first: int
    indices: Int64[np.ndarray, " position"]
    source: Characteristics
    rows: Int64[np.ndarray, " position"]

    def __len__(self) -> int:
        return len(self.indices)

    def counts(self, family: str) -> csr_array:
        """Return the token counts of a family (position, group)."""
        # One family at a time: otherwise memory would contain the rows of all families twice.
        return place(self.source.counts[family], self.rows)

    def members(self, name: str) -> Int64[np.ndarray, "position ..."] | None:
        """Return the `documents` or `copies` of the positions; None if they are unknown."""
        groups = getattr(self.source, name)
        return None if groups is None else groups[self.rows]


PlacedCounts = Callable[[], Iterator[PlacedBlock]]
"""Yields the blocks of an order; it may be called several times."""


@contextmanager
def placed_counts(counts: TokenCounts, indices: Int64[np.ndarray, " position"]) -> Iterator[PlacedCounts]:
    """Put counts into the order of positions.

    Args:
        counts: the counts.
        indices: the sequence at every position; sequences may be repeated or absent.

    Raises:
        UserError: a full disk, or a damaged file.
    """
    bounds = counts.chunk_bounds
    num_blocks = len(bounds) - 1
    ends = [len(indices) * number // num_blocks for number in range(num_blocks + 1)]
    source = counts.rows(*bounds) if num_blocks == 1 else counts
    if isinstance(source, Characteristics):
        in_memory = source

        def by_index() -> Iterator[PlacedBlock]:
            for first, stop in itertools.pairwise(ends):
                yield PlacedBlock(first, indices[first:stop], in_memory, indices[first:stop])

        yield by_index
        return
    with tempfile.TemporaryDirectory(prefix="jax-diversity-") as name, space_for(Path(name)):
        folder = Path(name)
        _divide(indices, bounds, ends, folder)
        spool = Spool(folder, num_blocks, counts.rows(0, 0))
        for number, (first, stop) in enumerate(itertools.pairwise(bounds)):
            chunk = counts.rows(first, stop)
            _spool_by_position(chunk, first, folder / f"{_PAIRS}{number}", ends, spool)

        def by_block() -> Iterator[PlacedBlock]:
            for number, (first, stop) in enumerate(itertools.pairwise(ends)):
                if first < stop:
                    rows = spool.read(number)
                    by_position = np.argsort(rows.numbers)
                    if len(by_position) != stop - first:
                        raise UserError(
                            f"Expected the counts of {stop - first:,} positions, found {len(by_position):,}; the "
                            "counts were changed while they were read: measure again."
                        )
                    yield PlacedBlock(first, indices[first:stop], rows.counts, by_position)

        yield by_block


def _divide(indices: Int64[np.ndarray, " position"], bounds: list[int], ends: list[int], folder: Path) -> None:
    """Write the pairs (sequence, position) of every chunk into a file, in the order of positions."""
    for first, stop in itertools.pairwise(ends):
        sequences = indices[first:stop]
        chunk = np.searchsorted(bounds, sequences, side="right") - 1
        by_chunk = np.argsort(chunk, kind="stable")
        pairs = np.stack([sequences, np.arange(first, stop)], axis=1)[by_chunk]
        limits = np.searchsorted(chunk[by_chunk], np.arange(len(bounds)))
        for number, (start, end) in enumerate(itertools.pairwise(limits)):
            with (folder / f"{_PAIRS}{number}").open("ab") as file:
                file.write(pairs[start:end].tobytes())


def _spool_by_position(chunk: Characteristics, first: int, pairs_file: Path, ends: list[int], spool: Spool) -> None:
    """Append the rows of a chunk, whose first sequence is `first`, to the blocks of their positions."""
    pairs = np.fromfile(pairs_file, np.int64).reshape(-1, 2)
    pairs_file.unlink()
    pairs = pairs[np.argsort(pairs[:, 1])]
    limits = np.searchsorted(pairs[:, 1], ends)
    for number, (start, end) in enumerate(itertools.pairwise(limits)):
        if start < end:
            pairs_of_block = pairs[start:end]
            spool.append(number, Rows(pairs_of_block[:, 1], chunk.take(pairs_of_block[:, 0] - first)))

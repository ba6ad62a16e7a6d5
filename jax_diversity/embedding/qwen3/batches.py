"""Which texts go through the model together: batches of a few fixed shapes.

A text always has the same padded length, so that its vector hardly depends on the texts beside it. Padded lengths
grow by a third or a half at a time, which wastes a sixth of a batch on average, and each length has two numbers of
rows: a full batch's, and an eighth of them for what is left over. Up to 1,024 tokens that makes 18 shapes at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int32, Int64

_SHORTEST = 64
_PARTS = 8


@dataclass(frozen=True)
class BatchPlan:
    """The shapes of the batches.

    Attributes:
        max_tokens: the longest text.
        batch_tokens: tokens of a full batch, padding included; a batch has at least a row a device.
        num_devices: what the rows of every batch are divisible by.
    """

    max_tokens: int
    batch_tokens: int
    num_devices: int = 1

    @cached_property
    def padded_lengths(self) -> tuple[int, ...]:
        """64, 96, 128, 192, 256 ... and the longest text's."""
        powers = range(_SHORTEST.bit_length() - 1, self.max_tokens.bit_length())
        steps = [length for power in powers for length in (1 << power, 3 << (power - 1))]
        return (*(length for length in steps if length < self.max_tokens), self.max_tokens)

    def num_rows(self, padded_length: int) -> tuple[int, int]:
        """Rows of a full batch and of a small one."""
        full = self._divisible(self.batch_tokens // padded_length)
        return full, self._divisible(full // _PARTS)

    def batches(self, lengths: Int64[np.ndarray, " document"]) -> Iterator[tuple[np.ndarray, int, int]]:
        """The batches that hold each text once, longest first.

        Args:
            lengths: tokens of each text, 1 up to `max_tokens`.

        Yields:
            indices of a batch's texts, its rows (as many or more), and its padded length.
        """
        order = np.argsort(-lengths, kind="stable")
        classes = np.array([bisect_left(self.padded_lengths, length) for length in lengths[order]], np.int64)
        for number in range(len(self.padded_lengths) - 1, -1, -1):
            documents = order[classes == number]
            padded_length = self.padded_lengths[number]
            full, small = self.num_rows(padded_length)
            while len(documents):
                rows = full if len(documents) > full - small else small
                yield documents[:rows], rows, padded_length
                documents = documents[rows:]

    def _divisible(self, num_rows: int) -> int:
        return max(num_rows // self.num_devices, 1) * self.num_devices


def padded(
    rows: Sequence[Sequence[int]], num_rows: int, num_tokens: int
) -> tuple[Int32[np.ndarray, "row token"], Int32[np.ndarray, " row"]]:
    """Token ids with zeros behind them, and the lengths; rows beyond the last text are one token long."""
    tokens = np.zeros((num_rows, num_tokens), np.int32)
    lengths = np.ones(num_rows, np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        lengths[index] = len(row)
    return tokens, lengths

"""Levanter's asynchronous dataset by duck typing: all methods that its `AsyncDataset` leaves abstract.

Its newest sources call `async_len`, `is_finite` and `get_batch`; the versions on PyPI also call
`final_length_is_known` and `current_len`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_diversity.export.files import common_length
from jax_diversity.run.run import Datasets, Run, as_run
from jax_diversity.run.source import SequenceSource

_FIELDS = ("inputs", "inputs_segmentation", "targets_segmentation")


class LevanterDataset:
    """The sequences of a run, position by position.

    An element is the result of `make_example` for three arrays of L values, by name:

    - `tokens`, int32;
    - `loss_weight`, float32: 1 if the next token is a target; 0 at the end of a segment and on padding;
    - `segment_ids`, int32: 0, 1 ... for the documents of a sequence, -1 on padding, as Levanter marks it.

    Args:
        run: a run; or a built dataset, its folder or address, or several.
        ordering: of datasets, see `make_loader`.
        make_example: takes the arrays as keywords, such as `GrugLmExample.causal`; None gives them as a dict.
        loss_mask: with "answers" only the answers of chats are targets; in other documents all tokens are.

    Raises:
        UserError: no such dataset or ordering, or no chats for a loss on answers.

    Example:
        >>> dataset = LevanterDataset("out", "balance")
        >>> asyncio.run(dataset.get_batch([0, 1]))[0]["tokens"].shape
        (512,)
    """

    def __init__(
        self,
        run: Run | Datasets,
        ordering: Any = None,
        make_example: Callable[..., Any] | None = None,
        *,
        loss_mask: str = "all",
    ) -> None:
        self.run = as_run(run, ordering)
        common_length(self.run)  # refuses several
        self.source = SequenceSource(self.run, _FIELDS, loss_mask=loss_mask)
        self.make_example = make_example or dict

    async def async_len(self) -> int:
        """Number of positions."""
        return len(self.run)

    async def current_len(self) -> int:
        """Current number of positions, which is the final number."""
        return len(self.run)

    async def final_length_is_known(self) -> bool:
        """Whether the number of positions is final: True."""
        return True

    def is_finite(self) -> bool:
        """Whether there is a last position: True."""
        return True

    async def get_batch(self, indices: Sequence[int]) -> list[Any]:
        """The examples at some positions, read on a thread of their own; IndexError for other positions."""
        return await asyncio.to_thread(self._read, indices)

    async def getitem_async(self, index: int) -> Any:
        """The example at one position."""
        return (await self.get_batch([index]))[0]

    def _read(self, indices: Sequence[int]) -> list[Any]:
        positions = np.asarray(indices, np.int64)
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self.run):
            found = f"{positions.min()} .. {positions.max()}"
            raise IndexError(f"Expected positions in 0 .. {len(self.run) - 1}, found {found}.")
        rows = self.source.read(self.run.at(positions))
        # Levanter shifts the tokens itself: its loss at t is the loss of token t + 1. So tokens are the inputs, and a
        # weight is 0 where our targets are masked. Its padding has segment -1, ours 0, and its first segment is 0.
        weights = (rows["targets_segmentation"] > 0).astype(np.float32)
        columns = (rows["inputs"], weights, rows["inputs_segmentation"] - 1)
        return [
            self.make_example(tokens=tokens, loss_weight=weight, segment_ids=segments)
            for tokens, weight, segments in zip(*columns, strict=True)
        ]

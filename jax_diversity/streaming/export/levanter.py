"""A dataset for Levanter by duck typing: it has all abstract methods of Levanter's `AsyncDataset`.

Its newest sources call `async_len`, `is_finite` and `get_batch`; the versions on PyPI also call
`final_length_is_known` and `current_len`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_diversity.streaming.export.files import common_length
from jax_diversity.streaming.run.run import Datasets, Run, as_run
from jax_diversity.streaming.run.source import SequenceSource

_FIELDS = ("inputs", "inputs_segmentation", "targets_segmentation")


class LevanterDataset:
    """The sequences of a run, position by position.

    An element is the result of `make_example` for three arrays of L values, by name:

    - `tokens`, int32;
    - `loss_weight`, float32: 1 if the next token is a target; 0 at the end of a segment and on padding;
    - `segment_ids`, int32: 0, 1 ... for the documents of a sequence, -1 on padding, as in Levanter.

    Args:
        run: a run; or a built dataset, its folder or address, or several.
        ordering: the ordering of the datasets, see `make_loader`.
        make_example: takes the arrays as keywords, such as `GrugLmExample.causal`; None means that an element is a dict
            of these arrays.
        loss_mask: with "answers" only the answers of chats are targets; in other documents all tokens are targets.

    Raises:
        UserError: the dataset or ordering does not exist, or the dataset has no chats for a loss on answers.

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
        common_length(self.run)  # raises an error if there are several
        self.source = SequenceSource(self.run, _FIELDS, loss_mask=loss_mask)
        self.make_example = make_example or dict

    async def async_len(self) -> int:
        """Number of positions."""
        return len(self.run)

    async def current_len(self) -> int:
        """Return the current number of positions, which is also the final number."""
        return len(self.run)

    async def final_length_is_known(self) -> bool:
        """Return True: the number of positions is final."""
        return True

    def is_finite(self) -> bool:
        """Return True: there is a last position."""
        return True

    async def get_batch(self, indices: Sequence[int]) -> list[Any]:
        """Read the examples at some positions in a separate thread; raises an IndexError outside the run."""
        return await asyncio.to_thread(self._read, indices)

    async def getitem_async(self, index: int) -> Any:
        """The example at one position."""
        return (await self.get_batch([index]))[0]

    def _read(self, indices: Sequence[int]) -> list[Any]:
        positions = np.asarray(indices, np.int64)
        if len(positions) and not 0 <= positions.min() <= positions.max() < len(self.run):
            limits = f"{positions.min()} .. {positions.max()}"
            raise IndexError(f"Expected positions in 0 .. {len(self.run) - 1}, found {limits}.")
        rows = self.source.read(self.run.at(positions))
        # Levanter shifts the tokens itself: its loss at t is the loss of token t + 1. So the tokens are our inputs, and
        # a weight is 0 where our targets are masked. Levanter numbers padding -1 and the first segment 0; we use 0 and
        # 1.
        weights = (rows["targets_segmentation"] > 0).astype(np.float32)
        columns = (rows["inputs"], weights, rows["inputs_segmentation"] - 1)
        return [
            self.make_example(tokens=tokens, loss_weight=weight, segment_ids=segments)
            for tokens, weight, segments in zip(*columns, strict=True)
        ]

"""Parts for Grain's own `DataLoader`: the sequences as a source, an order as a sampler.

`make_loader` is faster and resumes on other hosts and batch sizes; these are for programs whose input pipeline is a
`grain.DataLoader` already and whose operations are to stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np

from jax_diversity.dataset import Dataset
from jax_diversity.errors import UserError
from jax_diversity.loader.making import open_rows, resolve_order
from jax_diversity.records import FIELDS


class SequenceRows:
    """A dataset's sequences by number, each a dict of arrays (L,): a `RandomAccessDataSource`.

    A row is one range read, which takes the same time in a file of any size. Rows may be read from any number of
    threads; a pickle carries names only.

    Args:
        dataset: a built dataset or its folder.
        fields: which arrays a row holds.
        merge_segments: make one segment of a sequence's, see `make_loader`.
    """

    def __init__(
        self, dataset: str | Path | Dataset, fields: Sequence[str] = FIELDS, *, merge_segments: bool = False
    ) -> None:
        self._source = open_rows(dataset)
        self._fields = tuple(fields)
        self._merge_segments = merge_segments

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, sequence_index: Any) -> dict[str, np.ndarray]:
        rows = self._source.read(np.array([sequence_index], np.int64), self._fields, self._merge_segments)
        return {field: row[0] for field, row in rows.items()}

    def __repr__(self) -> str:  # Grain's checkpoints compare it
        return f"SequenceRows({self._source.fingerprint[:16]})"


class OrderSampler:
    """An order for `grain.DataLoader`, whose batches are then those of the window contract.

    A `DataLoader` deals elements out to hosts and worker processes one by one, and each worker makes batches of its
    own: with a plain order, a batch would be every n-th sequence of a longer window. This sampler numbers elements
    so that the batches that come out are windows of the order, one after another.

    Args:
        dataset: a built dataset or its folder.
        ordering: as in `make_loader`.
        global_batch_size: B, over all hosts; the batch operation's size is B / num_hosts.
        num_epochs: how often every sequence comes.
        worker_count: the `DataLoader`'s.
        num_hosts: the `DataLoader`'s `shard_options.shard_count`.

    Raises:
        UserError: hosts that do not divide the batch, an unknown ordering.

    Example:
        >>> loader = grain.DataLoader(
        ...     data_source=SequenceRows("out/"),
        ...     sampler=OrderSampler("out/", "balance", global_batch_size=64),
        ...     operations=[grain.transforms.Batch(64, drop_remainder=True)],
        ...     shard_options=grain.sharding.NoSharding(),
        ... )
    """

    def __init__(
        self,
        dataset: str | Path | Dataset,
        ordering: Any = "balance",
        *,
        global_batch_size: int,
        num_epochs: int = 1,
        worker_count: int = 0,
        num_hosts: int = 1,
    ) -> None:
        self._order = resolve_order(dataset, ordering)
        end = len(self._order) * num_epochs
        if global_batch_size < 1 or num_hosts < 1 or global_batch_size % num_hosts:
            raise UserError(
                f"Expected a number of hosts that divides the global batch of {global_batch_size}, found "
                f"{num_hosts}."
            )
        if num_epochs < 1 or worker_count < 0:
            raise UserError(
                f"Expected num_epochs >= 1 and worker_count >= 0, found {num_epochs} and {worker_count}."
            )
        self._batch_size, self._num_hosts = global_batch_size, num_hosts
        self._num_workers = max(worker_count, 1)
        num_batches = end // global_batch_size
        # Workers take turns, a batch each: the last turn is a whole one.
        self._num_batches = num_batches - num_batches % self._num_workers

    def __len__(self) -> int:
        return self._num_batches * self._batch_size

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        if not 0 <= index < len(self):
            raise IndexError(f"Expected an index in 0 .. {len(self) - 1}, found {index}.")
        rows = self._batch_size // self._num_hosts
        element, host = divmod(index, self._num_hosts)
        element, worker = divmod(element, self._num_workers)
        turn, row = divmod(element, rows)
        position = (turn * self._num_workers + worker) * self._batch_size + host * rows + row
        sequence = int(self._order.at(np.array([position], np.int64))[0])
        return grain.RecordMetadata(index=index, record_key=sequence, rng=np.random.default_rng(position))

    def __repr__(self) -> str:  # Grain's checkpoints compare it
        order = self._order.fingerprint_at(0)[:16]
        return f"OrderSampler({order}, batches of {self._batch_size} for {self._num_workers} workers)"

"""Parts for Grain's own `DataLoader`: the sequences as a data source, an order as a sampler.

`make_loader` is faster and resumes on other hosts and batch sizes. These parts are for programs that have a
`grain.DataLoader` already and want to keep its operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import grain
import numpy as np

from jax_diversity.dataset.dataset import Dataset
from jax_diversity.foundation.checks import whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.orders import resolve_order
from jax_diversity.loader.settings import LoaderSettings, Windows
from jax_diversity.loader.sources import opened, record_source
from jax_diversity.records.decoding import FIELDS, checked_loss


class SequenceRows:
    """A dataset's sequences by number, each a dict of arrays (L,): a `RandomAccessDataSource`.

    A row is one range read, which takes the same time in a file of any size. Any number of threads may read rows; a
    pickle carries only names.

    Args:
        dataset: a built dataset or its folder.
        fields: which arrays a row holds.
        merge_segments: make all segments of a sequence one, see `make_loader`.
        loss_on: which tokens are targets, see `make_loader`.

    Raises:
        UserError: no such dataset or field; an index that is not a whole number.
    """

    def __init__(
        self,
        dataset: str | Path | Dataset,
        fields: Sequence[str] = FIELDS,
        *,
        merge_segments: bool = False,
        loss_on: str = "all",
    ) -> None:
        self._settings = LoaderSettings.checked(
            global_batch_size=1, fields=fields, merge_segments=merge_segments, loss_on=loss_on
        )
        self._source = record_source(opened(dataset))
        checked_loss(loss_on, self._source.marks_learned)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, sequence_index: Any) -> dict[str, np.ndarray]:
        index = _checked_index(sequence_index, len(self))
        rows = self._source.read(index, index, self._settings)
        return {field: row[0] for field, row in rows.items()}

    def __repr__(self) -> str:  # Grain's checkpoints compare it
        return f"SequenceRows({self._source.fingerprint[:16]})"


class OrderSampler:
    """An order for `grain.DataLoader`, whose batches are then those of the window contract.

    A `DataLoader` gives each host and each worker process every n-th element, and each worker makes its own batches:
    with a plain order, a batch would be every n-th sequence of a longer window. This sampler numbers the elements so
    that the batches that come out are windows of the order, one after another.

    Args:
        dataset: a built dataset or its folder.
        ordering: as in `make_loader`.
        global_batch_size: B, over all hosts; the batch operation's size is B / num_hosts.
        num_epochs: how often every sequence comes.
        worker_count: the `DataLoader`'s. Workers take turns, a batch each; the last batches that do not make a
            whole turn are left out.
        num_hosts: the `DataLoader`'s `shard_options.shard_count`.

    Raises:
        UserError: an unknown ordering, a batch that the epochs cannot fill, hosts that do not divide it, more
            workers than batches.

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
        global_batch_size: SupportsIndex,
        num_epochs: SupportsIndex = 1,
        worker_count: SupportsIndex = 0,
        num_hosts: SupportsIndex = 1,
    ) -> None:
        dataset = opened(dataset)
        self._order = resolve_order(ordering, dataset.num_sequences, dataset)
        settings = LoaderSettings.checked(
            global_batch_size=global_batch_size,
            num_epochs=whole_number("num_epochs", num_epochs, 1),
            num_hosts=num_hosts,
        )
        num_batches = Windows(len(self._order), settings).num_batches(0)
        workers = whole_number("worker_count", worker_count)
        if workers > num_batches:
            raise UserError(
                f"Expected worker_count in 0 .. {num_batches}, the number of batches, found {workers}: "
                "workers take turns, a batch each, and only whole turns count."
            )
        self._batch_size, self._num_hosts = settings.global_batch_size, settings.num_hosts
        self._num_workers = max(workers, 1)
        self._num_batches = num_batches - num_batches % self._num_workers

    def __len__(self) -> int:
        return self._num_batches * self._batch_size

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        _checked_index(index, len(self))
        rows = self._batch_size // self._num_hosts
        # Invert how a `DataLoader` deals out elements: element e goes to host e % H, and of those of a host, number i
        # goes to worker i % W. What is left counts the elements of one worker, which it batches as they come.
        element, host = divmod(index, self._num_hosts)
        element, worker = divmod(element, self._num_workers)
        turn, row = divmod(element, rows)
        position = (turn * self._num_workers + worker) * self._batch_size + host * rows + row
        sequence = int(self._order.at(np.array([position], np.int64))[0])
        # Random operations then draw the same numbers for any number of hosts and workers.
        return grain.RecordMetadata(index=index, record_key=sequence, rng=np.random.default_rng(position))

    def __repr__(self) -> str:  # Grain's checkpoints compare it
        order = self._order.fingerprint[:16]
        return f"OrderSampler({order}, batches of {self._batch_size} for {self._num_workers} workers)"


def _checked_index(index: Any, length: int) -> np.ndarray:
    whole = whole_number("a sequence's index", index, least=-(2**63))
    if not 0 <= whole < length:  # IndexError also ends a `for` over the rows
        raise IndexError(f"Expected an index in 0 .. {length - 1}, found {whole}.")
    return np.array([whole], np.int64)

"""A run as a sampler for Grain's own `DataLoader`; its source is `run.source.SequenceSource`.

`make_loader` is faster, and can resume with another number of hosts or batch size. The sampler is for programs that
already have a `grain.DataLoader` and keep its operations.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import grain
import numpy as np

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.settings import LoaderSettings, Windows
from jax_diversity.run.run import Datasets, Run, as_run
from jax_diversity.run.source import as_index


class OrderSampler:
    """The order of a run for `grain.DataLoader`, whose batches then follow the window contract.

    A `DataLoader` gives each host and each worker process every n-th element, and each worker makes its own batches.
    With a plain order, a batch would contain every n-th sequence of a longer window. This sampler numbers the elements
    so that the resulting batches are windows of the order, one after another.

    Args:
        run: a run with sequences of one length; or a built dataset, its folder or address, or several.
        ordering: the ordering of datasets, see `make_loader`.
        global_batch_size: B, over all hosts; the size of the batch operation is B / num_hosts.
        num_epochs: how many times the run is read.
        worker_count: the same value as in the `DataLoader`. Workers deliver one batch each, in turn; the last batches
            are left out if there are fewer of them than workers.
        num_hosts: the `shard_options.shard_count` of the `DataLoader`.

    Raises:
        UserError: the ordering is unknown; the epochs cannot fill a batch; the number of hosts does not divide the
            batch; there are more workers than batches; the run has several sequence lengths.

    Example:
        >>> loader = grain.DataLoader(
        ...     data_source=SequenceSource("out/"),
        ...     sampler=OrderSampler("out/", "balance", global_batch_size=64),
        ...     operations=[grain.transforms.Batch(64, drop_remainder=True)],
        ...     shard_options=grain.sharding.NoSharding(),
        ... )
    """

    def __init__(
        self,
        run: Run | Datasets,
        ordering: Any = None,
        *,
        global_batch_size: SupportsIndex,
        num_epochs: SupportsIndex = 1,
        worker_count: SupportsIndex = 0,
        num_hosts: SupportsIndex = 1,
    ) -> None:
        self._run = as_run(run, ordering)
        if len(self._run.lengths) > 1:
            found = ", ".join(str(length) for _, length in self._run.lengths)
            raise UserError(
                f"Expected a run with sequences of one length, found the lengths {found}; read it with make_loader."
            )
        settings = LoaderSettings.checked(
            global_batch_size=global_batch_size,
            num_epochs=as_whole_number("num_epochs", num_epochs, 1),
            num_hosts=num_hosts,
        )
        num_batches = Windows(len(self._run), settings).num_batches(0)
        workers = as_whole_number("worker_count", worker_count)
        if workers > num_batches:
            raise UserError(
                f"Expected worker_count in 0 .. {num_batches}, the number of batches, found {workers}: "
                "workers deliver one batch each, in turn, and only complete turns are used."
            )
        self._batch_size, self._num_hosts = settings.global_batch_size, settings.num_hosts
        self._num_workers = max(workers, 1)
        self._num_batches = num_batches - num_batches % self._num_workers

    def __len__(self) -> int:
        return self._num_batches * self._batch_size

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        as_index(index, len(self))
        rows = self._batch_size // self._num_hosts
        # This inverts the distribution of a `DataLoader`: element e is read by host e % H, and element i of a host by
        # worker i % W. The remaining number counts the elements of one worker, which batches them in their order.
        element, host = divmod(index, self._num_hosts)
        element, worker = divmod(element, self._num_workers)
        turn, row = divmod(element, rows)
        position = (turn * self._num_workers + worker) * self._batch_size + host * rows + row
        sequence = int(self._run.at(np.array([position], np.int64))[0])
        # The seed is the position, so that random operations do not depend on the number of hosts and workers.
        return grain.RecordMetadata(index=index, record_key=sequence, rng=np.random.default_rng(position))

    def __repr__(self) -> str:  # Grain's checkpoints compare it
        order = self._run.fingerprint[:16]
        return f"OrderSampler({order}, batches of {self._batch_size} for {self._num_workers} workers)"

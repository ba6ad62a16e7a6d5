"""A run as a sampler for Grain's own `DataLoader`, whose source is `SequenceSource` or Grain's `ArrayRecordDataSource`.

`make_loader` is faster, and can resume with another number of hosts or batch size. The sampler is for programs that
already have a `grain.DataLoader` and keep its operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import grain
import numpy as np

from jax_diversity.foundation.checks import as_whole_number, check_type
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.schema.orderings import Order
from jax_diversity.streaming.loader.settings import LoaderSettings, Windows
from jax_diversity.streaming.records.codec import CorruptRecordError, check_record
from jax_diversity.streaming.records.decoding import FIELDS, as_fields, as_loss, decode
from jax_diversity.streaming.run.run import Datasets, OrderedRun, Run, as_run
from jax_diversity.streaming.run.source import as_index


class DecodeRecord(grain.transforms.Map):
    """Decode a stored record to the arrays (L,) of its sequence: an operation of a Grain `DataLoader`.

    The record files of one or more datasets are read by `grain.sources.ArrayRecordDataSource`. The arrays are those of
    `make_loader`, without `dataset_index` and `sequence_index`.

    Args:
        fields: the arrays, see `records.decoding.decode`.
        merge_segments: merge all segments of a sequence into one, see `make_loader`.
        loss_mask: selects the tokens that are targets, see `make_loader`. In records without a loss mask all tokens are
            targets.

    Raises:
        UserError: a field does not exist; a record is damaged, has another format or is of another program.

    Example:
        >>> loader = grain.DataLoader(
        ...     data_source=grain.sources.ArrayRecordDataSource(open_dataset("out/").records.paths),
        ...     sampler=OrderSampler("out/", "balance", global_batch_size=64),
        ...     operations=[DecodeRecord(), grain.transforms.Batch(64, drop_remainder=True)],
        ...     shard_options=grain.sharding.NoSharding(),
        ... )
    """

    def __init__(self, fields: Sequence[str] = FIELDS, *, merge_segments: bool = False, loss_mask: str = "all") -> None:
        check_type("merge_segments", merge_segments, bool | np.bool_, "True or False")
        self._options: dict[str, Any] = {
            "fields": as_fields(fields),
            "merge_segments": bool(merge_segments),
            "loss_mask": as_loss(loss_mask, has_loss_mask=True),
        }

    def map(self, element: bytes) -> Any:
        """Return the arrays (L,) of one record, by field."""
        if not isinstance(element, bytes):
            raise UserError(
                f"Expected the bytes of a record, found {quoted(type(element).__name__)}; use DecodeRecord as the "
                "first operation after grain.sources.ArrayRecordDataSource."
            )
        try:
            bodies, overlap = check_record(element)
        except CorruptRecordError as error:
            raise UserError(
                f"Expected a record of `jax-diversity write`, found other bytes ({error}); find what changed with "
                "`jax-diversity verify`, or run `jax-diversity write` again."
            ) from None
        rows = decode(bodies, **self._options, width=bodies.tokens.shape[1] - overlap)
        # Other libraries warn about read-only arrays, and rows are small.
        return {field: row[0] if row.flags.writeable else row[0].copy() for field, row in rows.items()}


class OrderSampler:
    """The order of a run for `grain.DataLoader`, whose batches then follow the window contract.

    A `DataLoader` gives each host and each worker process every n-th element, and each worker makes its own batches.
    With a plain order, a batch would contain every n-th sequence of a longer window. This sampler numbers the elements
    so that the resulting batches are windows of the order, one after another.

    The source is a `SequenceSource`, or Grain's `ArrayRecordDataSource` over the record files of the datasets, one
    dataset after another, in any layout. If the order is one of your own sequences, it is your own source of them.

    Args:
        run: a run with sequences of one length; or a built dataset, its folder or address, or several; or an order of
            your own sequences (`jd.order`).
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
        >>> rows = np.arange(24).reshape(6, 4)  # your own sequences, in memory or in your own source
        >>> loader = grain.DataLoader(
        ...     data_source=rows,
        ...     sampler=OrderSampler(jd.Ordering(np.array([3, 0, 5, 1, 2, 4])), global_batch_size=2),
        ...     operations=[grain.transforms.Batch(2, drop_remainder=True)],
        ...     shard_options=grain.sharding.NoSharding(),
        ... )
    """

    def __init__(
        self,
        run: Run | Datasets | Order,
        ordering: Any = None,
        *,
        global_batch_size: SupportsIndex,
        num_epochs: SupportsIndex = 1,
        worker_count: SupportsIndex = 0,
        num_hosts: SupportsIndex = 1,
    ) -> None:
        if isinstance(run, Order) and not isinstance(run, Run):
            run = OrderedRun((), run, "order", {})
        self._run = as_run(run, ordering)
        if len(self._run.lengths) > 1:
            lengths = ", ".join(str(length) for _, length in self._run.lengths)
            raise UserError(
                f"Expected a run with sequences of one length, found the lengths {lengths}; read it with make_loader."
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
        # In the ordered layout, the place of a record is not the number of its sequence.
        self._ordered = {
            number: dataset.records
            for number, dataset in enumerate(self._run.datasets)
            if "write" in dataset.stored.stages and dataset.layout_ordering is not None
        }

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
        # The seed is the position, so that random operations do not depend on the number of hosts and workers.
        return grain.RecordMetadata(index=index, record_key=self._key(position), rng=np.random.default_rng(position))

    def _key(self, position: int) -> int:
        """Return the place of the record at a position, counted over the files of all datasets."""
        sequence = place = self._run.at(np.array([position], np.int64))
        if self._ordered:
            dataset, within = self._run.locate(sequence)
            if (records := self._ordered.get(int(dataset[0]))) is not None:
                place = records.places_of(within) + self._run.offsets[dataset]
        return int(place[0])

    def __repr__(self) -> str:  # Grain's checkpoints compare it
        order = self._run.fingerprint[:16]
        return f"OrderSampler({order}, batches of {self._batch_size} for {self._num_workers} workers)"

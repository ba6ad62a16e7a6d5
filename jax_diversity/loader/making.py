"""A loader from a dataset, an ordering and some counts, all of them checked."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.errors import UserError
from jax_diversity.loader.batches import OrderedBatches, OrderIndex
from jax_diversity.loader.iteration import Loader
from jax_diversity.loader.windows import ENDLESS, Windows
from jax_diversity.records import FIELDS
from jax_diversity.schema import Ordering, Schedule


def make_loader(
    dataset: str | Path | Dataset,
    *,
    ordering: str | Path | np.ndarray | Sequence[int] | Ordering | Schedule = "balance",
    global_batch_size: SupportsIndex,
    num_epochs: SupportsIndex | None = 1,
    seed: SupportsIndex = 0,
    start_position: SupportsIndex = 0,
    drop_remainder: bool = True,
    host_index: SupportsIndex = 0,
    num_hosts: SupportsIndex = 1,
    fields: Sequence[str] = FIELDS,
    merge_segments: bool = False,
    num_prefetch: SupportsIndex = 2,
    num_threads: SupportsIndex = 1,
) -> Loader:
    """A Grain dataset of batches in an ordering's order.

    Args:
        dataset: a built dataset or its folder.
        ordering: the name of one of its orderings, a .npy file, or an ordering itself (any sequence of integers);
            or a schedule, which may repeat and omit sequences.
        global_batch_size: B, sequences of a batch over all hosts.
        num_epochs: how often every sequence comes, or a schedule is run through; None never ends.
        seed: kept for what draws; every epoch follows the ordering itself, so nothing does yet.
        start_position: the global position of the first batch.
        drop_remainder: what becomes of the very last sequences, when they do not fill a batch: dropped, or, when
            False, filled up with rows of padding only. Every host sees the same number of batches either way.
        host_index: this host (`jax.process_index()`).
        num_hosts: all hosts (`jax.process_count()`); divides the batch.
        fields: which arrays a batch holds. Each is memory to be written: `("inputs",)` alone comes about twice as
            fast as all six.
        merge_segments: number all of a sequence's segments 1 and count positions through, so that a document
            attends to those before it and its first token is a target; False keeps documents apart.
        num_prefetch: batches made ahead in the background; 0 makes each when asked for.
        num_threads: threads that make them.

    Returns:
        A `grain.IterDataset` of dicts of int32 arrays (B / num_hosts, L), see `records.decode`. Its iterator's
        state is the next position and the fingerprints of dataset and ordering; it may be restored with another
        batch size or number of hosts. Threads make batches ahead; `mp_prefetch` on top of it has worker processes
        make them, in the same order, and then the state is Grain's own, which fits the same number of workers.

    Raises:
        UserError: a setting that cannot be (a count that is no whole number, too), an unknown ordering, or one made
            for another number of sequences.

    Example:
        >>> for batch in make_loader("out/", ordering="balance", global_batch_size=64):
        ...     batch["inputs"].shape
        (64, 512)
    """
    counts = {"global_batch_size": global_batch_size, "start_position": start_position}
    counts |= {"host_index": host_index, "num_hosts": num_hosts}
    whole = {name: _whole(name, value) for name, value in counts.items()}
    num_epochs = None if num_epochs is None else _whole("num_epochs", num_epochs)
    ahead = {
        "num_prefetch": _whole("num_prefetch", num_prefetch),
        "num_threads": _whole("num_threads", num_threads),
    }
    _whole("seed", seed)
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    order = _resolve(opened, ordering)
    end = ENDLESS if num_epochs is None else len(order) * num_epochs
    windows = Windows(num_sequences=len(order), end=end, drop_remainder=drop_remainder, **whole)
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown or not fields:
        raise UserError(f"Expected fields among {', '.join(FIELDS)}, found {unknown or 'none'}.")
    for name, least in (("num_prefetch", 0), ("num_threads", 1)):
        if ahead[name] < least:
            raise UserError(f"Expected {name} >= {least}, found {ahead[name]}.")
    batches = OrderedBatches(
        opened.records, order, windows, _layout(opened, order), opened.fingerprint, fields, merge_segments
    )
    return Loader(batches, **ahead)


def _whole(name: str, value: Any) -> int:
    """A count as Python's own integer, which JSON can hold."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"Expected {name} to be a whole number, found {value!r}.") from None


class ScheduleIndex(OrderIndex):
    """A schedule in an ordering's place: what comes at every position, without the way back."""

    def __init__(self, schedule: Schedule) -> None:
        self.fingerprint = schedule.fingerprint
        self._length = len(schedule)
        self._path = None
        self.indices = schedule.indices


def _resolve(
    dataset: Dataset, ordering: str | Path | np.ndarray | Sequence[int] | Ordering | Schedule
) -> OrderIndex:
    path = None
    if isinstance(ordering, Schedule):
        if ordering.num_sequences != dataset.num_sequences:
            raise UserError(
                f"Expected a schedule over the dataset's {dataset.num_sequences} sequences, found one over "
                f"{ordering.num_sequences}; it was made for another dataset."
            )
        return ScheduleIndex(ordering)
    try:
        if isinstance(ordering, Path) or (isinstance(ordering, str) and ordering.endswith(".npy")):
            path = Path(ordering).absolute()
            ordering = Ordering.load(path)
        elif isinstance(ordering, str):
            name, ordering = ordering, dataset.orderings[ordering]
            path = dataset.orderings.paths[name].absolute()
        elif not isinstance(ordering, Ordering):
            indices = np.asarray(ordering)
            if indices.dtype.kind not in "iu":
                raise UserError(f"Expected an ordering of whole numbers, found {indices.dtype}.")
            ordering = Ordering(indices.astype(np.int64))
    except ValueError as error:
        raise UserError(str(error)) from None
    if len(ordering) != dataset.num_sequences:
        raise UserError(
            f"Expected an ordering of the dataset's {dataset.num_sequences} sequences, found {len(ordering)}; "
            "make it anew with `jax-diversity order`."
        )
    return OrderIndex(ordering, path)


def _layout(dataset: Dataset, order: OrderIndex) -> OrderIndex | None:
    """The ordering that the records lie in (`order` itself where it is the same); None: as packed."""
    if dataset.layout_ordering is None:
        return None
    layout = _resolve(dataset, dataset.layout_ordering)
    return order if layout.fingerprint == order.fingerprint else layout

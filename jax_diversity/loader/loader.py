"""A loader from datasets, an ordering and settings, all of them checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import grain
import jax
import numpy as np

from jax_diversity.dataset.dataset import Dataset
from jax_diversity.dataset.orderings import is_file_name
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.device_placement import DevicePlacement
from jax_diversity.loader.iteration import Batch, BatchIterator, OrderedBatches
from jax_diversity.loader.orders import Order, ScheduleOrder, resolve_order
from jax_diversity.loader.settings import ENDLESS, LoaderSettings, Windows
from jax_diversity.loader.sources import ConcatenatedSource, SequenceSource, opened, record_source
from jax_diversity.records.decoding import FIELDS, checked_loss
from jax_diversity.schedule.stored import RunSchedule


def make_loader(
    dataset: str | Path | Dataset | Sequence[str | Path | Dataset] | RunSchedule,
    *,
    ordering: Any = "balance",
    global_batch_size: SupportsIndex,
    num_epochs: SupportsIndex | None = 1,
    start_position: SupportsIndex = 0,
    drop_remainder: bool = True,
    host_index: SupportsIndex = 0,
    num_hosts: SupportsIndex = 1,
    sharding: Any = None,
    fields: Sequence[str] = FIELDS,
    names: Mapping[str, str] | None = None,
    dtype: str | type | np.dtype = "int32",
    merge_segments: bool = False,
    loss_on: str = "all",
    num_prefetch: SupportsIndex = 2,
    num_threads: SupportsIndex = 1,
    num_workers: SupportsIndex = 0,
    cache_folder: str | Path | None = None,
    sequence_length: SupportsIndex | None = None,
) -> Loader:
    """A Grain dataset of batches in an ordering's order.

    Args:
        dataset: a built dataset, its folder or its address on an object store; or several, whose sequences are
            numbered end to end; or the schedule of a run (`open_schedule`), which says what is read in which order.
        ordering: the name of one of the dataset's orderings, a .npy file, or an ordering itself (any sequence of
            integers), or a schedule, which may repeat and omit sequences. Of several datasets: one over all their
            sequences. Not with the schedule of a run, which is its own order.
        global_batch_size: B, sequences of a batch over all hosts.
        num_epochs: how often every sequence comes, or a schedule is repeated; None never ends.
        start_position: the global position of the first batch.
        drop_remainder: whether the last sequences of the run are dropped when they do not fill a batch; False fills
            the batch up with rows of padding. Every host sees the same number of batches in both cases.
        host_index: this host (`jax.process_index()`); not with `sharding`, which determines it.
        num_hosts: all hosts (`jax.process_count()`); divides the batch.
        sharding: a `jax.sharding.Sharding` of arrays (row, token): batches are then global `jax.Array`s, placed on
            the devices ahead of time. Row j of the batch is row j of the array for any number of processes.
        fields: which arrays a batch holds. Each takes time to write: `("inputs",)` alone is about twice as fast as
            all six.
        names: field -> the name it has in a batch, such as {"inputs": "tokens"}; the same where not given. The
            fields' own names are those that MaxText and the Flax examples read.
        dtype: of the arrays: int32, int64, uint32 or float32. With `sharding`, int64 needs JAX's
            `jax_enable_x64`.
        merge_segments: give all segments of a sequence the number 1 and count positions through the sequence, so
            that a document attends to those before it and its first token is a target; False keeps documents apart.
        loss_on: "answers" masks the prompts of chats: `targets_segmentation` is 0 where the target is no token of an
            answer. Documents that are no chats are learnt whole. Refused where no dataset was made of chats.
        num_prefetch: batches made ahead in the background; 0 makes each when it is asked for.
        num_threads: threads that make them.
        num_workers: processes that make them instead of threads; they take seconds to start. The program's own file
            must be importable without running it (`if __name__ == "__main__":`), as always with `multiprocessing`.
        cache_folder: where files of a dataset on an object store are kept, see `open_dataset`. A record file is
            fetched whole when it is first needed; `stream_batches` removes it when it has been read.
        sequence_length: L that the model expects; a run with sequences of another length is refused. None takes any.

    Returns:
        A `grain.IterDataset` of dicts of arrays (B / num_hosts, L), see `records.decoding.decode`; where a run's
        schedule goes on with sequences of another length, L is that of the batch's position. Batches of several
        datasets also have `dataset_index` and `sequence_index` of every row. The state of its iterator is the next
        position and the fingerprints of dataset and ordering; it may be restored with another batch size, or another
        number of hosts, threads or workers.

    Raises:
        UserError: a setting that is not valid, an unknown ordering, one made for another number of sequences or
            that lies in another dataset, sequences of another length than the model expects, a batch that would
            hold sequences of two lengths.

    When an ordering records that it was made of other token counts than the dataset's orderings, it is followed with
    a warning: it may be one by your own weights or matrices.

    Example:
        >>> for batch in make_loader("out/", ordering="balance", global_batch_size=64):
        ...     batch["inputs"].shape
        (64, 512)
    """
    settings = LoaderSettings.among(locals())  # every parameter but those that say what is read
    source, order = _open(dataset, ordering, cache_folder)
    return Loader(source, order, settings)


class Loader(grain.IterDataset[Batch]):
    """Batches of an order, made ahead in the background; iterate over it, or build on it with Grain.

    Args:
        source: where sequences are read from.
        order: which sequence comes at every position.
        settings: how batches are made.

    Attributes:
        batches: the batches by number.

    Raises:
        UserError: settings that do not fit the source or the order.
    """

    def __init__(self, source: SequenceSource, order: Order, settings: LoaderSettings) -> None:
        checked_loss(settings.loss_on, source.marks_learned)
        windows = Windows(len(order), settings, order.lengths or ((0, source.width),))
        self._placement = None
        if settings.sharding is not None:
            lengths = sorted({length for _, length in windows.lengths})
            self._placement = DevicePlacement(settings.sharding, settings.global_batch_size, lengths)
            windows = replace(windows, row_numbers=self._placement.row_numbers)
        self.batches = OrderedBatches(source, order, windows)
        super().__init__(self.batches)

    @property
    def num_batches(self) -> int | None:
        """Batches from the start position on; None without a last epoch."""
        return None if self.batches.windows.end == ENDLESS else len(self.batches)

    @property
    def _element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of a batch's arrays, global ones with `sharding`; Grain's `get_element_spec` asks for it."""
        # A last batch that is not full is filled with padding: it has the shape of the others.
        spec = self.batches._element_spec
        return spec if self._placement is None else self._placement.placed(spec)

    def __len__(self) -> int:
        if (number := self.num_batches) is None:
            # Not a UserError: `list` and others ask for a length, and take a TypeError for none.
            raise TypeError("Expected a loader with a last epoch to have a length, found num_epochs=None.")
        return number

    def __bool__(self) -> bool:
        return self.num_batches != 0  # a loader without a last epoch is true too, though it has no length

    def __iter__(self) -> BatchIterator:
        # Every iterator closes its own source; the copy leaves the shared batches, and their source, as they are.
        batches = copy(self.batches)
        batches.source = batches.source.for_iterator()
        return BatchIterator(batches, self._placement)

    def __str__(self) -> str:
        return f"Loader({self.batches})"


def _open(dataset: Any, ordering: Any, cache_folder: str | Path | None) -> tuple[SequenceSource, Order]:
    """What is read, and in which order."""
    if isinstance(dataset, RunSchedule):
        return _open_schedule(dataset, ordering, cache_folder)
    if hasattr(ordering, "to_schedule"):  # a `Blend`, which the loader does not import
        raise UserError(
            f"Expected an ordering or a schedule, found {ordering!r}; give its to_schedule(), or store the run with "
            "create_schedule(path, datasets, weights=...) and give make_loader that alone."
        )
    if isinstance(dataset, str | Path | Dataset):
        single = opened(dataset, cache_folder)
        order = resolve_order(ordering, single.num_sequences, single)
        return record_source(single, order), order
    if not isinstance(dataset, Iterable):
        raise UserError(f"Expected a dataset, its folder or address, or several of them, found {dataset!r}.")
    sources = [record_source(opened(each, cache_folder)) for each in dataset]
    if not sources:
        raise UserError("Expected at least one dataset, found none.")
    widths = sorted({source.width for source in sources})
    if len(widths) > 1:
        raise UserError(f"Expected datasets with sequences of one length, found lengths {widths}.")
    sizes = list(map(len, sources))
    if isinstance(ordering, str) and not is_file_name(ordering):
        raise UserError(
            f"Expected a schedule or an ordering over all {sum(sizes)} sequences of several datasets, found the name "
            f"{ordering!r}; make a schedule with create_schedule(path, datasets), and give it alone."
        )
    return ConcatenatedSource(sources), resolve_order(ordering, sum(sizes))


def _open_schedule(
    schedule: RunSchedule, ordering: Any, cache_folder: str | Path | None
) -> tuple[SequenceSource, Order]:
    if cache_folder is not None:
        raise UserError(
            "Expected no cache_folder with a run's schedule; open its datasets with open_dataset(address, "
            "cache_folder=...), and give them to open_schedule(path, datasets=[...])."
        )
    if not (isinstance(ordering, str) and ordering == "balance"):  # the default
        raise UserError(
            f"Expected no ordering with a run's schedule, which holds its own, found {ordering!r}; leave it out."
        )
    sources = [record_source(dataset) for dataset in schedule.datasets]
    return ConcatenatedSource(sources, schedule.content.id), ScheduleOrder(schedule)

"""Batches in an ordering's order, as a Grain dataset that resumes by one integer.

The window contract: the global batch at position p is the sequences `order[p : p + B]`, row j of it at row j,
however many hosts, threads or epochs there are; host h of H holds the rows h*B/H .. (h + 1)*B/H - 1. Positions run
on from epoch to epoch, so a batch may begin in one epoch and end in the next, and no sequence is left out between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import grain
import numpy as np
from jaxtyping import Int32, Int64

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.errors import UserError
from jax_diversity.records import FIELDS, RecordReader
from jax_diversity.schema import Ordering

Batch = dict[str, Int32[np.ndarray, "row token"]]
_STATE_VERSION = 1
_ENDLESS = 2**62  # positions of a run without a last epoch


def make_loader(
    dataset: str | Path | Dataset,
    *,
    ordering: str | Path | np.ndarray | Ordering = "greedy",
    global_batch_size: int,
    num_epochs: int | None = 1,
    seed: int = 0,
    start_position: int = 0,
    drop_remainder: bool = True,
    host_index: int = 0,
    num_hosts: int = 1,
    fields: Sequence[str] = FIELDS,
    num_prefetch: int = 2,
    num_threads: int = 1,
) -> Loader:
    """A Grain dataset of batches in an ordering's order.

    Args:
        dataset: a built dataset or its folder.
        ordering: the name of one of its orderings, a .npy file, or an ordering itself.
        global_batch_size: B, sequences of a batch over all hosts.
        num_epochs: how often every sequence comes; None never ends.
        seed: kept for what draws; every epoch follows the ordering itself, so nothing does yet.
        start_position: the global position of the first batch.
        drop_remainder: what becomes of the very last sequences, when they do not fill a batch: dropped, or, when
            False, filled up with rows of padding only. Every host sees the same number of batches either way.
        host_index: this host (`jax.process_index()`).
        num_hosts: all hosts (`jax.process_count()`); divides the batch.
        fields: which arrays a batch holds; `("inputs",)` alone is fastest.
        num_prefetch: batches made ahead in the background; 0 makes each when asked for.
        num_threads: threads that make them.

    Returns:
        A `grain.IterDataset` of dicts of int32 arrays (B / num_hosts, L), see `records.decode`. Its iterator's
        state is the next position and the fingerprints of dataset and ordering; it may be restored with another
        batch size or number of hosts.

    Raises:
        UserError: a setting that cannot be, an unknown ordering, or one made for another number of sequences.

    Example:
        >>> for batch in make_loader("out/", ordering="greedy", global_batch_size=64):
        ...     batch["inputs"].shape
        (64, 512)
    """
    opened = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    order = _resolve(opened, ordering)
    windows = Windows(
        num_sequences=len(order),
        global_batch_size=global_batch_size,
        end=_ENDLESS if num_epochs is None else len(order) * num_epochs,
        start_position=start_position,
        drop_remainder=drop_remainder,
        host_index=host_index,
        num_hosts=num_hosts,
    )
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown or not fields:
        raise UserError(f"Expected fields among {', '.join(FIELDS)}, found {unknown or 'none'}.")
    for name, value, least in (("num_prefetch", num_prefetch, 0), ("num_threads", num_threads, 1)):
        if value < least:
            raise UserError(f"Expected {name} >= {least}, found {value}.")
    batches = OrderedBatches(opened.records, order, windows, _layout(opened, order), opened.fingerprint, fields)
    return Loader(batches, num_prefetch=num_prefetch, num_threads=num_threads)


@dataclass(frozen=True)
class Windows:
    """Which positions a host reads for the batch at a position, and where batches end.

    Attributes:
        num_sequences: N, positions of an epoch.
        global_batch_size: B.
        end: the position after the last epoch.
        start_position: the first batch's.
        drop_remainder: whether a last batch that is not full is left out.
        host_index: h.
        num_hosts: H.

    Raises:
        UserError: numbers that do not fit one another.
    """

    num_sequences: int
    global_batch_size: int
    end: int
    start_position: int = 0
    drop_remainder: bool = True
    host_index: int = 0
    num_hosts: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.global_batch_size <= self.num_sequences:
            raise UserError(
                f"Expected a global batch size in 1 .. {self.num_sequences} (the dataset's sequences), "
                f"found {self.global_batch_size}."
            )
        if self.num_hosts < 1 or self.global_batch_size % self.num_hosts:
            raise UserError(
                f"Expected a number of hosts that divides the global batch of {self.global_batch_size}, "
                f"found {self.num_hosts}."
            )
        if not 0 <= self.host_index < self.num_hosts:
            raise UserError(f"Expected a host index in 0 .. {self.num_hosts - 1}, found {self.host_index}.")
        if self.end < 1:
            raise UserError(f"Expected num_epochs >= 1 or None, found {self.end // self.num_sequences}.")
        if not 0 <= self.start_position <= self.end:
            raise UserError(f"Expected a start position in 0 .. {self.end}, found {self.start_position}.")

    @property
    def rows(self) -> int:
        """Rows of this host's part of a batch."""
        return self.global_batch_size // self.num_hosts

    def num_batches(self, position: int) -> int:
        """Batches from a position to the end."""
        left = max(self.end - position, 0)
        return left // self.global_batch_size if self.drop_remainder else -(-left // self.global_batch_size)

    def positions(self, position: int) -> Int64[np.ndarray, " row"]:
        """This host's positions in the batch at `position`; fewer than `rows` where the last epoch ends."""
        first = position + self.host_index * self.rows
        return np.arange(first, max(first, min(first + self.rows, self.end)), dtype=np.int64)


class OrderIndex:
    """An ordering's permutation, memory-mapped from its file where it has one; pickles as the file's name."""

    def __init__(self, ordering: Ordering, path: Path | None = None) -> None:
        self.fingerprint = ordering.fingerprint
        self._length = len(ordering)
        self._path = path
        self._given = ordering.indices if path is None else None

    def __len__(self) -> int:
        return self._length

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("indices", "inverse")}

    @cached_property
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequence at every position."""
        if self._given is not None:
            return self._given
        indices = np.load(str(self._path), mmap_mode="r")
        return indices if indices.dtype == np.int64 else indices.astype(np.int64)

    @cached_property
    def inverse(self) -> Int64[np.ndarray, " sequence"]:
        """The position of every sequence."""
        inverse = np.empty(len(self), np.int64)
        inverse[self.indices] = np.arange(len(self))
        return inverse


def _resolve(dataset: Dataset, ordering: str | Path | np.ndarray | Ordering) -> OrderIndex:
    path = None
    try:
        if isinstance(ordering, np.ndarray):
            ordering = Ordering(ordering)
        elif isinstance(ordering, Path) or (isinstance(ordering, str) and ordering.endswith(".npy")):
            path = Path(ordering).absolute()
            ordering = Ordering.load(path)
        elif isinstance(ordering, str):
            name, ordering = ordering, dataset.orderings[ordering]
            path = dataset.orderings.paths[name].absolute()
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


class OrderedBatches(grain.MapDataset[Batch]):
    """The root of the flow: element k is a whole batch, the k-th from the start position on.

    Reading whole batches keeps the work a record to one range read; a batch whose records are neighbours (records
    laid out in this very ordering) is a single read.
    """

    def __init__(
        self,
        records: RecordReader,
        order: OrderIndex,
        windows: Windows,
        layout: OrderIndex | None,
        dataset_fingerprint: str,
        fields: Sequence[str] = FIELDS,
    ) -> None:
        super().__init__()
        self.records = records
        self.order = order
        self.windows = windows
        self.layout = layout
        self.dataset_fingerprint = dataset_fingerprint
        self.fields = tuple(fields)

    def __len__(self) -> int:
        return self.windows.num_batches(self.windows.start_position)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self.read(self.windows.start_position + int(index) % len(self) * self.windows.global_batch_size)

    def __str__(self) -> str:
        return f"OrderedBatches({self.windows.global_batch_size} of {self.records})"

    def read(self, position: int) -> Batch:
        """This host's rows of the global batch at a position.

        Raises:
            UserError: damaged records, or records that hold other sequences than the ordering's.
        """
        places = self.windows.positions(position) % self.windows.num_sequences
        sequences = self.order.indices[places]
        if self.layout is None:
            places = sequences
        elif self.layout is not self.order:
            places = self.layout.inverse[sequences]
        missing = self.windows.rows - len(places)
        if not len(places):
            shape = (self.windows.rows, self.records.sequence_length)
            return {field: np.zeros(shape, np.int32) for field in self.fields}
        batch = self.records.read_batch(places, expected=sequences, fields=self.fields)
        if missing:
            batch = {field: np.pad(rows, ((0, missing), (0, 0))) for field, rows in batch.items()}
        return batch


class Loader(grain.IterDataset[Batch]):
    """The batches of an `OrderedBatches`, made ahead in background threads; iterate over it, or build on it."""

    def __init__(self, batches: OrderedBatches, *, num_prefetch: int = 2, num_threads: int = 1) -> None:
        super().__init__(batches)
        self.batches = batches
        self._num_prefetch = num_prefetch
        self._num_threads = num_threads

    @property
    def num_batches(self) -> int | None:
        """Batches from the start position on; None without a last epoch."""
        return None if self.batches.windows.end == _ENDLESS else len(self.batches)

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self.batches, self._num_prefetch, self._num_threads)

    def __str__(self) -> str:
        return f"Loader({self.batches})"


class BatchIterator(grain.DatasetIterator[Batch]):
    """Batches one after another; its state is the position of the next one that `next` will give."""

    def __init__(self, batches: OrderedBatches, num_prefetch: int = 2, num_threads: int = 1) -> None:
        super().__init__()
        self._batches = batches
        self._num_prefetch = num_prefetch
        self._num_threads = num_threads
        self._executor: ThreadPoolExecutor | None = None
        self._ahead: deque[Future[Batch]] = deque()
        self._position = batches.windows.start_position

    def __next__(self) -> Batch:
        self._assert_not_closed()
        windows = self._batches.windows
        if not windows.num_batches(self._position):
            raise StopIteration
        batch = self._take() if self._num_prefetch else self._batches.read(self._position)
        self._position = min(self._position + windows.global_batch_size, windows.end)
        return batch

    def get_state(self) -> dict[str, Any]:
        """The next position and what it is a position of, ready for JSON."""
        return {
            "version": _STATE_VERSION,
            "position": self._position,
            "dataset": self._batches.dataset_fingerprint,
            "ordering": self._batches.order.fingerprint,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of whatever batch size and number of hosts.

        Raises:
            UserError: the state of another dataset or ordering, of a newer version, or no state at all.
        """
        own = self.get_state()
        if not isinstance(state, Mapping) or own.keys() - state.keys():
            raise UserError(f"Expected the state of a loader with {', '.join(own)}, found {state!r}.")
        if state["version"] != _STATE_VERSION:
            raise UserError(f"Expected a loader's state of version {_STATE_VERSION}, found {state['version']}.")
        for name in ("dataset", "ordering"):
            if state[name] != own[name]:
                raise UserError(
                    f"The checkpoint was made with the {name} of fingerprint {state[name]}, this loader's is "
                    f"{own[name]}; open the {name} it was made with, or start anew."
                )
        position = state["position"]
        if type(position) is not int or not 0 <= position <= self._batches.windows.end:
            raise UserError(
                f"Expected a position in 0 .. {self._batches.windows.end}, found {position!r}; "
                "give the loader as many epochs as the run that was saved."
            )
        self._forget()
        self._position = position

    def start_prefetch(self) -> None:
        """Begin to make batches before the first is asked for."""
        if self._num_prefetch and not self._closed:
            self._fill()

    def close(self) -> None:
        """Stop making batches; the threads end as soon as what they are at is done."""
        super().close()
        self._forget()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def _take(self) -> Batch:
        self._fill()
        batch = self._ahead.popleft()
        self._fill(taken=1)
        try:
            return batch.result()
        except BaseException:
            self._forget()  # the next call tries the same position again
            raise

    def _fill(self, taken: int = 0) -> None:
        """Have `num_prefetch` batches under way; the first `taken` positions are no longer among them."""
        windows = self._batches.windows
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._num_threads, thread_name_prefix="jax-diversity-loader")
        while len(self._ahead) < self._num_prefetch:
            position = self._position + (taken + len(self._ahead)) * windows.global_batch_size
            if not windows.num_batches(position):
                break
            # The work knows the batches, not this iterator, so an iterator that is dropped takes its threads along.
            self._ahead.append(self._executor.submit(self._batches.read, position))

    def _forget(self) -> None:
        for future in self._ahead:
            future.cancel()
        self._ahead.clear()

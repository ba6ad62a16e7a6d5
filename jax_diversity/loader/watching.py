"""Values of the batches while training runs: how diverse each is, how far the run has strayed, what it waits for.

They come from the dataset's token counts and the order alone, so that no batch has to be looked into: the position
says which sequences a batch holds.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex

import grain
import jax
import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.dataset import Dataset
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.batches import Batch
from jax_diversity.loader.iteration import BatchIterator, Loader
from jax_diversity.loader.making import open_any, order_over, whole_number
from jax_diversity.loader.orders import ScheduleIndex
from jax_diversity.loader.streaming import StreamedSource
from jax_diversity.loader.windows import ENDLESS
from jax_diversity.schema import Characteristics

MetricsWriter = Callable[[int, Mapping[str, float]], None]
"""What takes values by name at a step, such as `lambda step, values: wandb.log(dict(values), step=step)`."""

_CHUNK = 2**16


class Writers:
    """Several writers as one, none of which can end a run.

    A writer that raises is named in a warning and left out from then on; the others, and the run, go on.

    Args:
        writers: called one after another.

    Example:
        >>> write = Writers(TensorBoardWriter("out/tensorboard"), lambda step, values: print(step, values))
        >>> write(1, {"loss": 9.7})
    """

    def __init__(self, *writers: MetricsWriter) -> None:
        self._writers = list(writers)

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Hand a step's values to each."""
        for writer in tuple(self._writers):
            try:
                writer(step, values)
            except Exception as error:
                self._writers.remove(writer)
                warnings.warn(
                    f"The metrics writer {writer!r} failed at step {step} ({type(error).__name__}: {error}) and is "
                    "left out from here on; the run goes on.",
                    stacklevel=2,
                )

    def __len__(self) -> int:
        return len(self._writers)


@dataclass(frozen=True)
class _Walk:
    """Which sequences come at which positions.

    Attributes:
        at: the sequences at some positions.
        num_positions: of an epoch.
        is_bijection: whether every sequence comes once an epoch, after which nothing has strayed.
        end: the position after the last epoch.
    """

    at: Callable[[Int64[np.ndarray, " row"]], Int64[np.ndarray, " row"]]
    num_positions: int
    is_bijection: bool
    end: int = ENDLESS


class BatchMetrics:
    """What a batch at a position holds, and how far all up to it has strayed, in every family.

    With `c` the batch's token counts, `n` their sum and τ the corpus's shares:

    - `batch_tv/FAMILY`: half the L1 distance between `c / n` and τ;
    - `groups_per_batch/FAMILY`: distinct groups with tokens in the batch;
    - `prefix_l2/FAMILY`: the prefix deviation after the batch, in sequence lengths.

    These are the window TV, groups per batch and prefix deviation of `measure`. Running sums are whole numbers, so
    values do not depend on where a run was cut off. Batches that follow one another cost what their own sequences'
    counts cost; a jump to another position costs a walk there from its epoch's start.

    Args:
        dataset: a built dataset, its folder or address; or the token counts of the sequences that the order counts.
        ordering: what is trained on, as `make_loader` takes it; only a dataset knows orderings by name.
        global_batch_size: B, sequences of a batch over all hosts.

    Raises:
        UserError: an unknown ordering, or one of another number of sequences; a batch size below 1.

    Example:
        >>> metrics = BatchMetrics("out/", "balance", global_batch_size=64)
        >>> metrics.values(position=0)["batch_tv/cluster"]
    """

    def __init__(
        self,
        dataset: str | Path | Dataset | Characteristics,
        ordering: Any,
        global_batch_size: SupportsIndex,
    ) -> None:
        self.global_batch_size = whole_number("global_batch_size", global_batch_size)
        if self.global_batch_size < 1:
            raise UserError(f"Expected global_batch_size >= 1, found {self.global_batch_size}.")
        dataset = dataset if isinstance(dataset, Characteristics) else open_any(dataset)
        self._walk = ordering if isinstance(ordering, _Walk) else _walk(dataset, ordering)
        counts = dataset if isinstance(dataset, Characteristics) else dataset.characteristics
        self._counts, self._sequence_length = counts.counts, counts.sequence_length
        self._targets = {family: counts.target_share(family) for family in counts.families}
        self._restart(0)

    @classmethod
    def of_loader(cls, loader: Loader, dataset: str | Path | Dataset | Characteristics) -> BatchMetrics:
        """The values of a loader's batches, also of one that streams.

        Args:
            loader: of `make_loader` or `stream_batches`.
            dataset: what it reads; of several datasets, the token counts of all their sequences end to end.

        Raises:
            UserError: no such loader; another dataset than the loader reads, or the counts of another number of
                sequences.
        """
        _check_loader(loader)
        source, order, windows = loader.batches.source, loader.batches.order, loader.batches.windows
        counts = dataset if isinstance(dataset, Characteristics) else _counts_of(open_any(dataset), loader)
        if counts.num_sequences != len(source):
            raise UserError(
                f"Expected the token counts of the loader's {len(source)} sequences, found those of "
                f"{counts.num_sequences}; give the dataset that the loader reads."
            )
        at = source.sequences if isinstance(source, StreamedSource) else order.at
        walk = _Walk(at, len(order), not isinstance(order, ScheduleIndex), windows.end)
        return cls(counts, walk, windows.global_batch_size)

    def values(self, position: int) -> dict[str, float]:
        """The values of the batch at a position, by name; those of several epochs count on.

        Raises:
            UserError: a position at which no batch begins: below 0, or after the last epoch.
        """
        if not 0 <= position < self._walk.end:
            raise UserError(f"Expected a position in 0 .. {self._walk.end - 1}, found {position}.")
        stop = min(position + self.global_batch_size, self._walk.end)
        self._move(position)
        batch = self._tokens(position, stop)
        if stop // self._walk.num_positions == position // self._walk.num_positions:
            self._add(batch, stop)
        else:
            self._move(stop)
        values = {}
        for family, tokens in batch.items():
            target, placed = self._targets[family], self._placed[family]
            total = tokens.sum()
            tv = float(np.abs(tokens / total - target).sum()) / 2 if total else 0.0
            excess = placed - placed.sum() * target
            values[f"batch_tv/{family}"] = tv
            values[f"groups_per_batch/{family}"] = float(np.count_nonzero(tokens))
            values[f"prefix_l2/{family}"] = float(np.sqrt(excess @ excess)) / self._sequence_length
        return values

    def _move(self, position: int) -> None:
        """Have placed what comes before a position."""
        first = position - position % self._walk.num_positions
        if not first <= self._position <= position:
            self._restart(first)
        while self._position < position:
            stop = min(self._position + _CHUNK, position)
            self._add(self._tokens(self._position, stop), stop)

    def _restart(self, first: int) -> None:
        """Have placed what comes before an epoch."""
        epochs = 0 if self._walk.is_bijection else first // self._walk.num_positions
        self._position = first
        self._placed = {
            family: epochs * self._epoch[family] if epochs else np.zeros(matrix.shape[1])
            for family, matrix in self._counts.items()
        }

    def _add(self, tokens: Mapping[str, Float64[np.ndarray, " group"]], stop: int) -> None:
        for family, added in tokens.items():
            self._placed[family] += added
        self._position = stop

    @cached_property
    def _epoch(self) -> dict[str, Float64[np.ndarray, " group"]]:
        """Tokens of a whole epoch."""
        total = {family: np.zeros(matrix.shape[1]) for family, matrix in self._counts.items()}
        for start in range(0, self._walk.num_positions, _CHUNK):
            part = self._tokens(start, min(start + _CHUNK, self._walk.num_positions))
            total = {family: tokens + part[family] for family, tokens in total.items()}
        return total

    def _tokens(self, start: int, stop: int) -> dict[str, Float64[np.ndarray, " group"]]:
        """Every group's tokens at the positions from `start` up to `stop`: whole numbers, exact up to 2^53."""
        sequences = self._walk.at(np.arange(start, stop, dtype=np.int64))
        return {family: _summed_rows(matrix, sequences) for family, matrix in self._counts.items()}


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, Loader):
        raise UserError(
            f"Expected a loader of make_loader or stream_batches, found {loader!r}; of batches that come from "
            "elsewhere, ask BatchMetrics for the values at their positions."
        )


def _counts_of(dataset: Dataset, loader: Loader) -> Characteristics:
    if dataset.fingerprint != (found := loader.batches.source.fingerprint):
        raise UserError(
            f"Expected the dataset of fingerprint {found} that the loader reads, found {dataset.fingerprint}; of "
            "several datasets, give the token counts of all their sequences end to end."
        )
    return dataset.characteristics


def _summed_rows(counts: csr_array, rows: Int64[np.ndarray, " row"]) -> Float64[np.ndarray, " group"]:
    starts = counts.indptr[rows].astype(np.int64)
    widths = counts.indptr[rows + 1] - starts
    ends = np.cumsum(widths)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + widths, widths)
    tokens = np.bincount(counts.indices[places], weights=counts.data[places], minlength=counts.shape[1])
    return tokens.astype(np.float64, copy=False)  # of no entries NumPy makes integers


def _walk(dataset: Dataset | Characteristics, ordering: Any) -> _Walk:
    order = order_over(dataset.num_sequences, ordering, dataset if isinstance(dataset, Dataset) else None)
    return _Walk(order.at, len(order), not isinstance(order, ScheduleIndex))


def watch_batches(
    loader: Loader,
    dataset: str | Path | Dataset | Characteristics,
    write: MetricsWriter,
    *,
    every: SupportsIndex = 1,
) -> WatchedBatches:
    """A loader's batches as they are, their values written while the loop trains on them.

    Written are the values of `BatchMetrics`, and of the time since values were last written:

    - `input_wait_seconds`: waited for batches;
    - `input_wait_share`: the same as a share of all of that time.

    A step is the batch's number, from 1, counted from position 0 in batches of this size: `inspect --step` shows
    the batch of step s at s - 1. The work is done between two batches, so that it costs nothing where the loop does
    not wait for the device at every step. Of several hosts only the first counts and writes; the values are those
    of the global batch.

    Args:
        loader: of `make_loader` or `stream_batches`.
        dataset: what the loader reads; of several datasets, the token counts of all their sequences end to end.
        write: called with a step and its values by name. One that raises is warned of and no longer called.
        every: steps between two that are written.

    Returns:
        An iterator whose state is the loader's own, to be saved and restored alike.

    Raises:
        UserError: no such loader, another dataset than it reads, counts of another number of sequences, `every`
            below 1.

    Example:
        >>> loader = make_loader("out/", global_batch_size=64)
        >>> for batch in watch_batches(loader, "out/", lambda step, values: wandb.log(dict(values), step=step)):
        ...     ...
    """
    _check_loader(loader)
    steps = whole_number("every", every)
    if steps < 1:
        raise UserError(f"Expected every >= 1, found {steps}.")
    metrics = BatchMetrics.of_loader(loader, dataset) if _is_first_host(loader) else None
    return WatchedBatches(iter(loader), loader.batches.windows.global_batch_size, metrics, write, steps)


def _is_first_host(loader: Loader) -> bool:
    """Whether this host is the one that writes; JAX is only asked where it places the batches."""
    windows = loader.batches.windows
    return jax.process_index() == 0 if windows.row_numbers is not None else windows.host_index == 0


class WatchedBatches(grain.DatasetIterator[Batch]):
    """Batches whose values are written as they come; see `watch_batches`, which makes one."""

    def __init__(
        self,
        batches: BatchIterator,
        global_batch_size: int,
        metrics: BatchMetrics | None,
        write: MetricsWriter,
        every: int,
    ) -> None:
        super().__init__(batches)
        self._batches, self._size, self._metrics, self._every = batches, global_batch_size, metrics, every
        self._write = Writers(write)
        self._forget_times()

    def __next__(self) -> Batch:
        position, start = self._batches.position, time.perf_counter()
        batch = next(self._batches)
        arrived = time.perf_counter()
        self._waited += arrived - start
        step = position // self._size + 1
        if self._metrics is not None and len(self._write) and step % self._every == 0:
            waited, seconds = self._waited, arrived - self._since
            self._waited, self._since = 0.0, arrived
            times = {"input_wait_seconds": waited, "input_wait_share": waited / max(seconds, 1e-9)}
            self._write(step, {**self._metrics.values(position), **times})
        return batch

    def get_state(self) -> dict[str, Any]:
        """The loader's, see `BatchIterator`."""
        return self._batches.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            UserError: the state of another dataset or ordering, of a newer version, or no state at all.
        """
        self._batches.set_state(state)
        self._forget_times()

    def _forget_times(self) -> None:
        self._waited, self._since = 0.0, time.perf_counter()

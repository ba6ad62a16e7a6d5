"""Values of batches while training runs: how diverse each is, how far the run deviates, how long it waits for input.

They are computed from the token counts of the datasets and the order alone: the position of a batch says which
sequences it holds, so that nothing of the batch itself is read.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, SupportsIndex

import grain
import jax
import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.loader.iteration import Batch, BatchIterator
from jax_diversity.loader.loader import Loader
from jax_diversity.loader.settings import ENDLESS
from jax_diversity.measures.documents import COPY, DOCUMENT, num_repeats
from jax_diversity.run.run import Datasets, Run, as_run
from jax_diversity.schema import Characteristics

MetricsWriter = Callable[[int, Mapping[str, float]], None]
"""A function of a step and its values by name, as `lambda step, values: wandb.log(dict(values), step=step)`."""

_CHUNK = 2**16


class Writers:
    """Several writers as one; one that raises is named in a warning and not called again, the others and the run go on.

    Example:
        >>> write = Writers(TensorBoardWriter("out/tensorboard"), lambda step, values: print(step, values))
        >>> write(0, {"loss": 9.7})
    """

    def __init__(self, *writers: MetricsWriter) -> None:
        self._writers = list(writers)

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Hand a step's values to each."""
        for writer in tuple(self._writers):  # a copy: a writer that fails is removed from the list
            try:
                writer(step, values)
            except Exception as error:
                self._writers.remove(writer)
                warnings.warn(
                    f"The metrics writer {writer!r} failed at step {step} ({type(error).__name__}: {error}) and is "
                    "not called again; the run continues.",
                    stacklevel=2,
                )

    def __len__(self) -> int:
        return len(self._writers)


class BatchMetrics:
    """The groups of a batch at a position, and the deviation of all batches up to it, in every family.

    With `c` the batch's token counts, `n` their sum and τ the corpus's shares:

    - `batch_tv/FAMILY`: half the L1 distance between `c / n` and τ;
    - `groups_per_batch/FAMILY`: distinct groups with tokens in the batch;
    - `prefix_l2/FAMILY`: the prefix deviation after the batch, in sequence lengths;
    - `repeats/document`, `repeats/copy`: the batch's sequences beyond the first of each document, and its copies beyond
      the first of each, where documents and copies are known.

    These are the window TV, groups per batch, prefix deviation and repeats of `measure`. Running sums are whole
    numbers, so that a resumed run has the same values. A batch that follows the one
    before reads the counts of its own sequences; any other position reads the counts of all sequences since its epoch
    began.

    Counts of several datasets are joined in the families that all of them have; groups of one name are one group.
    Clusters are left out where the datasets are not of one feature space: their numbers then have different meanings.
    The corpus is all sequences of all datasets, so that a mixture by weights other than the sizes keeps a distance
    from the corpus's shares. The unit of the prefix deviation is the longest sequence length.

    Args:
        run: a run; or a built dataset, its folder or address, or several.
        ordering: of datasets, see `make_loader`.
        global_batch_size: B, sequences of a batch over all hosts.
        characteristics: token counts of the run's sequences, in place of the stored ones.

    Raises:
        UserError: an unknown ordering, or counts of another number of sequences; datasets without a common family; a
            batch size below 1.

    Example:
        >>> metrics = BatchMetrics("out/", "balance", global_batch_size=64)
        >>> metrics.values(position=0)["batch_tv/cluster"]
    """

    def __init__(
        self,
        run: Run | Datasets,
        ordering: Any = None,
        *,
        global_batch_size: SupportsIndex,
        characteristics: Characteristics | None = None,
    ) -> None:
        self.global_batch_size = as_whole_number("global_batch_size", global_batch_size, 1)
        self._run, self._end = as_run(run, ordering), ENDLESS
        counts = self._run.characteristics if characteristics is None else characteristics
        if counts.num_sequences != self._run.num_sequences:
            raise UserError(
                f"Expected the token counts of the run's {self._run.num_sequences} sequences, found those of "
                f"{counts.num_sequences}; give what the loader reads."
            )
        self._counts, self._sequence_length = counts.counts, counts.sequence_length
        self._spread = {DOCUMENT: counts.documents, COPY: counts.copies}
        self._targets = {family: counts.target_share(family) for family in counts.families}
        self._restart(0)

    @classmethod
    def of_loader(cls, loader: Loader, characteristics: Characteristics | None = None) -> BatchMetrics:
        """The values of the batches of a loader, from the counts that its datasets store, or other ones.

        Raises:
            UserError: no such loader; counts of another number of sequences; datasets without a common family.
        """
        _check_loader(loader)
        windows = loader.batches.windows
        size = windows.settings.global_batch_size
        metrics = cls(loader.run, global_batch_size=size, characteristics=characteristics)
        metrics._end = windows.end
        return metrics

    def values(self, position: int) -> dict[str, float]:
        """The values of the batch at a position, by name; the prefix deviation counts on over epochs.

        Raises:
            UserError: a position at which no batch begins: below 0, or after the last epoch.
        """
        as_whole_number("position", position, 0, self._end - 1)
        stop = min(position + self.global_batch_size, self._end)
        self._move(position)
        sequences = self._run.at(np.arange(position, stop, dtype=np.int64))
        batch = self._tokens(sequences)
        # A batch that ends in another epoch: the sums begin again with that epoch, as they would in a resumed run.
        if stop // len(self._run) == position // len(self._run):
            self._add(batch, stop)
        else:
            self._move(stop)
        values = {}
        for family, tokens in batch.items():
            target, placed = self._targets[family], self._placed[family]
            excess = placed - placed.sum() * target
            # As `measures.windows.total_variation`, which takes 40 times as long for the counts of one batch.
            total = tokens.sum()
            values[f"batch_tv/{family}"] = float(np.abs(tokens / total - target).sum()) / 2 if total else 0.0
            values[f"groups_per_batch/{family}"] = float(np.count_nonzero(tokens))
            values[f"prefix_l2/{family}"] = float(np.sqrt(excess @ excess)) / self._sequence_length
        known = {name: groups for name, groups in self._spread.items() if groups is not None and groups.size}
        return values | {f"repeats/{name}": float(num_repeats(groups[sequences])) for name, groups in known.items()}

    def _move(self, position: int) -> None:
        """Count all positions of the epoch before a position."""
        first = position - position % len(self._run)
        if not first <= self._position <= position:
            self._restart(first)
        while self._position < position:
            stop = min(self._position + _CHUNK, position)
            self._add(self._tokens_between(self._position, stop), stop)

    def _restart(self, first: int) -> None:
        """Begin to count at an epoch, with the sums of all epochs before it."""
        # Whole epochs of an ordering are left out: each holds every sequence once, and its deviation is zero.
        epochs = 0 if self._run.is_bijection else first // len(self._run)
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
        for start in range(0, len(self._run), _CHUNK):
            part = self._tokens_between(start, min(start + _CHUNK, len(self._run)))
            total = {family: tokens + part[family] for family, tokens in total.items()}
        return total

    def _tokens_between(self, start: int, stop: int) -> dict[str, Float64[np.ndarray, " group"]]:
        """Every group's tokens at the positions from `start` up to `stop`."""
        return self._tokens(self._run.at(np.arange(start, stop, dtype=np.int64)))

    def _tokens(self, sequences: Int64[np.ndarray, " row"]) -> dict[str, Float64[np.ndarray, " group"]]:
        """Every group's tokens in some sequences: whole numbers, exact up to 2^53."""
        return {family: _summed_rows(matrix, sequences) for family, matrix in self._counts.items()}


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, Loader):
        raise UserError(
            f"Expected a loader of make_loader or stream_batches, found {loader!r}; for batches from elsewhere, ask "
            "BatchMetrics for the values at their positions."
        )


def _summed_rows(counts: csr_array, rows: Int64[np.ndarray, " row"]) -> Float64[np.ndarray, " group"]:
    """The sum of some rows of a sparse matrix, a few times as fast as `counts[rows].sum(axis=0)`."""
    starts = counts.indptr[rows].astype(np.int64)
    widths = counts.indptr[rows + 1] - starts
    ends = np.cumsum(widths)
    # Where the entries of all rows lie: each row's own run of places, one run after another.
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + widths, widths)
    tokens = np.bincount(counts.indices[places], weights=counts.data[places], minlength=counts.shape[1])
    return tokens.astype(np.float64, copy=False)  # NumPy makes integers of no entries


def watch_batches(
    loader: Loader,
    write: MetricsWriter,
    *,
    every: SupportsIndex = 1,
    characteristics: Characteristics | None = None,
) -> WatchedBatches:
    """The unchanged batches of a loader, whose values are written while the loop trains on them.

    The values of `BatchMetrics` are written, and two on the time since values were last written:

    - `input_wait_seconds`: waited for batches;
    - `input_wait_share`: the same as a share of all of that time.

    A step is the number of the batch, from 0, counted from position 0 in batches of this size: `inspect --step`
    shows the batch of that step. The work is done between two batches, so that it costs nothing where the loop does
    not wait for the device at every step. With several hosts only the first counts and writes; the values are those
    of the global batch.

    Args:
        loader: of `make_loader` or `stream_batches`.
        write: called with a step and its values by name. When it raises, a warning is given and it is not called
            again.
        every: number of steps after which values are written: 10 writes at the steps 9, 19, 29 ...
        characteristics: token counts of the sequences of all datasets end to end, in place of the stored ones.

    Returns:
        An iterator with the state of the loader's own, saved and restored in the same way.

    Raises:
        UserError: no such loader, counts of another number of sequences, datasets without a common family, `every`
            below 1.

    Example:
        >>> loader = make_loader("out/", global_batch_size=64)
        >>> for batch in watch_batches(loader, lambda step, values: wandb.log(dict(values), step=step)):
        ...     ...
    """
    steps = as_whole_number("every", every, 1)
    _check_loader(loader)
    settings = loader.batches.windows.settings
    # With a sharding, JAX numbers the processes. Without one, JAX may not be initialised, or count other processes.
    host_index = settings.host_index if settings.sharding is None else jax.process_index()
    metrics = None if host_index else BatchMetrics.of_loader(loader, characteristics)
    return WatchedBatches(iter(loader), settings.global_batch_size, metrics, write, steps)


class WatchedBatches(grain.DatasetIterator[Batch]):
    """Batches whose values are written as they come; `watch_batches` makes one."""

    def __init__(
        self, batches: BatchIterator, batch_size: int, metrics: BatchMetrics | None, write: MetricsWriter, every: int
    ) -> None:
        super().__init__(batches)
        self._batches, self._size, self._metrics, self._every = batches, batch_size, metrics, every
        self._write = Writers(write)
        self._lock = threading.RLock()
        self._forget_times()

    def __next__(self) -> Batch:
        self._batches.check_process()
        with self._lock:  # otherwise another thread could take the batch at the position that this one has read
            position, start = self._batches.position, time.perf_counter()
            batch = next(self._batches)
            arrived = time.perf_counter()
            self._waited += arrived - start
            step = position // self._size
            if self._metrics is not None and len(self._write) and (step + 1) % self._every == 0:
                waited, seconds = self._waited, arrived - self._since
                self._waited, self._since = 0.0, arrived
                times = {"input_wait_seconds": waited, "input_wait_share": waited / max(seconds, 1e-9)}
                self._write(step, {**self._metrics.values(position), **times})
            return batch

    def get_state(self) -> dict[str, Any]:
        """The loader's, see `BatchIterator`."""
        return self._batches.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the loader's."""
        self._batches.set_state(state)
        self._forget_times()

    def _get_next_index(self) -> int:
        return self._batches._get_next_index()

    def _set_next_index(self, index: SupportsIndex) -> None:
        self._batches._set_next_index(index)
        self._forget_times()

    def _forget_times(self) -> None:
        self._waited, self._since = 0.0, time.perf_counter()

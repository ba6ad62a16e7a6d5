"""Measure batches during training: the diversity of each batch, the deviation of the run, and the wait for input.

The values are computed only from the datasets' token counts and the order. The position of a batch determines its
sequences, so the batch itself is not read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, SupportsIndex

import grain
import jax
import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.warned import warn
from jax_diversity.ordering.measures.documents import COPY, DOCUMENT, num_repeats
from jax_diversity.streaming.loader.iteration import Batch, BatchIterator
from jax_diversity.streaming.loader.loader import Loader
from jax_diversity.streaming.loader.settings import ENDLESS
from jax_diversity.streaming.run.run import Datasets, Run, as_run

MetricsWriter = Callable[[int, Mapping[str, float]], None]
"""A function of a step and its values by name, such as `lambda step, values: wandb.log(dict(values), step=step)`."""

_CHUNK = 2**16


class Writers:
    """Several writers, called as one. If a writer raises an error, a warning names it and it is not called again.

    Example:
        >>> write = Writers(TensorBoardWriter("out/tensorboard"), lambda step, values: print(step, values))
        >>> write(0, {"loss": 9.7})
    """

    def __init__(self, *writers: MetricsWriter) -> None:
        self._writers = list(writers)

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Call every writer with the values of a step."""
        for writer in tuple(self._writers):  # a copy: a writer that fails is removed from the list
            try:
                writer(step, values)
            except Exception as error:
                self._writers.remove(writer)
                warn(
                    f"The metrics writer {writer!r} failed at step {step} ({type(error).__name__}: {error}) and is "
                    "not called again; the run continues.",
                )

    def __len__(self) -> int:
        return len(self._writers)


class BatchMetrics:
    """Measures of the batch at a position, and the deviation of all batches up to this position, in every family.

    A family is a kind of characteristics, such as topic clusters; a group is one value of a family. `c` are the token
    counts of the batch, `n` is their sum, and τ are the shares of the corpus:

    - `batch_tv/FAMILY`: half the L1 distance between `c / n` and τ;
    - `groups_per_batch/FAMILY`: the number of groups with tokens in the batch;
    - `prefix_l2/FAMILY`: the prefix deviation after the batch, in sequence lengths;
    - `repeats/document`: how many sequences of the batch belong to a document that already has a sequence in the batch;
    - `repeats/copy`: the same for groups of copies (a sequence may belong to several groups);
    - `loss_expected`: the mean of the reference losses of the batch, in nats per token.

    The repeats are given only if the characteristics have documents or copies, the expected loss only with `reference`.
    A batch that is harder than others has a higher loss and a higher expected loss; a spike has only a higher loss (see
    `find_outliers`).

    These are the window TV, groups per batch, prefix deviation and repeats of `measure`. Running sums are whole
    numbers, so that a resumed run has the same values. If batches are measured one after another, each call reads only
    the counts of its own sequences. For any other position it reads the counts of all sequences since the epoch began.

    The counts of several datasets are joined in their common families; groups with the same name are one group.
    Clusters are left out if the datasets have different feature spaces, because their numbers have different meanings.
    The corpus is all sequences of all datasets: if the weights of a mixture differ from the sizes, the distances do not
    become zero. The unit of the prefix deviation is the longest sequence length.

    Args:
        run: a run; or a built dataset, its folder or address, or several.
        ordering: the ordering of datasets, see `make_loader`.
        global_batch_size: B, the number of sequences in a batch, over all hosts.
        characteristics: token counts of the run's sequences; they replace the stored counts.
        reference: the losses of a model, such as an earlier checkpoint, in nats per token: an array with the mean loss
            of every sequence, or `{FAMILY: array}` with the mean loss of every group of one family
            (`Evaluated.reference`), NaN for unknown groups. Tokens weigh equally; tokens of unknown groups are left
            out. A batch without a known token has no expected loss.

    Raises:
        UserError: the ordering is unknown; the counts have another number of sequences; the datasets have no common
            family; the batch size is below 1; the reference has another length, an unknown family, or no finite values.

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
        reference: Any = None,
    ) -> None:
        self.global_batch_size = as_whole_number("global_batch_size", global_batch_size, 1)
        self._run, self._end = as_run(run, ordering), ENDLESS
        counts = self._run.characteristics if characteristics is None else characteristics
        if counts.num_sequences != self._run.num_sequences:
            raise UserError(
                f"Expected the token counts of the run's {self._run.num_sequences} sequences, found the counts of "
                f"{counts.num_sequences}; give the counts of the sequences that the loader reads."
            )
        self._counts, self._sequence_length = counts.counts, counts.sequence_length
        self._spread = {DOCUMENT: counts.documents, COPY: counts.copies}
        self._targets = {family: counts.target_share(family) for family in counts.families}
        self._expected = None if reference is None else _expectation(counts, reference)
        self._restart(0)

    @classmethod
    def of_loader(
        cls, loader: Loader, characteristics: Characteristics | None = None, reference: Any = None
    ) -> BatchMetrics:
        """Make the metrics of a loader's batches, from the counts of its datasets or from `characteristics`.

        Raises:
            UserError: the argument is not a loader, and the errors of `BatchMetrics`.
        """
        _check_loader(loader)
        windows = loader.batches.windows
        size = windows.settings.global_batch_size
        metrics = cls(loader.run, global_batch_size=size, characteristics=characteristics, reference=reference)
        metrics._end = windows.end
        return metrics

    def values(self, position: int) -> dict[str, float]:
        """Return the values of the batch at a position, by name. The prefix deviation continues over epochs.

        Raises:
            UserError: the position is below 0 or after the last epoch.
        """
        as_whole_number("position", position, 0, self._end - 1)
        stop = min(position + self.global_batch_size, self._end)
        self._move(position)
        sequences = self._run.at(np.arange(position, stop, dtype=np.int64))
        batch = self._tokens(sequences)
        # If the batch ends in another epoch, the sums start again with that epoch, as in a resumed run.
        if stop // len(self._run) == position // len(self._run):
            self._add(batch, stop)
        else:
            self._move(stop)
        values = {}
        for family, tokens in batch.items():
            target, placed = self._targets[family], self._placed[family]
            excess = placed - placed.sum() * target
            # The result is that of `measures.windows.total_variation`, which takes 40 times as long for one batch.
            total = tokens.sum()
            values[f"batch_tv/{family}"] = float(np.abs(tokens / total - target).sum()) / 2 if total else 0.0
            values[f"groups_per_batch/{family}"] = float(np.count_nonzero(tokens))
            values[f"prefix_l2/{family}"] = float(np.sqrt(excess @ excess)) / self._sequence_length
        if self._expected is not None:
            losses, tokens = (float(expected[sequences].sum()) for expected in self._expected)
            values |= {"loss_expected": losses / tokens} if tokens else {}
        spread = {name: groups for name, groups in self._spread.items() if groups is not None and groups.size}
        return values | {f"repeats/{name}": float(num_repeats(groups[sequences])) for name, groups in spread.items()}

    def _move(self, position: int) -> None:
        """Add the token counts of all positions between the start of the epoch and a position."""
        first = position - position % len(self._run)
        if not first <= self._position <= position:
            self._restart(first)
        while self._position < position:
            stop = min(self._position + _CHUNK, position)
            self._add(self._tokens_between(self._position, stop), stop)

    def _restart(self, first: int) -> None:
        """Set the sums to those at the beginning of an epoch: the token counts of all earlier epochs."""
        # Whole epochs of an ordering are left out: they contain every sequence once, so their deviation is zero.
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
        """The tokens of every group in a whole epoch."""
        total = {family: np.zeros(matrix.shape[1]) for family, matrix in self._counts.items()}
        for start in range(0, len(self._run), _CHUNK):
            part = self._tokens_between(start, min(start + _CHUNK, len(self._run)))
            total = {family: tokens + part[family] for family, tokens in total.items()}
        return total

    def _tokens_between(self, start: int, stop: int) -> dict[str, Float64[np.ndarray, " group"]]:
        """Return the tokens of every group at the positions `start` to `stop - 1`."""
        return self._tokens(self._run.at(np.arange(start, stop, dtype=np.int64)))

    def _tokens(self, sequences: Int64[np.ndarray, " row"]) -> dict[str, Float64[np.ndarray, " group"]]:
        """Return the tokens of every group in some sequences. They are whole numbers, exact up to 2^53."""
        return {family: _summed_rows(matrix, sequences) for family, matrix in self._counts.items()}


def _expectation(
    counts: Characteristics, reference: Any
) -> tuple[Float64[np.ndarray, " sequence"], Float64[np.ndarray, " sequence"]]:
    """For every sequence, the summed reference loss of its known tokens, and their number."""
    if not isinstance(reference, Mapping):
        losses = _reference_losses("reference", reference, counts.num_sequences, "sequences")
        if not np.isfinite(losses).all():
            number = int((~np.isfinite(losses)).sum())
            raise UserError(f"Expected finite reference losses, found {number} sequences without one.")
        tokens = counts.tokens.astype(np.float64)
        return losses * tokens, tokens
    if len(reference) != 1 or next(iter(reference)) not in counts.counts:
        raise UserError(
            f"Expected the reference losses of one family of {', '.join(counts.families)}, found "
            f"{', '.join(map(repr, reference)) or 'none'}."
        )
    ((family, values),) = reference.items()
    matrix = counts.counts[family]
    losses = _reference_losses(f"reference[{family!r}]", values, matrix.shape[1], "groups")
    is_known = np.isfinite(losses)
    if not is_known.any() or np.isinf(losses).any():
        raise UserError(f"Expected finite reference losses of {family!r} (NaN if unknown), found {values!r}.")
    return matrix @ np.where(is_known, losses, 0.0), matrix @ is_known.astype(np.float64)


def _reference_losses(name: str, values: Any, number: int, of: str) -> Float64[np.ndarray, " value"]:
    try:
        losses = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise UserError(f"Expected {name} to be numbers, found {values!r}.") from None
    if losses.shape != (number,):
        raise UserError(f"Expected {name} to have the losses of {number} {of}, found an array {losses.shape}.")
    return losses


def _check_loader(loader: Any) -> None:
    if not isinstance(loader, Loader):
        raise UserError(
            f"Expected a loader of make_loader or stream_batches, found {loader!r}; for other batches, compute the "
            "values at their positions with BatchMetrics."
        )


def _summed_rows(counts: csr_array, rows: Int64[np.ndarray, " row"]) -> Float64[np.ndarray, " group"]:
    """Return the sum of some rows of a sparse matrix, a few times as fast as `counts[rows].sum(axis=0)`."""
    starts = counts.indptr[rows].astype(np.int64)
    widths = counts.indptr[rows + 1] - starts
    ends = np.cumsum(widths)
    # The indices of the entries of all rows: one range for each row, one after another.
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + widths, widths)
    tokens = np.bincount(counts.indices[places], weights=counts.data[places], minlength=counts.shape[1])
    return tokens.astype(np.float64, copy=False)  # without entries NumPy returns integers


def watch_batches(
    loader: Loader,
    write: MetricsWriter,
    *,
    every: SupportsIndex = 1,
    characteristics: Characteristics | None = None,
    reference: Any = None,
) -> WatchedBatches:
    """Iterate over the unchanged batches of a loader, and write their values during training.

    The values are those of `BatchMetrics`, and two values for the time since the last write:

    - `input_wait_seconds`: how long the loop waited for batches;
    - `input_wait_share`: this time as a fraction of the whole time.

    A step is the number of the batch, counted from position 0 in batches of this size: `inspect --step` shows the batch
    of this step. The values are computed between two batches. This costs no time if the loop does not wait for the
    device at every step. With several hosts, only the first host computes and writes the values, which are those of the
    global batch.

    Args:
        loader: a loader from `make_loader` or `stream_batches`.
        write: called with a step and its values by name. If it raises an error, a warning is shown and it is not called
            again.
        every: number of steps after which values are written. With 10, values are written at the steps 9, 19, 29 ...
        characteristics: token counts of the sequences of all datasets, one dataset after another. They replace the
            stored counts.
        reference: reference losses, from which `loss_expected` is computed, see `BatchMetrics`.

    Returns:
        An iterator with the same state as the loader's own iterator; it is saved and restored in the same way.

    Raises:
        UserError: the argument is not a loader; `every` is below 1; and the errors of `BatchMetrics`.

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
    metrics = None if host_index else BatchMetrics.of_loader(loader, characteristics, reference)
    return WatchedBatches(iter(loader), settings.global_batch_size, metrics, write, steps)


class WatchedBatches(grain.DatasetIterator[Batch]):
    """An iterator that writes values for every batch; `watch_batches` makes one."""

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
        with self._lock:  # without it, another thread could get the batch between the two statements below
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
        """Return the state of the loader's iterator, see `BatchIterator`."""
        return self._batches.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of the loader's iterator."""
        self._batches.set_state(state)
        self._forget_times()

    def _get_next_index(self) -> int:
        return self._batches._get_next_index()

    def _set_next_index(self, index: SupportsIndex) -> None:
        self._batches._set_next_index(index)
        self._forget_times()

    def _forget_times(self) -> None:
        self._waited, self._since = 0.0, time.perf_counter()

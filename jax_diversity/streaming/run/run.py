"""A run assigns a sequence of a dataset to every position of training.

A dataset with an ordering is a run of one part. A stored run (`stored`) has many parts: epochs, mixtures of datasets,
changes. Loaders, measures, inspection, reports and exports accept any run.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts import Characteristics
from jax_diversity.foundation.artifacts import fingerprint
from jax_diversity.foundation.checks import as_whole_number, check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.tables import Display, Displayed
from jax_diversity.foundation.wording import counted
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import Order, Positions
from jax_diversity.streaming.dataset.dataset import Dataset, ValidationPart, open_dataset
from jax_diversity.streaming.dataset.orderings import OrderingFile, is_file_name, load_ordering
from jax_diversity.streaming.run.leaks import check_positions
from jax_diversity.streaming.run.settings import SCHEDULE_FILE

if TYPE_CHECKING:
    import pyarrow as pa

Positioned = Int64[np.ndarray, " row"]
"""One whole number for each given position."""
Datasets = str | Path | Dataset | Sequence[str | Path | Dataset]
"""A built dataset, its folder or its address; or several."""


class Origins(NamedTuple):
    """The origins of the sequences at some positions.

    Attributes:
        dataset: the number of the dataset.
        sequence: the sequence within it.
        epoch: how often the sequence was read before. In a joint order, a group with a larger weight can be in a later
            epoch than the others.
    """

    dataset: Positioned
    sequence: Positioned
    epoch: Positioned


class Run(Order, Displayed):
    """The sequence at every position of training, from one or more datasets.

    The sequences of all datasets are numbered end to end. The first sequence of dataset d has the number `offsets[d]`.
    Make a run of a dataset and an ordering with `make_run`; open a stored one with `open_schedule`.

    Attributes:
        name: its name in tables and messages.
    """

    name: str

    @abstractmethod
    def _at(self, positions: Positioned) -> Positioned:
        """The sequences at some positions below the length."""

    @property
    @abstractmethod
    def datasets(self) -> tuple[Dataset, ...]:
        """The open datasets; empty if the run was made from token counts without a dataset."""

    @property
    def identity(self) -> str:
        """Hash of the contents of the sequences; a checkpoint is valid only for these contents."""
        return identity_of(self.datasets)

    @property
    def has_origins(self) -> bool:
        """Whether batches have the dataset index of every row: true for several datasets and for stored runs."""
        return len(self.sizes) > 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of sequences of every dataset."""
        return tuple(dataset.num_sequences for dataset in self.datasets)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The folder or address of every dataset, for display."""
        return tuple(dataset.address for dataset in self.datasets)

    @property
    def num_sequences(self) -> int:
        """The number of sequences of all datasets."""
        return sum(self.sizes)

    @cached_property
    def offsets(self) -> Int64[np.ndarray, " boundary"]:
        """The number of every dataset's first sequence, and the total number of sequences."""
        return np.cumsum([0, *self.sizes], dtype=np.int64)

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """The sequence lengths L, as pairs (first position, L); the first pair begins at position 0.

        Example:
            >>> run.lengths  # sequences of 2,048 tokens, and of 8,192 from position 640,000 on
            ((0, 2048), (640000, 8192))
        """
        return ((0, self.datasets[0].sequence_length),)

    @property
    def characteristics(self) -> Characteristics:
        """The token counts of all sequences, for the families whose groups are comparable across the datasets."""
        from jax_diversity.streaming.run.joining import comparable_characteristics

        return comparable_characteristics(self.datasets)

    def at(self, positions: Positioned) -> Positioned:
        """The sequences at some positions, numbered over all datasets.

        Positions beyond the end continue at the start of the run.

        Raises:
            UserError: a position is negative; the run's file was changed.
        """
        if len(positions) and (first := int(positions.min())) < 0:
            raise UserError(f"Expected positions >= 0, found {first}; positions count from the start of the run.")
        return self._at(positions % len(self) if len(self) else positions)

    @property
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequences at all positions, in memory."""
        return self.at(np.arange(len(self)))

    def locate(self, numbers: Positioned) -> tuple[Positioned, Positioned]:
        """Return the dataset of each sequence number, and the number of the sequence within this dataset.

        The given numbers count the sequences of all datasets, one dataset after another.
        """
        # "right": an empty dataset has the same offset as the next dataset, and the number belongs to the next one.
        dataset = np.searchsorted(self.offsets, numbers, side="right") - 1
        return dataset, numbers - self.offsets[dataset]

    def places(self, positions: Positioned) -> tuple[Positioned, Positioned]:
        """The dataset at some positions, and the sequence in it."""
        return self.locate(self.at(positions))

    def origins(self, positions: Positioned) -> Origins:
        """The dataset, the sequence in it, and the epoch at some positions."""
        if self.is_bijection:
            return Origins(*self.places(positions), positions // len(self))
        numbers, epochs = self._epochs_before(int(positions.max(initial=-1)) + 1)
        return Origins(*self.locate(numbers[positions]), epochs[positions])

    def _epochs_before(self, stop: int) -> tuple[Positioned, Positioned]:
        """The sequences at all positions before `stop`, and how often each one occurred earlier."""
        numbers = self.at(np.arange(stop))
        return numbers, times_before(numbers)

    def continues(self, position: int, of: str) -> bool:
        """Whether training on another run, with the fingerprint `of`, can continue with this run at a position."""
        return of == self.fingerprint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._size_text}, fingerprint {self.fingerprint[:16]})"

    def _display(self) -> Display:
        sizes = [[f"sequences of dataset {number}", f"{size:,}"] for number, size in enumerate(self.sizes)]
        rows = [["positions", f"{len(self):,}"], *sizes, ["fingerprint", self.fingerprint[:16]]]
        return Display(f"Run {self.name}", [("", [["", ""], *rows])])

    @property
    def _size_text(self) -> str:
        number = len(self.sizes)
        return f"{counted(len(self), 'position')} of {counted(number, 'dataset')}"

    def seen(self, position: Any = None, path: str | Path | None = None) -> pa.Table:
        """The documents that training read before a position, over all epochs.

        Args:
            position: the number of positions that were read; None means all.
            path: a Parquet file; the table is also written to it.

        Returns:
            One row for each document that was read, by dataset and then in stored order: `dataset` (its number), `id`,
            `tokens` (with repetitions), `sequences` (number of positions whose sequence contains a part of the
            document), `first_position`, `last_position`.

        Example:
            >>> open_schedule("run").seen(64 * 1000, "seen-at-step-1000.parquet")
        """
        from jax_diversity.streaming.run.seen import seen_documents

        stop = len(self) if position is None else as_whole_number("position", position, 0, len(self))
        return seen_documents(self.datasets, *self.places(np.arange(stop)), path)


class OrderedRun(Run):
    """A run of one part: an ordering, or any positions, over the sequences of one or more datasets.

    Args:
        datasets: the datasets.
        order: the sequences at all positions, in a file or in memory.
        name: its name in tables and messages.
        info: how the order was made.
        characteristics: the token counts of the sequences, if there is no dataset.
    """

    def __init__(
        self,
        datasets: Sequence[Dataset],
        order: Order,
        name: str,
        info: Mapping[str, Any],
        characteristics: Characteristics | None = None,
    ) -> None:
        self._datasets, self._order, self._counts = tuple(datasets), order, characteristics
        self.name, self.info, self._fingerprint = name, dict(info), order.fingerprint
        self.is_bijection = order.is_bijection

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle holds only the name of a file and the folder of a dataset.
        return type(self), (self._datasets, self._order, self.name, self.info, self._counts)

    def __len__(self) -> int:
        return len(self._order)

    def _at(self, positions: Positioned) -> Positioned:
        return self._order.at(positions)  # raises if the order's file was changed after it was opened

    @property
    def fingerprint(self) -> str:
        """Hash of the sequences at all positions."""
        return self._fingerprint

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The datasets."""
        return self._datasets

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of sequences of every dataset."""
        return super().sizes or (self._order.num_sequences,)

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """The sequence lengths L, as pairs (first position, L); none if nothing is known but the order."""
        if self._datasets:
            return super().lengths
        return () if self._counts is None else ((0, self._counts.sequence_length),)

    @property
    def characteristics(self) -> Characteristics:
        """The token counts of all sequences, for the families whose groups are comparable across the datasets."""
        return super().characteristics if self._counts is None else self._counts

    @property
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequences at all positions; a file is memory-mapped."""
        return self._order.indices


def make_run(
    datasets: Datasets | Characteristics,
    ordering: Any = None,
    *,
    positions: Any = None,
    cache_folder: str | Path | None = None,
    held_out: Literal["refuse", "keep"] = "refuse",
) -> Run:
    """Make the run of an ordering of one or more datasets.

    Args:
        datasets: a built dataset, its folder or its address on an object store; or several, whose sequences are
            numbered end to end; or the token counts of your own sequences.
        ordering: the name of one of the dataset's orderings, a .npy file, or an ordering itself (integers that name
            each sequence once). For several datasets: an ordering of all their sequences. None means `balance`.
        positions: instead of an ordering, the sequence at every position, as a one-dimensional array of integers;
            sequences may be repeated or left out.
        cache_folder: where files of a dataset on an object store are kept, see `open_dataset`.
        held_out: whether positions that read texts which another one of the datasets holds out for validation are an
            error (`refuse`) or allowed (`keep`).

    Raises:
        UserError: a dataset does not exist; the ordering is unknown, has another number of sequences, or is in the
            folder of another dataset; the datasets have different sequence lengths; positions read held-out texts.

    A warning is shown if the ordering and the dataset's own orderings were made from different token counts, for
    example because you used your own weights or matrices.

    Example:
        >>> run = make_run("out/", "balance")
        >>> loader = make_loader(run, global_batch_size=64)
        >>> twice = make_run("out/", positions=np.concatenate([run.indices, run.indices[::-1]]))
    """
    counts = datasets if isinstance(datasets, Characteristics) else None
    opened = open_datasets(datasets, cache_folder) if counts is None else ()
    if counts is None and not opened:
        raise UserError("Expected at least one dataset, found none.")
    widths = sorted({dataset.sequence_length for dataset in opened})
    if len(widths) > 1:
        raise UserError(f"Expected datasets with sequences of one length, found lengths {widths}.")
    num_sequences = sum(dataset.num_sequences for dataset in opened) if counts is None else counts.num_sequences
    if opened and not num_sequences:
        raise UserError(
            f"Expected training sequences in {opened[0].address}, found none: all its documents are held out; read "
            "them with make_loader(..., split='validation')."
        )
    if positions is not None:
        if ordering is not None:
            raise UserError("Expected an ordering or positions, found both; choose one.")
        return _checked(OrderedRun(opened, Positions(positions, num_sequences), "positions", {}, counts), held_out)
    if ordering is None:
        continues = len(opened) == 1 and counts is None and opened[0].num_rows
        ordering = "corpus_order" if continues else "balance"
    if isinstance(ordering, str) and not is_file_name(ordering):
        if len(opened) == 1:
            return _named_run(opened[0], ordering)
        if counts is not None:
            raise UserError(
                f"Expected an ordering of the {num_sequences} sequences, found the name {ordering!r}; make one with "
                "jd.order(characteristics)."
            )
        raise UserError(
            f"Expected an ordering over all {num_sequences} sequences of several datasets, found the name "
            f"{ordering!r}; make a run with create_schedule(path, datasets), and pass the run without an ordering."
        )
    path = Path(ordering).absolute() if is_file_name(ordering) else None
    order = _as_ordering(ordering, num_sequences) if path is None else load_ordering(path, num_sequences)
    if len(opened) == 1:
        opened[0].check_origin(order, path)
    # The file is memory-mapped if its format allows it: a pickle then contains only its name.
    mapped = None if path is None else OrderingFile.of(path, order)
    name = str(order.info.get("method", "ordering") if path is None else ordering)
    return _checked(OrderedRun(opened, mapped or order, name, order.info, counts), held_out)


def as_run(datasets: Any, ordering: Any = None, cache_folder: str | Path | None = None) -> Run:
    """Return a run unchanged; make a run from datasets and an ordering (see `make_run`).

    Raises:
        UserError: an ordering or a `cache_folder` is given with a run, and the errors of `make_run`.
    """
    if not isinstance(datasets, Run):
        return make_run(datasets, ordering, cache_folder=cache_folder)
    if cache_folder is not None:
        raise UserError(
            "Expected no cache_folder with a run; open its datasets with open_dataset(address, cache_folder=...), and "
            "give them to open_schedule(path, datasets=[...]) or make_run."
        )
    if ordering is not None:
        raise UserError(f"Expected no ordering, because a run has its own, found {ordering!r}; leave it out.")
    return datasets


def validation_run(datasets: Any, ordering: Any = None, cache_folder: str | Path | None = None) -> Run:
    """Make a run of the validation sequences of one or more datasets, by default in their balanced order.

    The balanced orders of several datasets are interleaved: after any number of positions, each dataset has given the
    same share of its sequences, so that the first batches are a sample of all.

    Raises:
        UserError: a run; a dataset without validation documents; the name of an ordering, and the errors of `make_run`.
    """
    if isinstance(datasets, Run):
        raise UserError("Expected datasets to read validation sequences from, found a run; give run.datasets.")
    parts: list[Any] = [dataset.validation for dataset in open_datasets(datasets, cache_folder)]
    if isinstance(ordering, str) and not is_file_name(ordering):
        raise UserError(
            f"Expected an ordering of the validation sequences, found the name {ordering!r} of an ordering of training "
            "sequences; leave it out, or make one with jd.order(dataset.validation.characteristics)."
        )
    if ordering is not None:
        return make_run(parts, ordering)
    if len(parts) == 1:
        return OrderedRun(parts, parts[0].order, "validation", {"method": "validation"})
    orders = [part.order.indices for part in parts]
    starts = np.cumsum([0, *(len(order) for order in orders)])
    shares = [(np.arange(len(order)) + 0.5) / len(order) for order in orders]
    joined = np.concatenate([order + start for order, start in zip(orders, starts, strict=False)])
    return make_run(
        parts, Ordering(joined[np.argsort(np.concatenate(shares), kind="stable")], {"method": "validation"})
    )


def open_datasets(datasets: Any, cache_folder: str | Path | None = None) -> tuple[Dataset, ...]:
    """Open one or several datasets by folder or address; datasets that are already open are returned unchanged."""
    if not isinstance(cache_folder, str | Path | None):
        raise UserError(f"Expected cache_folder to be a folder's path, found {cache_folder!r}.")
    is_one = isinstance(datasets, str | Path | Dataset)
    if not is_one and (not isinstance(datasets, Iterable) or isinstance(datasets, Mapping)):
        raise UserError(f"Expected a dataset, its folder or address, or several of them, found {datasets!r}.")
    listed = (datasets,) if is_one else tuple(datasets)
    for item in listed:
        if not isinstance(item, str | Path | Dataset):
            raise UserError(f"Expected a dataset, or its folder or address, found {item!r}.")
        if not isinstance(item, Dataset) and os.path.isfile(os.path.join(item, SCHEDULE_FILE)):
            raise UserError(f"Expected a dataset, found the stored run {item}; open it with jd.open_schedule.")
    return tuple(
        item if isinstance(item, Dataset) else open_dataset(item, cache_folder=cache_folder) for item in listed
    )


def identity_of(datasets: Sequence[Dataset]) -> str:
    """Hash of the contents of the sequences of some datasets."""
    fingerprints = [dataset.fingerprint for dataset in datasets]
    return fingerprints[0] if len(fingerprints) == 1 else fingerprint(fingerprints)


def times_before(numbers: Int64[np.ndarray, " position"]) -> Int64[np.ndarray, " position"]:
    """For every position, how often its sequence occurred at earlier positions: the epoch of the sequence.

    Example:
        >>> times_before(np.array([4, 7, 4, 4])).tolist()
        [0, 0, 1, 2]
    """
    by_sequence = np.argsort(numbers, kind="stable")
    ordered = numbers[by_sequence]
    before = np.empty(len(numbers), np.int64)
    before[by_sequence] = np.arange(len(numbers)) - np.searchsorted(ordered, ordered)
    return before


def _checked(run: OrderedRun, held_out: str) -> OrderedRun:
    """Return a run; its positions must not read what one of its datasets holds out, unless this is allowed."""
    check_one_of("held_out", held_out, ("refuse", "keep"))
    reads_validation = any(isinstance(dataset, ValidationPart) for dataset in run.datasets)
    if len(run.datasets) > 1 and held_out == "refuse" and not reads_validation:
        check_positions(run.datasets, run.indices)
    return run


def _named_run(dataset: Dataset, name: str) -> OrderedRun:
    # The file is memory-mapped, because an ordering of a hundred million sequences is 800 MB.
    file = dataset.open_ordering(name)
    counts = dataset.counts(f"order/{name}")
    windows = counts.get("objective", {}).get("windows")
    info = {"method": counts.get("method", name)} | ({"windows": windows} if windows else {})
    return OrderedRun((dataset,), file, name, info | {key: counts[key] for key in ("seed", "targets") if key in counts})


def _as_ordering(ordering: Any, num_sequences: int) -> Ordering:
    if callable(ordering):
        raise UserError(
            f"Expected an ordering, found the function {ordering!r}; make a run with a new order in every epoch with "
            "create_schedule(path, dataset, num_epochs=...)."
        )
    if not isinstance(ordering, Ordering):
        indices = np.asarray(ordering)
        if indices.dtype.kind not in "iu":
            description = f"{indices.dtype} of shape {indices.shape}" if indices.dtype != object else repr(ordering)
            raise UserError(f"Expected an ordering of whole numbers, found {description}.")
        ordering = Ordering(indices.astype(np.int64))
    if len(ordering) != num_sequences:
        raise UserError(
            f"Expected an ordering of the dataset's {num_sequences} sequences, found {len(ordering)}; make a new one "
            "with `jax-diversity order`."
        )
    return ordering

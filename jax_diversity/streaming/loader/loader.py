"""Make a loader: an iterable of the batches of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import grain
import jax

from jax_diversity.foundation.checks import check_one_of, check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.signatures import takes_settings
from jax_diversity.foundation.warned import warn
from jax_diversity.foundation.wording import counted
from jax_diversity.streaming.loader.device_placement import DevicePlacement
from jax_diversity.streaming.loader.iteration import Batch, BatchIterator, OrderedBatches
from jax_diversity.streaming.loader.settings import ENDLESS, LoaderOptions, LoaderSettings, Windows
from jax_diversity.streaming.run.leaks import warn_of_validation
from jax_diversity.streaming.run.run import SCHEDULE_FILE, Datasets, Run, as_run, validation_run
from jax_diversity.streaming.run.source import SequenceSource
from jax_diversity.streaming.run.stored import open_schedule

_LIKELY = 0.5
"""The expected number of batches without a target from which a loader warns."""


@overload
@takes_settings(LoaderOptions)
def make_loader(datasets: Mapping[str, Datasets | Run], **options: Any) -> dict[str, Loader]: ...


@overload
@takes_settings(LoaderOptions)
def make_loader(datasets: Datasets | Run, **options: Any) -> Loader: ...


@takes_settings(LoaderOptions)
def make_loader(datasets: Any, **options: Any) -> Loader | dict[str, Loader]:
    """Make a Grain dataset of the batches of a run.

    Args:
        datasets: a built dataset, its folder or its address on an object store. Or several datasets; their sequences
            are numbered one dataset after another. Or a run, or the folder of a stored run (`open_schedule`), which has
            its own order. Or, with `split="validation"`, a mapping from names to datasets, whose validation sequences
            are read. In a mapping, a run is read whole: `{"wiki": jd.make_run("wiki")}` reads all sequences of a
            dataset for evaluation alone. All datasets of a mapping need one feature space (see `features_from`).
        {settings}

    Returns:
        A `grain.IterDataset` of dicts of arrays (B / num_hosts, L), see `records.decoding.decode`; in a run with
        sequences of several lengths, L depends on the position. Batches of several datasets, and of stored
        runs, also have `dataset_index` and `sequence_index` of every row. The state of its iterator is the next
        position and the fingerprints of dataset and ordering; it may be restored with another batch size, or another
        number of hosts, threads or workers. For a mapping: a dict from the names to loaders.

    Raises:
        UserError: a setting is not valid; the ordering is unknown, has another number of sequences, or is in the
            folder of another dataset; the sequences do not have the length that the model expects; a batch would
            contain sequences of two lengths.

    A warning is shown if the ordering and the dataset's own orderings were made from different token counts, for
    example because you used your own weights or matrices; and if, with `split="validation"`, one of several datasets
    trains on texts that are read for the validation of another one.

    Example:
        >>> for batch in make_loader("out/", ordering="balance", global_batch_size=64):
        ...     batch["inputs"].shape
        (64, 512)
    """
    run_options = {name: options.pop(name, None) for name in ("ordering", "cache_folder")}
    split = options.pop("split", "train")
    check_one_of("split", split, ("train", "validation"))
    if split == "train":
        if isinstance(datasets, Mapping):
            raise UserError(
                'Expected split="validation" with named datasets, found split="train"; give a list, or a run.'
            )
        if isinstance(datasets, str | Path) and (Path(datasets) / SCHEDULE_FILE).is_file():
            datasets = open_schedule(datasets)
        run = as_run(datasets, **run_options)
        loader = _loader(run, options)
        _warn_of_mask([run], options)
        _warn_of_targets(run, loader)
        _warn_of_rows(run, loader)
        return loader
    options = {"drop_remainder": False, **options}
    named = (
        _named_runs(datasets, **run_options)
        if isinstance(datasets, Mapping)
        else {"": validation_run(datasets, **run_options)}
    )
    warn_of_validation([dataset for run in named.values() for dataset in run.datasets])
    _warn_of_mask(named.values(), options)
    loaders = {name: _loader(run, options) for name, run in named.items()}
    return loaders if isinstance(datasets, Mapping) else loaders[""]


def _loader(run: Run, options: Mapping[str, Any]) -> Loader:
    settings = LoaderSettings.checked(**options)
    return Loader(run, SequenceSource(run, **settings.of_arrays), settings)


def _warn_of_mask(runs: Iterable[Run], options: Mapping[str, Any]) -> None:
    """Warn if chats are read without a choice of `loss_mask`."""
    if "loss_mask" not in options and any(dataset.has_loss_mask for run in runs for dataset in run.datasets):
        warn(
            "The dataset has chats, and all their tokens count towards the loss; pass loss_mask='answers' to count "
            "the answers alone, or loss_mask='all' if this is meant."
        )


def _warn_of_targets(run: Run, loader: Loader) -> None:
    """Warn if batches of chats without a target are likely."""
    settings = loader.batches.windows.settings
    chats = [dataset for dataset in run.datasets if dataset.has_loss_mask]
    if not chats or settings.loss_mask == "all":
        return
    num_empty = sum(dataset.counts("pack").get("num_sequences_without_targets", 0) for dataset in chats)
    size = settings.global_batch_size
    expected = (num_empty / max(sum(dataset.num_sequences for dataset in run.datasets), 1)) ** size * (len(run) // size)
    if expected >= _LIKELY:
        warn(
            f"Batches of {size} without a target are likely (about {max(round(expected), 1):,} of {len(run) // size:,} "
            "in a shuffle): a step on such a batch learns nothing. Choose a larger batch or longer sequences, or leave "
            "such sequences out with packing.drop_without_targets."
        )


def _warn_of_rows(run: Run, loader: Loader) -> None:
    """Warn if a dataset has rows that go on from batch to batch, and the batches of the run do not."""
    size, num_rows = loader.batches.windows.settings.global_batch_size, [dataset.num_rows for dataset in run.datasets]
    if any(num_rows) and (len(num_rows) > 1 or run.info.get("method") != "corpus_order" or size != num_rows[0]):
        warn(
            f"The text of this dataset goes on in {max(num_rows)} rows from batch to batch, but not in these batches; "
            f'read it alone, with ordering="corpus_order" and global_batch_size={max(num_rows)}.'
        )


def _named_runs(datasets: Mapping[Any, Any], ordering: Any, cache_folder: Any) -> dict[str, Run]:
    """The run of each name: the validation sequences of datasets, or a given run."""
    if not datasets:
        raise UserError("Expected at least one name with a dataset, found an empty mapping.")
    if ordering is not None:
        raise UserError("Expected no ordering with named datasets, which have their own; leave it out.")
    runs: dict[str, Run] = {}
    for name, each in datasets.items():
        check_type("every name of a mapping of datasets", name, str, "a text")
        runs[name] = each if isinstance(each, Run) else validation_run(each, cache_folder=cache_folder)
    spaces = {name: [dataset.feature_space for dataset in run.datasets] for name, run in runs.items()}
    first = next(iter(spaces))
    for name, names_of_space in spaces.items():
        if {*names_of_space} != {*spaces[first]} or len({*names_of_space}) > 1:
            raise UserError(
                f"Expected datasets with the tokenizer and the families of {first!r}, found others in {name!r}; build "
                f"{name!r} with features_from."
            )
    return runs


class Loader(grain.IterDataset[Batch]):
    """The batches of a run, prefetched in the background. Iterate over it, or apply Grain transformations to it.

    Args:
        run: the run.
        source: the source of its sequences.
        settings: the settings of the batches.

    Attributes:
        batches: the batches by number.

    Raises:
        UserError: settings that do not fit the run.
    """

    def __init__(self, run: Run, source: SequenceSource, settings: LoaderSettings) -> None:
        windows = Windows(len(run), settings, run.lengths)
        self._placement = None
        lengths = sorted({length for _, length in windows.lengths})
        if settings.sharding is not None:
            self._placement = DevicePlacement(settings.sharding, settings.global_batch_size, lengths, settings.expand)
            windows = replace(windows, row_numbers=self._placement.row_numbers)
        elif settings.expand is not None:  # the rows of this host, on one device
            device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            self._placement = DevicePlacement(device, windows.num_rows, lengths, settings.expand)
        self.batches = OrderedBatches(run, source, windows)
        super().__init__(self.batches)

    @property
    def run(self) -> Run:
        """The run that the batches are read from."""
        return self.batches.run

    @property
    def num_batches(self) -> int | None:
        """The number of batches after the start position; None if `num_epochs` is None."""
        return None if self.batches.windows.end == ENDLESS else len(self.batches)

    @property
    def _element_spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and types of a batch's arrays (global arrays with `sharding`), for Grain's `get_element_spec`."""
        # A partial last batch is padded to the shape of the others.
        spec = self.batches._element_spec
        return spec if self._placement is None else self._placement.placed(spec)

    def __len__(self) -> int:
        if (number := self.num_batches) is None:
            # Not a UserError: `list` and other callers of `len` expect a TypeError if there is no length.
            raise TypeError("Expected a loader with a number of epochs, found num_epochs=None; it has no length.")
        return number

    def __bool__(self) -> bool:
        return self.num_batches != 0  # also true if `num_epochs` is None

    def __iter__(self) -> BatchIterator:
        # Every iterator closes its own source; a copy leaves the shared source open.
        batches = copy(self.batches)
        batches.source = batches.source.for_iterator(batches.windows.step, batches.windows.end)
        return BatchIterator(batches, self._placement)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Read only every n-th batch. Grain's `mp_prefetch` calls this method in each of its n worker processes."""
        if self._placement is not None:
            raise UserError(
                "Expected a loader of NumPy arrays before mp_prefetch, found one that places batches on devices "
                "(sharding, decode='device'), which worker processes do not have. "
                "Leave mp_prefetch out: the loader prefetches batches itself (num_prefetch)."
            )
        if sequential_slice:
            raise UserError("Expected mp_prefetch without sequential_slice, which would change the order of batches.")
        batches = copy(self.batches)
        batches.windows = replace(batches.windows, turn=(sl.start or 0, sl.step or 1))
        self.batches = batches

    def __str__(self) -> str:
        return f"Loader({self.batches})"

    def __repr__(self) -> str:
        number = "endless batches" if self.num_batches is None else counted(self.num_batches, "batch")
        lengths = " or ".join(
            f"{length:,}" for length in sorted({length for _, length in self.batches.windows.lengths})
        )
        size = self.batches.windows.settings.global_batch_size
        return f"Loader({number} of {counted(size, 'sequence')} of {lengths} tokens, {self.run.name!r})"

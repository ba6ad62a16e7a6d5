"""The public functions of token counts: they also take a built dataset, its folder or address, and files of counts."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from jax_diversity.counts import TokenCounts
from jax_diversity.counts.stored import CountFiles
from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.object_store import is_address
from jax_diversity.foundation.progress import Progress
from jax_diversity.ordering import base as _base
from jax_diversity.ordering.measures import balance as _balance
from jax_diversity.ordering.measures import comparison as _comparison
from jax_diversity.ordering.measures.balance import AnyOrder, Balance
from jax_diversity.ordering.measures.comparison import Comparison
from jax_diversity.ordering.measures.drawn import MeasuredOrder
from jax_diversity.ordering.measures.stored import read_measured
from jax_diversity.ordering.measures.windows import usable_windows
from jax_diversity.schema import Ordering
from jax_diversity.streaming.dataset.dataset import Dataset, open_dataset
from jax_diversity.streaming.dataset.orderings import is_file_name, load_ordering

Given = TokenCounts | Dataset | str | Path | Sequence[str | Path]
"""Token counts, or a built dataset, its folder or address, or files of counts (a folder, a file or several files)."""


@functools.wraps(_base.order)
def order(counts: Given, method: str = "balance", **settings: Any) -> Ordering:  # noqa: D103 - documented there
    opened, _ = opened_counts(counts)
    return _base.order(opened, method, **settings)


@functools.wraps(_balance.measure)
def measure(  # noqa: D103
    counts: Given,
    ordering: AnyOrder | str | Path = "balance",
    windows: Sequence[int] | None = None,
    *arguments: Any,
    **settings: Any,
) -> Balance:
    opened, dataset = opened_counts(counts)
    return _balance.measure(opened, _found(dataset, opened, ordering), windows, *arguments, **settings)


@functools.wraps(_comparison.compare)
def compare(  # noqa: D103
    counts: Given,
    orderings: Mapping[str, AnyOrder | str | Path] | Sequence[str] | None = None,
    windows: Sequence[int] | None = None,
    offsets: Sequence[str] = ("0", "half"),
    **settings: Any,
) -> Comparison:
    opened, dataset = opened_counts(counts)
    stored_measures: dict[str, MeasuredOrder] = {}
    if dataset is not None:
        if windows is None and "windows" in dataset.settings:  # the comparisons of the build and of its report
            windows = usable_windows(dataset.settings["windows"], opened.num_sequences, opened.batch_size)
        if orderings is None:
            orderings = list(dataset.orderings)
        if isinstance(orderings, str):
            orderings = [orderings]
        if not isinstance(orderings, Mapping):
            check_type("orderings", orderings, Sequence, "names of orderings, or a mapping name -> ordering")
            for name in orderings:
                check_type(
                    "every one of a list of orderings", name, str, "a name; give orderings as {'name': ordering}"
                )
            orderings = {name: name for name in orderings}
        if windows is not None and settings.get("targets") is None and "every" not in offsets:
            names = {
                name: ordering
                for name, ordering in orderings.items()
                if isinstance(ordering, str) and not is_file_name(ordering)
            }
            stored_measures = known_measures(dataset, names, windows)
    if isinstance(orderings, Mapping):
        orderings = {
            name: ordering if dataset is None and not is_file_name(ordering) else _found(dataset, opened, ordering)
            for name, ordering in orderings.items()
        }
    chosen: Any = {} if orderings is None else orderings
    total = 0
    if dataset is not None and isinstance(chosen, Mapping) and "advance" not in settings:
        total = opened.num_sequences * len(chosen.keys() - stored_measures.keys())
    with Progress().task("measure", total, "position") if total else nullcontext() as advance:
        settings |= {} if advance is None else {"advance": advance}
        return _comparison.compare(opened, chosen, windows, offsets, stored=stored_measures, **settings)


def known_measures(dataset: Dataset, names: Mapping[str, str], windows: Sequence[int]) -> dict[str, MeasuredOrder]:
    """Return the stored measures of a dataset's orderings that were measured in some windows, or in more.

    Args:
        dataset: the dataset.
        names: any names -> names of orderings.
        windows: the window sizes that are needed.
    """
    stored_measures = {}
    for name, ordering in names.items():
        measured = read_measured(dataset.stored, ordering, dataset.families, windows)
        if measured is not None:
            stored_measures[name] = measured
    return stored_measures


def opened_counts(counts: Given) -> tuple[Any, Dataset | None]:
    """Return token counts, and the dataset that they belong to. Other values pass: the functions refuse them."""
    if isinstance(counts, str | os.PathLike):
        is_dataset = is_address(counts) or not _are_counts(Path(counts))
        counts = open_dataset(counts) if is_dataset else CountFiles.open(counts)
    elif isinstance(counts, list | tuple) and counts and all(isinstance(path, str | os.PathLike) for path in counts):
        counts = CountFiles.open(counts)
    return (counts.token_counts(), counts) if isinstance(counts, Dataset) else (counts, None)


def _are_counts(path: Path) -> bool:
    """Whether a path is a file of counts or a folder with such files."""
    if (path / "manifest.json").is_file():
        return False
    return path.suffix == ".parquet" or (path.is_dir() and any(path.glob("*.parquet")))


def _found(dataset: Dataset | None, counts: Any, ordering: Any) -> Any:
    """An ordering that is given as a name or file is read."""
    if not isinstance(ordering, str | Path):
        return ordering
    if dataset is not None:
        return dataset.find_ordering(ordering)
    if is_file_name(ordering) and isinstance(counts, TokenCounts):
        return load_ordering(Path(ordering), counts.num_sequences)
    raise UserError(
        f"Expected an ordering of these token counts, found the name {str(ordering)!r}, which only a dataset has; "
        "pass the ordering, or the dataset in place of the counts."
    )

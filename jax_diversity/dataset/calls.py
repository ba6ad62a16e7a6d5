"""The public functions of token counts: they also take a built dataset or its folder, and orderings by name."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax_diversity.counts import Characteristics
from jax_diversity.dataset.dataset import Dataset, open_dataset
from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError
from jax_diversity.measures import balance as _balance
from jax_diversity.measures import comparison as _comparison
from jax_diversity.measures.balance import Balance, Order
from jax_diversity.measures.comparison import Comparison
from jax_diversity.measures.windows import usable_windows
from jax_diversity.ordering import base as _base
from jax_diversity.schema import Ordering

Given = Characteristics | Dataset | str | Path
"""Token counts, or a built dataset, or its folder or address."""


@functools.wraps(_base.order)
def order(counts: Given, method: str = "balance", **settings: Any) -> Ordering:  # noqa: D103 - documented there
    opened, _ = _opened(counts)
    return _base.order(opened, method, **settings)


@functools.wraps(_balance.measure)
def measure(  # noqa: D103
    characteristics: Given,
    ordering: Order | str | Path = "balance",
    windows: Sequence[int] | None = None,
    *arguments: Any,
    **settings: Any,
) -> Balance:
    counts, dataset = _opened(characteristics)
    return _balance.measure(counts, _found(dataset, ordering), windows, *arguments, **settings)


@functools.wraps(_comparison.compare)
def compare(  # noqa: D103
    characteristics: Given,
    orderings: Mapping[str, Order | str | Path] | Sequence[str] | None = None,
    windows: Sequence[int] | None = None,
    *arguments: Any,
    **settings: Any,
) -> Comparison:
    counts, dataset = _opened(characteristics)
    if dataset is not None:
        if windows is None and "windows" in dataset.settings:  # the comparisons of the build and of its report
            windows = usable_windows(dataset.settings["windows"], counts.num_sequences, counts.batch_size)
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
        orderings = {name: _found(dataset, each) for name, each in orderings.items()}
    chosen: Any = {} if orderings is None else orderings
    return _comparison.compare(counts, chosen, windows, *arguments, **settings)


def _opened(given: Given) -> tuple[Characteristics, Dataset | None]:
    """The token counts, and the dataset that they belong to. Other values pass: the functions refuse them."""
    if isinstance(given, str | os.PathLike):
        given = open_dataset(given)
    return (given.characteristics, given) if isinstance(given, Dataset) else (given, None)


def _found(dataset: Dataset | None, ordering: Any) -> Any:
    """An ordering that is given as a name or file is read from the dataset."""
    if not isinstance(ordering, str | Path):
        return ordering
    if dataset is None:
        raise UserError(
            f"Expected an ordering of these token counts, found the name {str(ordering)!r}, which only a dataset has; "
            "pass the ordering, or the dataset in place of the counts."
        )
    return dataset.find_ordering(ordering)

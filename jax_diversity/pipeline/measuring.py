"""Measuring orderings of a built dataset, by name or from files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_diversity.dataset import open_dataset
from jax_diversity.errors import UserError
from jax_diversity.measures import Comparison, compare, gap_closed, measure
from jax_diversity.ordering import order
from jax_diversity.pipeline.chain import recorded_config
from jax_diversity.pipeline.orderings import usable_windows
from jax_diversity.progress import Progress
from jax_diversity.schema import Characteristics, Ordering

_SHUFFLE = "uniform_shuffle"


@dataclass(frozen=True)
class Chosen:
    """Orderings of one dataset, and what they are measured by.

    Attributes:
        characteristics: the dataset's.
        orderings: name, or file as it was given -> ordering.
        reference: a uniform shuffle, named, to compare with; among the orderings or made for the purpose.
        windows: window sizes.
    """

    characteristics: Characteristics
    orderings: Mapping[str, Ordering]
    reference: tuple[str, Ordering]
    windows: tuple[int, ...]


def choose_orderings(
    out: str | Path, names: Sequence[str] = (), files: Sequence[str] = (), windows: Sequence[int] = ()
) -> Chosen:
    """Look up what to measure.

    Args:
        out: the dataset's folder.
        names: names of its orderings, or .npy files; all of its orderings where none is given.
        files: more .npy files, beside them.
        windows: window sizes; those of the dataset's settings that fit twice where none is given.

    Raises:
        UserError: no dataset, an unknown or broken ordering.
    """
    dataset = open_dataset(out)
    chars = dataset.characteristics
    chosen = {name: _load(name) if name.endswith(".npy") else dataset.orderings[name] for name in names}
    chosen = chosen or dict(dataset.orderings)
    chosen |= {file: _load(file) for file in files}
    of_dataset = {name: dataset.orderings[name] for name in dataset.orderings if name == _SHUFFLE}
    shuffles = [(name, ordering) for name, ordering in (chosen | of_dataset).items() if _is_shuffle(name, ordering)]
    reference = shuffles[0] if shuffles else (_SHUFFLE, order(chars, _SHUFFLE))
    usual = usable_windows(recorded_config(out).windows, chars.num_sequences)
    return Chosen(chars, chosen, reference, tuple(windows) or usual)


def _is_shuffle(name: str, ordering: Ordering) -> bool:
    return name == _SHUFFLE or ordering.info.get("method") == _SHUFFLE


def _load(path: str) -> Ordering:
    try:
        return Ordering.load(path)
    except ValueError as error:
        raise UserError(str(error)) from None


def compare_orderings(chosen: Chosen, progress: Progress) -> Comparison:
    """The chosen orderings beside a uniform shuffle, which comes first.

    Raises:
        UserError: no orderings, one of another dataset, a window size outside its range.
    """
    if not chosen.orderings:
        raise UserError("Expected orderings to measure, found none; make one with `jax-diversity order`.")
    # A file goes by its name alone: tables are narrow.
    short = {name: Path(name).name if name.endswith(".npy") else name for name in chosen.orderings}
    shared = Counter(short.values())
    shown = {name if shared[short[name]] > 1 else short[name]: each for name, each in chosen.orderings.items()}
    together = {**dict([chosen.reference]), **shown}
    total = chosen.characteristics.num_sequences * len(chosen.characteristics.families) * len(together)
    with progress.task("measure", total, "positions") as advance:
        return compare(chosen.characteristics, together, chosen.windows, advance=advance)


def measure_orderings(chosen: Chosen, progress: Progress) -> dict[str, dict[str, Any]]:
    """The chosen orderings' figures, for machines.

    Returns:
        name -> `Balance.summary()`, and in every window size's part `gap_closed`, from the reference to the floor.

    Raises:
        UserError: an ordering of another dataset, a window size outside its range.
    """
    chars = chosen.characteristics
    reference, shuffle = chosen.reference
    together = {**chosen.orderings, reference: shuffle}
    total = chars.num_sequences * len(chars.families) * len(together)
    summaries = {}
    with progress.task("measure", total, "positions") as advance:
        for name, ordering in together.items():
            summaries[name] = measure(chars, ordering, chosen.windows, advance).summary()
    shuffled = summaries[reference]["families"]
    for summary in summaries.values():
        for family, values in summary["families"].items():
            for size, window in values["windows"].items():
                mean = shuffled[family]["windows"][size]["tv_mean"]
                closed = gap_closed(window["tv_mean"], mean, window["tv_floor"])
                window["gap_closed"] = None if math.isnan(closed) else closed
    return {name: summaries[name] for name in chosen.orderings}

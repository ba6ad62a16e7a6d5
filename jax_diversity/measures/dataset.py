"""Measuring orderings of a built dataset, by name or from files, and a batch among all batches of an ordering."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.measures.balance import Balance, measure
from jax_diversity.measures.comparison import Comparison, compare
from jax_diversity.measures.curves import envelope
from jax_diversity.measures.floors import gap_closed, window_floor
from jax_diversity.measures.placing import place
from jax_diversity.measures.profile import WindowProfile, window_profile
from jax_diversity.measures.stage import usable_windows
from jax_diversity.measures.windows import window_deviation
from jax_diversity.ordering.base import order
from jax_diversity.schema import Characteristics, Ordering

_SHUFFLE = "uniform_shuffle"
_MAX_POINTS = 100
Envelope = Mapping[str, Sequence[float]]
"""A curve's `position`, `mean`, `min` and `max`, at most 100 points of each."""


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
    usual = usable_windows(tuple(dataset.settings["windows"]), chars.num_sequences)
    return Chosen(chars, chosen, reference, tuple(windows) or usual)


def _is_shuffle(name: str, ordering: Ordering) -> bool:
    return name == _SHUFFLE or ordering.info.get("method") == _SHUFFLE


def _load(path: str) -> Ordering:
    try:
        return Ordering.load(path)
    except ValueError as error:
        raise UserError(str(error)) from None


@dataclass(frozen=True)
class FamilyCurves:
    """How one family fares along one ordering.

    Attributes:
        prefix_l2: prefix deviation, in sequence lengths; positions count from 1.
        window_tv: window size -> TV of the aligned windows; a window stands at its last position.
    """

    prefix_l2: Envelope
    window_tv: Mapping[int, Envelope]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; window sizes are strings."""
        return {"prefix_l2": self.prefix_l2, "window_tv": {str(size): of for size, of in self.window_tv.items()}}


Curves = Mapping[str, FamilyCurves]
"""Family -> curves of one ordering."""


def shorten(balance: Balance) -> Curves:
    """An ordering's curves with few enough points to be drawn or written down; no peak is lost."""
    return {
        family: FamilyCurves(
            envelope(prefix, max_points=_MAX_POINTS),
            {
                size: envelope(tv, size * np.arange(1, len(tv) + 1), _MAX_POINTS)
                for size, tv in balance.window_tv[family].items()
            },
        )
        for family, prefix in balance.prefix_l2.items()
    }


def compare_orderings(chosen: Chosen, progress: Progress) -> tuple[Comparison, Mapping[str, Curves]]:
    """The chosen orderings beside a uniform shuffle, which comes first: figures, and curves by the same names.

    Raises:
        UserError: no orderings, one of another dataset, a window size outside its range.
    """
    if not chosen.orderings:
        raise UserError("Expected orderings to measure, found none; make one with `jax-diversity order`.")
    together = _together(chosen)
    total = chosen.characteristics.num_sequences * len(chosen.characteristics.families) * len(together)
    curves: dict[str, Curves] = {}

    def keep(name: str, balance: Balance) -> None:
        curves[name] = shorten(balance)

    with progress.task("measure", total, "positions") as advance:
        return compare(chosen.characteristics, together, chosen.windows, advance=advance, keep=keep), curves


def _together(chosen: Chosen) -> dict[str, Ordering]:
    """The reference and the chosen orderings; a file goes by its name alone, for tables are narrow."""
    short = {name: Path(name).name if name.endswith(".npy") else name for name in chosen.orderings}
    shared = Counter(short.values())
    shown = {name if shared[short[name]] > 1 else short[name]: each for name, each in chosen.orderings.items()}
    return {**dict([chosen.reference]), **shown}


def measure_orderings(chosen: Chosen, progress: Progress, *, profile: bool = False) -> dict[str, dict[str, Any]]:
    """The chosen orderings' figures, for machines.

    Args:
        chosen: orderings and window sizes.
        progress: where work is shown.
        profile: whether to take all powers of two as window sizes as well.

    Returns:
        name -> `Balance.summary()`, with `gap_closed` (from the reference to the floor) at every window size, and
        `curves` (see `FamilyCurves`) in every family; `profile` there is offset -> sizes, num_windows, mean, best
        and worst, lists of one value a size.

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
            balance = measure(chars, ordering, chosen.windows, advance)
            summaries[name] = balance.summary()
            for family, curves in shorten(balance).items():
                summaries[name]["families"][family]["curves"] = curves.as_dict()
            if profile and name in chosen.orderings:
                _add_profiles(summaries[name]["families"], window_profile(chars, ordering))
    shuffled = summaries[reference]["families"]
    for summary in summaries.values():
        for family, values in summary["families"].items():
            for size, window in values["windows"].items():
                mean = shuffled[family]["windows"][size]["tv_mean"]
                closed = gap_closed(window["tv_mean"], mean, window["tv_floor"])
                window["gap_closed"] = None if math.isnan(closed) else closed
    return {name: summaries[name] for name in chosen.orderings}


def _add_profiles(families: Mapping[str, Any], profiles: Mapping[str, Mapping[str, WindowProfile]]) -> None:
    for family, offsets in profiles.items():
        families[family]["profile"] = {
            offset: {name: values.tolist() for name, values in of_offset._asdict().items()}
            for offset, of_offset in offsets.items()
        }


def profile_orderings(chosen: Chosen, progress: Progress) -> dict[str, dict[str, dict[int, float]]]:
    """Mean TV of aligned windows of 1, 2, 4 ... sequences.

    Returns:
        family -> ordering (the reference first), and `floor` -> window size -> mean TV.

    Raises:
        UserError: an ordering of another dataset.
    """
    chars, together = chosen.characteristics, _together(chosen)
    total = chars.num_sequences * len(chars.families) * len(together)
    profiles: dict[str, dict[str, dict[int, float]]] = {family: {} for family in chars.families}
    with progress.task("measure all sizes", total, "positions") as advance:
        for name, ordering in together.items():
            for family, offsets in window_profile(chars, ordering, advance).items():
                aligned = offsets["0"]
                profiles[family][name] = dict(zip(aligned.sizes.tolist(), aligned.mean.tolist(), strict=True))
    for family, of_family in profiles.items():
        sizes = next(iter(of_family.values()))
        counts, target = chars.counts[family], chars.target_share(family)
        of_family["floor"] = {size: window_floor(counts, target, size, chars.sequence_length) for size in sizes}
    return profiles


def batch_deviations(
    dataset: Dataset, ordering: str, global_batch_size: int, *, host_index: int = 0, num_hosts: int = 1
) -> dict[str, Float64[np.ndarray, " batch"]]:
    """TV of every whole batch of an epoch, or of a host's rows of it: what one batch is to be judged by.

    Args:
        dataset: a built dataset.
        ordering: the name of its ordering, or a .npy file.
        global_batch_size: B, sequences of a batch over all hosts.
        host_index: whose rows: those from `host_index * B / num_hosts` on.
        num_hosts: hosts that share the batch.

    Returns:
        family -> (num_sequences // B,), in the order of training.
    """
    chars, indices = dataset.characteristics, dataset.find_ordering(ordering).indices
    num_batches, num_rows = len(indices) // global_batch_size, global_batch_size // num_hosts
    batches = indices[: num_batches * global_batch_size].reshape(num_batches, num_hosts, num_rows)
    rows = batches[:, host_index].reshape(-1)
    return {
        family: window_deviation(place(chars.counts[family], rows), chars.target_share(family), num_rows)
        for family in chars.families
    }

"""Compare runs with one another and with a uniform shuffle, for tables and for JSON.

TV means total variation: half the L1 distance between two mixtures of groups.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from jax_diversity.counts import Characteristics
from jax_diversity.counts.files import StoredCounts
from jax_diversity.counts.targets import Targets
from jax_diversity.dataset import Dataset, open_dataset
from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.measures.balance import Balance, Measurer, as_order, own_shares, target_shares
from jax_diversity.measures.comparison import (
    SHUFFLE,
    Comparison,
    compare,
    compare_summaries,
    gap_or_none,
    is_shuffle,
)
from jax_diversity.measures.drawn import MeasuredOrder, curves_of, shortened_curves
from jax_diversity.measures.files import measure_counts, reader
from jax_diversity.measures.floors import window_floor
from jax_diversity.measures.followed import FollowedBalance, follow
from jax_diversity.measures.profile import window_profile
from jax_diversity.measures.windows import place, usable_windows
from jax_diversity.ordering.literature.baselines import uniform_shuffle
from jax_diversity.run.run import Run, make_run
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import Positions

_POINTS = 100


class FamilyCurves(NamedTuple):
    """Curves of one ordering in one family, with at most 100 points each.

    They are the prefix deviation, and the TV of aligned windows (windows that begin at multiples of their size) by
    size.
    """

    prefix_l2: Mapping[str, Sequence[float]]
    window_tv: Mapping[int, Mapping[str, Sequence[float]]]


Curves = Mapping[str, FamilyCurves]
"""Family -> curves of one ordering."""


Measured = Run | Ordering | Positions
"""An order that can be measured."""


class FollowedTargets(NamedTuple):
    """The targets of the ordering `name`, position by position."""

    name: str
    targets: Targets


@dataclass(frozen=True)
class Chosen:
    """Runs over the same sequences, by name or file name, with the token counts and windows for their measures.

    The counts of a large dataset are read in blocks. The reference is the name and the order of a uniform shuffle: one
    of the runs, or a new one. `targets` are shares that replace the shares of the corpus. `followed` are moving targets
    for an additional comparison.
    """

    characteristics: Characteristics | StoredCounts
    orders: Mapping[str, Run]
    reference: tuple[str, Measured]
    windows: tuple[int, ...]
    followed: FollowedTargets | None = None
    targets: Mapping[str, Float64[np.ndarray, " group"]] | None = None

    @property
    def in_memory(self) -> Characteristics:
        """The token counts, for measures that need all counts in memory.

        Raises:
            UserError: the dataset is large.
        """
        counts = self.characteristics
        if isinstance(counts, StoredCounts):
            raise UserError(
                f"Expected at most {counts.most_in_memory:,} sequences for --profile and --targets, which need all "
                f"counts in memory, found {counts.num_sequences:,}; leave the option out."
            )
        return counts


def choose_orderings(
    out: str | Path,
    names: Sequence[str] = (),
    files: Sequence[str] = (),
    windows: Sequence[int] = (),
    families: Sequence[str] = (),
    targets: str | None = None,
) -> Chosen:
    """Choose the runs of a dataset to measure.

    `names` are names of the dataset's orderings or .npy files, `files` are more .npy files. The defaults are all
    orderings of the dataset, the window sizes in its settings that fit at least twice, and the families that it
    balances. `targets` is the name of an ordering: all runs are also compared with the targets of this ordering.
    """
    dataset = open_dataset(out)
    chosen = {name: make_run(dataset, name) for name in names or dataset.orderings}
    chosen |= {file: make_run(dataset, Path(file)) for file in files}
    if not chosen:
        raise UserError("Expected orderings to measure, found none; make one with `jax-diversity order`.")
    if not dataset.stored_counts().is_large:
        return choose(chosen, windows, families, targets)
    for family in families:
        check_one_of("every family", family, dataset.group_names)
    counts = dataset.stored_counts(families)
    windows = windows or usable_windows(dataset.settings["windows"], counts.num_sequences, dataset.batch_size)
    found = Chosen(counts, chosen, _shuffle(dataset, chosen, counts), tuple(windows))
    if targets is not None:
        _ = found.in_memory  # raises the error
    return found


def choose(
    runs: Mapping[str, Run],
    windows: Sequence[int] = (),
    families: Sequence[str] = (),
    targets: str | None = None,
) -> Chosen:
    """Choose the token counts, windows and reference for the comparison of some runs.

    Runs of one dataset are measured against its shares, and compared with a uniform shuffle of the dataset. A run of
    several datasets is measured against the shares of the whole run, in the families whose groups have the same meaning
    in all datasets. It is compared with a shuffle of its own positions, which has the same mixture.

    Args:
        runs: runs by name; all read the same datasets.
        windows: window sizes; empty means the sizes in the first dataset's settings that fit at least twice.
        families: the families to measure; empty means all comparable families that the datasets balance.
        targets: the name of an ordering; all runs are also compared with its targets.

    Raises:
        UserError: a family is unknown, no family is comparable, or a run has no positions.
    """
    first = next(iter(runs.values()))
    datasets, shortest = first.datasets, min(map(len, runs.values()))
    chars = _characteristics(first, families)
    if not windows:
        shortest = min(shortest, chars.num_sequences) if len(datasets) == 1 else shortest
        windows = usable_windows(datasets[0].settings["windows"], shortest, datasets[0].batch_size)
    # The name of the reference is reserved.
    chosen = {
        f"{name} (the run)" if name == SHUFFLE and not run.is_bijection else name: run for name, run in runs.items()
    }
    if len(datasets) > 1:
        if not shortest:
            raise UserError("Expected a run with positions to measure, found none.")
        shuffled = np.random.default_rng(0).permutation(first.indices)
        reference = Positions(shuffled, first.num_sequences, {"method": SHUFFLE})
        shares = run_shares(chars, first)
        return Chosen(chars, chosen, (SHUFFLE, reference), tuple(windows), targets=shares)
    dataset = next(iter(datasets))
    followed = None if targets is None else _followed(dataset, targets, chars)
    return Chosen(chars, chosen, _shuffle(dataset, chosen, chars), tuple(windows), followed)


def _shuffle(
    dataset: Dataset, chosen: Mapping[str, Run], counts: Characteristics | StoredCounts
) -> tuple[str, Measured]:
    """The reference: one of the given runs if it is a shuffle, else the dataset's stored shuffle, else a new one."""
    own = {SHUFFLE: make_run(dataset, SHUFFLE)} if SHUFFLE in dataset.orderings else {}
    shuffles = [(name, run) for name, run in {**chosen, **own}.items() if is_shuffle(name, run)]
    if shuffles:
        return shuffles[0]
    return SHUFFLE, Ordering(uniform_shuffle(counts), {"method": SHUFFLE})


def run_shares(characteristics: Characteristics, run: Run) -> dict[str, Float64[np.ndarray, " group"]]:
    """The shares to compare a run with: the shares of its only dataset, or of the whole run if it has several."""
    return target_shares(characteristics, own_shares(characteristics, run) if len(run.datasets) > 1 else {})


def _characteristics(run: Run, families: Sequence[str]) -> Characteristics:
    """The counts of the given families, or of all families that the run's datasets balance."""
    if len(run.datasets) == 1:
        dataset = run.datasets[0]
        for family in families:
            check_one_of("every family", family, dataset.group_names)
        return dataset.count_families(families) if families else dataset.characteristics
    chars = run.characteristics
    for family in families:
        check_one_of("every family", family, chars.families)
    kept = {family: chars.counts[family] for family in families or chars.families}
    return replace(chars, counts=kept, weights=dict.fromkeys(kept, 1.0)) if families else chars


def _followed(dataset: Dataset, name: str, chars: Characteristics) -> FollowedTargets:
    """The targets in an ordering's info, for the measured families."""
    about = dataset.find_ordering(name).info.get("targets")
    if about is None:
        raise UserError(
            f"Expected --targets to name an ordering that followed targets, found {name!r}, which followed "
            "none; make one with `jax-diversity order --targets.shares`."
        )
    shares = {family: np.array(phases) for family, phases in about["shares"].items() if family in chars.families}
    if not shares:
        raise UserError(
            f"Expected to measure a family with targets ({', '.join(about['shares'])}), found "
            f"{', '.join(chars.families)}; name the family after --families."
        )
    return FollowedTargets(name, Targets(tuple(about["starts"]), shares))


def short_curves(curves: Mapping[str, Any]) -> Curves:
    """The curves of an ordering, with at most 100 points each; windows are drawn at their last position."""

    def at_the_end(curve: Mapping[str, Sequence[float]], size: int) -> Mapping[str, Sequence[float]]:
        return {**curve, "position": [middle + size / 2 for middle in curve["position"]]}

    short = shortened_curves(curves, _POINTS)
    return {
        family: FamilyCurves(
            prefix,
            {int(size): at_the_end(of_size["curve"], int(size)) for size, of_size in short["windows"][family].items()},
        )
        for family, prefix in short["prefix"].items()
    }


def _measure_stored(chosen: Chosen, progress: Progress) -> dict[str, MeasuredOrder]:
    """Measure the reference and the orderings of a large dataset."""
    counts, together, found = chosen.characteristics, _together(chosen), dict[str, MeasuredOrder]()
    assert isinstance(counts, StoredCounts)
    with progress.task("measure", len(together) * counts.num_sequences, "position") as advance:
        for name, ordering in together.items():
            indices = as_order(ordering, f"order {name!r}").indices
            # The dataset's folder may not be writable; TMPDIR is another folder for the temporary files.
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder) / "measuring"
                found[name] = measure_counts(counts, reader(indices), chosen.windows, place, advance)
    return found


def compare_orderings(chosen: Chosen, progress: Progress) -> tuple[Comparison, Mapping[str, Curves]]:
    """Compare the orderings with a uniform shuffle, which is the first row; also returns the curves by name."""
    together, curves = _together(chosen), dict[str, Curves]()
    if isinstance(chosen.characteristics, StoredCounts):
        found = _measure_stored(chosen, progress)
        summaries = {name: measured.summary for name, measured in found.items()}
        compared = compare_summaries(summaries, chosen.reference[0], chosen.characteristics.batch_size)
        return compared, {name: short_curves(measured.curves) for name, measured in found.items()}

    def keep(name: str, balance: Balance) -> None:
        curves[name] = short_curves(curves_of(balance, _POINTS))

    with progress.task("measure", _num_positions(chosen, together), "position") as advance:
        compared = compare(
            chosen.in_memory, together, chosen.windows, targets=chosen.targets, advance=advance, keep=keep
        )
        return compared, curves


def measure_orderings(chosen: Chosen, progress: Progress, *, profile: bool = False) -> dict[str, dict[str, Any]]:
    """Measure the orderings for JSON: name -> `Balance.summary()` with additional values.

    The additional values are `gap_closed` (from the reference to the floor) for every window size, and in every family
    `curves` (see `short_curves`). `profile` adds `profile`: offset -> the fields of `WindowProfile`, lists with one
    value per size.
    """
    reference, shuffle = chosen.reference
    together = {reference: shuffle, **chosen.orders}
    summaries: dict[str, dict[str, Any]] = {}
    if isinstance(chosen.characteristics, StoredCounts):
        measured = _measure_stored(replace(chosen, orders=together), progress)
        short = {name: short_curves(each.curves) for name, each in measured.items()}
        summaries = {name: each.summary for name, each in measured.items()}
    else:
        measurer, short = Measurer(chosen.characteristics, chosen.windows, chosen.targets), dict[str, Curves]()
        with progress.task("measure", _num_positions(chosen, together), "position") as advance:
            for name, ordering in together.items():
                balance = measurer.measure(ordering, advance)
                summaries[name], short[name] = balance.summary(), short_curves(curves_of(balance, _POINTS))
    for name, ordering in together.items():
        families = summaries[name]["families"]
        for family, curves in short[name].items():
            families[family]["curves"] = curves._asdict()
        if profile and name in chosen.orders:
            for family, offsets in window_profile(chosen.in_memory, ordering, targets=chosen.targets).items():
                families[family]["profile"] = {
                    offset: {key: values.tolist() for key, values in of_offset._asdict().items()}
                    for offset, of_offset in offsets.items()
                }
        for family, values in families.items():
            for size, window in values["windows"].items():
                shuffled = summaries[reference]["families"][family]["windows"][size]["tv_mean"]
                window["gap_closed"] = gap_or_none(window["tv_mean"], shuffled, window["tv_floor"])
    if chosen.followed is not None:
        for name, ordering in chosen.orders.items():
            plain = {
                family: {
                    "prefix_l2_max": found.prefix_l2_max,
                    "windows": {str(size): tv._asdict() for size, tv in found.windows.items()},
                }
                for family, found in _beside_targets(chosen, chosen.followed, ordering).items()
            }
            summaries[name]["targets"] = {"of": chosen.followed.name, "families": plain}
    return {name: summaries[name] for name in chosen.orders}


def measure_targets(
    chosen: Chosen, followed: FollowedTargets, progress: Progress
) -> dict[str, dict[str, FollowedBalance]]:
    """Compare the reference and the orderings with moving targets: ordering -> family with targets -> measures."""
    together, found = _together(chosen), {}
    with progress.task("measure targets", len(together), "ordering") as advance:
        for name, ordering in together.items():
            found[name] = _beside_targets(chosen, followed, ordering)
            advance(1)
    return found


def _beside_targets(chosen: Chosen, followed: FollowedTargets, ordering: Measured) -> dict[str, FollowedBalance]:
    chars, starts, found = chosen.in_memory, followed.targets.starts, {}
    for family, shares in followed.targets.shares.items():
        placed = place(chars.counts[family], ordering.indices)
        found[family] = follow(placed, starts, shares, chosen.windows, chars.sequence_length)
    return found


def profile_orderings(chosen: Chosen, progress: Progress) -> dict[str, dict[str, dict[int, float]]]:
    """Mean TV of aligned windows: family -> ordering (the reference is first) or `floor` -> size 1, 2, 4 ... -> TV."""
    chars, together = chosen.in_memory, _together(chosen)
    profiles: dict[str, dict[str, dict[int, float]]] = {family: {} for family in chars.families}
    with progress.task("measure all sizes", _num_positions(chosen, together), "position") as advance:
        for name, ordering in together.items():
            for family, offsets in window_profile(chars, ordering, advance, targets=chosen.targets).items():
                aligned = offsets["0"]
                profiles[family][name] = dict(zip(aligned.sizes.tolist(), aligned.mean.tolist(), strict=True))
    for family, of_family in profiles.items():
        counts, target = chars.counts[family], chars.target_share(family)
        if chosen.targets is not None:
            # Sequences may repeat: the floor is computed from the sequences at all positions.
            counts, target = place(counts, chosen.reference[1].indices), chosen.targets[family]
        sizes = next(iter(of_family.values()))
        of_family["floor"] = {size: window_floor(counts, target, size, chars.sequence_length) for size in sizes}
    return profiles


def _together(chosen: Chosen) -> dict[str, Measured]:
    """The reference and the orderings by name; folders are left out of file names if the names stay different."""
    short = {name: Path(name).name if name.endswith(".npy") else name for name in chosen.orders}
    shared = Counter(short.values())
    shown = {name if shared[short[name]] > 1 else short[name]: each for name, each in chosen.orders.items()}
    return {**dict([chosen.reference]), **shown}


def _num_positions(chosen: Chosen, together: Mapping[str, Measured]) -> int:
    """The number of positions to measure, over all families and orders."""
    return sum(map(len, together.values())) * len(chosen.characteristics.families)

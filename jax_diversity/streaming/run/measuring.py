"""Compare runs with one another and with a uniform shuffle, for tables and for JSON.

TV means total variation: half the L1 distance between two mixtures of groups.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from jax_diversity.counts import TokenCounts
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance, Progress, ignore
from jax_diversity.ordering.literature.baselines import uniform_shuffle
from jax_diversity.ordering.measures.balance import Measurer, own_shares
from jax_diversity.ordering.measures.comparison import SHUFFLE, Comparison, compare, gap_or_none, is_shuffle
from jax_diversity.ordering.measures.drawn import MeasuredOrder, shortened_curves
from jax_diversity.ordering.measures.profile import window_floors, window_profile
from jax_diversity.ordering.measures.verdict import targeted_families
from jax_diversity.ordering.measures.windows import usable_windows
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import Order, Positions
from jax_diversity.streaming.dataset import Dataset, open_dataset
from jax_diversity.streaming.dataset.calls import known_measures
from jax_diversity.streaming.run.run import Run, make_run

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


class FollowedTargets(NamedTuple):
    """The targets of the ordering `name`, position by position."""

    name: str
    targets: Targets


class FollowedBalance(NamedTuple):
    """The largest prefix deviation from moving targets, in sequence lengths; and window size -> mean and other TVs."""

    prefix_l2_max: float
    windows: dict[int, dict[str, float]]


@dataclass(frozen=True)
class ComparisonInput:
    """Runs over the same sequences, by name or file name, with the token counts and windows for their measures.

    The reference is the name and the order of a uniform shuffle: one of the runs, or a new one. `targets` are shares
    that replace the shares of the corpus. `followed` are moving targets for an additional comparison. `known` are
    stored measures by the names of the runs and of the reference; these are not measured again.
    """

    counts: TokenCounts
    orders: Mapping[str, Run]
    reference: tuple[str, Order]
    windows: tuple[int, ...]
    followed: FollowedTargets | None = None
    targets: Mapping[str, Float64[np.ndarray, " group"]] | None = None
    known: Mapping[str, MeasuredOrder] = field(default_factory=dict)


def choose_orderings(
    out: str | Path,
    names: Sequence[str] = (),
    files: Sequence[str] = (),
    windows: Sequence[int] = (),
    families: Sequence[str] = (),
    targets: str | None = None,
) -> ComparisonInput:
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
    compared = choose(chosen, windows, families, targets)
    if families:
        return compared
    stored = {name: name for name in [*chosen, compared.reference[0]] if name in dataset.orderings}
    return replace(compared, known=known_measures(dataset, stored, compared.windows))


def choose(
    runs: Mapping[str, Run],
    windows: Sequence[int] = (),
    families: Sequence[str] = (),
    targets: str | None = None,
) -> ComparisonInput:
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
    counts = _counts(first, families)
    if not windows:
        shortest = min(shortest, counts.num_sequences) if len(datasets) == 1 else shortest
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
        return ComparisonInput(counts, chosen, (SHUFFLE, reference), tuple(windows), targets=own_shares(counts, first))
    dataset = next(iter(datasets))
    followed = None if targets is None else _followed(dataset, targets, counts)
    return ComparisonInput(counts, chosen, _shuffle(dataset, chosen, counts), tuple(windows), followed)


def _shuffle(dataset: Dataset, chosen: Mapping[str, Run], counts: TokenCounts) -> tuple[str, Order]:
    """The reference: one of the given runs if it is a shuffle, else the dataset's stored shuffle, else a new one."""
    shuffle = {SHUFFLE: make_run(dataset, SHUFFLE)} if SHUFFLE in dataset.orderings else {}
    shuffles = [(name, run) for name, run in {**chosen, **shuffle}.items() if is_shuffle(name, run)]
    if shuffles:
        return shuffles[0]
    return SHUFFLE, Ordering(uniform_shuffle(counts), {"method": SHUFFLE})


def _counts(run: Run, families: Sequence[str]) -> TokenCounts:
    """The counts of the given families, or of all families that the run's datasets balance."""
    if len(run.datasets) == 1:
        return run.datasets[0].token_counts(families)
    chars = run.characteristics
    for family in families:
        check_one_of("every family", family, chars.families)
    kept = {family: chars.counts[family] for family in families or chars.families}
    return replace(chars, counts=kept, weights=dict.fromkeys(kept, 1.0)) if families else chars


def _followed(dataset: Dataset, name: str, counts: TokenCounts) -> FollowedTargets:
    """The targets in an ordering's info, for the measured families."""
    stored_targets = dataset.find_ordering(name).info.get("targets")
    if stored_targets is None:
        raise UserError(
            f"Expected --targets to name an ordering that followed targets, found {name!r}, which followed "
            "none; make one with `jax-diversity order --targets.shares`."
        )
    shares = {
        family: np.array(phases) for family, phases in stored_targets["shares"].items() if family in counts.families
    }
    if not shares:
        raise UserError(
            f"Expected to measure a family with targets ({', '.join(stored_targets['shares'])}), found "
            f"{', '.join(counts.families)}; name the family after --families."
        )
    return FollowedTargets(name, Targets(tuple(stored_targets["starts"]), shares))


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


def compare_orderings(compared: ComparisonInput, progress: Progress) -> tuple[Comparison, Mapping[str, Curves]]:
    """Compare the orderings with a uniform shuffle, which is the first row; also returns the curves by name."""
    together, curves = _together(compared), dict[str, Curves]()

    def keep(name: str, measured: MeasuredOrder) -> None:
        curves[name] = short_curves(measured.curves)

    with _progress(progress, "measure", compared, together) as advance:
        comparison = compare(
            compared.counts,
            together,
            compared.windows,
            ("0", "half"),
            targets=compared.targets,
            advance=advance,
            keep=keep,
            stored=compared.known,
        )
    if compared.targets is not None:  # the shares of the whole run, from which weights may move it away
        families = compared.counts.families
        targeted = {name: named for name, run in together.items() if (named := targeted_families(run.info, families))}
        comparison = replace(comparison, targeted=targeted)
    return comparison, curves


@contextmanager
def _progress(
    progress: Progress, label: str, compared: ComparisonInput, together: Mapping[str, Order]
) -> Iterator[Advance]:
    """Show the progress of measuring, if there is something to measure."""
    unknown = [order for name, order in together.items() if name not in compared.known]
    if not unknown:
        yield ignore
        return
    with progress.task(label, sum(map(len, unknown)), "position") as advance:
        yield advance


def measure_orderings(
    compared: ComparisonInput, progress: Progress, *, profile: bool = False
) -> dict[str, dict[str, Any]]:
    """Measure the orderings for JSON: name -> `Balance.summary()` with additional values.

    The additional values are `gap_closed` (from the reference to the floor) for every window size, and in every family
    `curves` (see `short_curves`). `profile` adds `profile`: offset -> the fields of `WindowProfile`, lists with one
    value per size.
    """
    reference, shuffle = compared.reference
    together = {reference: shuffle, **compared.orders}
    summaries, short = dict[str, dict[str, Any]](), dict[str, Curves]()
    measurer: Measurer | None = None
    with _progress(progress, "measure", compared, together) as advance:
        for name, ordering in together.items():
            if (measured := compared.known.get(name)) is None:
                measurer = measurer or Measurer(compared.counts, compared.windows, compared.targets)
                measured = measurer.measure_in_short(ordering, advance)
            summaries[name], short[name] = copy.deepcopy(measured.summary), short_curves(measured.curves)
    for name, ordering in together.items():
        families = summaries[name]["families"]
        for family, curves in short[name].items():
            families[family]["curves"] = curves._asdict()
        if profile and name in compared.orders:
            for family, offsets in window_profile(compared.counts, ordering, targets=compared.targets).items():
                families[family]["profile"] = {
                    offset: {key: values.tolist() for key, values in of_offset._asdict().items()}
                    for offset, of_offset in offsets.items()
                }
        for family, values in families.items():
            for size, window in values["windows"].items():
                shuffled = summaries[reference]["families"][family]["windows"][size]["tv_mean"]
                window["gap_closed"] = gap_or_none(window["tv_mean"], shuffled, window["tv_floor"])
    if compared.followed is not None:
        for name, families in _beside_targets(compared, compared.followed, compared.orders, progress).items():
            plain = {
                family: {
                    "prefix_l2_max": balance.prefix_l2_max,
                    "windows": {str(size): tv for size, tv in balance.windows.items()},
                }
                for family, balance in families.items()
            }
            summaries[name]["targets"] = {"of": compared.followed.name, "families": plain}
    return {name: summaries[name] for name in compared.orders}


def measure_targets(
    compared: ComparisonInput, followed: FollowedTargets, progress: Progress
) -> dict[str, dict[str, FollowedBalance]]:
    """Compare the reference and the orderings with moving targets: ordering -> family with targets -> measures."""
    return _beside_targets(compared, followed, _together(compared), progress)


def _beside_targets(
    compared: ComparisonInput, followed: FollowedTargets, orders: Mapping[str, Order], progress: Progress
) -> dict[str, dict[str, FollowedBalance]]:
    measurer, balances = Measurer(compared.counts, compared.windows, followed.targets), {}
    with progress.task("measure targets", sum(map(len, orders.values())), "position") as advance:
        for name, ordering in orders.items():
            families = measurer.measure_in_short(ordering, advance).summary["families"]
            balances[name] = {
                family: FollowedBalance(
                    families[family]["prefix_l2_max"],
                    {
                        int(size): {part: tv[part] for part in ("tv_mean", "tv_best", "tv_worst")}
                        for size, tv in families[family]["windows"].items()
                    },
                )
                for family in followed.targets.shares
            }
    return balances


def profile_orderings(compared: ComparisonInput, progress: Progress) -> dict[str, dict[str, dict[int, float]]]:
    """Mean TV of aligned windows: family -> ordering (the reference is first) or `floor` -> size 1, 2, 4 ... -> TV."""
    counts, together = compared.counts, _together(compared)
    profiles: dict[str, dict[str, dict[int, float]]] = {family: {} for family in counts.families}
    with progress.task("measure all sizes", sum(map(len, together.values())), "position") as advance:
        for name, ordering in together.items():
            for family, offsets in window_profile(counts, ordering, advance, targets=compared.targets).items():
                aligned = offsets["0"]
                profiles[family][name] = dict(zip(aligned.sizes.tolist(), aligned.mean.tolist(), strict=True))
    for family, of_family in profiles.items():
        sizes = tuple(next(iter(of_family.values())))
        # Sequences of a run may repeat: its floor is computed from the sequences at all positions.
        order = None if compared.targets is None else compared.reference[1]
        of_family["floor"] = window_floors(counts, family, sizes, order, compared.targets)
    return profiles


def _together(compared: ComparisonInput) -> dict[str, Order]:
    """The reference and the orderings by name; folders are left out of file names if the names stay different."""
    short = {name: Path(name).name if name.endswith(".npy") else name for name in compared.orders}
    shared = Counter(short.values())
    shown = {name if shared[short[name]] > 1 else short[name]: order for name, order in compared.orders.items()}
    return {**dict([compared.reference]), **shown}

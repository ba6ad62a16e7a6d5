"""Orderings of a built dataset, chosen by name or file: compared, measured for JSON, and their batches' TV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from jax_diversity.dataset.dataset import Dataset, open_dataset
from jax_diversity.foundation.checks import one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Progress
from jax_diversity.measures.balance import Balance, Measurer
from jax_diversity.measures.comparison import SHUFFLE, Comparison, compare, gap_or_none, is_shuffle
from jax_diversity.measures.curves import envelope
from jax_diversity.measures.floors import window_floor
from jax_diversity.measures.followed import FollowedBalance, follow
from jax_diversity.measures.profile import window_profile
from jax_diversity.measures.windows import place, usable_windows, window_deviation
from jax_diversity.ordering.base import order
from jax_diversity.ordering.plan import Targets
from jax_diversity.schema import Characteristics, Ordering, Schedule


class FamilyCurves(NamedTuple):
    """One ordering in one family: prefix deviation, window size -> TV of aligned windows; `envelope`s of 100 points."""

    prefix_l2: Mapping[str, Sequence[float]]
    window_tv: Mapping[int, Mapping[str, Sequence[float]]]


Curves = Mapping[str, FamilyCurves]
"""Family -> curves of one ordering."""


class Followed(NamedTuple):
    """The targets of the ordering `name`, position by position."""

    name: str
    targets: Targets


@dataclass(frozen=True)
class Chosen:
    """Orderings (by name, or by file as it was given), and what they are measured by.

    The reference is a uniform shuffle, named, to compare with: among the orderings or made for the purpose.
    `targets` are shares to measure against in place of the corpus's own, `followed` moving ones to measure against
    besides.
    """

    characteristics: Characteristics
    orderings: Mapping[str, Ordering | Schedule]
    reference: tuple[str, Ordering | Schedule]
    windows: tuple[int, ...]
    followed: Followed | None = None
    targets: Mapping[str, Float64[np.ndarray, " group"]] | None = None


def choose_orderings(
    out: str | Path,
    names: Sequence[str] = (),
    files: Sequence[str] = (),
    windows: Sequence[int] = (),
    families: Sequence[str] = (),
    targets: str | None = None,
) -> Chosen:
    """Look up what to measure.

    `names` are those of the dataset's orderings or .npy files, `files` more .npy files; without names all of its
    orderings, without windows the sizes of the dataset's settings that fit twice, without families those that it
    balances. `targets` is the ordering whose targets all are measured against besides.
    """
    dataset = open_dataset(out)
    named = {name: dataset.find_plan(name) for name in names}
    found = (named or dict(dataset.orderings)) | {file: dataset.find_plan(Path(file)) for file in files}
    return choose(dataset, found, windows, families, targets)


def choose(
    dataset: Dataset,
    chosen: Mapping[str, Ordering | Schedule],
    windows: Sequence[int] = (),
    families: Sequence[str] = (),
    targets: str | None = None,
) -> Chosen:
    """As `choose_orderings`, of orderings and schedules that are read already."""
    for family in families:
        one_of("every family", family, dataset.group_names)
    chars = dataset.count_families(families) if families else dataset.characteristics
    # A gap is closed from one of the given shuffles, else from the dataset's own, else from one made here.
    of_dataset = {SHUFFLE: dataset.orderings[SHUFFLE]} if SHUFFLE in dataset.orderings else {}
    shuffles = [(name, each) for name, each in {**chosen, **of_dataset}.items() if is_shuffle(name, each)]
    reference = shuffles[0] if shuffles else (SHUFFLE, order(chars, SHUFFLE))
    if not windows:
        shortest = min([chars.num_sequences, *map(len, chosen.values())])
        windows = usable_windows(dataset.settings["windows"], shortest, dataset.batch_size)
    followed = None if targets is None else _followed(dataset, targets, chars)
    return Chosen(chars, chosen, reference, tuple(windows), followed)


def _followed(dataset: Dataset, name: str, chars: Characteristics) -> Followed:
    """The targets that an ordering's info holds, in the families that are measured."""
    about = dataset.find_ordering(name).info.get("targets")
    if about is None:
        raise UserError(
            f"Expected --targets to name an ordering that followed targets, found {name!r}, which has none; make one "
            "with `jax-diversity order --targets.shares`."
        )
    shares = {family: np.array(phases) for family, phases in about["shares"].items() if family in chars.families}
    if not shares:
        raise UserError(
            f"Expected to measure a family with targets ({', '.join(about['shares'])}), found "
            f"{', '.join(chars.families)}; name it after --families."
        )
    return Followed(name, Targets(tuple(about["starts"]), shares))


def short_curves(balance: Balance) -> Curves:
    """An ordering's curves in at most 100 points each; a window's position is its last."""
    return {
        family: FamilyCurves(
            envelope(prefix, max_points=100),
            {n: envelope(tv, n * np.arange(1, len(tv) + 1), 100) for n, tv in balance.window_tv[family].items()},
        )
        for family, prefix in balance.prefix_l2.items()
    }


def compare_orderings(chosen: Chosen, progress: Progress) -> tuple[Comparison, Mapping[str, Curves]]:
    """The chosen orderings beside a uniform shuffle, which comes first: figures, and curves by the same names."""
    if not chosen.orderings:
        raise UserError("Expected orderings to measure, found none; make one with `jax-diversity order`.")
    together, curves = _together(chosen), dict[str, Curves]()

    def keep(name: str, balance: Balance) -> None:
        curves[name] = short_curves(balance)

    with progress.task("measure", _num_positions(chosen, together), "positions") as advance:
        compared = compare(
            chosen.characteristics, together, chosen.windows, targets=chosen.targets, advance=advance, keep=keep
        )
        return compared, curves


def measure_orderings(chosen: Chosen, progress: Progress, *, profile: bool = False) -> dict[str, dict[str, Any]]:
    """The chosen orderings' figures, for JSON: name -> `Balance.summary()` and what is added to it.

    At every window size `gap_closed` (from the reference to the floor), in every family `curves` (`short_curves`)
    and, where asked for, `profile`: offset -> the fields of `WindowProfile`, lists of one value a size.
    """
    reference, shuffle = chosen.reference
    together = {reference: shuffle, **chosen.orderings}
    measurer = Measurer(chosen.characteristics, chosen.windows, chosen.targets)
    summaries: dict[str, dict[str, Any]] = {}
    with progress.task("measure", _num_positions(chosen, together), "positions") as advance:
        for name, ordering in together.items():
            balance = measurer.measure(ordering, advance)
            summaries[name] = balance.summary()
            families = summaries[name]["families"]
            for family, curves in short_curves(balance).items():
                families[family]["curves"] = curves._asdict()
            if profile and name in chosen.orderings:
                for family, offsets in window_profile(chosen.characteristics, ordering, targets=chosen.targets).items():
                    families[family]["profile"] = {
                        offset: {key: values.tolist() for key, values in of_offset._asdict().items()}
                        for offset, of_offset in offsets.items()
                    }
            # The reference is the first: its means are known for all.
            for family, values in families.items():
                for size, window in values["windows"].items():
                    shuffled = summaries[reference]["families"][family]["windows"][size]["tv_mean"]
                    window["gap_closed"] = gap_or_none(window["tv_mean"], shuffled, window["tv_floor"])
    if chosen.followed is not None:
        for name, ordering in chosen.orderings.items():
            plain = {
                family: {
                    "prefix_l2_max": found.prefix_l2_max,
                    "windows": {str(size): tv._asdict() for size, tv in found.windows.items()},
                }
                for family, found in _beside_targets(chosen, chosen.followed, ordering).items()
            }
            summaries[name]["targets"] = {"of": chosen.followed.name, "families": plain}
    return {name: summaries[name] for name in chosen.orderings}


def measure_targets(chosen: Chosen, followed: Followed, progress: Progress) -> dict[str, dict[str, FollowedBalance]]:
    """The reference and the chosen orderings beside targets: ordering -> family that has targets -> measures."""
    together, found = _together(chosen), {}
    with progress.task("measure targets", len(together), "orderings") as advance:
        for name, ordering in together.items():
            found[name] = _beside_targets(chosen, followed, ordering)
            advance(1)
    return found


def _beside_targets(chosen: Chosen, followed: Followed, ordering: Ordering | Schedule) -> dict[str, FollowedBalance]:
    chars, starts, found = chosen.characteristics, followed.targets.starts, {}
    for family, shares in followed.targets.shares.items():
        placed = place(chars.counts[family], ordering.indices)
        found[family] = follow(placed, starts, shares, chosen.windows, chars.sequence_length)
    return found


def profile_orderings(chosen: Chosen, progress: Progress) -> dict[str, dict[str, dict[int, float]]]:
    """Mean TV of aligned windows: family -> ordering (the reference first), and `floor` -> size 1, 2, 4 ... -> TV."""
    chars, together = chosen.characteristics, _together(chosen)
    profiles: dict[str, dict[str, dict[int, float]]] = {family: {} for family in chars.families}
    with progress.task("measure all sizes", _num_positions(chosen, together), "positions") as advance:
        for name, ordering in together.items():
            for family, offsets in window_profile(chars, ordering, advance, targets=chosen.targets).items():
                aligned = offsets["0"]
                profiles[family][name] = dict(zip(aligned.sizes.tolist(), aligned.mean.tolist(), strict=True))
    for family, of_family in profiles.items():
        counts, target = chars.counts[family], chars.target_share(family)
        if chosen.targets is not None:  # then a floor is of the positions' sequences, which may repeat
            counts, target = place(counts, chosen.reference[1].indices), chosen.targets[family]
        sizes = next(iter(of_family.values()))
        of_family["floor"] = {size: window_floor(counts, target, size, chars.sequence_length) for size in sizes}
    return profiles


def _together(chosen: Chosen) -> dict[str, Ordering | Schedule]:
    """The reference and the chosen orderings; a file by its name without folders where no other has the same."""
    short = {name: Path(name).name if name.endswith(".npy") else name for name in chosen.orderings}
    shared = Counter(short.values())
    shown = {name if shared[short[name]] > 1 else short[name]: each for name, each in chosen.orderings.items()}
    return {**dict([chosen.reference]), **shown}


def _num_positions(chosen: Chosen, together: Mapping[str, Ordering | Schedule]) -> int:
    """Positions that are walked over, each family's and each ordering's."""
    return sum(map(len, together.values())) * len(chosen.characteristics.families)


def batch_deviations(
    dataset: Dataset, ordering: str, global_batch_size: int, *, host_index: int = 0, num_hosts: int = 1
) -> dict[str, Float64[np.ndarray, " batch"]]:
    """TV of every whole batch of an epoch, or of a host's rows of it: family -> (num_sequences // B,).

    `ordering` is a name or a .npy file; `global_batch_size` is B, the sequences of a batch over all hosts.
    """
    # The window contract: host h of H reads rows [h B / H, (h + 1) B / H) of every global batch.
    chars, indices = dataset.characteristics, dataset.find_plan(ordering).indices
    num_batches, num_rows = len(indices) // global_batch_size, global_batch_size // num_hosts
    # A last batch that is not whole is left out, as in training.
    batches = indices[: num_batches * global_batch_size].reshape(num_batches, num_hosts, num_rows)
    rows = batches[:, host_index].reshape(-1)
    return {
        family: window_deviation(place(chars.counts[family], rows), chars.target_share(family), num_rows)
        for family in chars.families
    }

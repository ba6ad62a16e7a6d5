"""Mix the datasets of a run: each dataset in its own epochs, or jointly, in one order of all sequences.

A family is one kind of characteristics, such as topic clusters or sources; a group is one value of a family. A stratum
is the set of sequences in which a group has the largest number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.sparse import csr_array

from jax_diversity.counts import Characteristics
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.checks import as_tuple, as_weight, check_one_of
from jax_diversity.foundation.errors import UserError, did_you_mean, quoted
from jax_diversity.foundation.folders import distinct_ends
from jax_diversity.foundation.progress import ignore
from jax_diversity.ordering.curriculum import targets_of
from jax_diversity.ordering.settings import TargetsConfig
from jax_diversity.streaming.dataset import Dataset
from jax_diversity.streaming.run.interleaving import interleave
from jax_diversity.streaming.run.joining import joined_characteristics, joined_groups
from jax_diversity.streaming.run.settings import DATASET, Mixture
from jax_diversity.streaming.run.strata import History, Strata, mixed_positions, rounded
from jax_diversity.streaming.run.weights import check_limit, limited, named_weights, phases_of, tempered

_DATASET_WEIGHT = 0.3
"""λ of this family in joint orders, equal to the default λ of sources."""
_OWN_ORDER = 1 / 32
"""A stratum with at least this share of the positions has its own order, from which its parts are chosen."""
_SMALLEST_CHANGE = 0.02
"""The smallest TV between the datasets' shares before and after a change that is more than rounding."""

Numbers = Int64[np.ndarray, " _position"]
Epochs = Callable[[Dataset, Numbers], Iterator[Numbers]]
"""Returns the rest of a dataset's current epoch after the sequences that were used, then all later epochs."""
EpochOrder = Callable[[Dataset, int, Numbers | None], Numbers]
"""Orders an epoch of a dataset, from the epoch's number and the sequences that were read before it, in order."""
PartOrder = Callable[[Characteristics, int, int], Numbers]
"""Orders sequences. Its numbers are how many of the first sequences were already read, and an offset for the seed."""


def sized(mixture: Mixture, datasets: Sequence[Dataset]) -> tuple[Mixture, int]:
    """Return the mixture and the number of its positions; epochs by name become weights and a length.

    Raises:
        UserError: a name of no dataset; with weights, epochs of several datasets, weights in phases, or a dataset of
            weight 0; without weights, a dataset without a number of epochs.
    """
    if not isinstance(mixture.num_epochs, Mapping):
        return mixture, mixture.num_positions_of(datasets)
    names, sizes = _names(datasets), _sizes(datasets).astype(np.float64)
    epochs_by_name = {
        str(name): as_weight(f"num_epochs of {name}", value) for name, value in mixture.num_epochs.items()
    }
    for name in epochs_by_name:
        if name not in names:
            raise UserError(
                f"Expected num_epochs to name datasets, found {quoted(name)}; there are {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )
    if mixture.weights is None:
        if missing := [name for name, size in zip(names, sizes, strict=True) if size and name not in epochs_by_name]:
            raise UserError(
                f"Expected num_epochs for every dataset, or weights, found none for {', '.join(missing)}; name it too "
                "(0 leaves it out), or give weights."
            )
        num_positions = np.array([epochs_by_name.get(name, 0.0) for name in names]) * sizes
        mixture, total = replace(mixture, weights=num_positions.tolist()), float(num_positions.sum())
    else:
        if len(epochs_by_name) != 1:
            raise UserError(
                f"Expected num_epochs of one dataset with weights, found {len(epochs_by_name)}: weights set the epochs "
                "of the others; leave the weights out, or name one dataset."
            )
        ((name, epochs),) = epochs_by_name.items()
        starts, shares = _phases(mixture, names, sizes, 1)
        share = float(shares[0, names.index(name)])
        if len(starts) > 1 or not share:
            raise UserError(
                f"Expected one weight above zero for {name}, whose epochs set the length of the run, found "
                f"{'weights in phases' if len(starts) > 1 else 'weight 0'}; give num_positions."
            )
        total = epochs * float(sizes[names.index(name)]) / share
    if mixture.num_positions is not None:
        raise UserError("Expected num_epochs or num_positions, found both; choose one.")
    if not round(total):
        raise UserError(f"Expected num_epochs to give at least one position, found {quoted(mixture.num_epochs)}.")
    return mixture, replace(mixture, num_epochs=None, num_positions=round(total)).num_positions_of(datasets)


def has_own_shares(mixture: Mixture, datasets: Sequence[Dataset], history: Numbers) -> bool:
    """Return whether weights change the mixture after a history, along the run, or from that of the only dataset."""
    weights = mixture.weights
    if mixture.consecutive:
        return False
    num_phases = len(weights.starts) if isinstance(weights, Targets) else getattr(weights, "num_phases", 1)
    if num_phases > 1:
        return True
    if mixture.family != DATASET:
        return (len(datasets) == 1 or len(history) > 0) and (weights is not None or mixture.temperature != 1)
    if not len(history):
        return False
    sizes = _sizes(datasets)
    num_read = np.bincount(np.searchsorted(np.cumsum(sizes), history, side="right"), minlength=len(sizes))
    shares = _phases(mixture, _names(datasets), sizes.astype(np.float64), 1)[1][0]
    return bool(np.abs(num_read / len(history) - shares).sum() / 2 > _SMALLEST_CHANGE + len(sizes) / len(history))


def in_turn(
    mixture: Mixture, datasets: Sequence[Dataset], history: Numbers, count: int, epochs: Epochs
) -> Iterator[Numbers]:
    """Yield the next `count` positions after a history; each dataset has its own epochs."""
    sizes = _sizes(datasets)
    bounds = np.append(0, np.cumsum(sizes))
    num_read = np.bincount(np.searchsorted(bounds, history, side="right") - 1, minlength=len(sizes))
    starts, shares = _phases(mixture, _names(datasets), sizes.astype(np.float64), count)
    _check_lengths([dataset for dataset, share in zip(datasets, shares.max(axis=0), strict=True) if share > 0])
    shares = _within_limit(mixture, shares, sizes, num_read, count)
    chosen = interleave(starts, shares, count, mixture.interleaving, ignore)
    _check_limit(mixture, np.bincount(chosen, minlength=len(sizes)), num_read, sizes, _names(datasets))
    streams = {}
    for start in range(0, count, bounds[-1]):  # one epoch at a time, so that it is stored before the next is made
        piece = chosen[start : start + bounds[-1]]
        numbers = np.empty(len(piece), np.int64)
        for index in np.unique(piece).tolist():
            if index not in streams:
                used = history[(history >= bounds[index]) & (history < bounds[index + 1])] - bounds[index]
                streams[index] = NumberQueue(epochs(datasets[index], used))
            places = np.flatnonzero(piece == index)
            numbers[places] = streams[index].take(len(places)) + bounds[index]
        yield numbers


def unread(mixture: Mixture, datasets: Sequence[Dataset], num_read: Numbers, count: int) -> list[str]:
    """Describe the datasets that no position of a run reads, by name and, where it is known, by share."""
    names, sizes = _names(datasets), _sizes(datasets)
    lacking = np.flatnonzero((num_read == 0) & (sizes > 0)).tolist()
    if not lacking or mixture.consecutive or mixture.family != DATASET:
        return [repr(names[index]) for index in lacking]
    shares = _phases(mixture, names, sizes.astype(np.float64), count)[1].max(axis=0)
    return [f"{names[index]!r} (share {shares[index]:.2g})" for index in lacking]


def consecutively(datasets: Sequence[Dataset], history: Numbers, count: int, order: EpochOrder) -> Iterator[Numbers]:
    """Yield the next `count` positions after a history: whole epochs, from one dataset after another.

    The next dataset is the one with the fewest epochs so far; ties go to the first.
    """
    _check_lengths(datasets)
    sizes = _sizes(datasets)
    bounds = np.append(0, np.cumsum(sizes))
    of_history = np.searchsorted(bounds, history, side="right") - 1
    times = np.split(np.bincount(history, minlength=bounds[-1]), bounds[1:-1])
    epochs = np.array([int(times_of_dataset.min()) if len(times_of_dataset) else 0 for times_of_dataset in times])
    if any(np.ptp(times_of_dataset) for times_of_dataset in times if len(times_of_dataset)):
        raise UserError(
            "Expected a position between two epochs, found a position within the epoch of a dataset; extend the "
            "schedule between two epochs, or give weights instead of consecutive."
        )
    before = None
    if len(history):
        last = int(of_history[-1])
        before = datasets[last], history[of_history == last][-sizes[last] :] - bounds[last]
    while count > 0:
        turn = int(np.where(sizes > 0, epochs, np.iinfo(np.int64).max).argmin())
        dataset = datasets[turn]
        numbers = order(dataset, int(epochs[turn]), None if before is None else _as_read(dataset, *before))
        yield numbers[:count] + bounds[turn]
        before, count = (dataset, numbers), count - len(numbers)
        epochs[turn] += 1


def jointly(
    mixture: Mixture, datasets: Sequence[Dataset], history: Numbers, count: int, order: PartOrder
) -> Iterator[Numbers]:
    """Yield the next `count` positions after a history, in one order over the sequences of all datasets."""
    _check_feature_space(datasets)
    chars, sizes = joint_characteristics(datasets), _sizes(datasets)
    names, counts = _names(datasets), _one_column_each(datasets)
    if mixture.family != DATASET:
        check_one_of("family", mixture.family, (DATASET, *(name for name in chars.families if name != DATASET)))
        names, counts = joined_groups(datasets, mixture.family), chars.counts[mixture.family]
    strata = Strata.build(counts, names, mixture.family)
    past = History.of(history, int(sizes.sum()))
    num_wanted = _asked(mixture, strata, strata.given(past), count)
    comes = np.sum(num_wanted, axis=0)[strata.of_sequence] > 0
    _check_lengths([datasets[index] for index in np.unique(np.repeat(np.arange(len(sizes)), sizes)[comes])])

    def ordered(recent: Numbers, part: Numbers) -> Numbers:
        rows = np.concatenate([recent, part])
        return rows[order(chars.take(rows), len(recent), past.num_positions)]

    # If one part contains every sequence once, no choice by rank is needed.
    all_at_once = len(num_wanted) == 1 and not len(history) and np.array_equal(num_wanted[0], strata.sizes)
    rank = (
        np.zeros(len(past.times), np.int64)
        if all_at_once
        else _ranks(strata, np.sum(num_wanted, axis=0) / count, ordered)
    )
    yield from mixed_positions(strata, num_wanted, past, rank, ordered)


def _phases(
    mixture: Mixture, names: Sequence[str], tokens: Float64[np.ndarray, " group"], count: int
) -> tuple[tuple[int, ...], Float64[np.ndarray, "phase group"]]:
    """The start and the shares of each phase of the next `count` positions."""
    weights: Any = mixture.weights
    if weights is None:
        return (0,), tempered(tokens, mixture.temperature)[None]
    if isinstance(weights, Mapping) or any(isinstance(weight, str) for weight in as_tuple(weights)):
        weights = named_weights(weights, names, tokens, mixture.family)
    elif isinstance(weights, TargetsConfig):
        shares = {mixture.family: tokens / max(tokens.sum(), 1)}
        weights = targets_of(weights, {mixture.family: names}, shares, count)
    elif mixture.family != DATASET and not isinstance(weights, Targets):
        raise UserError(
            f"Expected weights of {mixture.family} by name, such as {{{names[0]!r}: 1}}, found {weights!r}."
        )
    return phases_of(weights, tokens.tolist(), mixture.family)


def _asked(mixture: Mixture, strata: Strata, num_read: Numbers, count: int) -> list[Numbers]:
    """The number of positions of each stratum in every phase."""
    starts, shares = _phases(mixture, strata.names, strata.group_tokens, count)
    if mixture.weights is None:
        # The temperature applies to the tokens of the strata's own sequences, so that a limit holds exactly.
        tokens = strata.tokens.sum(axis=1)
        tempered_sizes = tempered(tokens, mixture.temperature) * strata.sizes / np.maximum(tokens, 1)
        within = _within_limit(mixture, tempered_sizes[None] / tempered_sizes.sum(), strata.sizes, num_read, count)
        return [rounded(within[0] * count, count)]
    ends = [min(end, count) for end in (*starts[1:], count)]
    lengths = [max(end - start, 0) for start, end in zip(starts, ends, strict=True)]
    num_wanted = [
        strata.positions(shares_of_phase, length) for shares_of_phase, length in zip(shares, lengths, strict=True)
    ]
    _check_limit(mixture, np.sum(num_wanted, axis=0), num_read, strata.sizes, strata.names)
    return num_wanted


def _within_limit(
    mixture: Mixture, shares: Float64[np.ndarray, "phase group"], sizes: Numbers, num_read: Numbers, count: int
) -> Float64[np.ndarray, "phase group"]:
    """Reduce shares to the limit if the user gave no weights; the other groups get the excess of a group."""
    if mixture.weights is not None or mixture.max_repeats is None:
        return shares
    return limited(shares[0], (mixture.max_repeats * sizes - num_read).clip(0) / count)[None]


def _check_limit(
    mixture: Mixture, num_wanted: Numbers, num_read: Numbers, sizes: Numbers, names: Sequence[str]
) -> None:
    # Shares that `_within_limit` reduced are not checked again: rounding can add one position too many.
    if mixture.max_repeats is not None and mixture.weights is not None:
        check_limit(mixture.max_repeats, num_wanted, num_read, sizes, names, mixture.family)


class NumberQueue:
    """A queue of numbers: they are added in pieces of any size, and taken in pieces of other sizes."""

    def __init__(self, pieces: Iterator[Numbers]) -> None:
        self._pieces, self._left = pieces, np.zeros(0, np.int64)

    def take(self, count: int) -> Numbers:
        """Return the next `count` numbers and remove them from the queue."""
        taken = [self._left]
        while sum(map(len, taken)) < count:
            taken.append(next(self._pieces))
        joined = np.concatenate(taken)
        self._left = joined[count:]
        return joined[:count]


def _as_read(dataset: Dataset, other: Dataset, numbers: Numbers) -> Numbers | None:
    """The sequences of a dataset in the order in which an epoch of another packing read their documents.

    Returns None if the datasets have different documents.
    """
    if dataset.fingerprint == other.fingerprint:
        return numbers
    documents = [packed.manifest["stages"]["prepare"]["fingerprint"] for packed in (dataset, other)]
    documents_of_own, read = dataset.characteristics.documents, other.characteristics.documents
    if documents[0] != documents[1] or documents_of_own is None or read is None:
        return None
    # The sequences of a document get the places of the same document in the other packing, the last place first.
    places = np.lexsort((-np.arange(len(numbers)), read[numbers]))
    in_order = np.argsort(documents_of_own, kind="stable")
    width = max(len(documents_of_own), len(read))
    read_as, numbered = (_numbered(groups, width) for groups in (read[numbers][places], documents_of_own[in_order]))
    places_found = np.searchsorted(read_as, numbered).clip(max=len(read_as) - 1)
    place = np.full(len(documents_of_own), -1)
    place[in_order] = np.where(read_as[places_found] == numbered, places[places_found], -1)
    return np.argsort(place, kind="stable")


def _numbered(ascending: Numbers, width: int) -> Numbers:
    """Numbers for the members of ascending groups of at most `width` members: group * width + place in the group."""
    return (ascending + 1) * width + np.arange(len(ascending)) - np.searchsorted(ascending, ascending)


def _ranks(
    strata: Strata, shares: Float64[np.ndarray, " stratum"], ordered: Callable[[Numbers, Numbers], Numbers]
) -> Numbers:
    """The rank of every sequence in a balanced order of its stratum: every slice has the mixture of the stratum.

    Strata with small shares of the positions have one common order, because their slices have little effect.
    """
    large = np.flatnonzero((shares >= _OWN_ORDER) & (strata.sizes > 0))
    rank = np.empty(len(strata.of_sequence), np.int64)
    few = np.flatnonzero(~np.isin(strata.of_sequence, large))
    for members in (few, *(np.flatnonzero(strata.of_sequence == stratum) for stratum in large)):
        if len(members):
            rank[ordered(members[:0], members)] = np.arange(len(members))
    return rank


def _sizes(datasets: Sequence[Dataset]) -> Int64[np.ndarray, " dataset"]:
    return np.array([dataset.num_sequences for dataset in datasets], np.int64)


def _names(datasets: Sequence[Dataset]) -> tuple[str, ...]:
    return distinct_ends([dataset.address for dataset in datasets])


def joint_characteristics(datasets: Sequence[Dataset]) -> Characteristics:
    """The counts that a joint order balances: the common families; for several datasets also a family of the datasets.

    Raises:
        UserError: the errors of `joined_characteristics`.
    """
    chars = joined_characteristics(datasets)
    if len(datasets) == 1:
        return chars
    weights = {**chars.weights, DATASET: _DATASET_WEIGHT}
    return replace(chars, counts={**chars.counts, DATASET: _one_column_each(datasets)}, weights=weights)


def _one_column_each(datasets: Sequence[Dataset]) -> csr_array:
    """The tokens of every sequence in the column of its dataset."""
    sizes = _sizes(datasets)
    tokens = np.concatenate([dataset.characteristics.tokens for dataset in datasets])
    entries = (tokens, np.repeat(np.arange(len(sizes)), sizes), np.arange(len(tokens) + 1))
    return csr_array(entries, shape=(len(tokens), len(sizes)))


def _check_lengths(datasets: Sequence[Dataset]) -> None:
    lengths = sorted({dataset.sequence_length for dataset in datasets})
    if len(lengths) > 1:
        first = datasets[0].sequence_length
        raise UserError(
            "Expected datasets with a weight above zero to have sequences of one length, found lengths "
            f"{lengths}; give datasets of another length weight 0, and extend the schedule with them afterwards, or "
            f"build them again with --packing.sequence-length {first}."
        )


def _check_feature_space(datasets: Sequence[Dataset]) -> None:
    for dataset in datasets[1:]:
        if dataset.feature_space != datasets[0].feature_space:
            raise UserError(
                f"Expected datasets of one feature space for a joint order, found another in {dataset.root} than in "
                f"{datasets[0].root}; build it with features_from={datasets[0].root}, or mix them without `joint`."
            )

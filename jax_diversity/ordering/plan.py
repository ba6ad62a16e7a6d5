"""The targets of every position of a run, and the sequences that were consumed before it.

The *target* is a share for each group. It may change during training (a curriculum, a new estimate of the mixture). A
selector follows the sum of the targets: after t positions the deviation is `Σ_{i<t} (c_i - τ(i) t_i)`. Here c_i are the
token counts of the sequence at position i, t_i is its number of tokens, and τ(i) is the target at position i. A run may
begin at position k, after the sequences `consumed`. It then starts from the deviation of these sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.counts import Characteristics, TokenCounts
from jax_diversity.counts.targets import FAMILY_TO_SHARES, Targets, as_shares
from jax_diversity.foundation.checks import check_mapping, check_one_of
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.objective import Objective
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import as_integers


@dataclass(frozen=True)
class Plan:
    """The features of all sequences (with the first phase's targets), the phases, and the consumed sequences.

    `starts` and `targets` are the first position and the targets τ of each phase. The last column of `targets` is the
    mean norm. `carried` is the deviation before the first position: zero, except in a part of a larger run.
    `head_start` is, for every group that is kept apart, the number of tokens by which the previous epoch, or the
    earlier parts, put it ahead of its share.
    """

    features: Features
    starts: tuple[int, ...]
    targets: Float64[np.ndarray, "phase column"]
    consumed: Int64[np.ndarray, " consumed"]
    carried: Float64[np.ndarray, " column"]
    head_start: Int64[np.ndarray, " group"]

    @classmethod
    def build(
        cls,
        characteristics: Characteristics,
        objective: Objective,
        targets: Targets | Mapping[str, Any] | None = None,
        consumed: Any = None,
        previous: Any = None,
    ) -> Plan:
        """Check that targets, consumed sequences and the previous epoch fit the characteristics, and make the plan.

        A plain mapping of shares holds from the first position after the consumed sequences. In the mapping's families,
        the consumed sequences are treated as if they had met their target: the run starts without a deficit. In all
        other families they are compared with the corpus's shares.
        """
        num_sequences = characteristics.num_sequences
        consumed = np.zeros(0, np.int64) if consumed is None else as_consumed(consumed, num_sequences)
        features = Features.build(characteristics, objective)
        head_start = _head_start(features, None if previous is None else as_epoch(previous, num_sequences))
        carried = np.zeros(len(features.targets))
        if targets is None:
            return cls(features, (0,), features.targets[None], consumed, carried, head_start)
        seen, norm_means = np.zeros(0), None
        if not isinstance(targets, Targets) and len(consumed):
            seen = features.totals(consumed)
            if characteristics.families[0] in targets and len(consumed) < num_sequences:
                left = np.ones(num_sequences, bool)
                left[consumed] = False
                norms = features.norms.astype(np.float64)
                norm_means = (float(norms[consumed].mean()), float(norms[left].mean()))
        families = characteristics.families
        starts, table = target_table(
            targets, features.targets, features.family_columns, families, len(consumed), seen, norm_means
        )
        return cls(replace(features, targets=table[0]), starts, table, consumed, carried, head_start)

    @property
    def fingerprint(self) -> str:
        """A hash of the targets, the consumed sequences and the head start from the previous epoch."""
        parts = [repr(self.starts).encode(), self.targets.tobytes(), self.consumed.tobytes()]
        if self.head_start.any():
            parts.append(self.head_start.tobytes())
        return hashlib.sha256(b"".join(parts)).hexdigest()

    def counts_fingerprint(self, counts: TokenCounts) -> str:
        """Return the fingerprint of the counts of this plan."""
        return counts.fingerprint

    def in_parts(
        self, order_part: Callable[[PlannedPart], Int64[np.ndarray, " _remaining"]], advance: Advance
    ) -> Int64[np.ndarray, " _remaining"]:
        """Order the remaining sequences: this plan is the only part of its order, see `chunks.ChunkedPlan`."""
        return order_part(PlannedPart(0, self, None, 0, True))

    def remaining_totals(self, families: Sequence[str]) -> tuple[dict[str, Int64[np.ndarray, " _group"]], int]:
        """Return the tokens of some families' groups, and all tokens, of the sequences that are not consumed."""
        features, rows = self.features, self.remaining
        totals = features.totals(rows).astype(np.int64)
        return {name: totals[features.family_columns[name]] for name in families}, int(features.tokens[rows].sum())

    def plain_targets(self, families: Sequence[str]) -> dict[str, Any]:
        """Return the starts and some families' shares as JSON values for `Targets`.

        Shares have six digits, which is more than the measures show.
        """
        return plain_targets(self.starts, self.targets, {name: self.features.family_columns[name] for name in families})

    @property
    def num_positions(self) -> int:
        """Number of positions of the whole ordering, including the consumed sequences."""
        return self.features.num_sequences

    @property
    def span(self) -> tuple[int, int]:
        """The first position after the consumed sequences, and the end."""
        return len(self.consumed), self.num_positions

    @property
    def remaining(self) -> Int64[np.ndarray, " remaining"]:
        """The sequences that are not consumed, ascending."""
        return self.without(self.consumed)

    def without(self, placed: Int64[np.ndarray, " position"]) -> Int64[np.ndarray, " _left"]:
        """Return all sequences that are not placed, ascending."""
        left = np.ones(self.num_positions, bool)
        left[placed] = False
        return np.flatnonzero(left)

    def renumbered(self, numbers: Int64[np.ndarray, " sequence"]) -> Plan:
        """Return the plan of the same run with `numbers[i]` as the i-th sequence; `numbers` is a permutation."""
        return replace(self, features=self.features.take(numbers), consumed=inverse(numbers)[self.consumed])

    def phases(self, first_position: int) -> Iterator[tuple[int, int, Features]]:
        """Yield the start, the stop and the features of every phase, from a position on."""
        stops = (*self.starts[1:], self.num_positions)
        for start, stop, targets in zip(self.starts, stops, self.targets, strict=True):
            start, stop = max(start, first_position), min(stop, self.num_positions)
            if start < stop:
                yield start, stop, replace(self.features, targets=targets)

    def excess(self, placed: Sequence[int] | Int64[np.ndarray, " position"], first_position: int = 0) -> np.ndarray:
        """Return the sum (float64) of the excesses of sequences at consecutive positions from `first_position` on."""
        placed = np.asarray(placed, np.int64)
        last = first_position + len(placed)
        total = np.zeros(self.targets.shape[1])
        # Each sequence is compared with the target of the phase in which it is placed.
        for start, stop, features in self.phases(first_position):
            if start < last:
                total += features.excess(placed[start - first_position : min(stop, last) - first_position])
        return total

    def part(
        self,
        sequences: Int64[np.ndarray, " _part"],
        first_position: int,
        before: PrefixSums,
        last_before: Int64[np.ndarray, " _last"],
    ) -> Plan:
        """Return the plan of the positions from `first_position` on, which get only the given sequences.

        Args:
            sequences: the part's sequences; the plan numbers them in this order, after `last_before`.
            first_position: the part's first position.
            before: sums over the sequences of all earlier positions but for `last_before`.
            last_before: the sequences at the last positions before the part, if windows reach back to them.
        """
        first_position -= len(last_before)
        rows = np.concatenate([last_before, sequences])
        apart, groups = self.features.apart.only(rows)
        # P_g - τ_g S, rounded to tokens, of the groups that have sequences in this part.
        head_start = self.head_start + before.of_groups - np.round(self.features.apart.share * before.tokens)
        phases, starts = phases_between(self.starts, first_position, len(rows))
        return replace(
            self,
            features=replace(self.features.take(rows, apart), targets=self.targets[phases.start]),
            starts=starts,
            targets=self.targets[phases],
            consumed=np.arange(len(last_before)),
            carried=self.carried + before.excess,
            head_start=head_start[groups].astype(np.int64),
        )

    def straightened(self, start: Float64[np.ndarray, " column"], end: Float64[np.ndarray, " column"]) -> Plan:
        """Return a part's plan with targets by which the deviation goes in a straight line from `start` to `end`.

        While the target of one family moves, other families cannot keep theirs: their deviation grows from part to
        part. A pool that starts from such a deviation would try to remove it at once, with unbalanced windows. The
        part's sequences are given, so the best that it can do is to change the deviation evenly.

        Args:
            start: the deviation before the part.
            end: the deviation after the part.
        """
        rows, change = self.remaining, end - start
        tokens, number = max(int(self.features.tokens[rows].sum()), 1), max(len(rows), 1)
        targets = self.targets + np.append(change[:-1] / tokens, change[-1] / number)
        features = replace(self.features, targets=targets[0])
        return replace(self, features=features, targets=targets, carried=self.carried - start)

    def before(self, placed: Int64[np.ndarray, " position"], first_position: int = 0) -> PrefixSums:
        """Return the sums over sequences at consecutive positions from `first_position` on."""
        features = self.features
        group, tokens = features.apart.group[:, placed], features.tokens[placed]
        num_groups = len(features.apart.share)
        of_groups = np.bincount(group.ravel(), np.tile(tokens, len(group)), minlength=num_groups + 1)[:num_groups]
        return PrefixSums(self.excess(placed, first_position), of_groups.astype(np.int64), int(tokens.sum()))


class PlannedPart(NamedTuple):
    """A part of an order: the plan of its sequences, and what the balanced stream of a longer order needs to know.

    Attributes:
        number: the number of the part.
        plan: the plan of the part's sequences.
        deviation: the deviation before the part that its stream corrects; None if the part is the whole order, or if
            its targets change.
        capacity: the largest number of sequences of a part. Parts with equal capacities share compiled programs.
        follows: whether targets or consumed sequences may need other mixtures than the part's own.
    """

    number: int
    plan: Plan
    deviation: Float64[np.ndarray, " column"] | None
    capacity: int
    follows: bool


def target_table(
    targets: Targets | Mapping[str, Any],
    corpus_shares: Float64[np.ndarray, " column"],
    family_columns: Mapping[str, slice],
    families: Sequence[str],
    num_consumed: int,
    seen: Float64[np.ndarray, " _column"],
    norm_means: tuple[float, float] | None,
) -> tuple[tuple[int, ...], Float64[np.ndarray, "phase column"]]:
    """Return the first position and the targets of every phase; the norm column is last.

    Args:
        targets: as in `Plan.build`.
        corpus_shares: the corpus's own shares and the mean norm.
        family_columns: the columns of every family that the objective weighs.
        families: the families of the corpus.
        num_consumed: the number of consumed sequences.
        seen: their tokens in every column; used only with a mapping.
        norm_means: the mean norms of the consumed and of the remaining sequences, if both exist.
    """
    if from_here_on := not isinstance(targets, Targets):
        check_mapping("targets", targets, FAMILY_TO_SHARES)
        if unknown := set(targets) - set(families):
            raise UserError(f"Targets name unknown families {sorted(unknown)}; the families are {list(families)}.")
        targets = Targets((0,), {name: as_shares(name, [shares], 1) for name, shares in targets.items()})
    # Families without targets, and the norm column, keep the corpus's own shares in all phases.
    table = np.repeat(corpus_shares[None], len(targets.starts), axis=0)
    for name, shares in targets.shares.items():
        if name not in family_columns:
            weighed = ", ".join(family_columns)
            raise UserError(f"Targets name the family {name!r}; the objective weighs {weighed}.")
        columns = family_columns[name]
        if shares.shape[1] != columns.stop - columns.start:
            raise UserError(
                f"Expected target shares of {columns.stop - columns.start} groups of {name!r}, found {shares.shape[1]}."
            )
        table[:, columns] = shares
    starts = targets.starts
    if from_here_on and num_consumed:
        starts, table = (0, num_consumed), np.repeat(table, 2, axis=0)
        for name in targets.shares:
            columns = family_columns[name]
            # The target of the consumed sequences is their own mixture, so their deviation is zero. If they have no
            # tokens, any target is valid.
            if seen[columns].any():
                table[0, columns] = seen[columns] / seen[columns].sum()
        if families[0] in targets.shares and norm_means is not None:
            # The norms belong to the first family. Therefore the norms of consumed and of remaining sequences are each
            # compared with their own mean.
            table[:, -1] = norm_means
    return starts, table


def plain_targets(
    starts: Sequence[int], table: Float64[np.ndarray, "phase column"], columns: Mapping[str, slice]
) -> dict[str, Any]:
    """Return the starts and some families' shares as JSON values, see `Plan.plain_targets`."""
    rows = {name: table[:, its].tolist() for name, its in columns.items()}
    shares = {name: [[float(f"{share:.6g}") for share in row] for row in phases] for name, phases in rows.items()}
    return {"starts": list(starts), "shares": shares}


def phases_between(starts: Sequence[int], first_position: int, number: int) -> tuple[slice, tuple[int, ...]]:
    """Return the phases of some consecutive positions, and their starts, counted from the first position."""
    part_starts = np.maximum(np.subtract(starts, first_position), 0)
    phases = slice(int(np.searchsorted(part_starts, 0, side="right")) - 1, int(np.searchsorted(part_starts, number)))
    phases = slice(phases.start, max(phases.stop, phases.start + 1))
    return phases, tuple(part_starts[phases].tolist())


class PrefixSums(NamedTuple):
    """Sums over sequences: of their excesses, of the tokens of every group that is kept apart, and of all tokens."""

    excess: Float64[np.ndarray, " column"]
    of_groups: Int64[np.ndarray, " group"]
    tokens: int

    def plus(self, other: PrefixSums) -> PrefixSums:
        """Add the sums over other sequences."""
        return PrefixSums(self.excess + other.excess, self.of_groups + other.of_groups, self.tokens + other.tokens)

    def minus(self, other: PrefixSums) -> PrefixSums:
        """Subtract the sums over some of the sequences."""
        return PrefixSums(self.excess - other.excess, self.of_groups - other.of_groups, self.tokens - other.tokens)


def tie_numbers(num_sequences: int, ties: str, seed: int | Sequence[int]) -> Int64[np.ndarray, " sequence"]:
    """Return the sequences in the order in which a selector places them if their scores are equal.

    Packing gives the sequences of a long document neighbouring indices and equal counts. In the packing's order, the
    sequences of the document would be placed from its start to its end.

    Args:
        num_sequences: number of sequences.
        ties: `random` is a random order, `lowest` is the packing's order.
        seed: for the random order.

    Raises:
        UserError: `ties` has another value.
    """
    check_one_of("ties", ties, ("random", "lowest"))
    if ties == "lowest":
        return np.arange(num_sequences)
    # We use a spawned generator, so that its numbers differ from the numbers that methods draw with the seed itself.
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,))).permutation(num_sequences)


def _head_start(features: Features, previous: Int64[np.ndarray, " position"] | None) -> Int64[np.ndarray, " group"]:
    """Return the head start of every group that is kept apart, after the order of the previous epoch if it is given."""
    apart = features.apart
    num_groups = len(apart.share)
    if previous is None or not num_groups:
        return np.zeros(num_groups, np.int64)
    last = np.zeros(num_groups + 1, np.int64)
    for group in apart.group:  # positions ascend, so the last position of a group remains
        last[group[previous]] = np.maximum(last[group[previous]], np.arange(len(previous)))
    sizes = np.bincount(apart.group.ravel(), minlength=num_groups + 1)[:num_groups]
    return group_head_start(features, last[:num_groups], sizes, len(previous))


def group_head_start(
    features: Features,
    last: Int64[np.ndarray, " group"],
    sizes: Int64[np.ndarray, " group"],
    num_positions: int,
) -> Int64[np.ndarray, " group"]:
    """Return, for every group that is kept apart, by how many tokens it is ahead of its share when an epoch begins.

    At the end of an epoch all tokens of every group are placed, so that the next epoch would begin without any
    deviation. If a group's last sequence was at the end of the previous epoch, the group begins half a sequence ahead
    of its share. If its last sequence was one even spacing before the end, the group begins half a sequence behind.

    Args:
        features: the sequences and their groups: of all sequences, or of the first part of the order.
        last: the last position of every group in the previous epoch.
        sizes: the number of sequences of every group in the whole epoch.
        num_positions: the number of positions of the epoch.
    """
    group = features.apart.group
    spacings_ago = (num_positions - 1 - last) * sizes / num_positions
    in_features = np.bincount(group.ravel(), minlength=len(sizes) + 1)[: len(sizes)]
    mean_tokens = features.apart.share * features.tokens.sum() / in_features
    return np.round(mean_tokens * (0.5 - np.minimum(spacings_ago, 1.0))).astype(np.int64)


def inverse(permutation: Int64[np.ndarray, " sequence"]) -> Int64[np.ndarray, " sequence"]:
    """Return the place of every sequence in a permutation."""
    places = np.empty_like(permutation)
    places[permutation] = np.arange(len(permutation))
    return places


def as_epoch(previous: Any, num_sequences: int) -> Int64[np.ndarray, " position"]:
    """Return the order of the previous epoch; raise an error if it does not contain all sequences."""
    ordering = previous if isinstance(previous, Ordering) else Ordering(previous)
    if len(ordering) != num_sequences:
        raise UserError(
            f"Expected the previous epoch as an ordering of {num_sequences} sequences, found one of {len(ordering)}."
        )
    return ordering.indices


def as_consumed(consumed: Any, num_sequences: int) -> Int64[np.ndarray, " consumed"]:
    """Return the indices of consumed sequences; raise an error if they are not integers in range, each once."""
    try:
        indices = as_integers("consumed sequences", consumed, below=num_sequences)
    except ValueError as error:  # NumPy also raises it, for rows of different lengths
        raise UserError(f"Expected consumed sequences as indices of sequences: {error}") from None
    # One counting pass is faster than a sort: there may be many millions of consumed sequences.
    times = np.bincount(indices, minlength=num_sequences)
    if times.max(initial=0) > 1:
        raise UserError(f"Expected each consumed sequence once, found {int(times.argmax())} {times.max()} times.")
    return indices

"""Mixtures of groups or datasets: the share of each, and the sequences in each part of a run.

A family is one kind of characteristics, such as sources; a group is one value of a family. A mixture gives every group
of one family (or every dataset) a share of the tokens. A sequence belongs to the *stratum* of the group that has the
largest number of its tokens. `T[s, g]` is the mean number of tokens of group g in a sequence of stratum s.
The numbers of positions `x[s]` of the strata solve `T' x = τ Σ T' x` with `x >= 0` (non-negative least squares): a
sequence with several groups counts for each of them.

If the sequences of a stratum are read more than once, the next one is always the sequence that was read least often.
If there are several such sequences, the one that was read longest ago comes next. The run is divided into parts so that
a part contains at most half of the sequences of any stratum. Two consecutive parts then contain no sequence twice. The
distance between a sequence and its repetition is therefore at least the length of the shortest part between them. Each
part is ordered jointly, over all strata, and takes the part before it into account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import nnls
from scipy.sparse import csr_array

from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.features import heaviest_groups

_TOLERANCE = 0.01
"""The largest accepted difference between a wanted and a reached share; sequences with several groups cause it."""
_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio: the fractional parts of its multiples are spread evenly between 0 and 1."""

PartOrder = Callable[[Int64[np.ndarray, " recent"], Int64[np.ndarray, " part"]], Int64[np.ndarray, " part"]]
"""Orders the sequences of a part. It gets the sequences before the part (latest last); no sequence is in both."""


@dataclass
class History:
    """How often a run has read every sequence, and the last turn and position of each (-1 if it was not read).

    A turn is a part of the run. Positions before the first part are divided into turns of a quarter of an epoch.
    """

    times: Int64[np.ndarray, " sequence"]
    turn: Int64[np.ndarray, " sequence"]
    last: Int64[np.ndarray, " sequence"]
    num_positions: int = 0
    num_turns: int = 0

    @classmethod
    def of(cls, sequences: Int64[np.ndarray, " used"], num_sequences: int) -> History:
        """The history of sequences that were read in this order."""
        count, nothing = len(sequences), np.full(num_sequences, -1, np.int64)
        past = cls(np.bincount(sequences, minlength=num_sequences), nothing, nothing.copy(), count)
        np.maximum.at(past.last, sequences, np.arange(count))
        quarter = max(num_sequences // 4, 1)
        # Turns are counted from the end, so that the last turn is complete.
        past.num_turns = -(-count // quarter)
        came = past.last >= 0
        past.turn[came] = past.num_turns - 1 - (count - 1 - past.last[came]) // quarter
        return past

    def add(self, part: Int64[np.ndarray, " part"]) -> None:
        """Add the next part, which contains no sequence twice."""
        self.times[part] += 1
        self.last[part] = np.arange(self.num_positions, self.num_positions + len(part))
        self.turn[part] = self.num_turns
        self.num_positions, self.num_turns = self.num_positions + len(part), self.num_turns + 1

    def recent(self, count: int) -> Int64[np.ndarray, " recent"]:
        """The sequences of the last `count` positions, each only once, in the order of their last position."""
        sequences = np.flatnonzero(self.last >= max(self.num_positions - count, 0))
        return sequences[np.argsort(self.last[sequences])]


@dataclass(frozen=True)
class Strata:
    """The sequences by the group that has the largest number of their tokens, and the tokens of each stratum.

    Attributes:
        of_sequence: the stratum of each sequence, which is the number of a group.
        sizes: the number of sequences in each stratum.
        tokens: the number of tokens of each group in each stratum.
        names: the names of the groups.
        family: the family of the groups.
    """

    of_sequence: Int64[np.ndarray, " sequence"]
    sizes: Int64[np.ndarray, " stratum"]
    tokens: Float64[np.ndarray, "stratum group"]
    names: Sequence[str]
    family: str

    @classmethod
    def build(cls, counts: csr_array, names: Sequence[str], family: str) -> Strata:
        """Make the strata from the sequences' token counts, with one column per group."""
        num_groups = counts.shape[1]
        # A sequence without tokens can belong to any stratum.
        of_sequence = np.minimum(heaviest_groups(counts), num_groups - 1)
        sizes = np.bincount(of_sequence, minlength=num_groups)
        row = np.repeat(of_sequence, np.diff(counts.indptr))
        tokens = np.bincount(row * num_groups + counts.indices, counts.data, minlength=num_groups**2)
        return cls(of_sequence, sizes, tokens.reshape(num_groups, num_groups).astype(np.float64), names, family)

    @property
    def group_tokens(self) -> Float64[np.ndarray, " group"]:
        """The number of tokens of each group, over all strata."""
        return self.tokens.sum(axis=0)

    def positions(self, shares: Float64[np.ndarray, " group"], num_positions: int) -> Int64[np.ndarray, " stratum"]:
        """The number of positions of every stratum, so that the groups have their shares of the tokens.

        Raises:
            UserError: whole sequences cannot reach the shares, because they mix groups.
        """
        mean = self.tokens / np.maximum(self.sizes, 1)[:, None]
        factors, _ = nnls(mean.T / max(mean.sum(axis=1).max(), 1.0), shares)
        reached = mean.T @ factors
        reached /= max(reached.sum(), np.finfo(float).tiny)
        worst = int((shares - reached).argmax())
        if shares[worst] - reached[worst] > _TOLERANCE:
            raise UserError(
                f"Expected shares that whole sequences can have, found {shares[worst]:.3f} for {self.family} "
                f"{self.names[worst]!r}, which can get only {reached[worst]:.3f} because sequences mix it with other "
                "groups; choose a smaller share, or pack the documents of a group together."
            )
        return rounded(factors / factors.sum() * num_positions, num_positions)

    def given(self, history: History) -> Int64[np.ndarray, " stratum"]:
        """The number of positions of every stratum so far."""
        return np.bincount(self.of_sequence, history.times, minlength=len(self.sizes)).astype(np.int64)


def rounded(values: Float64[np.ndarray, " stratum"], total: int) -> Int64[np.ndarray, " stratum"]:
    """Round values to whole numbers that add up to the total; values with the largest remainders are rounded up."""
    whole = np.floor(values).astype(np.int64)
    order = np.argsort(-(values - whole), kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole


def parts(
    strata: Strata,
    num_wanted: Int64[np.ndarray, " stratum"],
    history: History,
    rank: Int64[np.ndarray, " sequence"],
) -> Iterator[Int64[np.ndarray, " part"]]:
    """Yield the sequences of every part of a run, ascending; the caller adds each part to `history` before the next.

    Args:
        strata: the strata.
        num_wanted: the number of positions of every stratum; their sum is the length of the run.
        history: the sequences that were read before.
        rank: the order of sequences that were read equally often and last in the same turn; any slice of this order
            should have the mixture of the whole order.
    """
    members = np.split(np.argsort(strata.of_sequence, kind="stable"), np.cumsum(strata.sizes)[:-1])
    fresh = np.array([int((history.times[sequences] == 0).sum()) for sequences in members])
    num_parts = 1
    if (num_wanted > fresh).any():  # sequences repeat: a part then contains at most half of a stratum
        num_parts = max(
            -(-2 * int(number) // len(sequences))
            for number, sequences in zip(num_wanted, members, strict=True)
            if len(sequences)
        )
    # Every stratum has its own offset for rounding: with a common offset all small strata would be read late.
    fractions = (np.arange(len(members)) * _GOLDEN) % 1
    due = np.floor(num_wanted[:, None] * np.arange(num_parts + 1) / num_parts + fractions[:, None]).astype(np.int64)
    for counts in np.diff(due, axis=1).T:
        chosen = []
        for sequences, count in zip(members, counts.tolist(), strict=True):
            if count:
                # Sorted by turns, not by positions: the joint order balances all strata together, not each of them.
                queue = sequences[np.lexsort((rank[sequences], history.turn[sequences], history.times[sequences]))]
                chosen.append(queue[:count])
        if chosen:
            yield np.sort(np.concatenate(chosen))


def mixed_positions(
    strata: Strata,
    num_wanted: Sequence[Int64[np.ndarray, " stratum"]],
    history: History,
    rank: Int64[np.ndarray, " sequence"],
    order_part: PartOrder,
) -> Iterator[Int64[np.ndarray, " _position"]]:
    """Yield the sequences of a run, part after part.

    Args:
        strata: the sequences by group.
        num_wanted: the number of positions of each stratum, for every phase.
        history: the sequences that were read before; this function adds the parts to it.
        rank: see `parts`.
        order_part: the function that orders a part.
    """
    for wanted_of_phase in num_wanted:
        for part in parts(strata, wanted_of_phase, history, rank):
            recent = history.recent(len(part))
            ordered = order_part(recent[~np.isin(recent, part)], part)
            history.add(ordered)
            yield ordered

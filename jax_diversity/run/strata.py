"""Mixtures of groups or datasets: what share each has, and which sequences come in which part of a run.

A mixture gives every group of one family (or every dataset) a share of the tokens. A sequence belongs to the *stratum*
of the group that has most of its tokens. With `T[s, g]` the mean tokens of group g in a sequence of stratum s, the
positions `x[s]` of the strata solve `T' x = τ Σ T' x` with `x >= 0` (non-negative least squares): a sequence that mixes
groups counts for each of them.

A stratum whose sequences come more than once is read in turn: the sequence that came least often comes next, of these
the one that came longest ago. The run is cut into parts so that no stratum gives more than half of its sequences to a
part. Two consecutive parts then hold no sequence twice, so that between a sequence and its next copy there is always as
much as the shorter of the parts between. Each part is ordered jointly, over all strata, and knows the part before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import nnls
from scipy.sparse import csr_array

from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.objective import heaviest_groups

_TOLERANCE = 0.01
"""The largest accepted difference between a share and the asked one; sequences that mix groups cause it."""
_GOLDEN = (5**0.5 - 1) / 2
"""The golden ratio: the fractions of its consecutive multiples are spread evenly."""

PartOrder = Callable[[Int64[np.ndarray, " recent"], Int64[np.ndarray, " part"]], Int64[np.ndarray, " part"]]
"""Orders the sequences of a part, given the sequences before it, latest last; no sequence is in both."""


@dataclass
class History:
    """How often every sequence came in a run so far, and its last turn and position; -1 where it did not come.

    A turn is a part of the run; the positions before the run are divided into turns of a quarter of an epoch.
    """

    times: Int64[np.ndarray, " sequence"]
    turn: Int64[np.ndarray, " sequence"]
    last: Int64[np.ndarray, " sequence"]
    num_positions: int = 0
    num_turns: int = 0

    @classmethod
    def of(cls, sequences: Int64[np.ndarray, " used"], num_sequences: int) -> History:
        """The history of the sequences that came, in their order."""
        count, nothing = len(sequences), np.full(num_sequences, -1, np.int64)
        past = cls(np.bincount(sequences, minlength=num_sequences), nothing, nothing.copy(), count)
        np.maximum.at(past.last, sequences, np.arange(count))
        quarter = max(num_sequences // 4, 1)
        # From the end, so that the last turn is a whole one.
        past.num_turns = -(-count // quarter)
        came = past.last >= 0
        past.turn[came] = past.num_turns - 1 - (count - 1 - past.last[came]) // quarter
        return past

    def add(self, part: Int64[np.ndarray, " part"]) -> None:
        """Count the next positions, which hold no sequence twice."""
        self.times[part] += 1
        self.last[part] = np.arange(self.num_positions, self.num_positions + len(part))
        self.turn[part] = self.num_turns
        self.num_positions, self.num_turns = self.num_positions + len(part), self.num_turns + 1

    def recent(self, count: int) -> Int64[np.ndarray, " recent"]:
        """The sequences of the last `count` positions, each once, the latest last."""
        found = np.flatnonzero(self.last >= max(self.num_positions - count, 0))
        return found[np.argsort(self.last[found])]


@dataclass(frozen=True)
class Strata:
    """The sequences by the group that has most of their tokens, and the tokens of every stratum.

    Attributes:
        of_sequence: the stratum of every sequence, the number of its group.
        sizes: sequences of every stratum.
        tokens: all tokens of every group in every stratum.
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
        """The strata of sequences with some token counts, one column a group."""
        num_groups = counts.shape[1]
        # A sequence without tokens can be of any stratum.
        of_sequence = np.minimum(heaviest_groups(counts), num_groups - 1)
        sizes = np.bincount(of_sequence, minlength=num_groups)
        row = np.repeat(of_sequence, np.diff(counts.indptr))
        tokens = np.bincount(row * num_groups + counts.indices, counts.data, minlength=num_groups**2)
        return cls(of_sequence, sizes, tokens.reshape(num_groups, num_groups).astype(np.float64), names, family)

    @property
    def group_tokens(self) -> Float64[np.ndarray, " group"]:
        """All tokens of every group."""
        return self.tokens.sum(axis=0)

    def positions(self, shares: Float64[np.ndarray, " group"], num_positions: int) -> Int64[np.ndarray, " stratum"]:
        """How many of a run's positions every stratum gets, so that the groups have their shares of the tokens.

        Raises:
            UserError: whole sequences cannot reach the shares, because they mix groups.
        """
        mean = self.tokens / np.maximum(self.sizes, 1)[:, None]
        found, _ = nnls(mean.T / max(mean.sum(axis=1).max(), 1.0), shares)
        reached = mean.T @ found
        reached /= max(reached.sum(), np.finfo(float).tiny)
        worst = int((shares - reached).argmax())
        if shares[worst] - reached[worst] > _TOLERANCE:
            raise UserError(
                f"Expected shares that whole sequences can have, found {shares[worst]:.3f} for {self.family} "
                f"{self.names[worst]!r}, which has at best {reached[worst]:.3f} because sequences mix it with others; "
                "ask for less, or pack the documents of a group together."
            )
        return rounded(found / found.sum() * num_positions, num_positions)

    def given(self, history: History) -> Int64[np.ndarray, " stratum"]:
        """The number of positions that every stratum had so far."""
        return np.bincount(self.of_sequence, history.times, minlength=len(self.sizes)).astype(np.int64)


def rounded(values: Float64[np.ndarray, " stratum"], total: int) -> Int64[np.ndarray, " stratum"]:
    """Whole numbers that add up to the total: those with the largest remainders are rounded up."""
    whole = np.floor(values).astype(np.int64)
    order = np.argsort(-(values - whole), kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole


def parts(
    strata: Strata,
    asked: Int64[np.ndarray, " stratum"],
    history: History,
    rank: Int64[np.ndarray, " sequence"],
) -> Iterator[Int64[np.ndarray, " part"]]:
    """The sequences of every part of a run, ascending; the caller counts each part in `history` before the next.

    Args:
        strata: the strata.
        asked: the number of positions of every stratum; their sum is the length of the run.
        history: what came before.
        rank: the order of sequences that came equally often and last in the same turn; any slice of it should hold
            the mixture of all.
    """
    members = np.split(np.argsort(strata.of_sequence, kind="stable"), np.cumsum(strata.sizes)[:-1])
    fresh = np.array([int((history.times[own] == 0).sum()) for own in members])
    num_parts = 1
    if (asked > fresh).any():  # sequences repeat: a part then holds at most half of a stratum
        num_parts = max(-(-2 * int(number) // len(own)) for number, own in zip(asked, members, strict=True) if len(own))
    # Every stratum is rounded by its own fraction: with a common one, all small strata would come late.
    fractions = (np.arange(len(members)) * _GOLDEN) % 1
    due = np.floor(asked[:, None] * np.arange(num_parts + 1) / num_parts + fractions[:, None]).astype(np.int64)
    for counts in np.diff(due, axis=1).T:
        chosen = []
        for own, count in zip(members, counts.tolist(), strict=True):
            if count:
                # By turns, not by positions: a joint order balances all strata together, not a single one.
                queue = own[np.lexsort((rank[own], history.turn[own], history.times[own]))]
                chosen.append(queue[:count])
        if chosen:
            yield np.sort(np.concatenate(chosen))


def mixed_positions(
    strata: Strata,
    asked: Sequence[Int64[np.ndarray, " stratum"]],
    history: History,
    rank: Int64[np.ndarray, " sequence"],
    order_part: PartOrder,
) -> Iterator[Int64[np.ndarray, " _position"]]:
    """The sequences of a run, part after part.

    Args:
        strata: the sequences by group.
        asked: every phase's positions of each stratum.
        history: the sequences before the run; the run's own positions are added to it.
        rank: see `parts`.
        order_part: the function that orders a part.
    """
    for own in asked:
        for part in parts(strata, own, history, rank):
            recent = history.recent(len(part))
            ordered = order_part(recent[~np.isin(recent, part)], part)
            history.add(ordered)
            yield ordered

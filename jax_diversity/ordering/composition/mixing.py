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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import nnls
from scipy.sparse import csr_array

from jax_diversity.foundation.checks import several, weight
from jax_diversity.foundation.errors import UserError, quoted
from jax_diversity.ordering.objective import heaviest_groups

_TOLERANCE = 0.01
"""By how much a share may miss what it is asked for because sequences mix groups."""
_LARGEST_TEMPERATURE = 1e6
_GOLDEN = (5**0.5 - 1) / 2
"""Its multiples leave the fractions of any few consecutive numbers evenly spread."""

PartOrder = Callable[[Int64[np.ndarray, " recent"], Int64[np.ndarray, " part"]], Int64[np.ndarray, " part"]]
"""Orders the sequences of a part, given those that came before it, latest last, none of which is in the part."""


def named_weights(
    weights: Any, names: Sequence[str], tokens: Float64[np.ndarray, " group"], family: str
) -> Float64[np.ndarray, " group"]:
    """A weight for every group from weights by name; groups that no name means have none.

    Args:
        weights: name -> weight; or Megatron's list, each weight before its name (or path, of which the last part is
            taken where the whole is no name). A name may be a pattern such as `web-*`: the groups that it means, and
            that no exact name means, share its weight in proportion to their tokens. A group that several patterns mean
            has the weight of the first.
        names: of the groups.
        tokens: of the groups.
        family: what the groups are, for messages.

    Raises:
        UserError: a name that means no group, or only groups that others mean; a list without weights; weights that are
            negative, not finite or all zero.

    Example:
        >>> named_weights({"web-*": 3, "code": 1}, ["web-0", "web-1", "code"], np.array([10.0, 20.0, 5.0]), "dataset")
        array([1., 2., 1.])
        >>> named_weights(["3", "a/web", "1", "a/code"], ["code", "web"], np.ones(2), "source")
        array([1., 3.])
    """
    pairs = list(weights.items()) if isinstance(weights, Mapping) else _pairs(weights)
    values = {str(name): weight(f"the weight of {family} {name!r}", value) for name, value in pairs}
    if len(values) < len(pairs):
        raise UserError(f"Expected every name once in the weights, found {quoted([name for name, _ in pairs])}.")
    found = np.zeros(len(names))
    exact = {_meaning(name, names) for name in values} - {None}
    taken: set[int] = set()
    for name, value in values.items():
        own = _meaning(name, names)
        patterns = (name, PurePath(name).name)
        meant = (
            [index for index, each in enumerate(names) if index not in exact and _fits(each, patterns)]
            if own is None
            else [own]
        )
        if meant and not (meant := [index for index in meant if index not in taken]):
            raise UserError(
                f"Expected a group of {family} for every name, found that all that {name!r} means have a weight by "
                "another name; give the narrower patterns first."
            )
        if not meant:
            shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
            raise UserError(f"Expected weights to name groups of {family}, found {name!r}; there are {shown}.")
        taken.update(meant)
        held = tokens[meant]
        found[meant] = value * (held / held.sum() if held.sum() else np.full(len(meant), 1 / len(meant)))
    if not found.any():
        raise UserError("Expected at least one weight above zero, found none.")
    return found


def _pairs(words: Any) -> list[tuple[str, Any]]:
    words = list(several(words))
    if not words or len(words) % 2 or not all(isinstance(name, str | PurePath) for name in words[1::2]):
        raise UserError(f"Expected a weight before each name, as in '3 web 1 code', found {quoted(words)}.")
    numbers = []
    for word in words[::2]:
        try:
            numbers.append(float(word))
        except (TypeError, ValueError):
            raise UserError(f"Expected a weight before each name, found {word!r} in {quoted(words)}.") from None
    return list(zip(map(str, words[1::2]), numbers, strict=True))


def _meaning(name: str, names: Sequence[str]) -> int | None:
    for candidate in (name, PurePath(name).name):
        if candidate in names:
            return names.index(candidate)
    return None


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def tempered(tokens: Float64[np.ndarray, " group"], temperature: float) -> Float64[np.ndarray, " group"]:
    """Shares in proportion to `tokens^(1/temperature)`.

    1 gives the groups' own shares, larger temperatures favour small groups: the rule of mT5 (Xue et al. 2021, section
    3.1) with its α as 1 / temperature.

    Raises:
        UserError: a temperature that is not above zero.

    Example:
        >>> tempered(np.array([8.0, 2.0]), 2.0).round(3)
        array([0.667, 0.333])
    """
    value = weight("temperature", temperature)
    if not 1 / _LARGEST_TEMPERATURE <= value <= _LARGEST_TEMPERATURE:
        raise UserError(f"Expected temperature above zero and at most {_LARGEST_TEMPERATURE:g}, found {value:g}.")
    if value == 1:
        return tokens / tokens.sum()
    shares = np.zeros(len(tokens))
    held = tokens > 0
    # Of the largest, so that a small temperature does not overflow.
    shares[held] = (tokens[held] / tokens.max()) ** (1 / value)
    return shares / shares.sum()


def limited(
    shares: Float64[np.ndarray, " group"], most: Float64[np.ndarray, " group"]
) -> Float64[np.ndarray, " group"]:
    """Shares of at most `most`: what a group must not have goes to the others in proportion to theirs.

    With the shares of a high temperature this is UniMax (Chung et al. 2023).

    Raises:
        UserError: limits that add up to less than one.

    Example:
        >>> limited(np.array([0.6, 0.3, 0.1]), np.array([1.0, 0.2, 1.0])).round(3)
        array([0.686, 0.2  , 0.114])
    """
    if (total := float(most[shares > 0].sum())) < 1 - 1e-12:
        raise UserError(
            f"Expected max_repeats that the run can keep, found one that allows {total:.3f} of its positions: it is "
            f"{1 / max(total, 1e-9):.2f} times too long; raise the limit or shorten the run."
        )
    found, free = np.zeros(len(shares)), shares > 0
    while free.any():
        rest = max(1 - found[~free].sum(), 0.0) * np.where(free, shares, 0.0) / shares[free].sum()
        over = free & (rest > most)
        found[free] = rest[free]
        if not over.any():
            break
        found[over] = most[over]
        free &= ~over
    return found


@dataclass
class Use:
    """How often every sequence came in a run so far, in which turn last, and at which position; -1 where it did not.

    Turns are parts of the run, and quarters of an epoch of what came before it.
    """

    times: Int64[np.ndarray, " sequence"]
    turn: Int64[np.ndarray, " sequence"]
    last: Int64[np.ndarray, " sequence"]
    num_positions: int = 0
    num_turns: int = 0

    @classmethod
    def of(cls, history: Int64[np.ndarray, " used"], num_sequences: int) -> Use:
        """What a history of sequences amounts to."""
        nothing = np.full(num_sequences, -1, np.int64)
        use = cls(np.bincount(history, minlength=num_sequences), nothing, nothing.copy(), len(history))
        np.maximum.at(use.last, history, np.arange(len(history)))
        quarter = max(num_sequences // 4, 1)
        # From the end, so that the last turn is a whole one.
        use.num_turns = -(-len(history) // quarter)
        came = use.last >= 0
        use.turn[came] = use.num_turns - 1 - (len(history) - 1 - use.last[came]) // quarter
        return use

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
    """The sequences by the group that has most of their tokens, and what they hold.

    Attributes:
        of_sequence: the stratum of every sequence, the number of its group.
        sizes: sequences of every stratum.
        tokens: all tokens of every group in every stratum.
        names: of the groups.
        family: what the groups are.
    """

    of_sequence: Int64[np.ndarray, " sequence"]
    sizes: Int64[np.ndarray, " stratum"]
    tokens: Float64[np.ndarray, "stratum group"]
    names: Sequence[str]
    family: str

    @classmethod
    def build(cls, counts: csr_array, names: Sequence[str], family: str) -> Strata:
        """From the tokens of every group in every sequence."""
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
            UserError: shares that whole sequences cannot have, because they mix groups.
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

    def given(self, use: Use) -> Int64[np.ndarray, " stratum"]:
        """How many positions every stratum had."""
        return np.bincount(self.of_sequence, use.times, minlength=len(self.sizes)).astype(np.int64)


def check_limit(
    most: int,
    asked: Int64[np.ndarray, " group"],
    given: Int64[np.ndarray, " group"],
    sizes: Int64[np.ndarray, " group"],
    names: Sequence[str],
    family: str,
) -> None:
    """Refuse positions that repeat a group's sequences more often than `most` times in the whole run.

    Args:
        most: the limit.
        asked: positions of the groups.
        given: positions that they had before.
        sizes: sequences of the groups.
        names: of the groups.
        family: what the groups are.

    Raises:
        UserError: it cannot be kept, with the worst group and by how much.
    """
    over = given + asked - most * sizes
    if (over > 0).any():
        worst = int(over.argmax())
        times = (given[worst] + asked[worst]) / max(sizes[worst], 1)
        raise UserError(
            f"Expected each sequence at most {most} times, found a share of {family} {names[worst]!r} that takes each "
            f"{times:.2f} times, {over[worst]:,} positions too many; lower its weight, shorten the run or raise "
            "max_repeats."
        )


def rounded(values: Float64[np.ndarray, " stratum"], total: int) -> Int64[np.ndarray, " stratum"]:
    """Whole numbers that add up to the total: those with the largest remainders are rounded up."""
    whole = np.floor(values).astype(np.int64)
    order = np.argsort(-(values - whole), kind="stable")
    whole[order[: total - int(whole.sum())]] += 1
    return whole


def parts(
    strata: Strata,
    asked: Int64[np.ndarray, " stratum"],
    use: Use,
    rank: Int64[np.ndarray, " sequence"],
) -> Iterator[Int64[np.ndarray, " part"]]:
    """The sequences of every part of a run, ascending; the caller counts each part in `use` before the next.

    Args:
        strata: the strata.
        asked: positions of every stratum; those of all together are the run's.
        use: what came before.
        rank: the order in which sequences come that came as often and in the same turn; any slice of it should hold
            the mixture of all.
    """
    members = np.split(np.argsort(strata.of_sequence, kind="stable"), np.cumsum(strata.sizes)[:-1])
    fresh = np.array([int((use.times[own] == 0).sum()) for own in members])
    num_parts = 1
    if (asked > fresh).any():  # some come again: at most half of a stratum comes in a part
        num_parts = max(-(-2 * int(number) // len(own)) for number, own in zip(asked, members, strict=True) if len(own))
    # Rounded by another fraction in every stratum: with one for all, small strata would all come late.
    fractions = (np.arange(len(members)) * _GOLDEN) % 1
    due = np.floor(asked[:, None] * np.arange(num_parts + 1) / num_parts + fractions[:, None]).astype(np.int64)
    for counts in np.diff(due, axis=1).T:
        chosen = []
        for own, count in zip(members, counts.tolist(), strict=True):
            if count:
                # By turns, not by positions: a joint order is balanced over all strata, its sequences of one are not.
                queue = own[np.lexsort((rank[own], use.turn[own], use.times[own]))]
                chosen.append(queue[:count])
        if chosen:
            yield np.sort(np.concatenate(chosen))


def mixed_positions(
    strata: Strata,
    asked: Sequence[Int64[np.ndarray, " stratum"]],
    use: Use,
    rank: Int64[np.ndarray, " sequence"],
    order_part: PartOrder,
) -> Iterator[Int64[np.ndarray, " _position"]]:
    """The sequences of a run, part after part.

    Args:
        strata: the sequences by group.
        asked: every phase's positions of each stratum.
        use: what came before it; it counts the run's positions too.
        rank: see `parts`.
        order_part: orders a part.
    """
    for own in asked:
        for part in parts(strata, own, use, rank):
            recent = use.recent(len(part))
            ordered = order_part(recent[~np.isin(recent, part)], part)
            use.add(ordered)
            yield ordered

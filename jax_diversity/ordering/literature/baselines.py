"""Orders without an objective: methods in common use, and references for plots.

The arguments are those of `base.Method`. The shuffles of streams, which read only a part of the corpus at a time, are
in `buffers`.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.objective import heaviest_groups
from jax_diversity.schema import Characteristics


def uniform_shuffle(
    characteristics: Characteristics, *, seed: int = 0, advance: Advance = ignore
) -> Int64[np.ndarray, " sequence"]:
    """Every permutation equally likely (NumPy's PCG64, seeded)."""
    indices = np.random.default_rng(seed).permutation(characteristics.num_sequences).astype(np.int64)
    advance(len(indices))
    return indices


def corpus_order(characteristics: Characteristics, *, advance: Advance = ignore) -> Int64[np.ndarray, " sequence"]:
    """Sequences in the packed order."""
    advance(characteristics.num_sequences)
    return np.arange(characteristics.num_sequences, dtype=np.int64)


def cluster_sorted(characteristics: Characteristics, *, advance: Advance = ignore) -> Int64[np.ndarray, " sequence"]:
    """One group after another: the worst order, for comparison in plots.

    Sequences are sorted by the heaviest group of the first family, within a group in corpus order; sequences
    without tokens are last.

    Example:
        >>> chars = Characteristics.from_counts({"topic": [[0, 2], [2, 0], [1, 1], [0, 2]]})
        >>> cluster_sorted(chars).tolist()
        [1, 2, 0, 3]
    """
    groups = heaviest_groups(characteristics.counts[characteristics.families[0]])
    advance(len(groups))
    return np.argsort(groups, kind="stable").astype(np.int64)


def stratified(
    characteristics: Characteristics,
    *,
    seed: int = 0,
    advance: Advance = ignore,
    second_family: str | None = None,
) -> Int64[np.ndarray, " sequence"]:
    """Spread every group evenly over the order, with jitter; also the groups of a second family if one is named.

    A group is the sequences with the same heaviest group in the first family. Its n members get the keys `(i + u) / n`
    with u uniform in [0, 1), and all sequences are sorted by their keys, ties by index. In any interval of keys of
    width x a group has `n x` members with an error below 2, while a shuffle's error grows with the square root. A
    sequence's other groups are not balanced.

    The order of a group's members is random, or decided by a second family: the k sequences of each of its groups get
    keys `(j + u) / k` in the same way, and the members are taken in the order of these keys. With
    `second_family="duplicate"` clusters are evenly spaced, as are the copies of a document: two copies lie half an
    order apart on average instead of a third, and seldom close together.

    One draw in each of n equal strata is jittered sampling (Cook, Stochastic sampling in computer graphics, 1986). The
    seed decides the order of members and their places.

    Args:
        seed: for the members' order and the jitter.
        second_family: the family of the characteristics whose groups are spaced within the groups of the first, such as
            `duplicate`; None takes the members in random order.

    Raises:
        ValueError: a second family that the characteristics do not have.
    """
    if second_family is not None:
        check_one_of("second_family", second_family, characteristics.families)
    # The order of the draws is part of the result: golden orders depend on it.
    rng = np.random.default_rng(seed)
    members, jitter = rng.permutation(characteristics.num_sequences), rng.random(characteristics.num_sequences)
    if second_family is not None:
        groups = heaviest_groups(characteristics.counts[second_family])
        members = np.argsort(_spaced(groups, members, rng.random(len(groups))), kind="stable")
    groups = heaviest_groups(characteristics.counts[characteristics.families[0]])
    keys = _spaced(groups, members, jitter)
    advance(len(groups))
    return np.argsort(keys, kind="stable").astype(np.int64)


def _spaced(
    groups: Int64[np.ndarray, " sequence"],
    members: Int64[np.ndarray, " sequence"],
    jitter: Float64[np.ndarray, " sequence"],
) -> Float64[np.ndarray, " sequence"]:
    """Every sequence's key `(i + jitter) / n`, where it is the i-th of its group's n in the order `members`."""
    # A stable sort by group: members of a group are neighbours, in their order.
    members = members[np.argsort(groups[members], kind="stable")]
    sizes = np.bincount(groups)
    before = np.cumsum(sizes) - sizes
    keys = np.empty(len(groups))
    keys[members] = (np.arange(len(groups)) - before[groups[members]] + jitter[members]) / sizes[groups[members]]
    return keys

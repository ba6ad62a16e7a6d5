"""Methods without an objective: methods in common use, and references for plots.

See `base.Method` for the arguments. The module `buffers` has the shuffles of streams, which read only a part of the
corpus at a time.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int64

from jax_diversity.counts import Characteristics, TokenCounts
from jax_diversity.foundation.checks import check_one_of
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.ordering.features import heaviest_groups


def uniform_shuffle(counts: TokenCounts, *, seed: int = 0, advance: Advance = ignore) -> Int64[np.ndarray, " sequence"]:
    """Return a random permutation; every permutation is equally likely (NumPy's PCG64, seeded)."""
    indices = np.random.default_rng(seed).permutation(counts.num_sequences).astype(np.int64)
    advance(len(indices))
    return indices


def corpus_order(counts: TokenCounts, *, advance: Advance = ignore) -> Int64[np.ndarray, " sequence"]:
    """Return the sequences in the order of packing."""
    advance(counts.num_sequences)
    return np.arange(counts.num_sequences, dtype=np.int64)


def cluster_sorted(characteristics: Characteristics, *, advance: Advance = ignore) -> Int64[np.ndarray, " sequence"]:
    """Place one group after another: this is the worst order, for comparison in plots.

    Sequences are sorted by their heaviest group in the first family (the group with the most tokens). Within a group
    they stay in the corpus's order. Sequences without tokens are last.

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
    """Spread every group evenly over the order, with jitter; if a second family is named, also its groups.

    Every sequence is a member of its heaviest group in the first family. The n members of a group get the keys
    `(i + u) / n` with u uniform in [0, 1). All sequences are sorted by key, and by index if keys are equal. In any
    interval of keys of width x, a group has `n x` members with an error below 2. With a shuffle, the error grows with
    the square root of the number of members. The other groups of a sequence are not balanced.

    The order of a group's members is random, or a second family decides it. Then the k sequences of each group of the
    second family get keys `(j + u) / k` in the same way, and the members are used in the order of these keys. With
    `second_family="duplicate"`, clusters are evenly spaced, and copies of a document too. The mean distance of two
    copies is then half of the order instead of a third, and copies are seldom close together.

    One draw in each of n equal strata is jittered sampling (Cook, Stochastic sampling in computer graphics, 1986). The
    seed decides the order of members and their places.

    Args:
        seed: for the members' order and the jitter.
        second_family: the family whose groups are spaced within the groups of the first family, such as `duplicate`.
            With None, the members are in random order.

    Raises:
        ValueError: a second family that the characteristics do not have.
    """
    if second_family is not None:
        check_one_of("second_family", second_family, characteristics.families)
    # Do not change the order of the random draws: it changes the result, and tests compare results with stored orders.
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
    """Return every sequence's key `(i + jitter) / n`, if it is the i-th of n in its group, in the order `members`."""
    # After a stable sort by group, the members of a group are neighbours and keep their order.
    members = members[np.argsort(groups[members], kind="stable")]
    sizes = np.bincount(groups)
    before = np.cumsum(sizes) - sizes
    keys = np.empty(len(groups))
    keys[members] = (np.arange(len(groups)) - before[groups[members]] + jitter[members]) / sizes[groups[members]]
    return keys

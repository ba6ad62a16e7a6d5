"""Streams that follow targets which change: every group's tokens, wherever they are, against the demand."""

from __future__ import annotations

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.counts import Characteristics
from jax_diversity.ordering.demand import HeaviestGroups, TargetDemand, follow_targets
from jax_diversity.ordering.features import Features
from jax_diversity.ordering.objective import Objective
from jax_diversity.ordering.plan import Plan

NUM_SEQUENCES, NUM_GROUPS, TOKENS = 30_000, 12, 64


@pytest.fixture(scope="module")
def mixed() -> Characteristics:
    """Sequences of about three groups each; the last groups are rare, and most of their tokens are with others."""
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, NUM_GROUPS + 1)
    drawn = rng.choice(NUM_GROUPS, (NUM_SEQUENCES, 3), p=popularity / popularity.sum())
    counts = np.zeros((NUM_SEQUENCES, NUM_GROUPS), np.int64)
    for column, tokens in enumerate((28, 20, 16)):
        np.add.at(counts, (np.arange(NUM_SEQUENCES), drawn[:, column]), tokens)
    return Characteristics.from_counts({"topic": counts})


@pytest.fixture(scope="module")
def rising(mixed: Characteristics) -> jd.Targets:
    """The rare half of the groups nearly doubles from the begin to the end; the corpus can meet this."""
    own = mixed.target_share("topic")
    is_rare = np.arange(NUM_GROUPS) >= NUM_GROUPS // 2
    rare = own[is_rare].sum()
    change = np.where(is_rare, 0.6, -0.6 * rare / (1 - rare))
    return jd.Targets.linear(
        {"topic": own * (1 - change)}, {"topic": own * (1 + change)}, num_positions=NUM_SEQUENCES, num_phases=16
    )


def missing(chars: Characteristics, order: np.ndarray, targets: jd.Targets) -> float:
    """The largest distance of the tokens placed so far from the sum of the targets so far, in sequences."""
    phase = np.searchsorted(targets.starts, np.arange(NUM_SEQUENCES), side="right") - 1
    wanted = np.cumsum(TOKENS * targets.shares["topic"][phase], axis=0)
    placed = np.cumsum(chars.counts["topic"][order].toarray(), axis=0)
    return float(np.linalg.norm(wanted - placed, axis=1).max()) / TOKENS


def demand_of(targets: jd.Targets) -> TargetDemand:
    return TargetDemand.of(
        targets.starts, targets.shares["topic"], (0, NUM_SEQUENCES), np.float64(TOKENS), np.zeros(NUM_GROUPS)
    )


def test_a_stream_follows_the_tokens_and_not_only_the_heaviest_groups(
    mixed: Characteristics, rising: jd.Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = np.random.default_rng(1).permutation(NUM_SEQUENCES)
    plan = Plan.build(mixed, Objective(), rising)
    corrected = missing(mixed, follow_targets(plan, stream), rising)
    monkeypatch.setattr(TargetDemand, "corrected", lambda self, _: self)
    uncorrected = missing(mixed, follow_targets(plan, stream), rising)
    assert uncorrected > 500
    assert corrected < 150


def test_what_is_placed_before_every_knot_is_what_a_stream_places(mixed: Characteristics, rising: jd.Targets) -> None:
    features = Features.build(mixed, Objective())
    (family,) = features.family_columns.values()
    stream = np.random.default_rng(1).permutation(NUM_SEQUENCES)
    demand = demand_of(rising)
    expected = demand._placed(HeaviestGroups.of(features, family, stream))
    groups = features.heaviest(family)[0][stream]
    positions = np.empty(NUM_SEQUENCES)
    for group in range(NUM_GROUPS):
        members = np.flatnonzero(groups == group)
        positions[members] = demand.positions(group, TOKENS * (np.arange(len(members)) + 0.5))
    sums = np.cumsum(mixed.counts["topic"][stream[np.argsort(positions, kind="stable")]].toarray(), axis=0)
    placed = np.pad(sums, ((1, 0), (0, 0)))[np.floor(demand.knots).astype(np.int64)]
    # Where the other groups of a sequence are is chance: the root of the number of sequences.
    assert np.abs(expected - placed).max() / TOKENS < 3 * np.sqrt(NUM_SEQUENCES)


def test_sums_over_parts_are_the_sums_over_all(mixed: Characteristics) -> None:
    features = Features.build(mixed, Objective())
    (family,) = features.family_columns.values()
    whole = HeaviestGroups.of(features, family, np.arange(NUM_SEQUENCES))
    parts = [HeaviestGroups.of(features, family, rows) for rows in np.array_split(np.arange(NUM_SEQUENCES), 3)]
    joined = parts[0].plus(parts[1]).plus(parts[2])
    np.testing.assert_array_equal(joined.tokens.toarray(), whole.tokens.toarray())
    np.testing.assert_array_equal(joined.numbers, whole.numbers)
    np.testing.assert_array_equal(whole.tokens.sum(axis=0), mixed.counts["topic"].sum(axis=0))
    assert whole.numbers[-1] == 0


def test_a_part_changes_the_deviation_evenly(mixed: Characteristics, rising: jd.Targets) -> None:
    """With its own targets a part begins and ends without a deviation, in every column and over several phases."""
    plan = Plan.build(mixed, Objective(), rising)
    stream = np.random.default_rng(1).permutation(NUM_SEQUENCES)
    first, last = 9_000, 15_000
    before = plan.before(stream[:first])
    part = plan.part(stream[first:last], first, before, stream[:0])
    assert len(part.targets) > 1
    start = plan.carried + before.excess
    end = start + plan.before(stream[first:last], first).excess
    own = part.straightened(start, end)
    np.testing.assert_allclose(own.carried, 0, atol=1e-6)
    assert np.abs(end - start).max() > 100
    np.testing.assert_allclose(own.carried + own.excess(np.arange(last - first)), 0, atol=1e-3)
    np.testing.assert_array_equal(own.features.targets, own.targets[0])


def test_targets_that_no_stream_can_meet_end(mixed: Characteristics) -> None:
    """One group alone at first, of which the corpus has far too few tokens."""
    only = np.eye(NUM_GROUPS)[NUM_GROUPS - 1]
    targets = jd.Targets((0, NUM_SEQUENCES // 2), {"topic": np.stack([only, mixed.target_share("topic")])})
    stream = np.arange(NUM_SEQUENCES)
    order = follow_targets(Plan.build(mixed, Objective(), targets), stream)
    np.testing.assert_array_equal(np.sort(order), stream)
    with_group = mixed.counts["topic"][:, [NUM_GROUPS - 1]].toarray()[:, 0] > 0
    assert with_group[order[:1000]].mean() > with_group.mean() * 3

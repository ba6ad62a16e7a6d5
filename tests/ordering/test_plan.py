"""Targets that move, and runs that go on from what was consumed."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity import Characteristics, Objective, order
from jax_diversity.counts.targets import Targets
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.plan import Plan, as_consumed
from jax_diversity.ordering.shortages import UnmetTargets
from tests.support.synthetic import synthetic_characteristics

# A pool over a plain shuffle follows a target as long as it has room for what the target does not want yet.
SELECTORS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy_pool": {"pool_size": 560},
    "balance": {"pool_size": 64},
}


@functools.cache
def corpus() -> Characteristics:
    return synthetic_characteristics(600, num_clusters=12, num_bins=4)


@functools.cache
def two_sources() -> Characteristics:
    """1,200 sequences of one source or the other, half and half, in random order; topics are independent of it."""
    rng = np.random.default_rng(0)
    source = rng.permutation(np.repeat([0, 1], 600))
    topics = rng.multinomial(100, np.ones(5) / 5, 1200)
    return Characteristics.from_counts(
        {"source": 100 * np.eye(2, dtype=int)[source], "topic": topics}, weights={"topic": 0.1}
    )


def phased(starts: tuple[int, ...], **shares: Any) -> Targets:
    return Targets(starts, {name: np.array(values, np.float64) for name, values in shares.items()})


# What targets may be


def test_shares_are_scaled_kept_and_read_only() -> None:
    given = np.array([[8.0, 2.0], [1.0, 3.0]])
    targets = Targets((0, 1000), {"source": given})
    np.testing.assert_allclose(targets.shares["source"], [[0.8, 0.2], [0.25, 0.75]])
    assert given[0, 0] == 8.0
    with pytest.raises(ValueError, match="read-only"):
        targets.shares["source"][0, 0] = 1
    for other in (pickle.loads(pickle.dumps(targets)), copy.deepcopy(targets)):
        assert other.fingerprint == targets.fingerprint
        np.testing.assert_array_equal(other.shares["source"], targets.shares["source"])


def test_fingerprints_tell_targets_apart() -> None:
    several = [
        phased((0,), a=[[1, 1]]),
        phased((0,), a=[[1, 2]]),
        phased((0,), b=[[1, 1]]),
        phased((0,), a=[[1, 1]], b=[[1, 1]]),
        phased((0, 1), a=[[1, 1], [1, 1]]),
        phased((0, 2), a=[[1, 1], [1, 1]]),
    ]
    assert len({targets.fingerprint for targets in several}) == len(several)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("starts", "shares", "sentence"),
    [
        ((), {}, "starts to ascend from 0"),
        ((1,), {}, "starts to ascend from 0"),
        ((0, 0), {}, "starts to ascend from 0"),
        ((0, 5, 4), {}, "starts to ascend from 0"),
        ((0, -1), {}, "starts to ascend from 0"),
        ((0, 10.5), {}, "starts as whole numbers"),
        ((0, float("nan")), {}, "starts as whole numbers"),
        (("0",), {}, "starts as whole numbers"),
        (5, {}, "starts as whole numbers"),
        ((0,), {"a": [[1, -1]]}, "target shares of 'a' >= 0 with a sum above zero"),
        ((0,), {"a": [[1, np.nan]]}, "target shares of 'a' >= 0"),
        ((0,), {"a": [[1, np.inf]]}, "target shares of 'a' >= 0"),
        ((0,), {"a": [[0, 0]]}, "target shares of 'a' >= 0 with a sum above zero"),
        ((0,), {"a": [[]]}, "target shares of 'a' >= 0 with a sum above zero"),
        ((0, 9), {"a": [[1, 1], [0, 0]]}, "a sum above zero in every phase"),
        ((0, 9), {"a": [[1, 1]]}, "target shares of 'a' for 2 phases"),
        ((0,), {"a": [[1, 1], [1, 1]]}, "target shares of 'a' for 1 phases"),
        ((0,), {"a": [[[1, 1]]]}, "target shares of 'a' for 1 phases"),
        ((0, 9), {"a": [[1, 1], [1]]}, "target shares of 'a' as numbers"),
        ((0,), {"a": [["much"]]}, "target shares of 'a' as numbers"),
    ],
    ids=str,
)
def test_targets_that_are_none(starts: Any, shares: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Targets(starts, shares)


@given(st.integers(1, 40), st.integers(0, 200), st.integers(0, 2**16))
def test_linear_targets_begin_and_end_where_they_should(num_phases: int, more: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, last = rng.random(3) + 0.01, rng.random(3) + 0.01
    num_positions = num_phases + more
    targets = Targets.linear({"a": first}, {"a": last}, num_positions, num_phases)
    assert len(targets.starts) == num_phases
    lengths = np.diff([*targets.starts, num_positions])
    assert lengths.min() >= 1
    assert lengths.max() - lengths.min() <= 1
    # Phases of equal length are as much below the middle as above: the whole asks for the mean of both ends.
    expected = (first / first.sum() + last / last.sum()) / 2
    np.testing.assert_allclose(targets.shares["a"].mean(axis=0), expected)
    steps = np.diff(targets.shares["a"], axis=0)
    if len(steps):
        np.testing.assert_allclose(steps, np.broadcast_to(steps[0], steps.shape), atol=1e-12)


@pytest.mark.parametrize(
    ("first", "last", "num_positions", "num_phases", "sentence"),
    [
        ({"a": [1, 1]}, {"b": [1, 1]}, 100, 4, "first and last shares of the same families"),
        ({"a": [1]}, {"a": [1, 1]}, 100, 4, "equal numbers of first and last shares of 'a', found 1 and 2"),
        ({"a": [1, 1, 1]}, {"a": [1, 1]}, 100, 4, "equal numbers of first and last shares of 'a', found 3 and 2"),
        ({"a": [1, -1]}, {"a": [1, 1]}, 100, 4, "target shares of 'a' >= 0"),
        ({"a": [1, 1]}, {"a": [1, 1]}, 3, 4, "Expected 1 to 3 phases, found 4"),
        ({"a": [1, 1]}, {"a": [1, 1]}, 100, 0, "Expected 1 to 100 phases, found 0"),
    ],
)
def test_linear_targets_that_are_none(
    first: Any, last: Any, num_positions: int, num_phases: int, sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Targets.linear(first, last, num_positions, num_phases)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("targets", "sentence"),
    [
        ({"topic": [1, 1]}, r"unknown families \['topic'\]; the families are \['cluster', 'length'\]"),
        ({"length": [1, 1, 1]}, "target shares of 4 groups of 'length', found 3"),
        ({"length": [[1, 1, 1, 1]]}, "target shares of 'length'"),
        ({"length": [1, 1, 1, -1]}, "target shares of 'length' >= 0"),
        ({"length": "much"}, "target shares of 'length' as numbers"),
        (phased((0,), topic=[[1, 1]]), "'topic'; the objective weighs cluster, length"),
        (phased((0,), length=[[1, 1]]), "target shares of 4 groups of 'length', found 2"),
    ],
    ids=str,
)
@pytest.mark.parametrize("consumed", [None, [3, 4]])
def test_targets_that_do_not_fit(targets: Any, consumed: list[int] | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        order(corpus(), "greedy", targets=targets, consumed=consumed)


def test_targets_of_a_family_that_the_objective_leaves_out() -> None:
    with pytest.raises(UserError, match="'length'; the objective weighs cluster"):
        order(corpus(), "greedy", objective=Objective.f1(), targets={"length": [1, 1, 1, 1]})


# What selectors make of them


@pytest.mark.first(1)
@pytest.mark.parametrize("method", SELECTORS)
def test_the_corpuss_own_shares_as_a_target_change_nothing(method: str) -> None:
    chars, options = corpus(), SELECTORS[method]
    expected = order(chars, method, seed=2, **options).indices
    shares = {name: chars.target_share(name) for name in chars.families}
    in_phases = phased((0, 100, 10**9), **{name: [share] * 3 for name, share in shares.items()})
    # Only greedy computes all scores at every step; a pool that does so rounds them differently.
    for targets in ({}, shares, in_phases) if method == "greedy" else ({}, shares):
        ordering = order(chars, method, seed=2, targets=targets, **options)
        np.testing.assert_array_equal(ordering.indices, expected)
        assert "plan" in ordering.info


@pytest.mark.parametrize("method", SELECTORS)
def test_a_phase_that_never_comes_changes_nothing(method: str) -> None:
    chars, options = corpus(), SELECTORS[method]
    own = chars.target_share("length")
    targets = phased((0, chars.num_sequences), length=[own, [0, 0, 0, 1]])
    expected = order(chars, method, **options).indices
    np.testing.assert_array_equal(order(chars, method, targets=targets, **options).indices, expected)


def shares_so_far(chars: Characteristics, family: str, indices: np.ndarray) -> np.ndarray:
    """Tokens of every group after every position, in sequence lengths."""
    return np.cumsum(chars.counts[family].toarray()[indices], axis=0) / chars.sequence_length


@pytest.mark.first(1)
@pytest.mark.parametrize("method", SELECTORS)
def test_a_moving_target_is_followed(method: str) -> None:
    """From 80 : 20 to 20 : 80, whose integral is just what the corpus holds: 1.5 sequences is all it may be off."""
    chars = two_sources()
    num_phases = 24
    targets = Targets.linear({"source": [0.8, 0.2]}, {"source": [0.2, 0.8]}, chars.num_sequences, num_phases)
    indices = order(chars, method, targets=targets, **SELECTORS[method]).indices
    np.testing.assert_array_equal(np.sort(indices), np.arange(chars.num_sequences))
    phase = np.searchsorted(targets.starts, np.arange(chars.num_sequences), side="right") - 1
    wanted = np.cumsum(targets.shares["source"][phase], axis=0)
    off = np.abs(shares_so_far(chars, "source", indices) - wanted)
    assert off.max() <= 3
    assert off.mean() <= 1.5


@pytest.mark.parametrize("method", SELECTORS)
def test_a_target_beyond_the_supply_is_followed_as_long_as_it_lasts(method: str) -> None:
    """90 : 10 of a corpus of 50 : 50: the first source is used up after 600 / 0.9 positions."""
    chars = two_sources()
    indices = order(chars, method, targets={"source": [0.9, 0.1]}, **SELECTORS[method]).indices
    np.testing.assert_array_equal(np.sort(indices), np.arange(chars.num_sequences))
    lasts = int(600 / 0.9) - 10
    wanted = 0.9 * np.arange(1, lasts + 1)
    assert np.abs(shares_so_far(chars, "source", indices)[:lasts, 0] - wanted).max() <= 3


def test_the_deviation_is_that_of_the_targets_integral() -> None:
    chars, objective = corpus(), Objective()
    uniform = np.full(12, 1 / 12)
    targets = phased((0, 40, 90), cluster=[chars.target_share("cluster"), uniform, np.eye(12)[3]])
    plan = Plan.build(chars, objective, targets)
    placed = np.random.default_rng(0).permutation(chars.num_sequences)[:130]
    counts = chars.counts["cluster"].toarray()
    for last in (None, 1, 50, 130, 10**6):
        expected = np.zeros(12)
        first = max(130 - (last or 130), 0)
        for position in range(first, 130):
            phase = np.searchsorted((0, 40, 90), position, side="right") - 1
            own = counts[placed[position]]
            expected += own - targets.shares["cluster"][phase] * own.sum()
        np.testing.assert_allclose(plan.excess(placed[first:], first)[:12], expected, atol=1e-6)


# Consumed


@pytest.mark.parametrize("objective", [Objective(), Objective(windows=(16, 64))], ids=["prefix", "windows"])
def test_going_on_gives_the_tail(objective: Objective) -> None:
    chars = corpus()
    whole = order(chars, "greedy", objective=objective).indices
    for num_consumed in (0, 1, 100, len(whole) - 1, len(whole)):
        again = order(chars, "greedy", objective=objective, consumed=whole[:num_consumed])
        np.testing.assert_array_equal(again, whole)


def test_going_on_under_the_same_moving_targets_gives_the_tail() -> None:
    chars = corpus()
    targets = Targets.linear(
        {"cluster": np.ones(12)}, {"cluster": chars.target_share("cluster")}, chars.num_sequences, 7
    )
    whole = order(chars, "greedy", targets=targets).indices
    np.testing.assert_array_equal(order(chars, "greedy", targets=targets, consumed=whole[:100]), whole)


@pytest.mark.parametrize("method", SELECTORS)
@pytest.mark.parametrize("num_consumed", [0, 599, 10**9])
def test_the_remaining_come_once_each(method: str, num_consumed: int) -> None:
    chars = corpus()
    consumed = np.random.default_rng(1).permutation(chars.num_sequences)[:num_consumed]
    told: list[int] = []
    found = order(chars, method, consumed=consumed, advance=told.append, **SELECTORS[method])
    np.testing.assert_array_equal(found[: len(consumed)], consumed)
    np.testing.assert_array_equal(np.sort(found.indices), np.arange(chars.num_sequences))
    assert sum(told) == chars.num_sequences - len(consumed)


@pytest.mark.parametrize("method", SELECTORS)
def test_replanning_with_other_weights_and_targets(method: str) -> None:
    """After a third of a run its mixture is changed: from there on, and owing nothing for what was before."""
    chars, options = two_sources(), SELECTORS[method]
    consumed = order(chars, method, **options).indices[:400]
    reweighed = Characteristics.from_counts(chars.counts, weights={"topic": 2.0})
    found = order(reweighed, method, targets={"source": [0.25, 0.75]}, consumed=consumed, **options)
    wanted = 0.25 * np.arange(1, 401)
    assert np.abs(shares_so_far(chars, "source", found[400:])[:400, 0] - wanted).max() <= 4
    assert found.fingerprint != order(chars, method, consumed=consumed, **options).fingerprint


@pytest.mark.parametrize("method", SELECTORS)
def test_what_was_too_much_is_made_up_for(method: str) -> None:
    """Without new targets, 200 sequences of one source are followed by more of the other."""
    chars = two_sources()
    consumed = np.flatnonzero(chars.counts["source"].toarray()[:, 0])[:200]
    rest = order(chars, method, consumed=consumed, **SELECTORS[method])[len(consumed) :]
    first = chars.counts["source"].toarray()[rest, 0] > 0
    assert first[:150].mean() < 0.25
    assert first[-300:].mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("consumed", "sentence"),
    [
        ([3, 5, 3], "each consumed sequence once, found 3 2 times"),
        ([0, 10], ">= 0 and below 10, found 10"),
        ([-1], ">= 0 and below 10, found -1"),
        ([0.0, 1.0], "one axis of integers, found float64"),
        ([[0], [1]], r"one axis of integers, found int64 of shape \(2, 1\)"),
        ([True, False], "one axis of integers, found bool"),
        (np.ones(10, bool), "one axis of integers, found bool"),
        (3, r"one axis of integers, found int64 of shape \(\)"),
        ("all", "one axis of integers, found <U3"),
        ([None], "one axis of integers, found object"),
        ({0, 1}, "one axis of integers, found object"),
        ([[0], [1, 2]], "consumed sequences as indices of sequences: .*inhomogeneous"),
        (np.array([2**63], np.uint64), ">= 0 and below 10, found"),
    ],
    ids=str,
)
def test_what_cannot_have_been_consumed(consumed: Any, sentence: str) -> None:
    chars = Characteristics.from_counts({"topic": np.ones((10, 2), int)})
    with pytest.raises(UserError, match=sentence):
        order(chars, "greedy", consumed=consumed)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64])
def test_consumed_of_any_integers(dtype: Any) -> None:
    consumed = as_consumed(np.array([7, 2], dtype), 10)
    assert consumed.dtype == np.int64
    assert consumed.tolist() == [7, 2]


def test_nothing_consumed_of_no_sequences() -> None:
    chars = Characteristics.from_counts({"topic": np.zeros((0, 2), int)})
    for method in SELECTORS:
        assert len(order(chars, method, consumed=[])) == 0
        assert len(order(chars, method, targets={"topic": [1, 3]})) == 0
    with pytest.raises(UserError, match="consumed"):
        order(chars, "greedy", consumed=[0])


@pytest.mark.parametrize("method", SELECTORS)
def test_targets_where_there_are_no_tokens(method: str) -> None:
    chars = Characteristics.from_counts({"topic": np.zeros((5, 2), int)})
    found = order(chars, method, targets={"topic": [1, 3]}, consumed=[4, 1])
    assert found[:2].tolist() == [4, 1]
    np.testing.assert_array_equal(np.sort(found.indices), np.arange(5))


def test_targets_that_other_families_pull_back_are_a_warning() -> None:
    source = np.random.default_rng(0).permutation(np.arange(2_000) % 2)
    topic = 5 * source + np.arange(2_000) // 2 % 5  # five topics of each source
    moving = Targets.linear({"source": [0.8, 0.2]}, {"source": [0.2, 0.8]}, 2_000)
    made = {}
    for weight in (0, 4):
        counts = {"source": source, "topic": topic}
        chars = Characteristics.from_counts(counts, weights={"topic": weight}, batch_size=64)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made[weight] = order(chars, targets=moving)
        told = [str(warning.message) for warning in caught if warning.category is UnmetTargets]
        shares = [float((source[part] == 0).mean()) for part in np.array_split(made[weight].indices, 10)]
        if not weight:
            assert not told
            np.testing.assert_allclose(shares[:9], np.linspace(0.77, 0.29, 9), atol=0.02)
        else:
            match = re.search(r"from (\d+)% on, source '(\d)' has (0\.\d+) .* ask for (0\.\d+)\.", told[0])
            assert match is not None
            assert float(match[3]) == pytest.approx(abs(int(match[2]) - shares[int(match[1]) // 10]), abs=1e-3)
            assert abs(float(match[3]) - float(match[4])) > 0.05


@pytest.mark.parametrize("num_sequences", [0, 1, 2, 11, 25, 95])
def test_few_and_long_sequences_are_no_warning(num_sequences: int) -> None:
    """What one sequence can change is no fault of the order, nor what a corpus without tokens lacks."""
    rng = np.random.default_rng(num_sequences)
    group, length = rng.integers(0, 3, num_sequences), np.exp(rng.normal(size=num_sequences) + 4).astype(int)
    for lengths in (length, np.full(num_sequences, 7), np.zeros(num_sequences, int)):
        chars = Characteristics.from_counts({"topic": np.eye(3, dtype=int)[group] * lengths[:, None]})
        with warnings.catch_warnings():
            warnings.simplefilter("error", UnmetTargets)
            made = order(chars, targets={"topic": chars.target_share("topic") if lengths.any() else [1, 1, 1]})
        np.testing.assert_array_equal(np.sort(made.indices), np.arange(num_sequences))


def test_an_orderings_info_holds_the_targets_that_it_followed() -> None:
    chars = two_sources()
    moving = phased((0, 40), source=[[0.9, 0.1], [0.2, 0.8]])
    assert order(chars, "greedy", targets=moving).info["targets"] == {
        "starts": [0, 40],
        "shares": {"source": [[0.9, 0.1], [0.2, 0.8]]},
    }
    about = order(chars, "greedy", targets={"source": [1, 2]}).info["targets"]
    assert about == {"starts": [0], "shares": {"source": [[0.333333, 0.666667]]}}
    assert "targets" not in order(chars, "greedy", consumed=[3]).info
    # From a position on: what was consumed has met its target.
    about = order(chars, "greedy", targets={"source": [1, 1]}, consumed=[0, 1]).info["targets"]
    seen = np.asarray(chars.counts["source"][[0, 1]].sum(axis=0)).ravel()
    assert about["starts"] == [0, 2]
    np.testing.assert_allclose(about["shares"]["source"], [seen / seen.sum(), [0.5, 0.5]], atol=1e-6)

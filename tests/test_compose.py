"""Compositions of orderings: what they keep, in which order, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity import Ordering, Schedule
from tests.synthetic import synthetic_characteristics


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As for a user, whose calls nothing checks before the code does."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def permutation(size: int, seed: int = 0) -> Ordering:
    return Ordering(np.random.default_rng(seed).permutation(size), {"method": "mine", "seed": seed})


ORDERINGS = (
    st.integers(0, 20)
    .flatmap(lambda size: st.permutations(range(size)))
    .map(lambda values: Ordering(np.array(values, np.int64)))
)


def test_blocks_are_whole_aligned_batches_in_another_order() -> None:
    ordering = permutation(23)
    shuffled = jd.shuffle_blocks(ordering, 4, seed=3)
    batches = [tuple(ordering.indices[start : start + 4].tolist()) for start in range(0, 20, 4)]
    found = [tuple(shuffled.indices[start : start + 4].tolist()) for start in range(0, 20, 4)]
    assert sorted(found) == sorted(batches)
    assert found != batches
    assert shuffled.indices[20:].tolist() == ordering.indices[20:].tolist()


@given(ORDERINGS, st.integers(1, 21), st.integers(0, 3))
def test_blocks_by_the_slow_rule(ordering: Ordering, batch_size: int, seed: int) -> None:
    if batch_size > len(ordering):
        if len(ordering):
            with pytest.raises(ValueError, match="Expected batch_size to be a whole number >= 1 and <= "):
                jd.shuffle_blocks(ordering, batch_size, seed)
        return
    whole = len(ordering) // batch_size
    places = np.random.default_rng(seed).permutation(whole)
    expected = [ordering.indices[place * batch_size + row] for place in places for row in range(batch_size)]
    expected += ordering.indices[whole * batch_size :].tolist()
    assert jd.shuffle_blocks(ordering, batch_size, seed).indices.tolist() == expected


def test_golden_blocks() -> None:
    assert jd.shuffle_blocks(Ordering(np.arange(7)), 2, seed=0).indices.tolist() == [4, 5, 0, 1, 2, 3, 6]
    info = jd.shuffle_blocks(permutation(5), np.int64(2), np.int64(1)).info
    assert (info["method"], info["batch_size"], info["seed"]) == ("shuffle_blocks", 2, 1)
    assert info["of"] == {"method": "mine", "seed": 0, "fingerprint": permutation(5).fingerprint}
    assert jd.shuffle_blocks(Ordering(np.zeros(0, np.int64)), 4).indices.tolist() == []


def test_blocks_keep_the_windows_of_their_batches() -> None:
    chars = synthetic_characteristics(300)
    ordering = jd.order(chars, "greedy")
    before = jd.measure(chars, ordering, windows=(32,))
    after = jd.measure(chars, jd.shuffle_blocks(ordering, 32, seed=1), windows=(32,))
    np.testing.assert_allclose(
        np.sort(after.window_tv["cluster"][32]), np.sort(before.window_tv["cluster"][32]), atol=1e-12
    )


@given(ORDERINGS)
def test_reversing_twice_is_the_same(ordering: Ordering) -> None:
    assert jd.reverse(ordering).indices.tolist() == ordering.indices.tolist()[::-1]
    assert jd.reverse(jd.reverse(ordering)).fingerprint == ordering.fingerprint


def test_a_reversed_ordering_is_as_balanced() -> None:
    chars = synthetic_characteristics(150)
    ordering = jd.order(chars, "greedy")
    before, after = (jd.measure(chars, plan, windows=(16,)) for plan in (ordering, jd.reverse(ordering)))
    np.testing.assert_allclose(after.prefix_l2["cluster"][:-1], before.prefix_l2["cluster"][-2::-1], atol=1e-9)


@given(ORDERINGS, st.floats(0.05, 4), st.booleans())
def test_repeating_by_the_slow_rule(ordering: Ordering, num_epochs: float, reverse_odd: bool) -> None:
    expected: list[int] = []
    for epoch in range(5):
        once = ordering.indices.tolist()
        expected += once[::-1] if reverse_odd and epoch % 2 else once
    plan = jd.repeat(ordering, num_epochs, reverse_odd=reverse_odd)
    assert plan.indices.tolist() == expected[: round(num_epochs * len(ordering))]
    assert plan.num_sequences == len(ordering)
    counts = plan.counts
    assert counts.max(initial=0) - counts.min(initial=99 if len(counts) == 0 else counts.max(initial=0)) <= 1


def test_a_fresh_ordering_each_epoch() -> None:
    chars = synthetic_characteristics(60)
    calls = []

    def fresh(epoch: int) -> Ordering:
        calls.append(epoch)
        return jd.order(chars, "uniform_shuffle", seed=epoch)

    plan = jd.repeat(fresh, 2.5)
    size = chars.num_sequences
    assert calls == [0, 1, 2]
    assert len(plan) == round(2.5 * size)
    for epoch in range(3):
        own = jd.order(chars, "uniform_shuffle", seed=epoch).indices
        part = plan.indices[epoch * size : (epoch + 1) * size]
        np.testing.assert_array_equal(part, own[: len(part)])
    assert [about["seed"] for about in plan.info["of"]] == [0, 1, 2]


def test_repeats_of_one_ordering_name_it_once_and_save(tmp_path) -> None:
    plan = jd.repeat(permutation(4), 3, reverse_odd=True)
    assert len(plan.info["of"]) == 1
    assert (plan.info["num_epochs"], plan.info["reverse_odd"]) == (3.0, True)
    plan.save(tmp_path / "plan.npy")
    assert Schedule.load(tmp_path / "plan.npy").info == json.loads(json.dumps(dict(plan.info)))
    assert jd.repeat(permutation(4), 1).to_ordering().fingerprint == permutation(4).fingerprint
    assert len(jd.repeat(Ordering(np.zeros(0, np.int64)), 3)) == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "num_epochs", [0, -1, float("nan"), float("inf"), "two", None, pytest.param(10**400, id="huge")]
)
def test_bad_numbers_of_epochs(num_epochs: Any) -> None:
    with pytest.raises(ValueError, match="num_epochs to be finite and above zero, found"):
        jd.repeat(permutation(4), num_epochs)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (lambda epoch: permutation(4 + epoch), "of 4 sequences in epoch 0, found 5 in epoch 1"),
        (lambda epoch: np.arange(4), "found ndarray in epoch 0; wrap an array in jd.Ordering"),
        (lambda epoch: jd.repeat(permutation(4), 1), "found Schedule in epoch 0"),
        (np.arange(4), "found ndarray in epoch 0"),
        (None, "found NoneType in epoch 0"),
    ],
)
def test_what_is_no_epoch(source: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        jd.repeat(source, 2)


@given(ORDERINGS, st.integers(0, 45))
def test_truncating_keeps_the_first_positions(ordering: Ordering, kept: int) -> None:
    plan = jd.repeat(ordering, 2) if len(ordering) else Schedule(np.zeros(0, np.int64), 0)
    if kept > len(plan):
        with pytest.raises(ValueError, match=f"num_positions .* <= {len(plan)}, found {kept}"):
            jd.truncate(plan, kept)
        return
    short = jd.truncate(plan, kept)
    assert short.indices.tolist() == plan.indices.tolist()[:kept]
    assert short.num_sequences == plan.num_sequences
    assert short.info["of"]["fingerprint"] == plan.fingerprint


@given(ORDERINGS, st.integers(0, 100), st.randoms(use_true_random=False))
def test_truncating_to_tokens_by_the_slow_rule(ordering: Ordering, num_tokens: int, random) -> None:
    tokens = np.array([random.randrange(8) for _ in range(len(ordering))], np.int64)
    if num_tokens > tokens.sum():
        with pytest.raises(ValueError, match=f"num_tokens to be a whole number >= 0 and <= {tokens.sum()}"):
            jd.truncate(ordering, num_tokens=num_tokens, tokens=tokens)
        return
    kept, total = 0, 0
    for sequence in ordering.indices:
        if total + tokens[sequence] > num_tokens:
            break
        kept, total = kept + 1, total + tokens[sequence]
    short = jd.truncate(ordering, num_tokens=num_tokens, tokens=tokens)
    assert short.indices.tolist() == ordering.indices.tolist()[:kept]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "Expected either num_positions, or num_tokens"),
        ({"num_positions": 1, "num_tokens": 1, "tokens": np.ones(4, int)}, "Expected either num_positions"),
        ({"num_tokens": 1}, "with the tokens of every sequence"),
        ({"tokens": np.ones(4, int)}, "with the tokens of every sequence"),
        ({"num_positions": 1, "tokens": np.ones(4, int)}, "Expected either num_positions"),
        ({"num_positions": -1}, "num_positions to be a whole number >= 0 and <= 4, found -1"),
        ({"num_positions": 1.5}, r"num_positions to be a whole number >= 0 and <= 4, found 1\.5"),
        ({"num_positions": 5}, "num_positions to be a whole number >= 0 and <= 4"),
        ({"num_tokens": -1, "tokens": np.ones(4, int)}, "num_tokens to be a whole number >= 0 and <= 4, found -1"),
        ({"num_tokens": 1, "tokens": np.ones(3, int)}, "tokens of 4 sequences of this dataset, found 3"),
        ({"num_tokens": 1, "tokens": np.ones(4)}, "found float64"),
        ({"num_tokens": 1, "tokens": -np.ones(4, int)}, "every sequence's tokens >= 0, found -1"),
    ],
)
def test_bad_truncations(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        jd.truncate(permutation(4), **settings)


@given(st.lists(ORDERINGS, min_size=1, max_size=5))
def test_concatenated_datasets_are_one_bijection(orderings: list[Ordering]) -> None:
    expected: list[int] = []
    for ordering in orderings:
        expected += [len(expected) + int(index) for index in ordering.indices]
    whole = jd.concatenate(orderings)
    assert isinstance(whole, Ordering)
    assert whole.indices.tolist() == expected
    assert len(whole.info["of"]) == len(orderings)


def test_datasets_may_lie_in_another_order_than_they_come() -> None:
    parts = [permutation(3), permutation(0), permutation(2, seed=1)]
    whole = jd.concatenate(parts, offsets=[2, 5, 0])
    assert whole.indices.tolist() == [*(2 + parts[0].indices).tolist(), *parts[2].indices.tolist()]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("offsets", "sentence"),
    [
        ([0, 4], "one at the offset 4 where the one before ends at 3"),
        ([0, 2], "one at the offset 2 where the one before ends at 3"),
        ([1, 4], "one at the offset 1 where the one before ends at 0"),
        ([0], "an offset for each of 2 orderings, found 1"),
        ([-1, 0], "offsets to be a whole number >= 0, found -1"),
        ([0, 3.0], re.escape("offsets to be a whole number >= 0, found 3.0")),
    ],
)
def test_bad_offsets(offsets: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        jd.concatenate([permutation(3), permutation(2)], offsets)


@pytest.mark.usefixtures("unchecked")
def test_other_hostile_input() -> None:
    settings: list[Any] = [0, -3, 1.5, None]
    for batch_size in settings:
        with pytest.raises(ValueError, match="Expected batch_size"):
            jd.shuffle_blocks(permutation(4), batch_size)
    with pytest.raises(ValueError, match="Expected seed to be a whole number >= 0, found -1"):
        jd.shuffle_blocks(permutation(4), 2, -1)
    with pytest.raises(ValueError, match="at least one ordering to concatenate, found none"):
        jd.concatenate([])


def test_the_articles_third_configuration_is_the_greedy_with_its_blocks_shuffled() -> None:
    chars = synthetic_characteristics(90, num_clusters=8, num_bins=3)
    greedy = jd.order(chars, "greedy", seed=5, objective=jd.Objective.f3())
    made = jd.order(chars, "greedy_block_shuffle", seed=5, objective=jd.Objective.f3(), block_size=8)
    np.testing.assert_array_equal(made, jd.shuffle_blocks(greedy, 8, seed=5))
    one_block = jd.order(chars, "greedy_block_shuffle", seed=5, objective=jd.Objective.f3(), block_size=91)
    np.testing.assert_array_equal(one_block, greedy)
    with pytest.raises(jd.UserError, match="Expected block_size to be a whole number >= 1, found 0"):
        jd.order(chars, "greedy_block_shuffle", block_size=0)

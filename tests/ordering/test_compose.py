"""Compositions of orderings: what they keep, in which order, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity import Ordering
from tests.support.synthetic import synthetic_characteristics


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
        ([0, 4], "one at the offset 4, but the previous one ends at 3"),
        ([0, 2], "one at the offset 2, but the previous one ends at 3"),
        ([1, 4], "one at the offset 1, but the previous one ends at 0"),
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

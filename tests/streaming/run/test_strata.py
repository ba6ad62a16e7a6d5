"""Mixtures by weight, limits and temperature, and which sequences come in which part, against counting."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.run.strata import History, Strata, mixed_positions, parts, rounded
from jax_diversity.streaming.run.weights import limited, named_weights, tempered

NAMES = ("web-0", "web-1", "code", "books", "news")


def strata_of(sizes: list[int]) -> Strata:
    """Strata of sequences with ten tokens of one group each."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    entries = (np.full(len(group), 10), group, np.arange(len(group) + 1))
    return Strata.build(csr_array(entries, shape=(len(group), len(sizes))), NAMES[: len(sizes)], "source")


def slow_parts(strata: Strata, asked: list[int], history: list[int], rank: np.ndarray) -> list[set[int]]:
    """The rule by words: of a stratum comes what came least often, of that what came longest ago, then by rank.

    How long ago is counted in parts, and in quarters of an epoch before them.
    """
    quarter = max(len(strata.of_sequence) // 4, 1)
    turns = [(place - len(history)) // quarter for place in range(len(history))]
    history, found = list(history), []
    members = [[i for i, own in enumerate(strata.of_sequence) if own == group] for group in range(len(asked))]
    fresh = [sum(each not in history for each in own) for own in members]
    comes_again = any(number > unused for number, unused in zip(asked, fresh, strict=True))
    num_parts = max((-(-2 * a // len(m)) for a, m in zip(asked, members, strict=True) if m), default=1)
    num_parts = num_parts if comes_again else 1
    for part in range(num_parts):
        times, chosen = Counter(history), set()
        for group, (own, number) in enumerate(zip(members, asked, strict=True)):
            fraction = math.modf(group * (math.sqrt(5) - 1) / 2)[0]
            due = [math.floor(number * end / num_parts + fraction) for end in (part, part + 1)]
            count = due[1] - due[0]
            last = {
                each: max((t for t, came in zip(turns, history, strict=True) if came == each), default=-99)
                for each in own
            }
            chosen |= set(sorted(own, key=lambda s, last=last: (times[s], last[s], rank[s]))[:count])
        if chosen:
            found.append(chosen)
            history += sorted(chosen)
            turns += [part] * len(chosen)
    return found


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_parts_are_those_of_the_slow_rule(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    asked = [data.draw(st.integers(0, 4 * size)) for size in sizes]
    strata, number = strata_of(sizes), sum(sizes)
    history = data.draw(st.lists(st.integers(0, number - 1), max_size=12))
    rank = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(number)
    use, found = History.of(np.array(history, np.int64), number), []
    for part in parts(strata, np.array(asked), use, rank):
        found.append(set(part.tolist()))
        assert len(found[-1]) == len(part)  # no sequence twice in a part
        use.add(part)
    assert found == slow_parts(strata, asked, history, rank)
    assert np.bincount(strata.of_sequence[[i for part in found for i in part]], minlength=len(sizes)).tolist() == asked


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_copies_are_apart_and_even(data: st.DataObject) -> None:
    """Consecutive parts share nothing; no sequence of a stratum comes twice more often than another."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    asked = np.array([data.draw(st.integers(0, 5 * size)) for size in sizes])
    # A stratum that is in every part: without it, a sequence that is all of a dataset would follow itself.
    sizes, asked = [*sizes, 40], np.append(asked, 40)
    strata, rng = strata_of(sizes), np.random.default_rng(data.draw(st.integers(0, 99)))
    use, found = History.of(np.zeros(0, np.int64), sum(sizes)), []

    def order_part(recent: np.ndarray, part: np.ndarray) -> np.ndarray:
        assert not np.isin(part, recent).any()
        found.append(rng.permutation(part))
        return found[-1]

    run = np.concatenate(list(mixed_positions(strata, [asked], use, rng.permutation(sum(sizes)), order_part)))
    assert len(run) == asked.sum()
    for one, other in itertools.pairwise(found):
        assert not set(one.tolist()) & set(other.tolist())
    times = np.bincount(run, minlength=sum(sizes))
    np.testing.assert_array_equal(times, use.times)
    for group, own in enumerate(np.split(times, np.cumsum(sizes)[:-1])):
        assert own.sum() == asked[group]
        assert own.max(initial=0) - own.min(initial=99) <= 1
    shortest = min((len(part) for part in found[1:-1]), default=0)
    for sequence in np.flatnonzero(times > 1):
        assert np.diff(np.flatnonzero(run == sequence)).min() > shortest


def test_shares_are_those_of_tokens_where_sequences_mix_groups() -> None:
    counts = csr_array([[8, 2], [6, 4], [1, 9], [0, 10], [3, 7]])
    strata = Strata.build(counts, ("a", "b"), "source")
    assert strata.of_sequence.tolist() == [0, 0, 1, 1, 1]
    asked = strata.positions(np.array([0.5, 0.5]), 1000)
    tokens = asked @ (strata.tokens / strata.sizes[:, None])
    np.testing.assert_allclose(tokens / tokens.sum(), [0.5, 0.5], atol=1e-3)
    with pytest.raises(UserError, match=r"0\.950 for source 'a', which can get only 0\.700"):
        strata.positions(np.array([0.95, 0.05]), 1000)


def test_sequences_of_unequal_tokens() -> None:
    strata = Strata.build(csr_array([[10, 0], [30, 0], [0, 5], [0, 5]]), ("a", "b"), "source")
    assert strata.positions(np.array([0.5, 0.5]), 100).tolist() == [20, 80]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_limited_shares(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 6))
    shares = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=number, max_size=number)))
    most = np.array(data.draw(st.lists(st.floats(0, 1), min_size=number, max_size=number)))
    shares /= shares.sum()
    if most.sum() < 1:
        with pytest.raises(UserError, match="times too long"):
            limited(shares, most)
        return
    found = limited(shares, most)
    assert (found <= most + 1e-9).all()
    assert abs(found.sum() - 1) < 1e-9
    free = found < most - 1e-9  # in proportion to their shares, where nothing is in the way
    assert np.ptp(found[free] / shares[free], axis=0) < 1e-6 if free.any() else True


def test_temperatures() -> None:
    tokens = np.array([90.0, 9.0, 1.0, 0.0])
    np.testing.assert_array_equal(tempered(tokens, 1), tokens / 100)
    np.testing.assert_allclose(tempered(tokens, 2)[:3], np.sqrt([90, 9, 1]) / np.sqrt([90, 9, 1]).sum())
    np.testing.assert_allclose(tempered(tokens, 1e6), [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-5)
    assert np.isfinite(tempered(tokens * 1e15, 1e-3)).all()
    # UniMax: all groups alike, but those that have too little for that.
    np.testing.assert_allclose(limited(tempered(tokens, 1e6), tokens * 4 / 100), [0.6, 0.36, 0.04, 0], atol=1e-4)
    for bad in (0, -1, float("nan"), 1e9):
        with pytest.raises(UserError, match="temperature"):
            tempered(tokens, bad)


def test_weights_by_name() -> None:
    tokens = np.array([30.0, 10.0, 5.0, 5.0])

    def weights(given: object) -> list[float]:
        return named_weights(given, NAMES[:4], tokens, "source").tolist()

    assert weights({"web-*": 4, "code": 1}) == [3, 1, 1, 0]
    assert weights({"*": 4, "web-0": 1}) == [1, 2, 1, 1]
    assert weights(["4", "corpora/web-*", "1", "corpora/books"]) == [3, 1, 0, 1]
    assert weights([2, "code"]) == [0, 0, 2, 0]
    assert weights({"source=web-*": 4, "code": 1}) == [3, 1, 1, 0]
    # Two patterns that mean one group: the first has it.
    assert weights({"web-*": 4, "*": 1}) == [3, 1, 0.5, 0.5]
    np.testing.assert_array_equal(named_weights({"a*": 1}, ["a", "ab"], np.zeros(2), "source"), [0.5, 0.5])
    # Datasets of one name are known by more of their paths, which a pattern may have, too.
    paths = named_weights({"a/*": 3, "b/*": 1}, ["a/web", "b/web"], np.ones(2), "dataset")
    np.testing.assert_array_equal(paths, [3, 1])
    for given_weights, sentence in (
        ({"mail": 1}, "found 'mail'; there are web-0"),
        ({"quality>=0.8": 1}, "name groups of source, found .quality>=0.8.; there are web-0"),
        ({"web-*": 1, "web-?": 1}, r"all groups of 'web-\?' have a weight from another name"),
        ({"code": -1}, "weights of 'code' to be finite and >= 0"),
        ({"code": 0}, "above zero"),
        ({}, "above zero"),
        (["1", "code", "2"], "a weight before each name"),
        (["code", "books"], "a weight before each name"),
        (["1", "code", "2", "code"], "every name once"),
    ):
        with pytest.raises(UserError, match=sentence):
            weights(given_weights)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 5), min_size=1, max_size=9), st.integers(0, 200))
def test_rounded_numbers_add_up(values: list[float], total: int) -> None:
    scaled = np.array(values) + 1e-3
    scaled *= total / scaled.sum()
    found = rounded(scaled, total)
    assert found.sum() == total
    assert (np.abs(found - scaled) < 1 + 1e-6).all()

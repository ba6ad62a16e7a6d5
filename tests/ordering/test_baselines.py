"""Shuffles, of streams as well, the stratified and the sorted order: slow references and properties."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from jax_diversity import Characteristics, measure, order
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.features import heaviest_groups
from tests.support.synthetic import synthetic_characteristics

SEEDED = ("buffer_shuffle", "stratified", "uniform_shuffle", "window_shuffle")
UNSEEDED = ("cluster_sorted", "corpus_order")


def plain(num_sequences: int) -> Characteristics:
    return Characteristics.from_counts({"topic": np.ones((num_sequences, 1), int)})


def grouped(groups: np.ndarray, num_groups: int) -> Characteristics:
    """Sequences of five tokens, three of them of their group, two of another."""
    counts = np.zeros((len(groups), num_groups), int)
    np.add.at(counts, (np.arange(len(groups)), groups), 3)
    np.add.at(counts, (np.arange(len(groups)), (groups + 1) % num_groups), 2)
    return Characteristics.from_counts({"topic": counts, "other": counts[:, ::-1]})


@pytest.mark.parametrize("method", SEEDED)
def test_seeds_give_different_orders(method: str) -> None:
    chars = synthetic_characteristics(150)
    assert order(chars, method, seed=1).fingerprint != order(chars, method, seed=2).fingerprint


@pytest.mark.parametrize("method", SEEDED + UNSEEDED)
def test_progress_counts_every_position(method: str) -> None:
    told: list[int] = []
    chars = synthetic_characteristics(150)
    order(chars, method, advance=told.append)
    assert sum(told) == chars.num_sequences


@pytest.mark.parametrize("method", SEEDED + UNSEEDED)
@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((0, 3), int),
        np.zeros((1, 2), int),
        np.array([[0, 0], [4, 0], [0, 0], [1, 3]]),
        np.ones((9, 1), int),
    ],
    ids=["nothing", "one empty", "some empty", "equals"],
)
def test_degenerate_corpora(method: str, counts: np.ndarray) -> None:
    indices = order(Characteristics.from_counts({"topic": counts}), method).indices
    np.testing.assert_array_equal(np.sort(indices), np.arange(len(counts)))


# Buffers


def streamed(
    num_sequences: int, seed: int, buffer_size: int, num_workers: int, batch_size: int, epoch: int
) -> list[int]:
    """A loader, one sequence at a time: an empty buffer is filled and shuffled, workers take turns for a batch each."""
    streams = [iter(range(worker, num_sequences, num_workers)) for worker in range(num_workers)]
    buffers: list[list[int]] = [[] for _ in streams]
    draws = [
        np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, worker))) for worker in range(num_workers)
    ]
    out: list[int] = []
    while len(out) < num_sequences:
        for worker, stream in enumerate(streams):
            for _ in range(batch_size):
                if not buffers[worker]:
                    filled = list(islice(stream, max(buffer_size, 1)))
                    buffers[worker] = draws[worker].permuted(filled).tolist() if buffer_size else filled
                if buffers[worker]:
                    out.append(buffers[worker].pop(0))
    return out


@given(
    st.integers(0, 60), st.integers(0, 3), st.integers(0, 20), st.integers(1, 9), st.integers(1, 8), st.integers(0, 2)
)
def test_buffer_shuffle_is_what_a_streaming_loader_does(
    num_sequences: int, seed: int, buffer_size: int, num_workers: int, batch_size: int, epoch: int
) -> None:
    options: dict[str, Any] = {
        "buffer_size": buffer_size,
        "num_workers": num_workers,
        "batch_size": batch_size,
        "epoch": epoch,
    }
    indices = order(plain(num_sequences), "buffer_shuffle", seed=seed, **options).indices
    assert indices.tolist() == streamed(num_sequences, seed, **options)


@given(st.integers(0, 200), st.integers(1, 12), st.integers(0, 30))
def test_workers_keep_to_their_positions(num_sequences: int, num_workers: int, buffer_size: int) -> None:
    indices = order(plain(num_sequences), "buffer_shuffle", num_workers=num_workers, buffer_size=buffer_size).indices
    np.testing.assert_array_equal(indices % num_workers, np.arange(num_sequences) % num_workers)
    reach = max(buffer_size, 1) * num_workers
    np.testing.assert_array_equal(indices // reach, np.arange(num_sequences) // reach)


@pytest.mark.parametrize("buffer_size", [0, None])
def test_without_a_buffer_the_corpus_order_stays(buffer_size: int | None) -> None:
    for num_workers in (1, 3, 100):
        indices = order(plain(50), "buffer_shuffle", buffer_size=buffer_size, num_workers=num_workers).indices
        np.testing.assert_array_equal(indices, np.arange(50))
    indices = order(plain(50), "buffer_shuffle", buffer_size=buffer_size, batch_size=7).indices  # of one worker
    np.testing.assert_array_equal(indices, np.arange(50))


def test_whole_batches_come_from_one_worker() -> None:
    """46 sequences, batches of 8, three workers: those of detectron2's pull request 5035, and the smaller ones."""
    indices = order(plain(46), "buffer_shuffle", buffer_size=None, num_workers=3, batch_size=8).indices.tolist()
    batches = [indices[start : start + 8] for start in range(0, 32, 8)]
    assert batches == [[worker + 3 * row for row in range(8)] for worker in (0, 1, 2)] + [list(range(24, 46, 3))]
    assert indices[32:] == list(range(25, 46, 3)) + list(range(26, 46, 3))


def test_workers_and_batches_beyond_the_corpus_change_nothing_more() -> None:
    for huge in (5, 6, 10**15):
        indices = order(plain(5), "buffer_shuffle", buffer_size=None, num_workers=huge, batch_size=huge).indices
        np.testing.assert_array_equal(indices, np.arange(5))


def test_a_buffer_beyond_the_corpus_changes_nothing_more() -> None:
    orders = [order(plain(50), "buffer_shuffle", num_workers=2, buffer_size=size) for size in (25, 26, 10**15)]
    assert len({ordering.fingerprint for ordering in orders}) == 1


def test_a_large_buffer_is_a_full_shuffle_of_each_workers_sequences() -> None:
    """Every order of a worker's three sequences is equally likely."""
    times: dict[tuple[int, ...], int] = {}
    for seed in range(1200):
        indices = order(plain(6), "buffer_shuffle", seed=seed, num_workers=2).indices
        own = tuple(indices[1::2].tolist())
        times[own] = times.get(own, 0) + 1
    assert len(times) == 6
    assert all(140 < count < 260 for count in times.values())  # 200 ± 12.9: beyond 4.6 standard deviations


def test_seeds_epochs_and_workers_have_streams_of_their_own() -> None:
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**32, 0), (2**32 + 1, 0)]
    orders = {order(plain(100), "buffer_shuffle", seed=seed, epoch=epoch).fingerprint for seed, epoch in keys}
    assert len(orders) == len(keys)
    workers = order(plain(100), "buffer_shuffle", num_workers=2).indices
    assert (workers[::2] // 2 != workers[1::2] // 2).any()


def test_a_workers_order_does_not_depend_on_the_other_workers_number_of_sequences() -> None:
    few, many = (order(plain(n), "buffer_shuffle", num_workers=4, buffer_size=10).indices for n in (81, 83))
    np.testing.assert_array_equal(few[:80], many[:80])


@given(st.integers(0, 300), st.integers(1, 400), st.integers(0, 5))
def test_window_shuffle_keeps_every_windows_sequences(num_sequences: int, window_size: int, seed: int) -> None:
    indices = order(plain(num_sequences), "window_shuffle", seed=seed, window_size=window_size).indices
    for start in range(0, num_sequences, window_size):
        window = np.sort(indices[start : start + window_size])
        np.testing.assert_array_equal(window, np.arange(start, min(start + window_size, num_sequences)))


def test_windows_are_shuffled_independently_the_last_as_well() -> None:
    indices = order(plain(250), "window_shuffle", window_size=100).indices
    windows = [indices[start : start + 100] - start for start in (0, 100, 200)]
    assert (windows[0] != windows[1]).any()
    assert all((window != np.arange(len(window))).any() for window in windows)


@pytest.mark.parametrize(("method", "option"), [("buffer_shuffle", "buffer_size"), ("window_shuffle", "window_size")])
def test_the_default_holds_ten_thousand(method: str, option: str) -> None:
    chars = plain(25_000)
    options: dict[str, Any] = {option: 10_000}
    assert order(chars, method).fingerprint == order(chars, method, **options).fingerprint
    np.testing.assert_array_equal(order(chars, method).indices // 10_000, np.arange(25_000) // 10_000)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("method", "options", "sentence"),
    [
        ("buffer_shuffle", {"buffer_size": -1}, "Expected buffer_size to be a whole number >= 0, found -1"),
        ("buffer_shuffle", {"buffer_size": 1e4}, r"Expected buffer_size to be a whole number >= 0, found 10000\.0"),
        ("buffer_shuffle", {"num_workers": 0}, "Expected num_workers to be a whole number >= 1, found 0"),
        ("buffer_shuffle", {"num_workers": "two"}, "Expected num_workers to be a whole number >= 1, found 'two'"),
        ("buffer_shuffle", {"batch_size": 0}, "Expected batch_size to be a whole number >= 1, found 0"),
        ("buffer_shuffle", {"batch_size": None}, "Expected batch_size to be a whole number >= 1, found None"),
        ("buffer_shuffle", {"epoch": -3}, "Expected epoch to be a whole number >= 0, found -3"),
        ("buffer_shuffle", {"epoch": None}, "Expected epoch to be a whole number >= 0, found None"),
        ("window_shuffle", {"window_size": 0}, "Expected window_size to be a whole number >= 1, found 0"),
        ("window_shuffle", {"window_size": 2.5}, r"Expected window_size to be a whole number >= 1, found 2\.5"),
        ("window_shuffle", {"buffer_size": 3}, "no option 'buffer_size'"),
    ],
)
def test_bad_options(method: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        order(plain(5), method, **options)


@pytest.mark.usefixtures("unchecked")
def test_options_of_numpys_types() -> None:
    expected = order(plain(50), "window_shuffle", window_size=7)
    given = order(plain(50), "window_shuffle", window_size=np.int32(7))
    assert given.fingerprint == expected.fingerprint


# Groups


def test_heaviest_groups_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 4, (200, 5)) * (rng.random((200, 5)) < 0.4)
    expected = [int(np.argmax(row)) if row.any() else 5 for row in counts]
    assert 5 in expected
    assert heaviest_groups(csr_array(counts)).tolist() == expected


def test_stored_zeros_and_unsorted_columns_make_no_difference() -> None:
    matrix = csr_array((np.array([2, 2, 0, 0]), np.array([2, 1, 0, 1]), np.array([0, 3, 4])), shape=(2, 3))
    assert heaviest_groups(matrix).tolist() == [1, 3]


def test_cluster_sorted_is_stable_and_puts_empty_sequences_last() -> None:
    counts = [[0, 2], [0, 0], [2, 0], [1, 1], [0, 3], [0, 0]]
    chars = Characteristics.from_counts({"topic": np.array(counts)})
    assert order(chars, "cluster_sorted").indices.tolist() == [2, 3, 0, 4, 1, 5]


# Stratified


def stratified_slowly(groups: list[int], seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    shuffled, jitter = rng.permutation(len(groups)), rng.random(len(groups))
    keys = spaced_slowly(groups, shuffled.tolist(), jitter)
    return sorted(range(len(groups)), key=lambda sequence: (keys[sequence], sequence))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(0, 2**40))
def test_stratified_against_a_slow_reference(groups: list[int], seed: int) -> None:
    ordering = order(grouped(np.array(groups), 5), "stratified", seed=seed)
    assert ordering.indices.tolist() == stratified_slowly(groups, seed)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=300), st.integers(0, 2**16))
def test_stratified_keeps_every_group_even(groups: list[int], seed: int) -> None:
    """Up to a key x, a group of n has placed n x but for less than one, so that p lies within G of N x."""
    of_position = np.array(groups)[order(grouped(np.array(groups), 5), "stratified", seed=seed).indices]
    positions = np.arange(1, len(groups) + 1)
    num_groups = len(set(groups))
    for group in set(groups):
        share = groups.count(group) / len(groups)
        placed = np.cumsum(of_position == group)
        assert np.abs(placed - share * positions).max() <= 1 + num_groups * share + 1e-9


def spaced_slowly(groups: list[int], members: list[int], jitter: np.ndarray) -> list[float]:
    keys = [0.0] * len(groups)
    for group in set(groups):
        own = [sequence for sequence in members if groups[sequence] == group]
        for place, sequence in enumerate(own):
            keys[sequence] = (place + jitter[sequence]) / len(own)
    return keys


def two_families(first: list[int], second: list[int]) -> Characteristics:
    return Characteristics.from_counts({"topic": np.eye(5, dtype=int)[first], "copies": np.eye(5, dtype=int)[second]})


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=80), st.integers(0, 2**40))
def test_stratified_in_two_ways_against_a_slow_reference(pairs: list[tuple[int, int]], seed: int) -> None:
    first, second = map(list, zip(*pairs, strict=True))
    rng = np.random.default_rng(seed)
    members, jitter = rng.permutation(len(first)).tolist(), rng.random(len(first))
    inner = spaced_slowly(second, members, rng.random(len(first)))
    members = sorted(range(len(first)), key=lambda sequence: (inner[sequence], sequence))
    keys = spaced_slowly(first, members, jitter)
    expected = sorted(range(len(first)), key=lambda sequence: (keys[sequence], sequence))
    ordering = order(two_families(first, second), "stratified", seed=seed, second_family="copies")
    assert ordering.indices.tolist() == expected


def test_stratified_in_two_ways_keeps_copies_apart_and_clusters_even() -> None:
    """Four of 2,000 sequences are copies of one another, in one cluster of five."""
    first, second = (
        [number % 5 for number in range(2000)],
        [int(number < 20 and number % 5 == 0) for number in range(2000)],
    )
    chars = two_families(first, second)
    gaps = {"random": [], "spaced": []}
    for seed in range(100):
        for name, family in (("random", None), ("spaced", "copies")):
            made = order(chars, "stratified", seed=seed, second_family=family).indices
            places = np.flatnonzero(np.array(second)[made])
            gaps[name].append(np.diff(places).min() / 2000)
            counts = np.bincount(np.array(first)[made[:1000]], minlength=5)
            assert abs(counts - 200).max() <= 2
    assert np.mean(gaps["spaced"]) > 2 * np.mean(gaps["random"])


def test_a_second_family_that_there_is_not() -> None:
    with pytest.raises(UserError, match="Expected second_family to be one of topic, other, found 'copies'"):
        order(grouped(np.zeros(5, int), 2), "stratified", second_family="copies")


def test_stratified_draws_who_comes_first_and_where() -> None:
    chars = grouped(np.zeros(5, int), 2)
    first = [int(order(chars, "stratified", seed=seed).indices[0]) for seed in range(500)]
    assert np.bincount(first, minlength=5).min() > 60  # 100 ± 8.9
    pair = grouped(np.array([0, 1]), 2)
    leaders = [int(order(pair, "stratified", seed=seed).indices[0]) for seed in range(500)]
    assert 180 < sum(leaders) < 320


# What the literature says of them


def test_from_worst_to_best() -> None:
    chars = synthetic_characteristics(3000)
    methods = ("cluster_sorted", "uniform_shuffle", "stratified", "greedy")
    mean = {method: measure(chars, order(chars, method)).window_tv["cluster"][256].mean() for method in methods}
    assert mean["cluster_sorted"] > 2 * mean["uniform_shuffle"]
    assert mean["uniform_shuffle"] > 1.1 * mean["stratified"]
    assert mean["stratified"] > mean["greedy"]


def test_a_small_buffer_mixes_less_than_a_large_one() -> None:
    groups = np.repeat(np.arange(10), 300)  # a corpus written group by group
    chars = grouped(groups, 10)
    mean = [
        measure(chars, order(chars, "buffer_shuffle", buffer_size=size)).window_tv["topic"][256].mean()
        for size in (0, 256, 1024, 3000)
    ]
    assert mean[0] == pytest.approx(mean[1], rel=0.05)
    assert mean[1] > 1.2 * mean[2] > 2 * mean[3]

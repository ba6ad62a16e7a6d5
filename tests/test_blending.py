"""Blends: the deficit rule against an obvious one, shares at every moment, epochs and their ends."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity import Blend, Ordering
from jax_diversity.ordering.composition.blending import interleave


@pytest.fixture
def unchecked() -> Iterator[None]:
    """As for a user, whose calls nothing checks before the code does."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


def permutation(size: int, seed: int = 0) -> Ordering:
    return Ordering(np.random.default_rng(seed).permutation(size), {"method": "mine", "seed": seed})


def slow_interleave(weights: list[float], num_positions: int, lookahead: int = 1) -> list[int]:
    """The rule as it is written, in Python's own numbers."""
    total = float(np.sum(np.array(weights, np.float64)))
    shares = [weight / total for weight in weights]
    counts = [0] * len(shares)
    chosen = []
    for step in range(num_positions):
        best, most = -1, 0.0
        for dataset, share in enumerate(shares):
            lag = share * max(step + lookahead, 1) - counts[dataset]
            if share > 0 and (best < 0 or lag > most):
                best, most = dataset, lag
        counts[best] += 1
        chosen.append(best)
    return chosen


WEIGHTS = st.lists(
    st.one_of(st.integers(0, 5).map(float), st.floats(0, 3, allow_subnormal=False)), min_size=1, max_size=12
).filter(lambda weights: sum(weights) > 1e-3)


@given(WEIGHTS, st.integers(0, 120), st.sampled_from([0, 1]))
def test_the_rule_is_the_slow_one(weights: list[float], num_positions: int, lookahead: int) -> None:
    found = interleave(weights, num_positions, lookahead=lookahead)
    assert found.dtype == np.int64
    assert found.tolist() == slow_interleave(weights, num_positions, lookahead)


@given(WEIGHTS)
def test_shares_hold_at_every_moment(weights: list[float]) -> None:
    chosen = interleave(weights, 300)
    counts = np.cumsum(chosen[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, 301)[:, None] * (np.array(weights) / np.sum(weights))
    assert (counts - due).max() < 1
    assert (due - counts).max() < 1.5
    assert not (counts[-1][np.array(weights) == 0]).any()


def test_two_datasets_are_never_off_by_more_than_half_a_position() -> None:
    for share in (0.1, 0.25, 0.3, 0.7, 0.99):
        running = np.cumsum(interleave([share, 1 - share], 2000) == 0)
        assert np.abs(running - share * np.arange(1, 2001)).max() <= 0.5 + 1e-9


def test_golden_interleavings() -> None:
    assert interleave([3, 1], 8).tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
    assert interleave([1, 1, 1], 6).tolist() == [0, 1, 2, 0, 1, 2]
    assert interleave([0.5, 0.3, 0.2], 10).tolist() == [0, 1, 2, 0, 0, 1, 0, 2, 1, 0]
    # Megatron's own: 0.7 * 4 - 3 < 0.3 * 4 - 1 at step 4, where the lags at the end of the step are equal
    assert interleave([0.7, 0.3], 5, lookahead=0).tolist() == [0, 1, 0, 0, 1]
    assert interleave([0, 1, 1], 4).tolist() == [1, 2, 1, 2]


def test_more_than_256_datasets() -> None:
    chosen = interleave(np.ones(700), 1400)
    assert chosen.tolist() == [*range(700), *range(700)]
    plan = jd.blend([Ordering(np.arange(1))] * 300, num_positions=600).to_schedule()
    assert plan.counts.tolist() == [2] * 300


def test_many_positions_of_300_datasets() -> None:
    told: list[int] = []
    chosen = interleave(1 / np.arange(1, 301), 200_000, advance=told.append)
    assert (sum(told), len(told) > 3) == (200_000, True)
    shares = 1 / np.arange(1, 301)
    due = 200_000 * shares / shares.sum()
    assert np.abs(np.bincount(chosen) - due).max() < 1.1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.integers(0, 2))
def test_weights_by_size_are_one_epoch_of_everything(sizes: list[int], seed: int) -> None:
    orderings = [permutation(size, seed) for size in sizes]
    blend = jd.blend(orderings)
    assert blend.counts.tolist() == sizes
    whole = blend.to_schedule().to_ordering()
    for index, ordering in enumerate(orderings):
        assert blend.sequence_index[blend.dataset_index == index].tolist() == ordering.indices.tolist()
    assert len(whole) == sum(sizes)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0.1, 3)), min_size=1, max_size=4),
    st.integers(0, 60),
    st.sampled_from(["rotated", "shuffled", "same"]),
)
def test_datasets_repeat_epoch_by_epoch(datasets: list[tuple[int, float]], num_positions: int, last_epoch: str) -> None:
    orderings = [permutation(size, seed) for seed, (size, _) in enumerate(datasets)]
    blend = jd.blend(orderings, [weight for _, weight in datasets], num_positions, seed=1, last_epoch=last_epoch)
    assert len(blend) == num_positions
    for index, ordering in enumerate(orderings):
        sequences = blend.sequence_index[blend.dataset_index == index]
        once, size = ordering.indices.tolist(), len(ordering)
        num_whole = len(sequences) // size
        assert sequences[: num_whole * size].tolist() == once * num_whole
        last = sequences[num_whole * size :].tolist()
        assert len(set(last)) == len(last)
        if num_whole == 0 or last_epoch == "same":
            assert last == once[: len(last)]
        elif last_epoch == "rotated":
            places = [once.index(sequence) for sequence in last]
            assert all((b - a) % size == 1 for a, b in itertools.pairwise(places))
    schedule = blend.to_schedule()
    offsets = np.array(blend.offsets)
    np.testing.assert_array_equal(schedule.indices, offsets[blend.dataset_index] + blend.sequence_index)
    assert schedule.num_sequences == sum(len(ordering) for ordering in orderings)


def test_last_epochs_depend_on_the_seed_and_on_their_own_dataset_only() -> None:
    datasets = [permutation(50, 1), permutation(40, 2)]

    def last(seed: int, last_epoch: str, weights: tuple[float, float] = (1, 1)) -> list[int]:
        blend = jd.blend(datasets, weights, 150, seed=seed, last_epoch=last_epoch)
        return blend.sequence_index[blend.dataset_index == 0][50:].tolist()

    for last_epoch in ("rotated", "shuffled"):
        assert last(1, last_epoch) == last(1, last_epoch)
        assert last(1, last_epoch) != last(2, last_epoch)
        assert last(1, last_epoch, (1.2, 1.0))[:25] == last(1, last_epoch)[:25]
    assert last(1, "same") == last(2, "same") == datasets[0].indices[:25].tolist()


def test_a_fresh_ordering_each_epoch_of_each_dataset() -> None:
    calls: list[tuple[str, int]] = []

    def fresh(name: str, size: int):
        def ordering(epoch: int) -> Ordering:
            calls.append((name, epoch))
            return permutation(size, epoch)

        return ordering

    blend = jd.blend([fresh("web", 6), fresh("code", 3)], [2, 1], 21, last_epoch="shuffled")
    assert sorted(calls) == [*(("code", epoch) for epoch in range(3)), *(("web", epoch) for epoch in range(3))]
    for index, size in enumerate((6, 3)):
        sequences = blend.sequence_index[blend.dataset_index == index]
        expected = np.concatenate([permutation(size, epoch).indices for epoch in range(3)])
        assert sequences.tolist() == expected[: len(sequences)].tolist()


def test_a_blend_is_a_read_only_value_that_saves_as_a_schedule(tmp_path) -> None:
    blend = jd.blend([permutation(3), permutation(2)], [1, 2], 9, seed=np.int64(4))
    assert repr(blend) == "Blend(9 positions of 2 datasets)"
    assert (len(blend), blend.num_sequences, blend.offsets) == (9, (3, 2), (0, 3))
    for other in (pickle.loads(pickle.dumps(blend)), copy.deepcopy(blend), blend):
        np.testing.assert_array_equal(other.sequence_index, blend.sequence_index)
        assert not other.dataset_index.flags.writeable
        assert not other.sequence_index.flags.writeable
        assert dict(other.info) == dict(blend.info)
    schedule = blend.to_schedule()
    schedule.save(tmp_path / "blend.npy")
    loaded = jd.Schedule.load(tmp_path / "blend.npy")
    assert loaded.fingerprint == schedule.fingerprint
    assert loaded.info == json.loads(json.dumps(dict(blend.info)))
    assert [about["fingerprint"] for about in loaded.info["of"]] == [
        permutation(3).fingerprint,
        permutation(2).fingerprint,
    ]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weights": [1]}, r"a weight for each dataset, of which there are 2, found an array of shape \(1,\)"),
        ({"weights": [1, -1]}, r"the weight of dataset 1 to be finite and >= 0, found -1"),
        ({"weights": [float("nan"), 1]}, "the weight of dataset 0 to be finite and >= 0, found nan"),
        ({"weights": [1, float("inf")]}, "the weight of dataset 1 to be finite and >= 0, found inf"),
        ({"weights": [0, 0]}, "at least one weight above zero"),
        ({"weights": ["a", 1]}, "weights that are numbers"),
        ({"weights": 3}, "a weight for each dataset, of which there are 2"),
        ({"num_positions": -1}, "num_positions to be a whole number >= 0, found -1"),
        ({"num_positions": 2.5}, "num_positions to be a whole number"),
        ({"seed": -1}, "seed to be a whole number >= 0, found -1"),
        ({"last_epoch": "again"}, "last_epoch to be one of rotated, shuffled, same, found 'again'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        jd.blend([permutation(3), permutation(2)], **settings)


@pytest.mark.usefixtures("unchecked")
def test_bad_datasets() -> None:
    bad: list[Any] = [np.arange(3), None, lambda epoch: np.arange(3)]
    for dataset in bad:
        with pytest.raises(ValueError, match="Expected an Ordering, or a function from epoch to Ordering"):
            jd.blend([dataset])
    lone: Any = object()
    with pytest.raises(ValueError, match="found object in epoch 0"):
        jd.blend(lone)
    with pytest.raises(ValueError, match="of 3 sequences in epoch 0, found 4 in epoch 1"):
        jd.blend([lambda epoch: permutation(3 + epoch)], num_positions=6)
    with pytest.raises(ValueError, match="at least one dataset to blend"):
        jd.blend([])
    with pytest.raises(ValueError, match=r"in a dataset of weight 1\.0, found none in dataset 1"):
        jd.blend([permutation(3), permutation(0)], [1, 1])
    assert jd.blend([permutation(3), permutation(0)], [1, 0]).counts.tolist() == [3, 0]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("datasets", "sequences", "sentence"),
    [
        ([0, 2], [0, 0], "dataset indices >= 0 and below 2, found 2"),
        ([0, -1], [0, 0], "dataset indices >= 0 and below 2, found -1"),
        ([0, 1], [0, 2], "sequence indices below"),
        ([0, 1], [-1, 0], "sequence indices >= 0, found -1"),
        ([0, 1], [0.5, 0], "sequence indices to be one axis of integers"),
        ([0, 1], [0], "two axes of equal length"),
        ([[0]], [[0]], "dataset indices to be one axis"),
    ],
)
def test_what_is_no_blend(datasets: Any, sequences: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Blend(np.array(datasets), np.array(sequences), (3, 2))

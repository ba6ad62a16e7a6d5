"""Window profiles and group timelines against their definitions, written the slow and obvious way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity import Characteristics, UserError, group_timeline, measure, order, window_profile
from jax_diversity.ordering.measures import profile
from jax_diversity.schema.orderings import Positions
from tests.support.synthetic import synthetic_characteristics


def slow_tv(counts: np.ndarray, target: np.ndarray, indices: np.ndarray, size: int, offset: int) -> list[float]:
    values = []
    for start in range(offset, len(indices) - size + 1, size):
        window = counts[indices[start : start + size]].sum(axis=0)
        tokens = window.sum()
        values.append(0.5 * np.abs(window / tokens - target).sum() if tokens else 0.0)
    return values


def random_counts(num_sequences: int, num_groups: int, seed: int) -> np.ndarray:
    """Sparse counts in which some sequences may hold nothing; the first holds one token at least."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, (num_sequences, num_groups)) * (rng.random((num_sequences, num_groups)) < 0.3)
    counts[0, 0] += 1
    return counts


def assert_is_profile(counts: np.ndarray, target: np.ndarray, indices: np.ndarray, found) -> None:
    for offset, profile_found in found.items():
        expected = {}
        for level in range(len(indices).bit_length()):
            size = 1 << level
            if offset == "0" or size > 1:
                expected[size] = slow_tv(counts, target, indices, size, size // 2 if offset == "half" else 0)
        expected = {size: values for size, values in expected.items() if values}
        assert profile_found.sizes.tolist() == list(expected)
        assert profile_found.num_windows.tolist() == [len(values) for values in expected.values()]
        for name, of in (("mean", np.mean), ("best", min), ("worst", max)):
            reference = [of(values) for values in expected.values()]
            np.testing.assert_allclose(getattr(profile_found, name), reference, atol=1e-12)


@pytest.mark.parametrize("rows_of_a_block", [1, 2, 8, 64])
@given(num_sequences=st.integers(1, 70), num_groups=st.integers(1, 12), seed=st.integers(0, 1000))
@settings(max_examples=25)
def test_a_profile_is_what_windows_of_every_size_give(rows_of_a_block, num_sequences, num_groups, seed):
    counts = random_counts(num_sequences, num_groups, seed)
    indices = np.random.default_rng(seed).permutation(num_sequences)
    chars = Characteristics.from_counts({"topic": counts})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "_FEWEST_ROWS", rows_of_a_block)
        patch.setattr(profile, "_BLOCK_ENTRIES", 1)  # so that every block is the smallest
        found = window_profile(chars, indices)["topic"]
    assert set(found) == {"0", "half"}
    assert_is_profile(counts, counts.sum(axis=0) / counts.sum(), indices, found)


def test_a_profile_agrees_with_measure_in_every_family():
    chars = synthetic_characteristics(3000, num_clusters=40, seed=1)
    ordering = order(chars, "balance")
    profiles = window_profile(chars, ordering)
    balance = measure(chars, ordering, (1, 64, 2048))
    assert list(profiles) == list(chars.families)
    for family, offsets in profiles.items():
        assert offsets["0"].sizes.tolist() == [2**k for k in range(12)]
        assert offsets["half"].sizes.tolist() == [2**k for k in range(1, 11)]  # 2,048 does not fit after 1,024
        for size in (1, 64, 2048):
            at, tv = size.bit_length() - 1, balance.window_tv[family][size]
            assert offsets["0"].mean[at] == pytest.approx(tv.mean(), abs=1e-12)
            assert offsets["0"].best[at] == pytest.approx(tv.min(), abs=1e-12)
            assert offsets["0"].worst[at] == pytest.approx(tv.max(), abs=1e-12)
        shifted = balance.window_tv_shifted[family][64]
        assert offsets["half"].worst[5] == pytest.approx(shifted.max(), abs=1e-12)


def test_a_profile_of_a_schedule_and_of_other_targets():
    counts = random_counts(20, 5, 3)
    chars = Characteristics.from_counts({"topic": counts})
    positions = np.array([*range(20), *range(7), 3, 3])  # which repeats
    target = np.array([0.5, 0.2, 0.1, 0.1, 0.1])
    found = window_profile(chars, Positions(positions, 20), targets={"topic": target})["topic"]
    assert found["0"].sizes.tolist() == [1, 2, 4, 8, 16]
    assert_is_profile(counts, target, positions, found)


def test_every_position_is_told_once():
    chars = synthetic_characteristics(1000, num_clusters=10)
    told = []
    window_profile(chars, np.arange(chars.num_sequences), told.append)
    assert sum(told) == chars.num_sequences


def test_an_ordering_of_another_dataset_has_no_profile():
    chars = synthetic_characteristics(100, num_clusters=10)
    other = np.arange(chars.num_sequences - 1)
    with pytest.raises(UserError, match="made for another dataset"):
        window_profile(chars, other)
    with pytest.raises(UserError, match="made for another dataset"):
        group_timeline(chars, "cluster", other)


# ---- the largest groups over time


@given(
    num_sequences=st.integers(1, 60),
    num_groups=st.integers(1, 8),
    shown=st.integers(1, 9),
    num_bins=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_a_timeline_holds_every_bins_shares(num_sequences, num_groups, shown, num_bins, seed):
    counts = random_counts(num_sequences, num_groups, seed)
    indices = np.random.default_rng(seed).permutation(num_sequences)
    chars = Characteristics.from_counts({"topic": counts})
    found = group_timeline(chars, "topic", indices, num_groups=shown, num_bins=num_bins)
    totals = counts.sum(axis=0)
    expected = sorted(range(num_groups), key=lambda group: (-totals[group], group))[:shown]
    assert found.groups.tolist() == [group for group in expected if totals[group]]
    np.testing.assert_allclose(found.target, totals[found.groups] / totals.sum())
    bins = [indices[start : start + found.bin_size] for start in range(0, num_sequences, found.bin_size)]
    assert len(bins) <= num_bins
    assert found.share.shape == (len(found.groups), len(bins))
    for column, members in zip(found.share.T, bins, strict=True):
        tokens = counts[members].sum(axis=0)
        np.testing.assert_allclose(column, tokens[found.groups] / max(tokens.sum(), 1))
        if len(found.groups) == np.count_nonzero(totals) and tokens.sum():
            assert column.sum() == pytest.approx(1)


def test_a_timeline_shows_what_a_sorted_order_does():
    chars = Characteristics.from_counts({"topic": [[4, 0], [4, 0], [0, 4], [0, 4]]})
    as_sorted = group_timeline(chars, "topic", np.arange(4), num_bins=2)
    mixed = group_timeline(chars, "topic", np.array([0, 2, 1, 3]), num_bins=2)
    assert as_sorted.share.tolist() == [[1, 0], [0, 1]]
    assert mixed.share.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_a_timeline_of_nothing_is_refused():
    chars = Characteristics.from_counts({"topic": [[1, 0], [0, 1]]})
    with pytest.raises(UserError, match="family to be one of topic, found 'source'"):
        group_timeline(chars, "source", np.arange(2))
    with pytest.raises(UserError, match="num_groups to be a whole number >= 1, found 0"):
        group_timeline(chars, "topic", np.arange(2), num_groups=0, num_bins=5)

"""The measures against their definitions, written the slow and obvious way."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity import Characteristics, measure, measures, order
from tests.synthetic import synthetic_characteristics


def slow_prefix_l2(counts: np.ndarray, indices: np.ndarray, length: int) -> list[float]:
    share = counts.sum(axis=0) / counts.sum()
    total = np.zeros(counts.shape[1])
    values = []
    for index in indices:
        total += counts[index] - counts[index].sum() * share
        values.append(np.linalg.norm(total) / length)
    return values


def slow_window_l2(counts: np.ndarray, indices: np.ndarray, size: int) -> list[float]:
    share = counts.sum(axis=0) / counts.sum()
    values = []
    for start in range(0, len(indices) - size + 1, size):
        window = counts[indices[start : start + size]].sum(axis=0)
        values.append(np.linalg.norm(window / window.sum() - share))
    return values


def slow_window_tv(counts: np.ndarray, indices: np.ndarray, size: int, offset: int = 0) -> list[float]:
    share = counts.sum(axis=0) / counts.sum()
    values = []
    for start in range(offset, len(indices) - size + 1, size):
        window = counts[indices[start : start + size]].sum(axis=0)
        values.append(0.5 * np.abs(window / window.sum() - share).sum())
    return values


def slow_window_max(counts: np.ndarray, indices: np.ndarray, size: int) -> float:
    share = counts.sum(axis=0) / counts.sum()
    largest = 0.0
    for start in range(len(indices) - size + 1):
        window = counts[indices[start : start + size]].sum(axis=0)
        largest = max(largest, np.abs(window / window.sum() - share).max())
    return largest


def slow_floor(counts: np.ndarray, size: int, length: int) -> float:
    share = counts.sum(axis=0) / counts.sum()
    sums = sorted(
        sum(max(0.0, piece / (size * length) - tau) for piece, tau in zip(row, share, strict=True))
        for row in counts
    )
    kept = sums[: len(counts) - len(counts) % size]
    return sum(kept) / (len(counts) // size)


@pytest.mark.parametrize("method", ["corpus_order", "uniform_shuffle", "greedy"])
def test_measures_are_their_definitions(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_BLOCK_ENTRIES", 700)  # many small blocks
    chars = synthetic_characteristics(120, num_clusters=15, num_bins=5, last_sequence="pad")
    indices = order(chars, method).indices
    balance = measure(chars, indices, windows=(1, 7, 32))
    for family, matrix in chars.counts.items():
        counts, length = matrix.toarray(), chars.sequence_length
        np.testing.assert_allclose(balance.prefix_l2[family], slow_prefix_l2(counts, indices, length), atol=1e-9)
        for size in (1, 7, 32):
            np.testing.assert_allclose(
                balance.window_tv[family][size], slow_window_tv(counts, indices, size), atol=1e-12
            )
            np.testing.assert_allclose(
                balance.window_tv_shifted[family][size],
                slow_window_tv(counts, indices, size, offset=size // 2),
                atol=1e-12,
            )
            np.testing.assert_allclose(
                balance.window_l2[family][size], slow_window_l2(counts, indices, size), atol=1e-12
            )
            assert balance.window_max[family][size] == pytest.approx(slow_window_max(counts, indices, size))
            assert balance.window_tv_floor[family][size] == pytest.approx(slow_floor(counts, size, length))
    norms = np.linalg.norm(chars.counts["cluster"].toarray(), axis=1) / chars.sequence_length
    np.testing.assert_allclose(balance.norm_drift, np.cumsum(norms[indices] - norms.mean()), atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 10), st.integers(0, 2**16))
def test_no_order_has_a_mean_below_the_floor(sequences: int, groups: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.multinomial(64, np.ones(groups) / groups, sequences)  # full sequences
    chars = Characteristics.from_counts({"topic": rows})
    size = min(size, sequences)
    balance = measure(chars, rng.permutation(sequences).astype(np.int64), windows=(size,))
    assert balance.window_tv["topic"][size].mean() >= balance.window_tv_floor["topic"][size] - 1e-12


def test_offsets_shift_the_windows() -> None:
    chars = synthetic_characteristics(60, num_clusters=8, num_bins=3)
    counts = chars.counts["cluster"]
    shifted = measures.window_deviation(counts, chars.target_share("cluster"), 8, offset=4)
    expected = measures.window_deviation(counts[4:], chars.target_share("cluster"), 8)
    np.testing.assert_allclose(shifted, expected)


def test_an_order_made_for_one_alignment_is_seen_at_the_other() -> None:
    """Windows of a group pair each, the halves sorted: even when aligned, all of one group when shifted."""
    chars = Characteristics.from_counts({"topic": [[4, 0], [0, 4], [0, 4], [4, 0], [4, 0], [0, 4]]})
    balance = measure(chars, np.arange(6), windows=(2,))
    np.testing.assert_array_equal(balance.window_tv["topic"][2], [0, 0, 0])
    np.testing.assert_array_equal(balance.window_l2["topic"][2], [0, 0, 0])
    np.testing.assert_array_equal(balance.window_tv_shifted["topic"][2], [0.5, 0.5])
    figures = balance.summary()["families"]["topic"]["windows"]["2"]
    assert (figures["tv_worst"], figures["tv_mean_shifted"], figures["tv_worst_shifted"]) == (0, 0.5, 0.5)
    assert figures["l2_worst"] == 0


def test_window_l2_of_windows_that_lack_groups() -> None:
    chars = Characteristics.from_counts({"topic": [[4, 0, 0], [0, 4, 0], [0, 0, 8]]})
    share = np.array([0.25, 0.25, 0.5])
    expected = [np.linalg.norm(row - share) for row in np.eye(3)]
    np.testing.assert_allclose(measure(chars, np.arange(3), windows=(1,)).window_l2["topic"][1], expected)


def test_the_summary_is_json_also_where_no_shifted_window_fits() -> None:
    chars = synthetic_characteristics(64)
    summary = measure(chars, order(chars, "corpus_order"), windows=(chars.num_sequences,)).summary()
    figures = json.loads(json.dumps(summary, allow_nan=False))["families"]["cluster"]["windows"]
    assert figures[str(chars.num_sequences)]["tv_worst_shifted"] is None


def test_the_whole_corpus_as_one_window_has_no_deviation() -> None:
    chars = synthetic_characteristics(64)
    balance = measure(chars, order(chars, "uniform_shuffle"), windows=(chars.num_sequences,))
    assert balance.window_tv["cluster"][chars.num_sequences][0] == pytest.approx(0, abs=1e-12)
    assert balance.window_l2["cluster"][chars.num_sequences][0] == pytest.approx(0, abs=1e-12)
    assert len(balance.window_tv_shifted["cluster"][chars.num_sequences]) == 0
    assert balance.prefix_l2["cluster"][-1] == pytest.approx(0, abs=1e-9)


def test_windows_without_tokens_are_even() -> None:
    chars = Characteristics.from_counts({"topic": [[0, 0], [0, 0], [1, 1], [1, 1]]})
    balance = measure(chars, np.arange(4), windows=(2,))
    np.testing.assert_array_equal(balance.window_tv["topic"][2], [0, 0])
    np.testing.assert_array_equal(balance.window_l2["topic"][2], [0, 0])
    np.testing.assert_array_equal(balance.window_tv_shifted["topic"][2], [0])
    assert balance.window_max["topic"][2] == 0


def test_ideal_token_shuffle_is_what_single_tokens_would_give() -> None:
    rng = np.random.default_rng(0)
    target = np.array([0.5, 0.3, 0.2])
    drawn = rng.multinomial(256 * 64, target, 2000) / (256 * 64)
    expected = 0.5 * np.abs(drawn - target).sum(axis=1).mean()
    assert measures.ideal_token_shuffle(target, 256, 64) == pytest.approx(expected, rel=0.05)


def test_orderings_of_another_dataset_and_windows_out_of_range() -> None:
    chars = synthetic_characteristics(40)
    with pytest.raises(ValueError, match="it was made for another dataset"):
        measure(chars, np.arange(7))
    for size in (0, 10**6):
        with pytest.raises(ValueError, match=f"found {size}"):
            measure(chars, np.arange(chars.num_sequences), windows=(size,))


def test_greedy_beats_the_shuffle_in_both_families() -> None:
    """The source article's claim at a size that a test can afford: worst window against best."""
    chars = synthetic_characteristics(4000, num_clusters=100)
    greedy, shuffle = (
        measure(chars, order(chars, method), windows=(256,)) for method in ("greedy", "uniform_shuffle")
    )
    for family in chars.families:
        assert greedy.window_tv[family][256].max() < shuffle.window_tv[family][256].min()
        assert greedy.prefix_l2[family].max() < 0.3 * shuffle.prefix_l2[family].max()

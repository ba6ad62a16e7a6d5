"""Statistics of paired runs: intervals that hold the truth as often as they say, against SciPy and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from evidence.statistics import (
    holm,
    paired_difference,
    pairs_needed,
    power,
    smallest_detectable,
    variance_ratio,
)
from jax_diversity.foundation.errors import UserError


def test_one_document_is_a_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.normal(3.0, 0.1, (8, 1)), rng.normal(3.02, 0.1, (8, 1))
    found = paired_difference(one, other, num_draws=40_000)
    expected = stats.ttest_rel(one[:, 0], other[:, 0])
    interval = expected.confidence_interval()
    assert found.mean == pytest.approx((one - other).mean())
    assert found.p_value == pytest.approx(expected.pvalue)
    # The bootstrap's standard error is that of the mean.
    assert (found.low, found.high) == pytest.approx(
        (interval.low, interval.high), abs=0.01 * (interval.high - interval.low)
    )


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """Seeds, documents and both together vary; the truth is the mean over both."""
    rng = np.random.default_rng(1)
    held = 0
    for trial in range(300):
        differences = (
            0.02 + 0.01 * rng.normal(size=(6, 1)) + 0.02 * rng.normal(size=(1, 40)) + 0.03 * rng.normal(size=(6, 40))
        )
        shared = rng.normal(3, 1, (6, 40))
        found = paired_difference(shared + differences, shared, num_draws=400, seed=trial)
        held += found.low <= 0.02 <= found.high
    assert 0.92 <= held / 300 <= 0.995


def test_documents_weigh_by_their_tokens() -> None:
    one = np.array([[1.0, 5.0], [1.0, 5.0]])
    other = np.zeros((2, 2))
    assert paired_difference(one, other, np.array([3.0, 1.0])).mean == pytest.approx(2.0)
    assert paired_difference(one, other).mean == pytest.approx(3.0)
    assert paired_difference(other, other).p_value == 1
    assert not paired_difference(other, other).is_significant
    assert paired_difference(one[:, :1], other[:, :1]).is_significant


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros((1, 3)), np.zeros((1, 3))),
        (np.zeros((3, 0)), np.zeros((3, 0))),
        (np.full((3, 2), np.nan), np.zeros((3, 2))),
    ],
)
def test_what_cannot_be_compared_is_refused(one: np.ndarray, other: np.ndarray) -> None:
    with pytest.raises(UserError, match="Expected"):
        paired_difference(one, other)


def test_holm_keeps_false_findings_rare() -> None:
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03])), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm(np.array([0.9, 0.8])), [1.0, 1.0])
    np.testing.assert_array_equal(holm(np.array([0.001, 0.03, 0.04])) <= 0.05, [True, False, False])
    rng = np.random.default_rng(2)
    any_found = np.mean([(holm(rng.random(10)) <= 0.05).any() for _ in range(4000)])
    assert any_found == pytest.approx(0.05, abs=0.012)


def test_power_is_what_simulation_gives() -> None:
    rng = np.random.default_rng(3)
    draws = rng.normal(0.012, 0.01, (20_000, 6))
    found = np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)
    assert power(0.012, 0.01, 6) == pytest.approx(found, abs=0.015)
    assert power(0, 0.01, 6) == pytest.approx(0.05)


@pytest.mark.parametrize("num_pairs", [2, 5, 20])
def test_designs_agree_with_one_another(num_pairs: int) -> None:
    smallest = smallest_detectable(0.01, num_pairs)
    assert power(smallest, 0.01, num_pairs) == pytest.approx(0.8, abs=1e-6)
    assert pairs_needed(smallest * 1.0001, 0.01) == num_pairs
    assert pairs_needed(smallest * 0.999, 0.01) == num_pairs + 1


def test_designs_that_cannot_be() -> None:
    for call in (lambda: power(0.1, 0.1, 1), lambda: power(0.1, 0.0, 5), lambda: pairs_needed(0.0, 0.1)):
        with pytest.raises(UserError, match="Expected"):
            call()
    with pytest.raises(UserError, match="million"):
        pairs_needed(1e-9, 1.0)


def test_the_ratio_of_paired_variances_holds_the_true_one():
    rng = np.random.default_rng(3)
    count = 0
    for _ in range(400):
        shared = rng.normal(size=12)
        ratio = variance_ratio(2 * (rng.normal(size=12) + shared), rng.normal(size=12) + shared)
        assert ratio.low < ratio.value < ratio.high
        count += ratio.low < 4 < ratio.high
    assert 365 <= count <= 395  # 95 % of 400 are 380, with a deviation of 4.4
    with pytest.raises(UserError, match="at least three pairs of different values"):
        variance_ratio(np.ones(5), np.arange(5.0))

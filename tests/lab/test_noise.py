"""The noise of synthetic curves, as a slow reference has it; planted spikes are told from planted hard batches."""

from __future__ import annotations

import numpy as np
import pytest

import jax_diversity as jd


def reference_deviation(losses: np.ndarray, span: int) -> float:
    """Fit a line to 9 means at a time, point by point."""
    losses = losses[len(losses) % span :]
    means = [losses[start : start + span].mean() for start in range(0, len(losses), span)]
    squares = []
    for middle in range(4, len(means) - 4):
        places = np.arange(middle - 4, middle + 5)
        slope, start = np.polyfit(places, [means[place] for place in places], 1)
        squares.append((means[middle] - (start + slope * middle)) ** 2 * 9 / 8)
    return float(np.sqrt(np.mean(squares)))


def course(number: int) -> np.ndarray:
    """A loss that falls as training losses do."""
    return 3 + 4 * (np.arange(number) + 20) ** -0.5


@pytest.mark.parametrize("span", [1, 3, 8])
def test_it_is_that_of_a_slow_reference(span: int) -> None:
    losses = course(211) + np.random.default_rng(0).normal(0, 0.1, 211)
    found = jd.loss_noise(losses, [span])
    assert found.deviations == {span: pytest.approx(reference_deviation(losses, span))}
    assert found.smallest_differences[span] == pytest.approx(2.8016 * 2**0.5 * found.deviations[span], rel=1e-4)


def test_planted_noise_is_found_below_a_falling_loss() -> None:
    """Independent noise, whose means of k steps fall with the root of k, and noise that cancels from step to step."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, 20_001)
    independent = jd.loss_noise((course(40_000)[20_000:]) + noise[1:])
    for span, deviation in independent.deviations.items():
        assert deviation == pytest.approx(0.1 / span**0.5, rel=0.1)
    cancelling = jd.loss_noise(3 + (noise[1:] - noise[:-1]) / 2**0.5)
    assert cancelling.deviations[1] == pytest.approx(0.1, rel=0.1)
    assert cancelling.deviations[64] == pytest.approx(0.1 / 64, rel=0.15)
    assert "1 step: 0.1" in str(cancelling)


def test_the_smallest_difference_is_found_in_four_of_five_comparisons() -> None:
    rng = np.random.default_rng(1)
    noise = jd.loss_noise(3 + rng.normal(0, 0.1, 100_000))
    for span in (1, 8):
        runs = rng.normal(0, 0.1, (2, 4000, span)).mean(axis=2)
        differences = runs[1] - runs[0] + noise.smallest_differences[span]
        found = np.abs(differences) > 1.96 * 2**0.5 * noise.deviations[span]
        assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_a_short_curve_has_only_short_spans() -> None:
    assert jd.loss_noise(np.arange(20.0)).deviations.keys() == {1}
    assert jd.loss_noise(np.arange(20.0)).deviations[1] == pytest.approx(0, abs=1e-12)
    assert jd.loss_noise([]).deviations == {}


def test_planted_spikes_and_hard_batches_are_told_apart() -> None:
    rng = np.random.default_rng(2)
    hardness = rng.normal(0, 0.05, 1000)
    hard, spikes = [300, 501, 777], [150, 400, 401, 402, 640, 900]
    hardness[hard] += 0.8
    expected = 2.5 + hardness
    losses = course(1000) + 0.9 * hardness + rng.normal(0, 0.03, 1000)
    losses[spikes] += [0.5, 1.0, 0.8, 0.6, 0.4, 2.0]
    found = jd.find_outliers(losses, expected)
    assert found.spikes == tuple(spikes)
    assert found.hard_batches == tuple(hard)
    assert found.slope == pytest.approx(0.9, abs=0.05)
    assert found.deviation == pytest.approx(0.03, rel=0.15)
    blind = jd.find_outliers(losses)
    assert set(blind.spikes) == {*spikes, *hard}
    assert blind.hard_batches == ()
    # A spike in a hard batch is a spike: the batch explains only a part of it.
    losses[501] += 0.7
    assert jd.find_outliers(losses, expected).spikes == tuple(sorted([*spikes, 501]))


def test_a_falling_loss_alone_has_no_outliers() -> None:
    rng = np.random.default_rng(3)
    losses = course(500) + rng.normal(0, 0.05, 500)
    found = jd.find_outliers(losses, np.full(500, 2.5))
    assert (found.spikes, found.hard_batches, found.slope) == ((), (), 0.0)
    assert jd.find_outliers([3.0] * 6).spikes == ()


def test_bad_input_is_one_sentence() -> None:
    with pytest.raises(jd.UserError, match="Expected losses to be finite numbers, one for each step, found 1 that are"):
        jd.loss_noise([1.0, np.nan])
    with pytest.raises(jd.UserError, match=r"Expected losses to be finite numbers, .* found an array \(2, 2\)"):
        jd.loss_noise(np.zeros((2, 2)))
    with pytest.raises(jd.UserError, match="Expected every span to be a whole number >= 1, found 0"):
        jd.loss_noise(np.zeros(20), [0])
    with pytest.raises(jd.UserError, match="Expected losses to be numbers, one for each step, found 'high'"):
        jd.find_outliers("high")
    with pytest.raises(jd.UserError, match=r"Expected as many expected losses as losses \(20\), found 3"):
        jd.find_outliers(np.zeros(20), np.zeros(3))

"""Which of several datasets comes at every position: the deficit rule against an obvious one, also in phases."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.run import interleaving
from jax_diversity.streaming.run.interleaving import Rule, interleave
from jax_diversity.streaming.run.weights import phases_of

RULES: tuple[Rule, ...] = get_args(Rule)


def slow_interleave(weights: list[float], num_positions: int, rule: Rule = "nearest") -> list[int]:
    """The rules as they are written, in Python's own numbers."""
    total = float(np.sum(np.array(weights, np.float64)))
    shares = [weight / total for weight in weights]
    counts = [0] * len(shares)
    chosen = []
    for step in range(num_positions):
        best, most = -1, 0.0
        for dataset, share in enumerate(shares):
            lag = share * (step + 1 if rule == "nearest" else max(step, 1)) - counts[dataset]
            if share > 0 and (best < 0 or lag > most):
                best, most = dataset, lag
        counts[best] += 1
        chosen.append(best)
    return chosen


WEIGHTS = st.lists(
    st.one_of(st.integers(0, 5).map(float), st.floats(0, 3, allow_subnormal=False)), min_size=1, max_size=12
).filter(lambda weights: sum(weights) > 1e-3)


@given(WEIGHTS, st.integers(0, 120), st.sampled_from(RULES))
def test_the_rule_is_the_slow_one(weights: list[float], num_positions: int, rule: Rule) -> None:
    found = interleave(*phases_of(weights), num_positions, rule=rule)
    assert found.dtype == np.int64
    assert found.tolist() == slow_interleave(weights, num_positions, rule)


@given(WEIGHTS)
def test_shares_hold_at_every_moment(weights: list[float]) -> None:
    chosen = interleave(*phases_of(weights), 300)
    counts = np.cumsum(chosen[:, None] == np.arange(len(weights)), axis=0)
    due = np.arange(1, 301)[:, None] * (np.array(weights) / np.sum(weights))
    assert (counts - due).max() < 1
    assert (due - counts).max() < 1.5
    assert not (counts[-1][np.array(weights) == 0]).any()


def test_two_datasets_are_never_off_by_more_than_half_a_position() -> None:
    for share in (0.1, 0.25, 0.3, 0.7, 0.99):
        running = np.cumsum(interleave(*phases_of([share, 1 - share]), 2000) == 0)
        assert np.abs(running - share * np.arange(1, 2001)).max() <= 0.5 + 1e-9


def test_golden_interleavings() -> None:
    assert interleave(*phases_of([3, 1]), 8).tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
    assert interleave(*phases_of([1, 1, 1]), 6).tolist() == [0, 1, 2, 0, 1, 2]
    assert interleave(*phases_of([0.5, 0.3, 0.2]), 10).tolist() == [0, 1, 2, 0, 0, 1, 0, 2, 1, 0]
    # 0.7 * 4 - 3 < 0.3 * 4 - 1 at step 4, where the lags at the end of the step are equal
    assert interleave(*phases_of([0.7, 0.3]), 5, rule="megatron").tolist() == [0, 1, 0, 0, 1]
    assert interleave(*phases_of([0, 1, 1]), 4).tolist() == [1, 2, 1, 2]


GOLDENS = Path(__file__).parents[2] / "support" / "data" / "megatron"
BLENDS = json.loads((GOLDENS / "cases.json").read_text())["blends"]


@pytest.mark.parametrize("name", BLENDS)
def test_the_rule_of_megatron_gives_what_megatron_lm_built(name: str) -> None:
    weights, size = BLENDS[name]["weights"], BLENDS[name]["size"]
    with np.load(GOLDENS / "blends.npz") as golden:
        expected = golden[name]
    np.testing.assert_array_equal(interleave(*phases_of(weights), size, rule="megatron"), expected)
    if name == "three":
        assert (interleave(*phases_of(weights), size) != expected).sum() == 398


def test_more_than_256_datasets() -> None:
    assert interleave(*phases_of(np.ones(700)), 1400).tolist() == [*range(700), *range(700)]


def test_many_positions_of_300_datasets() -> None:
    told: list[int] = []
    chosen = interleave(*phases_of(1 / np.arange(1, 301)), 200_000, advance=told.append)
    assert (sum(told), len(told) > 3) == (200_000, True)
    shares = 1 / np.arange(1, 301)
    due = 200_000 * shares / shares.sum()
    assert np.abs(np.bincount(chosen) - due).max() < 1.1


# Weights that change over the run


def targets(starts: tuple[int, ...], weights: Any, *families: str) -> jd.Targets:
    return jd.Targets(starts, {family: np.array(weights, np.float64) for family in families or ("dataset",)})


def slow_phases(starts: tuple[int, ...], weights: list[list[int]], num_positions: int) -> list[int]:
    """The rule in exact fractions: what every dataset is due is summed up position by position."""
    due = [Fraction(0)] * len(weights[0])
    counts = [0] * len(due)
    chosen = []
    for step in range(num_positions):
        phase = max(index for index, start in enumerate(starts) if start <= step)
        here = [Fraction(weight, sum(weights[phase])) for weight in weights[phase]]
        due = [before + share for before, share in zip(due, here, strict=True)]
        lags = [(due[index] - counts[index], -index) for index, share in enumerate(here) if share]
        chosen.append(-max(lags)[1])
        counts[chosen[-1]] += 1
    return chosen


@st.composite
def phases_of_eighths(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[int]]]:
    """Weights of sum 8, whose shares floating point holds exactly, so that ties are ties."""
    num_datasets, num_phases = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    starts = (0, *sorted(draw(st.sets(st.integers(1, 60), min_size=num_phases - 1, max_size=num_phases - 1))))
    cuts = st.lists(st.integers(0, 8), min_size=num_datasets - 1, max_size=num_datasets - 1)
    weights = [np.diff([0, *sorted(draw(cuts)), 8]).tolist() for _ in starts]
    return starts, weights


@given(phases_of_eighths(), st.integers(0, 90))
def test_the_rule_in_phases_is_the_slow_one(
    phases: tuple[tuple[int, ...], list[list[int]]], num_positions: int
) -> None:
    found = interleave(*phases_of(targets(*phases)), num_positions)
    assert found.tolist() == slow_phases(*phases, num_positions)


@given(phases_of_eighths())
def test_a_dataset_never_comes_while_its_weight_is_zero(phases: tuple[tuple[int, ...], list[list[int]]]) -> None:
    starts, weights = phases
    chosen = interleave(*phases_of(targets(*phases)), 90)
    for start, stop, here in zip(starts, (*starts[1:], 90), weights, strict=True):
        assert not set(chosen[start:stop]) & {index for index, weight in enumerate(here) if not weight}


def test_shares_follow_the_running_sum_at_every_moment() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        starts = (0, *np.sort(rng.choice(np.arange(1, 400), 4, replace=False)).tolist())
        weights = rng.dirichlet(np.ones(5), len(starts)) + 0.01
        chosen = interleave(*phases_of(targets(starts, weights)), 500)
        phase = np.searchsorted(starts, np.arange(500), side="right") - 1
        due = np.cumsum((weights / weights.sum(axis=1, keepdims=True))[phase], axis=0)
        counts = np.cumsum(chosen[:, None] == np.arange(5), axis=0)
        assert (counts - due).max() < 1
        assert (due - counts).max() < 1.7


@pytest.mark.parametrize("rule", RULES)
def test_one_phase_is_a_constant_weight_to_the_last_position(rule: Rule) -> None:
    weights = np.random.default_rng(5).random(7).tolist()
    constant = interleave(*phases_of(weights), 3000, rule=rule)
    np.testing.assert_array_equal(interleave(*phases_of(targets((0,), [weights])), 3000, rule=rule), constant)


def test_weights_that_move_in_a_line() -> None:
    line = jd.Targets.linear({"dataset": [1, 0]}, {"dataset": [0, 1]}, num_positions=1000, num_phases=100)
    second = np.cumsum(interleave(*phases_of(line), 1000))
    moments = np.arange(1, 1001) / 1000
    assert np.abs(second - 500 * moments**2).max() < 4  # half a phase's width of shares, and the rule's own position
    assert second[-1] == 500


def test_more_than_256_datasets_in_phases() -> None:
    early = np.r_[np.ones(290), np.zeros(10)]
    chosen = interleave(*phases_of(targets((0, 580), [early, early[::-1]])), 1160)
    assert np.bincount(chosen).tolist() == [2] * 10 + [4] * 280 + [2] * 10
    assert (chosen[:580].max(), chosen[580:].min()) == (289, 10)


@pytest.mark.parametrize("num_datasets", [1, 5, 129, 300])
@pytest.mark.parametrize("rule", RULES)
def test_long_plans_are_those_of_the_loop(num_datasets: int, rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(num_datasets)
    # Over several calls and a phase that begins within a block; also equal weights, whose lags are ties at every step.
    monkeypatch.setattr(interleaving, "_STEPS_PER_CALL", 512)
    uneven = rng.lognormal(0, 2, num_datasets)
    for weights in (uneven, np.ones(num_datasets), targets((0, 700), np.stack([uneven, uneven[::-1]]))):
        monkeypatch.setattr(interleaving, "_SHORT", 1 << 60)
        expected = interleave(*phases_of(weights), 1900, rule=rule)
        monkeypatch.setattr(interleaving, "_SHORT", 0)
        interleaving._steps.clear_cache()  # the size of a call is part of the program
        np.testing.assert_array_equal(interleave(*phases_of(weights), 1900, rule=rule), expected)
    interleaving._steps.clear_cache()


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([1], r"one weight for each dataset, 2 in total, found an array of shape \(1,\)"),
        ([1, -1], r"the weight of dataset 1 to be finite and >= 0, found -1"),
        ([float("nan"), 0], "the weight of dataset 0 to be finite and >= 0, found nan"),
        ([float("inf"), 0], "the weight of dataset 0 to be finite and >= 0, found inf"),
        ([0, 0], "at least one weight above zero"),
        ([1, 1], r"in a dataset of weight 1\.0, found none in dataset 1"),
        (targets((0,), [[1, 1]], "source"), r"of one family, 'dataset', found \['source'\]"),
        (targets((0,), [[1, 1]], "dataset", "source"), r"found \['dataset', 'source'\]"),
        (targets((0, 4), [[1, 1, 1]] * 2), r"one weight for each dataset, 2 in total, found an array of shape"),
        (targets((0, 4), [[1, 0], [1, 1]]), r"in a dataset of weight 0\.5, found none in dataset 1"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        phases_of(weights, [3, 0])

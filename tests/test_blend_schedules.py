"""Blends whose weights change over training, against the rule as it is written."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import vstack

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.ordering.composition import interleaving
from jax_diversity.ordering.composition.blending import interleave
from tests.tiny_dataset import write_tiny_dataset


def targets(starts: tuple[int, ...], weights: Any, *families: str) -> jd.Targets:
    return jd.Targets(starts, {family: np.array(weights, np.float64) for family in families or ("dataset",)})


def permutation(size: int, seed: int = 0) -> jd.Ordering:
    return jd.Ordering(np.random.default_rng(seed).permutation(size))


def slow_interleave(starts: tuple[int, ...], weights: list[list[int]], num_positions: int) -> list[int]:
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
def test_the_rule_is_the_slow_one(phases: tuple[tuple[int, ...], list[list[int]]], num_positions: int) -> None:
    found = interleave(targets(*phases), num_positions)
    assert found.tolist() == slow_interleave(*phases, num_positions)


@given(phases_of_eighths())
def test_a_dataset_never_comes_while_its_weight_is_zero(phases: tuple[tuple[int, ...], list[list[int]]]) -> None:
    starts, weights = phases
    chosen = interleave(targets(*phases), 90)
    for start, stop, here in zip(starts, (*starts[1:], 90), weights, strict=True):
        assert not set(chosen[start:stop]) & {index for index, weight in enumerate(here) if not weight}


def test_shares_follow_the_running_sum_at_every_moment() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        starts = (0, *np.sort(rng.choice(np.arange(1, 400), 4, replace=False)).tolist())
        weights = rng.dirichlet(np.ones(5), len(starts)) + 0.01
        chosen = interleave(targets(starts, weights), 500)
        phase = np.searchsorted(starts, np.arange(500), side="right") - 1
        due = np.cumsum((weights / weights.sum(axis=1, keepdims=True))[phase], axis=0)
        counts = np.cumsum(chosen[:, None] == np.arange(5), axis=0)
        assert (counts - due).max() < 1
        assert (due - counts).max() < 1.7


@pytest.mark.parametrize("lookahead", [0, 1])
def test_one_phase_is_a_constant_weight_to_the_last_position(lookahead: int) -> None:
    weights = np.random.default_rng(5).random(7).tolist()
    constant = interleave(weights, 3000, lookahead=lookahead)
    np.testing.assert_array_equal(interleave(targets((0,), [weights]), 3000, lookahead=lookahead), constant)
    datasets = [permutation(11, seed) for seed in range(7)]
    given_plainly, phased = jd.blend(datasets, weights, 100), jd.blend(datasets, targets((0,), [weights]), 100)
    assert phased.to_schedule().fingerprint == given_plainly.to_schedule().fingerprint
    assert phased.info["weights"] == given_plainly.info["weights"]


def test_weights_that_move_in_a_line() -> None:
    line = jd.Targets.linear({"dataset": [1, 0]}, {"dataset": [0, 1]}, num_positions=1000, num_phases=100)
    second = np.cumsum(interleave(line, 1000))
    moments = np.arange(1, 1001) / 1000
    assert np.abs(second - 500 * moments**2).max() < 4  # half a phase's width of shares, and the rule's own position
    assert second[-1] == 500


def test_every_dataset_goes_through_its_own_epochs_whatever_its_weight() -> None:
    fresh = [lambda epoch, size=size: permutation(size, 10 * size + epoch) for size in (6, 3, 4)]
    blend = jd.blend(fresh, targets((0, 20, 41), [[1, 1, 0], [0, 1, 3], [2, 1, 1]]), 70)
    assert blend.info["weights_from"] == [0, 20, 41]
    assert json.loads(json.dumps(dict(blend.info)))["weights"][1] == [0.0, 0.25, 0.75]
    for index, make in enumerate(fresh):
        sequences = blend.sequence_index[blend.dataset_index == index]
        epochs = np.concatenate([make(epoch).indices for epoch in range(30)])
        assert len(sequences) > 2 * len(make(0))
        np.testing.assert_array_equal(sequences, epochs[: len(sequences)])


def test_more_than_256_datasets_in_phases() -> None:
    early = np.r_[np.ones(290), np.zeros(10)]
    blend = jd.blend([permutation(4)] * 300, targets((0, 580), [early, early[::-1]]), 1160)
    assert blend.counts.tolist() == [2] * 10 + [4] * 280 + [2] * 10
    assert (np.diff(np.flatnonzero(blend.dataset_index == 295)) > 0).all()
    assert blend.dataset_index[:580].max() == 289
    assert blend.dataset_index[580:].min() == 10


def test_a_scheduled_blend_is_loaded_resumed_and_measured(tmp_path: Path) -> None:
    datasets = [jd.open_dataset(write_tiny_dataset(tmp_path / str(seed), seed=seed).root) for seed in (1, 2)]
    orderings = [dataset.orderings["balance"] for dataset in datasets]
    blend = jd.blend(orderings, targets((0, 40), [[4, 1], [1, 4]]), 80)
    assert np.bincount(blend.dataset_index[:40]).tolist() == [32, 8]
    assert np.bincount(blend.dataset_index[40:]).tolist() == [8, 32]

    iterator = iter(jd.make_loader(datasets, ordering=blend.to_schedule(), global_batch_size=8))
    begun = [next(iterator) for _ in range(4)]
    state = json.loads(json.dumps(iterator.get_state()))
    other = iter(jd.make_loader(datasets, ordering=blend.to_schedule(), global_batch_size=16))
    other.set_state(state)
    came = np.concatenate([batch["dataset_index"] for batch in [*begun, *other]])
    np.testing.assert_array_equal(came, blend.dataset_index)
    shifted = jd.blend(orderings, targets((0, 48), [[4, 1], [1, 4]]), 80)
    with pytest.raises(UserError, match="made with the ordering of fingerprint"):
        iter(jd.make_loader(datasets, ordering=shifted.to_schedule(), global_batch_size=8)).set_state(state)

    families = datasets[0].characteristics.families
    counts = {name: vstack([each.characteristics.counts[name] for each in datasets]) for name in families}
    tokens = counts[families[0]].sum(axis=1)
    counts["dataset"] = np.repeat(np.eye(2, dtype=np.int64), [len(each) for each in orderings], axis=0)
    counts["dataset"] *= tokens[:, None]
    chars = jd.Characteristics.from_counts(counts, sequence_length=datasets[0].sequence_length)
    schedule = blend.to_schedule()
    balance = jd.measure(chars, schedule, windows=(40,))
    came = counts["dataset"][schedule.indices].reshape(2, 40, 2).sum(axis=1)
    shares = came / came.sum(axis=1, keepdims=True) - counts["dataset"].sum(axis=0) / tokens.sum()
    np.testing.assert_allclose(balance.window_tv["dataset"][40], np.abs(shares).sum(axis=1) / 2, atol=1e-6)
    assert balance.window_tv["dataset"][40].min() > 0.2  # a mixture that moves is far from the whole corpus's


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        (targets((0,), [[1, 1]], "source"), r"of one family, 'dataset', found \['source'\]"),
        (targets((0,), [[1, 1]], "dataset", "source"), r"found \['dataset', 'source'\]"),
        (
            targets((0, 4), [[1, 1, 1]] * 2),
            r"a weight for each dataset, of which there are 2, found an array of shape \(3,\)",
        ),
        (targets((0, 4), [[1, 0], [1, 1]]), r"in a dataset of weight 0\.5, found none in dataset 1"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(weights: jd.Targets, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        jd.blend([permutation(3), permutation(0)], weights, 8)


@pytest.mark.parametrize("num_datasets", [1, 5, 129, 300])
@pytest.mark.parametrize("lookahead", [0, 1, 7])
def test_long_plans_are_those_of_the_loop(num_datasets: int, lookahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(num_datasets)
    # Over several calls and a phase that begins within a block; also equal weights, whose lags are ties at every step.
    monkeypatch.setattr(interleaving, "_STEPS_PER_CALL", 512)
    uneven = rng.lognormal(0, 2, num_datasets)
    for weights in (uneven, np.ones(num_datasets), targets((0, 700), np.stack([uneven, uneven[::-1]]))):
        monkeypatch.setattr(interleaving, "_SHORT", 1 << 60)
        expected = interleave(weights, 1900, lookahead=lookahead)
        monkeypatch.setattr(interleaving, "_SHORT", 0)
        interleaving._steps.clear_cache()  # the size of a call is part of the program
        np.testing.assert_array_equal(interleave(weights, 1900, lookahead=lookahead), expected)
    interleaving._steps.clear_cache()

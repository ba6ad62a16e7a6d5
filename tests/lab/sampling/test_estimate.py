"""Losses with error bars: the intervals hold the truth as often as they say, by simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.lab.sampling import variance
from jax_diversity.lab.sampling.precision import sequences_needed
from tests.support.synthetic import synthetic_characteristics

NUM_SEQUENCES = 3000


@pytest.fixture(scope="module")
def chars() -> jd.Characteristics:
    return synthetic_characteristics(NUM_SEQUENCES, sequence_length=512, num_clusters=60).take(np.arange(NUM_SEQUENCES))


def losses_of(chars: jd.Characteristics, kind: str) -> np.ndarray:
    """Numbers of the sequences: linear in the families, not linear, heavy-tailed, or independent of them."""
    rng = np.random.default_rng(7)
    number = chars.num_sequences
    shares = chars.counts["cluster"].toarray() / chars.sequence_length
    linear = shares @ rng.normal(size=shares.shape[1])
    linear /= linear.std()
    return {
        "linear": linear + 0.7 * rng.normal(size=number),
        "nonlinear": np.abs(linear) ** 1.5 + 0.7 * rng.normal(size=number),
        "heavy": linear + rng.standard_t(3, size=number),
        "noise": rng.normal(size=number),
    }[kind]


def windows(chars: jd.Characteristics, size: int, balanced: bool) -> list[np.ndarray]:
    """Disjoint samples of several orders."""
    if balanced:
        orders = [jd.order(chars, seed=seed).indices for seed in range(3)]
    else:
        orders = [np.random.default_rng(seed).permutation(chars.num_sequences) for seed in range(3)]
    return [order[start : start + size] for order in orders for start in range(0, len(order) - size + 1, size)]


@pytest.fixture(scope="module")
def samples(chars: jd.Characteristics) -> dict[bool, list[jd.Sample]]:
    return {
        balanced: [jd.Sample.of(chars, rows) for rows in windows(chars, 100, balanced)] for balanced in (True, False)
    }


@pytest.mark.first(2)
@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize(
    ("kind", "with_reference"),
    [("linear", False), ("nonlinear", False), ("heavy", False), ("noise", False), ("linear", True), ("heavy", True)],
)
def test_intervals_hold_the_truth(
    chars: jd.Characteristics,
    samples: dict[bool, list[jd.Sample]],
    kind: str,
    balanced: bool,
    with_reference: bool,
) -> None:
    losses = losses_of(chars, kind)
    reference = losses + np.random.default_rng(1).normal(size=len(losses)) if with_reference else None
    found = [jd.estimate(losses[each.positions], each, reference) for each in samples[balanced]]
    hold = np.mean([each.low <= losses.mean() <= each.high for each in found])
    assert 0.88 <= hold <= 1.0  # 90 intervals of 95 %
    errors = np.array([each.mean for each in found]) - losses.mean()
    said = np.sqrt(np.mean([each.error**2 for each in found]))
    assert 0.75 < said / np.sqrt(np.mean(errors**2)) < 1.4
    if with_reference:
        plain = [jd.estimate(losses[each.positions], each) for each in samples[balanced]]
        assert np.mean([each.error for each in found]) < np.mean([each.error for each in plain])


@pytest.mark.parametrize(("size", "least"), [(16, 0.86), (64, 0.9)])
def test_intervals_of_few_skewed_losses_hold_the_mean(chars: jd.Characteristics, size: int, least: float) -> None:
    """Log-normal losses: with Student's quantile alone .78 of the intervals of 16 sequences held the mean."""
    rng, held = np.random.default_rng(size), []
    for _ in range(300):
        losses = rng.lognormal(0, 1, chars.num_sequences)
        found = jd.estimate(losses[:size], jd.Sample.of(chars, np.arange(size)))
        held.append(found.low <= losses.mean() <= found.high)
    assert np.mean(held) >= least


def test_a_balanced_sample_has_a_smaller_error(chars: jd.Characteristics, samples: dict[bool, list[jd.Sample]]) -> None:
    losses = losses_of(chars, "linear")
    found = {balanced: [jd.estimate(losses[each.positions], each) for each in of] for balanced, of in samples.items()}
    naive = losses.std() / np.sqrt(100)
    assert np.mean([each.error for each in found[True]]) < 0.9 * naive
    assert np.mean([each.error for each in found[False]]) == pytest.approx(naive, rel=0.1)
    assert np.median([each.worth for each in found[True]]) > 125
    assert np.median([each.worth for each in found[False]]) == pytest.approx(100, rel=0.15)


def test_all_sequences_have_no_error(chars: jd.Characteristics) -> None:
    losses = losses_of(chars, "linear")
    everything = jd.Sample.of(chars, np.arange(NUM_SEQUENCES))
    found = jd.estimate(losses, everything)
    assert found.mean == pytest.approx(losses.mean())
    assert found.error == pytest.approx(0, abs=1e-9)
    found = jd.estimate(losses, everything, np.random.default_rng(0).normal(size=NUM_SEQUENCES))
    assert found.mean == pytest.approx(losses.mean())
    assert found.error == pytest.approx(0, abs=1e-9)


def test_a_reference_gives_the_regression_estimator(chars: jd.Characteristics) -> None:
    """Against the textbook's formula; a linear function of the reference is known exactly."""
    rows = np.random.default_rng(0).permutation(NUM_SEQUENCES)[:200]
    chosen = jd.Sample.of(chars, rows)
    losses, reference = losses_of(chars, "linear"), losses_of(chars, "linear") * 2 + losses_of(chars, "noise")
    slope = np.polyfit(reference[rows], losses[rows], 1)[0]
    expected = losses[rows].mean() - slope * (reference[rows].mean() - reference.mean())
    assert jd.estimate(losses[rows], chosen, reference).mean == pytest.approx(expected)
    exact = jd.estimate((3 * reference + 1)[rows], chosen, reference)
    assert exact.mean == pytest.approx(3 * reference.mean() + 1)
    assert exact.error < 1e-9


def test_weights_and_groups() -> None:
    """Sequences with padding count by their tokens; groups are ratios, too."""
    chars = synthetic_characteristics(800, sequence_length=256, num_clusters=5, last_sequence="pad")
    rng = np.random.default_rng(0)
    rows = rng.permutation(chars.num_sequences)[:300]
    chosen = jd.Sample.of(chars, rows)
    losses, weights = rng.normal(3, 1, 300), rng.integers(1, 50, 300).astype(float)
    found = jd.estimate(losses, chosen, weights=weights, groups="cluster")
    assert found.mean == pytest.approx(losses @ weights / weights.sum())
    counts = chars.counts["cluster"].toarray()[rows] / chars.tokens[rows][:, None] * weights[:, None]
    assert list(found.groups) == [str(group) for group in np.flatnonzero(counts.sum(axis=0))]
    for group, each in found.groups.items():
        assert each.mean == pytest.approx(losses @ counts[:, int(group)] / counts[:, int(group)].sum())
    labels = np.where(np.arange(300) % 3, "a", "b")
    by_label = jd.estimate(losses, chosen, groups=labels).groups
    assert by_label["b"].num_sequences == 100
    assert by_label["b"].mean == pytest.approx(np.average(losses[::3], weights=chars.tokens[rows][::3]))
    alone = losses[::3].std(ddof=1) / 10 * np.sqrt(1 - 300 / chars.num_sequences)
    assert by_label["b"].error == pytest.approx(alone, rel=0.15)
    assert "a" in str(jd.estimate(losses, chosen, groups=labels))


def test_groups_of_few_sequences_have_no_interval(chars: jd.Characteristics) -> None:
    """Below four sequences the variance is unknown, and the text says so instead of `± nan`."""
    chosen = jd.Sample.of(chars, np.arange(20))
    found = jd.estimate(np.arange(20.0), chosen, groups=["rare", *["frequent"] * 19])
    assert np.isnan(found.groups["rare"].error)
    _, frequent, rare = str(found).splitlines()
    assert rare == "  rare      0.0000  (1: too few for an interval)"
    assert " ± " in frequent
    assert "nan" not in str(found)
    three = str(jd.estimate([1.0, 2.0, 3.0], jd.Sample.of(chars, [0, 1, 2])))
    assert three.endswith(" (too few for an interval) from 3 of 3,000")


def test_clusters_of_a_dataset_have_their_names(tiny_dataset: Path) -> None:
    """The groups of an estimate have the names that reports show, not numbers of clusters."""
    dataset = jd.open_dataset(tiny_dataset)
    names = {cluster["name"] for cluster in dataset.clusters()}
    for kind in ("sequences", "documents"):
        chosen = jd.sample(dataset, 20, of=kind)
        assert set(jd.estimate(np.arange(20.0), chosen, groups="cluster").groups) <= names


def test_blocks_agree_with_the_whole(chars: jd.Characteristics, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, losses = jd.sample(chars, 600), losses_of(chars, "linear")
    whole = jd.estimate(losses[chosen.positions], chosen)
    monkeypatch.setattr(variance, "_BLOCK", 200)
    divided = jd.estimate(losses[chosen.positions], chosen)
    assert divided.mean == whole.mean
    assert divided.error == pytest.approx(whole.error, rel=0.1)


def test_the_precision_is_reached(chars: jd.Characteristics) -> None:
    losses = losses_of(chars, "linear")
    needed = sequences_needed(chars, 0.1, losses)
    assert needed.balanced < 0.75 * needed.random
    expected = 1 / ((0.1 / 1.96) ** 2 / losses.var() + 1 / NUM_SEQUENCES)
    assert needed.random == pytest.approx(expected, rel=0.1)
    chosen = jd.sample(chars, needed.balanced)
    assert jd.estimate(losses[chosen.positions], chosen).reach == pytest.approx(0.1, rel=0.2)
    pilot = jd.sample(chars, 300)
    again = sequences_needed(chars, 0.1, losses[pilot.positions], pilot)
    assert again.random == pytest.approx(needed.random, rel=0.25)
    with pytest.raises(jd.UserError, match="a sample of others"):
        sequences_needed(synthetic_characteristics(500), 0.1, losses[pilot.positions], pilot)
    with pytest.raises(jd.UserError, match="that differ"):
        sequences_needed(chars, 0.1, np.ones(NUM_SEQUENCES))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"losses": np.ones(99)}, "100 numbers.*in the order of its positions"),
        ({"losses": np.ones(NUM_SEQUENCES)}, r"take losses\[sample.positions\]"),
        ({"losses": np.full(100, np.inf)}, "finite, found inf at place 0"),
        ({"losses": ["a"] * 100}, "to be numbers"),
        ({"reference": np.ones(NUM_SEQUENCES)}, "differs between sequences, found 1 everywhere"),
        ({"reference": np.arange(100.0)}, "each of all sequences"),
        ({"reference": np.full(NUM_SEQUENCES, np.nan)}, "finite"),
        ({"reference": "losses"}, "found equal numbers"),
        ({"weights": -np.ones(100)}, "weights >= 0"),
        ({"weights": np.zeros(100)}, "one above 0"),
        ({"groups": "topic"}, "family among cluster, length, found 'topic'"),
        ({"groups": ["a", "b"]}, "100 labels"),
        ({"groups": ["a", None] * 50}, "labels of one kind, texts or numbers, found None among them"),
        ({"groups": ["a", 1] * 50}, "labels of one kind, texts or numbers, found 1 among them"),
        ({"groups": [float("nan")] * 100}, "found nan among them; give every sequence a label"),
        ({"groups": [{}] * 100}, "found {} among them"),
        ({"losses": np.full(100, 1e200)}, r"losses of at most 1e\+100, found 1e\+200 at place 0"),
        ({"losses": np.ones(100) * 1j}, "losses to be numbers, found: complex"),
        ({"reference": np.arange(NUM_SEQUENCES) * 1e160}, r"reference of at most 1e\+100"),
        ({"weights": np.full(100, 1e200)}, r"weights of at most 1e\+100"),
    ],
)
def test_wrong_arguments_are_one_sentence(chars: jd.Characteristics, change: dict[str, Any], sentence: str) -> None:
    rows = np.random.default_rng(0).permutation(NUM_SEQUENCES)[:100]
    everywhere = losses_of(chars, "noise")
    arguments: dict[str, Any] = {"losses": everywhere[rows], "sample": jd.Sample.of(chars, rows), **change}
    if isinstance(arguments.get("reference"), str):
        arguments["reference"] = everywhere
    losses, sample = arguments.pop("losses"), arguments.pop("sample")
    with pytest.raises(jd.UserError, match=sentence):
        jd.estimate(losses, sample, **arguments)


def test_one_sequence_has_no_error(chars: jd.Characteristics) -> None:
    with pytest.raises(jd.UserError, match="at least two"):
        jd.estimate([1.0], jd.Sample.of(chars, [5]))
    few = jd.estimate([1.0, 2.0], jd.Sample.of(chars, [5, 6]))
    assert np.isnan(few.error)
    assert str(few) == "1.5000 (too few for an interval) from 2 of 3,000"


@pytest.mark.parametrize("unit", [1e-90, 1e-3, 1e90])
def test_the_unit_of_a_reference_has_no_effect(chars: jd.Characteristics, unit: float) -> None:
    rows = np.random.default_rng(0).permutation(NUM_SEQUENCES)[:100]
    everywhere = losses_of(chars, "linear")
    other, sample = everywhere + losses_of(chars, "noise"), jd.Sample.of(chars, rows)
    found, plain = (jd.estimate(everywhere[rows], sample, each) for each in (other * unit, other))
    assert (found.mean, found.error) == pytest.approx((plain.mean, plain.error), rel=1e-6)


def test_labels_may_be_texts_or_numbers_of_any_array(chars: jd.Characteristics) -> None:
    rows = np.arange(100)
    losses, sample = losses_of(chars, "noise")[rows], jd.Sample.of(chars, rows)
    words = ["few" if row < 3 else "many" for row in rows]
    found = jd.estimate(losses, sample, groups=words)
    same = (np.array(words), np.array(words, object), [word == "many" for word in words], np.array(words) == "many")
    for labels in (*same, [int(word == "many") for word in words]):
        means = [each.mean for each in jd.estimate(losses, sample, groups=labels).groups.values()]
        assert sorted(means) == sorted(each.mean for each in found.groups.values())
    assert [line.split()[0] for line in str(found).splitlines()[1:]] == ["many", "few"]  # no interval: below

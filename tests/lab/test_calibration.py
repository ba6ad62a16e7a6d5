"""The calibrated mean: as a slow reference has it, linear in the losses, with intervals that hold the corpus's mean."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from jax_diversity.lab.calibration import (
    Calibrated,
    Composition,
    Family,
    calibrated_mean,
    length_bins,
    tokens_by_group,
)
from jax_diversity.schema.intervals import student_reach
from jax_diversity.sequences.packing.held_out import choose

GROUPS, STEP = 0.5, 0.15


def reference(
    values: np.ndarray,
    targets: np.ndarray,
    lengths: np.ndarray,
    codes: dict[str, np.ndarray],
    dataset: np.ndarray,
    evaluated: np.ndarray,
) -> tuple[float, float]:
    """The mean and its variance with whole matrices: `lengths`, `codes` and `dataset` are of all documents."""
    bins = np.floor(2 * np.log2(lengths)).astype(int)
    weights = np.where(bins <= bins[evaluated].max(), lengths, 0).astype(float)
    for number in np.unique(dataset):
        own = targets[dataset[evaluated] == number].sum() / targets.sum()
        weights[dataset == number] *= own / weights[dataset == number].sum()

    def covariance(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        found = STEP * np.minimum(bins[left][:, None], bins[right])
        kinds = [code * 1000 + dataset for code in codes.values()]
        if dataset.any():
            kinds.append(dataset)
        for kind in kinds:
            found = found + GROUPS * (kind[left][:, None] == kind[right])
        return found

    every = np.arange(len(lengths))
    among, across = covariance(evaluated, evaluated), covariance(evaluated, every) @ weights
    inverse = np.linalg.inv(among + np.eye(len(evaluated)))
    ones = np.ones(len(evaluated))
    projection = inverse - np.outer(inverse @ ones, inverse @ ones) / (ones @ inverse @ ones)
    by_document = projection @ across + inverse @ ones / (ones @ inverse @ ones)
    variance = values @ projection @ values / (len(values) - 1)
    effects = (
        weights @ covariance(every, every) @ weights - 2 * by_document @ across + by_document @ among @ by_document
    )
    own = (projection @ values) ** 2 / np.diag(projection)
    noise = max(variance * by_document @ by_document, by_document**2 @ own)
    return float(by_document @ values), float(variance * effects + noise)


def composition(
    lengths: np.ndarray, codes: dict[str, np.ndarray], dataset: np.ndarray, evaluated: np.ndarray
) -> Composition:
    number = int(dataset.max()) + 1

    def tokens(code: np.ndarray) -> np.ndarray:
        groups = int(code.max()) + 1
        return np.stack([tokens_by_group(code[dataset == d], groups, lengths[dataset == d]) for d in range(number)])

    families = {name: Family(code[evaluated], tokens(code)) for name, code in codes.items()}
    whole = tokens(np.zeros(len(lengths), int))[:, 0]
    return Composition(dataset[evaluated], evaluated, lengths[evaluated], whole, families)


def corpus(rng: np.random.Generator, number: int, num_datasets: int = 1) -> tuple[Any, Any, Any]:
    lengths = np.maximum(rng.lognormal(5, 1.2, number), 2).astype(np.int64)
    source = np.minimum(rng.geometric(0.3, number) - 1, 9)
    cluster = (source * 3 + rng.integers(0, 6, number)) % 30
    return lengths, {"source": source, "cluster": cluster}, rng.integers(0, num_datasets, number)


@pytest.mark.parametrize("num_datasets", [1, 3])
@pytest.mark.parametrize("number", [4, 30, 150])
def test_it_is_what_whole_matrices_give(number: int, num_datasets: int) -> None:
    rng = np.random.default_rng(number)
    lengths, codes, dataset = corpus(rng, 400, num_datasets)
    evaluated = rng.choice(400, number, replace=False)
    dataset[evaluated[:num_datasets]] = np.arange(num_datasets)
    values, targets = rng.normal(3, 1, number), lengths[evaluated] - 1
    found = calibrated_mean(values, targets, composition(lengths, codes, dataset, evaluated))
    expected = reference(values, targets, lengths, codes, dataset, evaluated)
    assert found[:2] == pytest.approx(expected, rel=1e-9)
    longest = lengths[evaluated].max()
    assert found.longer <= lengths[lengths > longest].sum() / lengths.sum() or num_datasets > 1
    inside = evaluated[codes["source"][evaluated] == 0]
    if len(inside) > 2:  # one group: its documents alone, without families
        chosen = np.isin(evaluated, inside)
        part = composition(lengths, codes, dataset, evaluated).of(np.flatnonzero(chosen))
        one = calibrated_mean(values[chosen], targets[chosen], part, ("source", 0))
        members = np.flatnonzero(codes["source"] == 0)
        places = np.searchsorted(members, evaluated[chosen])
        expected = reference(values[chosen], targets[chosen], lengths[members], {}, dataset[members], places)
        assert one[:2] == pytest.approx(expected, rel=1e-9)


def test_the_mean_is_linear_and_a_constant_has_no_error() -> None:
    rng = np.random.default_rng(0)
    lengths, codes, dataset = corpus(rng, 300)
    evaluated = np.arange(40)
    known = composition(lengths, codes, dataset, evaluated)

    def mean(values: np.ndarray) -> Calibrated:
        return calibrated_mean(values, lengths[evaluated], known)

    first, second = rng.normal(3, 1, 40), rng.normal(3, 1, 40)
    assert mean(first - second).mean == pytest.approx(mean(first).mean - mean(second).mean)
    assert mean(np.full(40, 2.5))[:2] == pytest.approx((2.5, 0), abs=1e-12)


def test_giants_that_were_not_drawn_are_known_by_their_length() -> None:
    """Long documents hold most of the corpus and have lower losses: the plain mean of short documents misses that."""
    rng = np.random.default_rng(1)
    lengths = np.r_[rng.integers(50, 200, 900), rng.integers(3000, 9000, 100)]
    losses = 3 - 0.15 * np.log(lengths / 100) + rng.normal(0, 0.3, 1000)
    evaluated = np.r_[np.arange(0, 900, 9), np.arange(900, 1000, 25)]
    known = composition(lengths, {}, np.zeros(1000, int), evaluated)
    found = calibrated_mean(losses[evaluated], lengths[evaluated], known)
    truth = float(losses @ lengths / lengths.sum())
    reach = student_reach(found.variance**0.5, len(evaluated) - 1, found.skewness)
    assert abs(found.mean - truth) < reach < 0.5
    short = np.arange(0, 900, 9)
    alone = calibrated_mean(losses[short], lengths[short], composition(lengths, {}, np.zeros(1000, int), short))
    assert alone.longer > 0.7  # the mean is that of the others
    assert abs(alone.mean - losses[:900] @ lengths[:900] / lengths[:900].sum()) < 2 * alone.variance**0.5 < 0.2


@pytest.mark.parametrize("split", ["random", "held out"])
@pytest.mark.parametrize("number", [8, 60])
def test_intervals_hold_the_mean_of_the_corpus(number: int, split: str) -> None:
    """Of 95 % intervals at least 93 % hold the mean of all documents up to the longest evaluated one.

    Losses depend on the length, the source and the cluster, or are log-normal; longer documents are of another kind.
    """
    rng = np.random.default_rng(number)
    lengths, codes, dataset = corpus(rng, 3000)
    rows = np.arange(3000)
    counts = {
        name: sparse.csr_array((lengths.astype(float), (rows, code)))
        for name, code in {
            **codes,
            "length": np.searchsorted(np.quantile(lengths, np.arange(1, 20) / 20), lengths),
        }.items()
    }
    held = []
    for seed in range(25):
        if split == "random":
            evaluated = rng.choice(3000, number, replace=False)
        else:
            evaluated = np.flatnonzero(choose(counts, lengths, number / 3000, seed=seed))
        known = composition(lengths, codes, dataset, evaluated)
        covered = np.where(length_bins(lengths) <= length_bins(lengths[evaluated]).max(), lengths, 0)
        for slope, of_groups, noise in ((0.15, 0.0, 0.5), (0.0, 0.4, 0.3), (0.1, 0.2, 0.4)):
            for _ in range(5):
                effects = sum(rng.normal(0, of_groups, int(code.max()) + 1)[code] for code in codes.values())
                drawn = rng.standard_t(4, 3000) * noise if of_groups or not slope else rng.lognormal(0, 1, 3000)
                losses = 3 - slope * np.log(lengths / 150) + effects + drawn + 2 * (covered == 0)
                found = calibrated_mean(losses[evaluated], lengths[evaluated], known)
                reach = student_reach(found.variance**0.5, len(evaluated) - 1, found.skewness)
                held.append(abs(found.mean - losses @ covered / covered.sum()) <= reach)
    assert np.mean(held) >= 0.93


def test_bins_of_half_an_octave() -> None:
    lengths = np.array([0, 1, 2, 3, 4, 5, 6, 8, 2**40])
    assert length_bins(lengths).tolist() == [0, 0, 2, 3, 4, 4, 5, 6, 80]
    table = tokens_by_group(np.array([0, 1, 1]), 2, np.array([4, 4, 5]))
    assert table[:, 4].tolist() == [4, 9]
    assert table.sum() == 13
    assert all(low <= high for low, high in pairwise(length_bins(np.arange(1, 5000))))


@pytest.mark.parametrize("num_datasets", [1, 2])
def test_without_other_documents_the_mean_is_the_plain_one(num_datasets: int) -> None:
    rng = np.random.default_rng(2)
    lengths, codes, dataset = corpus(rng, 60, num_datasets)
    every = np.arange(60)
    known = composition(lengths, codes, dataset, every)
    values, targets = rng.normal(3, 1, 60), lengths - 1
    assert not known.has_others(every)
    assert known.has_others(every[1:])
    of_group = np.flatnonzero(codes["source"] == 0)
    assert not known.has_others(of_group, ("source", 0))
    assert known.has_others(of_group[1:], ("source", 0))
    unknown = replace(known, is_known=False)
    assert not unknown.has_others(every[1:])
    found = calibrated_mean(values, targets, known, has_others=False)
    assert found.mean == pytest.approx(values @ targets / targets.sum())
    assert found.longer == 0
    # The noise of the documents is that of a weighted mean with these weights.
    shares = targets / targets.sum()
    assert found.variance >= values.var(ddof=1) * 0.5 * shares @ shares


def test_intervals_of_a_whole_test_set_hold_the_mean_of_its_kind() -> None:
    """Other documents of the same lengths and sources: of 95 % intervals at least 92 % hold their expected mean."""
    rng = np.random.default_rng(3)
    held = []
    for _ in range(60):
        lengths, codes, dataset = corpus(rng, 84)
        known = composition(lengths, codes, dataset, np.arange(84))
        expected = 3 - 0.15 * np.log(lengths / 150) + rng.normal(0, 0.3, 10)[codes["source"]]
        for _ in range(5):
            found = calibrated_mean(expected + rng.normal(0, 0.4, 84), lengths, known, has_others=False)
            reach = student_reach(found.variance**0.5, 83, found.skewness)
            held.append(abs(found.mean - expected @ lengths / lengths.sum()) <= reach)
    assert np.mean(held) >= 0.92

"""Duplicates kept apart: exactly, in as few parts as can be, and every part of the corpus's own mixture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.ordering.composition import duplicates
from jax_diversity.ordering.composition.duplicates import merge_groups, separate_duplicates


def slow_merge(columns: list[list[int]]) -> list[set[int]]:
    """Groups of two and more documents, joined until nothing can be."""
    found = [{index} for index in range(len(columns[0]))]
    for column in columns:
        for group in set(column) - {-1}:
            members = {index for index, own in enumerate(column) if own == group}
            touched = [component for component in found if component & members]
            found = [component for component in found if not component & members]
            found.append(set().union(*touched))
    return [component for component in found if len(component) > 1]


DOCUMENTS = st.lists(
    st.tuples(st.integers(-1, 6), st.integers(-1, 6), st.integers(0, 3), st.integers(0, 20)), max_size=25
)


@given(DOCUMENTS)
def test_groups_are_merged_as_the_slow_rule_does(documents: list[tuple[int, int, int, int]]) -> None:
    columns = [[row[place] for row in documents] for place in (0, 1)]
    merged = merge_groups([np.array(column, np.int64) for column in columns])
    found = {group: set(np.flatnonzero(merged == group).tolist()) for group in set(merged.tolist()) - {-1}}
    assert sorted(map(sorted, found.values())) == sorted(map(sorted, slow_merge(columns)))
    assert sorted(found) == list(range(len(found)))


@given(DOCUMENTS, st.integers(0, 3))
def test_no_part_holds_a_document_twice(documents: list[tuple[int, int, int, int]], more: int) -> None:
    exact, near, clusters, lengths = (np.array([row[place] for row in documents], np.int64) for place in range(4))
    components = slow_merge([exact.tolist(), near.tolist()])
    largest = max(map(len, components), default=1)
    told: list[int] = []
    parts = separate_duplicates([exact, near], clusters, lengths, num_parts=largest + more, advance=told.append)
    for component in components:
        assert len({int(parts[index]) for index in component}) == len(component)
    assert ((parts >= 0) & (parts < largest + more)).all()
    assert sum(told) == len(documents)
    least = separate_duplicates([exact, near], clusters, lengths)
    assert least.max(initial=-1) <= largest - 1
    np.testing.assert_array_equal(least, separate_duplicates([exact, near], clusters, lengths))
    if largest > 1:
        with pytest.raises(ValueError, match=f"at least {largest} parts, .*, found {largest - 1}"):
            separate_duplicates([exact, near], clusters, lengths, num_parts=largest - 1)


def corpus(
    num_documents: int, num_clusters: int, *, duplicated: float, largest: int, alike: bool = True, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Groups, Zipf clusters and log-normal lengths; duplicates are alike in both, or in neither."""
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, num_clusters + 1)
    clusters = rng.choice(num_clusters, num_documents, p=popularity / popularity.sum())
    lengths = np.maximum(8, rng.lognormal(6.2, 1.2, num_documents)).astype(np.int64)
    groups = np.full(num_documents, -1)
    members = rng.permutation(num_documents)[: int(duplicated * num_documents)]
    sizes = np.minimum(rng.geometric(0.5, len(members)) + 1, largest)
    sizes[0] = largest
    ends = np.cumsum(sizes)
    ends = ends[ends <= len(members)]
    for group, end in enumerate(ends):
        own = members[end - sizes[group] : end]
        groups[own] = group
        if alike:
            clusters[own], lengths[own] = clusters[own[0]], lengths[own[0]]
    return groups, clusters, lengths


def shares(parts: np.ndarray, clusters: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of every part; TV between a part's cluster shares and the corpus's."""
    tokens = np.zeros((parts.max() + 1, clusters.max() + 1))
    np.add.at(tokens, (parts, clusters), lengths)
    target = tokens.sum(axis=0) / tokens.sum()
    return tokens.sum(axis=1), np.abs(tokens / tokens.sum(axis=1, keepdims=True) - target).sum(axis=1) / 2


def floor(num_parts: int, clusters: np.ndarray, lengths: np.ndarray) -> float:
    """What no equal parts have a lower mean TV than: a document above its cluster's share is too much anywhere."""
    share = np.bincount(clusters, weights=lengths) / num_parts
    return float(np.maximum(0.0, lengths - share[clusters]).sum() / lengths.sum())


@pytest.mark.parametrize("duplicated", [0.05, 0.3, 0.95])
@pytest.mark.parametrize("largest", [2, 5, 12])
@pytest.mark.parametrize("alike", [True, False])
def test_every_part_has_the_corpus_s_mixture(duplicated: float, largest: int, alike: bool) -> None:
    groups, clusters, lengths = corpus(20_000, 60, duplicated=duplicated, largest=largest, alike=alike)
    parts = separate_duplicates(groups, clusters, lengths)
    assert parts.max() == largest - 1
    tokens, distance = shares(parts, clusters, lengths)
    random = np.random.default_rng(0).integers(largest, size=len(parts))
    _, by_chance = shares(random, clusters, lengths)
    assert np.ptp(tokens) / tokens.mean() < (0.01 if duplicated < 0.5 else 0.05)
    assert distance.mean() < floor(largest, clusters, lengths) + 0.25 * by_chance.mean()
    # Neither do parts differ in how long their documents are.
    means = np.array([lengths[parts == part].mean() for part in range(largest)])
    assert np.ptp(means) / lengths.mean() < 0.2


def test_many_parts_share_rare_clusters_and_long_documents() -> None:
    groups, clusters, lengths = corpus(30_000, 300, duplicated=0.02, largest=60)
    parts = separate_duplicates(groups, clusters, lengths)
    tokens, distance = shares(parts, clusters, lengths)
    assert np.ptp(tokens) / tokens.mean() < 0.1  # one document is a quarter of a part's share
    assert distance.mean() < 1.1 * floor(60, clusters, lengths)


def test_long_clusters_in_several_lanes_are_shared_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, clusters, lengths = corpus(5_000, 3, duplicated=0.1, largest=4)
    monkeypatch.setattr(duplicates, "_LANE_LENGTH", 64)
    tokens, distance = shares(separate_duplicates(groups, clusters, lengths), clusters, lengths)
    assert np.ptp(tokens) / tokens.mean() < 0.005
    assert distance.max() < 0.005


def test_many_documents() -> None:
    groups, clusters, lengths = corpus(300_000, 300, duplicated=0.05, largest=5)
    parts = separate_duplicates(groups, clusters, lengths)
    tokens, distance = shares(parts, clusters, lengths)
    assert np.ptp(tokens) / tokens.mean() < 1e-3
    assert distance.mean() < floor(5, clusters, lengths) + 5e-4


def test_golden_parts() -> None:
    groups = np.array([0, -1, 0, 1, 1, 1, -1, 2])
    clusters = np.array([0, 0, 0, 1, 1, 1, 1, 0])
    lengths = np.array([5, 4, 5, 3, 3, 3, 9, 6])
    assert separate_duplicates(groups, clusters, lengths).tolist() == GOLDEN


GOLDEN = [0, 1, 1, 0, 1, 2, 2, 2]


def test_without_duplicates_there_is_one_part() -> None:
    groups = np.array([3, -1, 7, 0])
    assert separate_duplicates(groups, np.zeros(4, int), np.ones(4, int)).tolist() == [0, 0, 0, 0]
    assert separate_duplicates(groups, np.zeros(4, int), np.ones(4, int), num_parts=2).tolist().count(1) == 2
    nothing = np.zeros(0, np.int64)
    assert separate_duplicates(nothing, nothing, nothing).tolist() == []
    assert separate_duplicates(nothing, nothing, nothing, num_parts=3).tolist() == []


def test_codes_may_be_of_any_width_and_size() -> None:
    groups, clusters, lengths = corpus(500, 7, duplicated=0.3, largest=3)
    expected = separate_duplicates(groups, clusters, lengths)
    found = separate_duplicates(
        [(groups.astype(np.int32)), np.full(500, -1)],
        (clusters * 10**12).astype(np.uint64),
        lengths.astype(np.uint16),
    )
    np.testing.assert_array_equal(found, expected)


def test_parts_ordered_alone_are_one_ordering_in_which_duplicates_are_far_apart() -> None:
    groups, clusters, lengths = corpus(2_000, 10, duplicated=0.4, largest=4)
    parts = separate_duplicates(groups, clusters, lengths)
    stacked = np.argsort(parts, kind="stable")  # every document is a sequence of its own
    orderings = []
    for part in range(4):
        counts = np.zeros((int((parts == part).sum()), 10), np.int64)
        own = stacked[parts[stacked] == part]
        counts[np.arange(len(own)), clusters[own]] = lengths[own]
        orderings.append(jd.order(jd.Characteristics.from_counts({"cluster": counts}), "greedy"))
    documents = stacked[jd.concatenate(orderings).indices]
    assert sorted(documents.tolist()) == list(range(2_000))
    ends = np.cumsum([len(ordering) for ordering in orderings])
    for epoch in np.split(documents, ends[:-1]):
        own = groups[epoch][groups[epoch] >= 0]
        assert len(np.unique(own)) == len(own)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"groups": []}, "at least one array of duplicate groups"),
        ({"groups": [np.zeros(3, int), np.zeros(2, int)]}, "groups of 3 documents in every array, found 2"),
        ({"groups": np.zeros(2, int)}, "clusters of 2 documents, as many as groups has, found 3"),
        ({"groups": np.array([0, -2, 0])}, "groups >= -1, found -2"),
        ({"groups": np.zeros(3)}, "groups to be one axis of integers, found float64"),
        ({"groups": np.zeros((3, 1), int)}, r"groups to be .* shape \(3, 1\)"),
        ({"clusters": np.array([0, -1, 0])}, "clusters >= 0, found -1"),
        ({"clusters": np.zeros(4, int)}, "clusters of 3 documents, as many as groups has, found 4"),
        ({"lengths": np.zeros(4, int)}, "lengths of 3 documents, as many as groups has, found 4"),
        ({"lengths": np.array([1, -1, 1])}, "lengths >= 0, found -1"),
        ({"lengths": np.array([1.0, 1.0, 1.0])}, "lengths to be one axis of integers, found float64"),
        ({"lengths": None}, "lengths to be one axis of integers"),
        ({"num_parts": 0}, "num_parts to be a whole number >= 1, found 0"),
        ({"num_parts": 1}, "at least 2 parts, the number of documents in the largest group, found 1"),
        ({"num_parts": 2.0}, "num_parts to be a whole number"),
        ({"num_parts": 10**9}, "clusters x parts of at most 134,217,728, found 1 x 1,000,000,000; remove"),
    ],
)
def test_hostile_input(change: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"groups": np.array([0, -1, 0]), "clusters": np.zeros(3, int)}
    arguments |= {"lengths": np.ones(3, int), **change}
    with pytest.raises(ValueError, match=sentence):
        separate_duplicates(**arguments)

"""K-means against a slow obvious reference, scikit-learn, and hostile input."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.clustering.assignment import assign, nearest_documents
from jax_diversity.sequences.clustering.base import METHODS, cluster, num_rows_passed, train_centroids
from jax_diversity.sequences.clustering.rows import check_vectors, middle
from tests.support.clustered_rows import blobs, random_rows, squared_distances


def lloyd_step(rows: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    nearest = squared_distances(rows, centroids).argmin(axis=1)
    moved = centroids.astype(np.float64).copy()
    for number in set(nearest.tolist()):
        moved[number] = rows[nearest == number].astype(np.float64).mean(axis=0)
    return moved


def same_partition(first: np.ndarray, second: np.ndarray) -> bool:
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    return len(pairs) == len(set(first.tolist())) == len(set(second.tolist()))


def test_passes_follow_the_reference():
    rows = random_rows(600, 8)
    expected = cluster(rows, 12, max_iterations=1).centroids.astype(np.float64)
    for num_passes in range(2, 7):
        expected = lloyd_step(rows, expected)
        found = cluster(rows, 12, max_iterations=num_passes)
        np.testing.assert_allclose(found.centroids, expected, atol=2e-6)
        assert found.num_iterations == num_passes


def test_settled_centroids_are_means_of_their_documents():
    rows = random_rows(600, 8)
    found = cluster(rows, 12, max_iterations=200)
    assert found.num_iterations < 200
    np.testing.assert_array_equal(found.assignments, squared_distances(rows, found.centroids).argmin(axis=1))
    np.testing.assert_allclose(found.centroids, lloyd_step(rows, found.centroids), atol=1e-6)
    assert found.inertia == pytest.approx(squared_distances(rows, found.centroids).min(axis=1).sum(), rel=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(2))
def test_well_separated_blobs_are_recovered(method, seed):
    rows, labels = blobs(20, 50, seed=seed)
    found = cluster(rows, 20, method=method, seed=seed)
    assert same_partition(found.assignments, labels)
    assert found.centroids.shape == (20, 8)
    assert found.centroids.dtype == np.float32
    assert found.assignments.dtype == np.int32


STARTS = [("kmeans", "k-means++"), ("kmeans", "k-means||"), ("minibatch_kmeans", "k-means++")]


@pytest.mark.parametrize("far", [10_000, -50_000])
@pytest.mark.parametrize(("method", "start"), STARTS)
def test_the_distance_from_the_origin_has_no_influence(method, start, far):
    rows, labels = blobs(6, 100)
    rows = rows / 7  # centres some 10 apart, ten thousand from the origin
    offset = np.full(8, far, np.float32)
    offset[::3] = 0
    config: Any = {"num_clusters": 6, "method": method, "start": start}
    found = cluster(rows + offset, **config)
    assert same_partition(found.assignments, labels)
    means = np.stack([(rows + offset)[labels == label].mean(axis=0, dtype=np.float64) for label in range(6)])
    assert squared_distances(found.centroids, means).min(axis=1).max() < 8 * (1e-6 * abs(far)) ** 2
    np.testing.assert_array_equal(assign(rows + offset, means.astype(np.float32))[0], labels)


def test_two_levels_of_rows_far_from_the_origin():
    rows, labels = blobs(12, 40, seed=1)
    found = cluster(rows + np.float32(20_000), 12, coarse_clusters=3, max_iterations=50)
    one = cluster(rows, 12, coarse_clusters=3, max_iterations=50)
    assert len(set(labels.tolist())) == 12
    assert same_partition(found.assignments, one.assignments)


def test_a_single_row_very_far_away_spoils_nothing():
    rows, labels = blobs(6, 100)
    rows[17] = 1e12
    found = cluster(rows, 7)
    near = np.arange(600) != 17
    assert same_partition(found.assignments[near], labels[near])
    assert (found.assignments == found.assignments[17]).sum() == 1


@pytest.mark.parametrize("num_rows", [1, 2, 4096, 4097, 8191, 30_000])
def test_the_middle_lies_among_rows_from_first_to_last(num_rows):
    rows = np.stack([np.arange(num_rows), np.full(num_rows, 7)], axis=1).astype(np.float32)
    found = middle(rows)
    assert found.dtype == np.float32
    assert found[0] == pytest.approx(num_rows / 2, abs=1 + num_rows / 1000)
    assert found[1] == 7
    np.testing.assert_array_equal(middle(rows[:0]), [0, 0])


@pytest.mark.parametrize(("method", "slack"), [("kmeans", 1.02), ("minibatch_kmeans", 1.15)])
def test_inertia_is_near_the_full_scikit_learn_one(method, slack):
    rows = random_rows(2000, 16) + 2 * random_rows(40, 16, seed=1)[np.arange(2000) % 40]
    reference = KMeans(60, n_init=3, random_state=0).fit(rows).inertia_
    assert cluster(rows, 60, method=method).inertia < slack * reference


@given(
    num_rows=st.sampled_from([1, 30, 130]),  # few shapes: each is compiled
    width=st.sampled_from([1, 5]),
    num_clusters=st.sampled_from([1, 130]),
    seed=st.integers(0, 2**31),
    num_distinct=st.integers(1, 50),
)
@settings(max_examples=16, deadline=None)
def test_any_rows_give_nearest_centroids(num_rows, width, num_clusters, seed, num_distinct):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((num_distinct, width)).astype(np.float32)[rng.integers(0, num_distinct, num_rows)]
    num_clusters = min(num_clusters, num_rows)
    found = cluster(rows, num_clusters, seed=seed, max_iterations=10)
    assert found.centroids.shape == (num_clusters, width)
    assert np.isfinite(found.centroids).all()
    distances = squared_distances(rows, found.centroids)
    chosen = distances[np.arange(num_rows), found.assignments]
    scale = 1 + np.square(rows).sum(axis=1)
    assert (chosen <= distances.min(axis=1) + 1e-5 * scale).all()
    if num_clusters >= len(np.unique(rows, axis=0)):
        assert found.inertia <= 1e-5 * scale.sum()


@pytest.mark.parametrize("method", METHODS)
def test_one_cluster_is_the_mean(method):
    rows = random_rows(600, 8)
    found = cluster(rows, 1, method=method, max_iterations=50)
    assert not found.assignments.any()
    np.testing.assert_allclose(
        found.centroids[0], rows.mean(axis=0), atol=0.05 if method == "minibatch_kmeans" else 1e-6
    )


@pytest.mark.parametrize("method", METHODS)
def test_as_many_clusters_as_documents(method):
    rows = random_rows(40, 4)
    found = cluster(rows, 40, method=method)
    if method == "kmeans":
        assert sorted(found.assignments.tolist()) == list(range(40))
    assert found.inertia < (1e-8 if method == "kmeans" else 4.0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", METHODS)
def test_more_clusters_than_distinct_rows_leaves_some_empty(method):
    rows = np.repeat(random_rows(3, 4), 10, axis=0)
    found = cluster(rows, 8, method=method)
    assert same_partition(found.assignments, np.repeat(np.arange(3), 10))
    assert found.inertia < 1e-8
    assert found.num_iterations <= 25


def test_identical_rows_and_rows_of_zeros_end_at_once():
    for rows in (np.ones((50, 3), np.float32), np.zeros((50, 3), np.float32)):
        found = cluster(rows, 5)
        assert len(set(found.assignments.tolist())) == 1
        assert found.inertia == 0
        assert found.num_iterations <= 3


def test_rows_of_zeros_share_one_cluster():
    rows = random_rows(600, 8)
    rows[::7] = 0
    found = cluster(rows, 12)
    assert len(set(found.assignments[::7].tolist())) == 1


def test_an_emptied_cluster_takes_the_farthest_row(monkeypatch):
    rows = np.concatenate([random_rows(60, 8), np.full((1, 8), 9, np.float32), -np.full((2, 8), 7, np.float32)])
    start = np.full((4, 8), 1e3, np.float32)
    start[0] = 0
    monkeypatch.setattr(sys.modules["jax_diversity.sequences.clustering.kmeans"], "draw_start", lambda *_: start)
    found = cluster(rows, 4, max_iterations=100)
    assert found.assignments[60] == 1
    assert found.assignments[61:].tolist() == [2, 2]  # copies count once; the fourth cluster takes another row
    np.testing.assert_allclose(found.centroids[1:3], rows[60:62], rtol=1e-6)
    assert np.bincount(found.assignments, minlength=4).min() > 0
    again = cluster(rows, 4, max_iterations=100)
    np.testing.assert_array_equal(found.centroids, again.centroids)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits(method):
    rows = random_rows(1500, 12)
    config: Any = {"num_clusters": 25, "method": method, "seed": 3, "train_documents": 900}
    first, second = cluster(rows, **config), cluster(rows.copy(), **config)
    np.testing.assert_array_equal(first.centroids, second.centroids)
    np.testing.assert_array_equal(first.assignments, second.assignments)
    assert first.inertia == second.inertia
    other = cluster(rows, 25, method=method, seed=4, train_documents=900)
    assert not np.array_equal(first.centroids, other.centroids)


@pytest.mark.parametrize(("width", "num_clusters"), [(3, 7), (128, 100)])
def test_the_number_of_rows_in_a_block_changes_nothing(width, num_clusters):
    rows = random_rows(1111, width)
    config: Any = {"num_clusters": num_clusters, "max_iterations": 6}
    first = cluster(rows, **config)
    for block_rows in (1, 64, 200, 5000):
        found = cluster(rows, **config, block_rows=block_rows)
        np.testing.assert_array_equal(found.centroids, first.centroids)
        np.testing.assert_array_equal(found.assignments, first.assignments)
        np.testing.assert_array_equal(assign(rows, first.centroids, block_rows=block_rows)[0], first.assignments)
        assert found.inertia == pytest.approx(first.inertia, rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_part_trains_and_all_are_assigned(method):
    rows, labels = blobs(5, 300)
    config: Any = {"num_clusters": 5, "method": method, "train_documents": 200}
    found = cluster(rows, **config)
    assert found.assignments.shape == (1500,)
    assert same_partition(found.assignments, labels)
    np.testing.assert_array_equal(found.assignments, assign(rows, found.centroids)[0])
    assert found.inertia == pytest.approx(squared_distances(rows, found.centroids).min(axis=1).sum(), rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("train_documents", [100, 10_000])
def test_a_memory_map_is_the_same_as_an_array(tmp_path, method, train_documents):
    rows = random_rows(600, 8)
    np.save(tmp_path / "vectors.npy", rows)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    config: Any = {"num_clusters": 12, "method": method, "train_documents": train_documents}
    np.testing.assert_array_equal(cluster(mapped, **config).centroids, cluster(rows, **config).centroids)


@pytest.mark.parametrize("method", METHODS)
def test_progress_adds_up_with_an_early_stop(method):
    rows, _ = blobs(4, 200)
    config: Any = {"num_clusters": 4, "method": method, "train_documents": 500}
    told: list[int] = []
    found = cluster(rows, **config, advance=told.append)
    assert method == "minibatch_kmeans" or found.num_iterations < 25
    assert sum(told) == num_rows_passed(800, **config)


def test_nearest_documents_against_sorting_everything():
    rows = np.repeat(random_rows(150, 5), 2, axis=0)  # pairs of copies: ties to the lowest index
    found = cluster(rows, 40, max_iterations=5)
    assignments, distances = assign(rows, found.centroids)
    np.testing.assert_array_equal(assignments, found.assignments)
    np.testing.assert_allclose(distances, squared_distances(rows, found.centroids).min(axis=1), atol=1e-5)
    nearest = nearest_documents(assignments, distances, 40, 6)
    assert nearest.shape == (40, 6)
    for number in range(40):
        members = np.flatnonzero(assignments == number)
        expected = members[np.argsort(distances[members], kind="stable")][:6].tolist()
        assert nearest[number].tolist() == expected + [-1] * (6 - len(expected))


def test_nearest_documents_of_an_empty_cluster():
    nearest = nearest_documents(np.array([0, 2], np.int32), np.zeros(2, np.float32), 3, 2)
    assert nearest.tolist() == [[0, -1], [-1, -1], [1, -1]]


def test_ties_go_to_the_lowest_cluster():
    rows = random_rows(50, 4)
    centroids = np.concatenate([rows[:5], rows[:5]])
    assert assign(rows, centroids)[0].max() < 5


def test_assigning_nothing():
    assert assign(np.zeros((0, 3), np.float32), np.zeros((2, 3), np.float32))[0].shape == (0,)


@pytest.mark.parametrize("method", METHODS)
def test_too_many_clusters_say_how_many_documents_there_are(method):
    rows = random_rows(7, 3)
    with pytest.raises(UserError, match=r"found 7 documents for 8 clusters; set cluster\.num_clusters to 7"):
        cluster(rows, 8, method=method)
    with pytest.raises(UserError, match=r"cluster\.train_documents >= cluster\.num_clusters, found 4"):
        cluster(rows, 5, train_documents=4, method=method)
    with pytest.raises(UserError, match="num_clusters to be a whole number >= 1"):
        cluster(rows, 0, method=method)
    with pytest.raises(UserError, match="found 0 documents"):
        cluster(rows[:0], 1, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_seeds_that_both_methods_take(method):
    rows, labels = blobs(3, 20)
    found = cluster(rows, 3, method=method, seed=2**32 - 1, train_documents=50)
    assert same_partition(found.assignments, labels)
    for seed in (-1, 2**32, 2**70):
        with pytest.raises(UserError, match=rf"cluster.seed from 0 to 2\^32 - 1, found {seed}"):
            cluster(rows, 3, method=method, seed=seed)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_row_that_is_not_finite_is_named(bad):
    rows = random_rows(20_000, 3)
    rows[12_345, 1] = rows[19_000, 0] = bad
    with pytest.raises(UserError, match="row 12345"):
        cluster(rows, 3)
    with pytest.raises(UserError, match="row 12345"):
        assign(rows, rows[:4].copy())
    with pytest.raises(UserError, match="row 0"):
        assign(rows[:4], rows[12_345:12_346])


def test_a_row_whose_square_would_overflow_is_named():
    rows = random_rows(30, 3)
    rows[17] = 1e18
    with pytest.raises(UserError, match="below 1e15, found a longer one in row 17"):
        cluster(rows, 3)


@pytest.mark.parametrize(
    ("vectors", "found"),
    [
        (np.zeros(5, np.float32), r"\(5,\)"),
        (np.zeros((5, 0), np.float32), r"\(5, 0\)"),
        (np.zeros((5, 2)), "float64"),
        ([[1.0, 2.0]], r"\(1, 2\)"),
    ],
)
def test_a_wrong_shape_or_type_is_named(vectors, found):
    with pytest.raises(UserError, match=found):
        check_vectors(vectors)


def test_centroids_of_another_width_are_refused():
    # Each call's annotations hold alone, so the widths are compared by the function itself.
    with pytest.raises((UserError, TypeError), match="feature"):
        assign(random_rows(5, 3), random_rows(2, 4))


def test_training_and_assigning_are_the_whole():
    rows = random_rows(600, 8)
    found = cluster(rows, 12)
    centroids, num_iterations = train_centroids(rows, 12)
    np.testing.assert_array_equal(centroids, found.centroids)
    assert num_iterations == found.num_iterations
    told: list[int] = []
    np.testing.assert_array_equal(assign(rows, centroids, told.append)[0], found.assignments)
    assert sum(told) == 600


# ---- spherical


def test_spherical_clusters_look_at_directions_alone():
    rows, labels = blobs(12, 40, seed=3)
    stretched = rows * np.random.default_rng(0).uniform(0.01, 50, (len(rows), 1)).astype(np.float32)
    config: Any = {"num_clusters": 12, "spherical": True}
    found = cluster(stretched, **config)
    assert same_partition(found.assignments, labels)
    np.testing.assert_allclose(np.linalg.norm(found.centroids, axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(found.assignments, assign(stretched, found.centroids, spherical=True)[0])


@pytest.mark.parametrize("method", METHODS)
def test_spherical_assignments_have_the_largest_cosine(method):
    rows = random_rows(600, 8) * 3
    found = cluster(rows, 12, spherical=True, method=method)
    cosines = random_rows(600, 8).astype(np.float64) @ found.centroids.T.astype(np.float64)
    chosen = cosines[np.arange(600), found.assignments]
    np.testing.assert_allclose(chosen, cosines.max(axis=1), atol=1e-6)
    assert found.inertia == pytest.approx((2 - 2 * chosen).sum(), rel=1e-4)


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize("start", ["k-means++", "k-means||", "random"])
def test_rows_of_zeros_share_one_cluster_whatever_the_start(spherical, start):
    rows = random_rows(600, 8)
    rows[::7] = 0
    for seed in range(3):
        config: Any = {"num_clusters": 12, "spherical": spherical, "start": start, "seed": seed}
        found = cluster(rows, **config)
        assert len(set(found.assignments[::7].tolist())) == 1
        assert np.isfinite(found.centroids).all()
        lengths = np.linalg.norm(found.centroids, axis=1)
        if spherical:
            assert (np.isclose(lengths, 1, atol=1e-5) | (lengths == 0)).all()
            if (lengths == 0).any():  # a centroid of zeros takes nothing else
                [blank] = np.flatnonzero(lengths == 0)[:1]
                assert (found.assignments == blank).sum() == len(rows[::7])


@pytest.mark.parametrize("spherical", [False, True])
def test_opposite_and_blank_rows_alone_end(spherical):
    rows = np.array([[1, 0], [-1, 0], [0, 0], [1e-30, 0], [-1e-30, 0]] * 4, np.float32)
    for num_clusters in (1, 5, 20):
        found = cluster(rows, num_clusters, spherical=spherical)
        assert np.isfinite(found.centroids).all()
        assert len(set(found.assignments[2::5].tolist())) == 1

"""How k-means starts, two levels, and that all compiled parts lower for TPUs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.clustering import lloyd
from jax_diversity.sequences.clustering.base import cluster, num_coarse_clusters, num_rows_passed
from jax_diversity.sequences.clustering.kmeans import _draw_distinct, draw_centroids, draw_start, share_out
from jax_diversity.sequences.clustering.purity import purity
from jax_diversity.sequences.clustering.rows import Rows
from tests.support.clustered_rows import blobs, random_rows, squared_distances

STARTS = ("k-means++", "k-means||", "random")


@pytest.mark.parametrize("start", STARTS)
def test_starting_centroids_are_rows_and_the_seed_decides(start):
    rows = Rows(random_rows(700, 5))
    found = draw_start(rows, 40, start, seed=2)
    distances = squared_distances(found, rows.vectors)
    assert distances.min(axis=1).max() == 0
    assert len(set(distances.argmin(axis=1).tolist())) == 40
    np.testing.assert_array_equal(found, draw_start(rows, 40, start, seed=2))
    assert not np.array_equal(found, draw_start(rows, 40, start, seed=3))


@pytest.mark.parametrize("start", ["k-means++", "k-means||"])
@pytest.mark.parametrize("seed", range(3))
def test_a_start_by_distance_finds_every_blob(start, seed):
    rows, labels = blobs(60, 20, seed=seed)
    found = draw_start(Rows(rows), 60, start, seed)
    owners = labels[squared_distances(found, rows).argmin(axis=1)]
    # Drawing with equal odds would find some 63 % of them.
    assert len(set(owners.tolist())) >= 57


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("num_distinct", [1, 3, 20])
def test_copies_and_zeros_do_not_stop_a_start(start, num_distinct):
    rows = np.repeat(random_rows(num_distinct, 4), 30, axis=0)
    rows[:30] = 0
    found = cluster(rows, 25, start=start)
    assert found.centroids.shape == (25, 4)
    assert np.isfinite(found.centroids).all()
    assert found.num_iterations <= 25
    if start != "random":
        assert found.inertia < 1e-6


@pytest.mark.parametrize("start", STARTS)
def test_all_starts_reach_about_the_same_inertia(start):
    rows = random_rows(3000, 12) + 2 * random_rows(50, 12, seed=1)[np.arange(3000) % 50]
    reference = cluster(rows, 80, max_iterations=50).inertia
    found = cluster(rows, 80, max_iterations=50, start=start).inertia
    assert found < (1.10 if start == "random" else 1.03) * reference


def test_candidates_are_drawn_with_the_odds_of_their_distances():
    distances = jnp.asarray(np.r_[np.zeros(50), np.ones(50), np.full(50, 9.0)], jnp.float32)
    drawn = np.concatenate([np.asarray(_draw_distinct(distances, jax.random.key(seed), 4)) for seed in range(300)])
    assert drawn.min() >= 50
    assert (drawn >= 100).mean() == pytest.approx(0.9, abs=0.04)


def test_rows_without_weight_are_never_drawn():
    rows = random_rows(64, 3)
    weights = np.r_[np.zeros(20), np.ones(24), np.zeros(20)].astype(np.float32)
    for seed in range(20):
        found = np.asarray(draw_centroids(rows, weights, jax.random.key(seed), 40, 3))
        assert squared_distances(found, rows[20:44]).min(axis=1).max() == 0


@given(st.integers(1, 10_000))
def test_padded_counts_are_few_and_little_larger(count):
    padded = lloyd.padded_count(count)
    assert count <= padded <= max(1.5 * count, 2)
    assert lloyd.padded_count(padded) == padded


# ---- two levels


@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1e12, allow_subnormal=False)), min_size=1, max_size=12),
    st.floats(0, 1),
)
def test_shares_are_whole_bounded_and_complete(groups, part):
    most = np.array([size for size, _ in groups])
    weights = np.array([weight for _, weight in groups])
    least = int((most > 0).sum())
    total = least + int(part * (most.sum() - least))
    shares = share_out(total, weights, most)
    assert shares.sum() == total
    assert (shares <= most).all()
    assert (shares >= np.minimum(most, 1)).all()
    for group in np.flatnonzero(shares > 1):  # a much heavier group that may have more never has less
        heavier = (weights > 1.001 * weights[group] + 1e-9 * weights.max()) & (shares < most)
        assert (shares[heavier] >= shares[group]).all()


def test_shares_follow_the_weights():
    shares = share_out(1000, np.array([1.0, 2.0, 3.0, 4.0]), np.full(4, 1000))
    np.testing.assert_allclose(shares, [100, 200, 300, 400], atol=2)


def test_two_levels_divide_no_topic_wrongly():
    rows, labels = blobs(60, 25, seed=5)
    found = cluster(rows, 150, coarse_clusters=4)
    assert purity(found.assignments, labels) == 1
    # Assigned among all fine centroids, not level by level; ties are within rounding.
    distances = squared_distances(rows, found.centroids)
    chosen = distances[np.arange(len(rows)), found.assignments]
    assert (chosen <= distances.min(axis=1) + 1e-6 * np.square(rows).sum(axis=1)).all()


def test_two_levels_cost_little_inertia():
    rows = random_rows(4000, 8)
    one = cluster(rows, 200, coarse_clusters=1)
    two = cluster(rows, 200, coarse_clusters=14)
    assert two.inertia < 1.10 * one.inertia
    assert np.bincount(two.assignments, minlength=200).min() > 0


@pytest.mark.campaign
@pytest.mark.parametrize("spherical", [False, True])
def test_two_levels_of_copies_and_zeros(spherical):
    rows = np.repeat(random_rows(9, 4), 20, axis=0)
    rows[:40] = 0
    config: Any = {"num_clusters": 50, "coarse_clusters": 3, "spherical": spherical}
    found = cluster(rows, **config)
    assert found.centroids.shape == (50, 4)
    assert found.inertia < 1e-6
    assert len(set(found.assignments[:40].tolist())) == 1
    as_many = cluster(random_rows(50, 4), **config)
    assert as_many.inertia < 1e-6


def test_progress_of_two_levels_adds_up():
    rows = random_rows(900, 6)
    config: Any = {"num_clusters": 40, "coarse_clusters": 3, "train_documents": 600}
    told: list[int] = []
    first = cluster(rows, **config, advance=told.append)
    assert sum(told) == num_rows_passed(900, **config)
    again = cluster(rows, **config)
    np.testing.assert_array_equal(first.centroids, again.centroids)


def test_when_there_are_two_levels():
    assert num_coarse_clusters(9999, 0) == 1
    assert num_coarse_clusters(10_000, 0) == 100
    assert num_coarse_clusters(10_000, 1) == 1
    assert num_rows_passed(50_000, 10_000, method="minibatch_kmeans", max_iterations=2) == 3 * 50_000
    with pytest.raises(UserError, match="coarse_clusters from 0 to below the 4 clusters, found 4"):
        cluster(random_rows(9, 2), 4, coarse_clusters=4)
    with pytest.raises(UserError, match=r"start to be one of .*, found 'first'"):
        draw_start(Rows(random_rows(9, 2)), 4, "first", 0)


# ---- compiled parts


@pytest.mark.parametrize("spherical", [False, True])
def test_everything_compiled_lowers_for_tpu(spherical):
    mesh = lloyd.row_mesh(None)
    rows, centroids, clusters = jnp.zeros((64, 8)), jnp.zeros((4, 8)), jnp.zeros(64, jnp.int32)
    moments = lloyd.Moments.zeros((4, 8), mesh)
    weights, key = jnp.ones(64), jax.random.key(0)
    lowered = [
        jax.export.export(lloyd.nearest, platforms=["tpu"])(rows, centroids, mesh, spherical),
        jax.export.export(lloyd.move, platforms=["tpu"])(centroids, moments, mesh, spherical),
        jax.export.export(jax.jit(lambda key: _draw_distinct(weights, key, 5)), platforms=["tpu"])(key),
        jax.export.export(jax.jit(lambda rows, key: draw_centroids(rows, weights, key, 4, 3)), platforms=["tpu"])(
            rows, key
        ),
        jax.export.export(
            jax.jit(
                lambda rows, clusters, centroids: lloyd.accumulate(
                    moments, rows, 60, clusters, centroids, 4, mesh, spherical
                )[1:]
            ),
            platforms=["tpu"],
        )(rows, clusters, centroids),
    ]
    assert {exported.platforms for exported in lowered} == {("tpu",)}


def test_both_ways_to_add_rows_agree():
    rng = np.random.default_rng(0)
    clusters = jnp.asarray(rng.integers(0, 5, 40), jnp.int32).at[3].set(5)  # 5: padding, added nowhere
    residuals = jnp.asarray(rng.standard_normal((40, 3)), jnp.float32)
    expected = lloyd.add_scattered(jnp.ones((5, 3)), clusters, residuals)
    np.testing.assert_allclose(lloyd.add_multiplied(jnp.ones((5, 3)), clusters, residuals), expected, atol=1e-5)

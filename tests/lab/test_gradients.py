"""Gradient diversity and stable rank are what plain NumPy says they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.lab.compiled import compiled_model
from jax_diversity.lab.gradients import gradient_diversity, mean_stable_rank, stable_rank
from jax_diversity.lab.settings import Size


def plain_diversity(gradients: list[list[np.ndarray]]) -> float:
    """Of each part's list of arrays, in float64."""
    rows = np.array([np.concatenate([array.ravel() for array in part]) for part in gradients], np.float64)
    return float((rows**2).sum() / (rows.sum(axis=0) ** 2).sum())


def plain_rank(matrix: np.ndarray) -> float:
    singular = np.linalg.svd(np.asarray(matrix, np.float64), compute_uv=False)
    return float((singular**2).sum() / singular[0] ** 2)


def linear(weights, part):
    """Its gradients are the parts themselves."""
    return sum(jnp.vdot(weights[name], part[name]) for name in weights)


def test_the_diversity_of_given_gradients_and_their_sum():
    rng = np.random.default_rng(0)
    parts = {"matrix": rng.normal(size=(6, 4, 3)), "vector": rng.normal(0.5, 1, (6, 5))}
    parts = {name: array.astype(np.float32) for name, array in parts.items()}
    zeros = {name: jnp.zeros(array.shape[1:]) for name, array in parts.items()}
    diversity, total = jax.jit(lambda parts: gradient_diversity(linear, zeros, parts))(parts)
    rows = [[parts["matrix"][index], parts["vector"][index]] for index in range(6)]
    assert float(diversity) == pytest.approx(plain_diversity(rows), rel=1e-5)
    for name, array in parts.items():
        np.testing.assert_allclose(total[name], array.sum(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ([[1.0, 2.0]] * 4, 1 / 4),  # all the same
        (np.eye(5), 1.0),  # orthogonal
        ([[1.0, 0.0], [-0.5, 0.0]], 5.0),  # against one another
        ([[3.0, 4.0]], 1.0),  # one alone
    ],
)
def test_the_diversity_of_extremes(gradients, expected):
    parts = {"w": jnp.array(gradients)}
    diversity, _ = gradient_diversity(linear, {"w": jnp.zeros(parts["w"].shape[1])}, parts)
    assert float(diversity) == pytest.approx(expected)
    scaled, _ = gradient_diversity(linear, {"w": jnp.zeros(parts["w"].shape[1])}, {"w": 100 * parts["w"]})
    assert float(scaled) == pytest.approx(expected)


def test_gradients_that_cancel_have_no_finite_diversity():
    parts = {"w": jnp.array([[1.0], [-1.0]])}
    assert not np.isfinite(float(gradient_diversity(linear, {"w": jnp.zeros(1)}, parts)[0]))


def test_half_precision_is_summed_in_full():
    rng = np.random.default_rng(1)
    parts = {"w": jnp.array(rng.normal(0.2, 1, (40, 3000)), jnp.bfloat16)}
    diversity, total = gradient_diversity(linear, {"w": jnp.zeros(3000, jnp.bfloat16)}, parts)
    assert total["w"].dtype == jnp.float32
    rows = [[np.asarray(row, np.float64)] for row in parts["w"]]
    assert float(diversity) == pytest.approx(plain_diversity(rows), rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(1, 1), (3, 7), (7, 3), (16, 16), (40, 2)]),
    seed=st.integers(0, 2**31),
    magnitude=st.sampled_from([1e-25, 1e-6, 1.0, 1e20]),
)
def test_stable_ranks_are_those_of_the_singular_values(shape, seed, magnitude):
    matrix = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    found = float(stable_rank(jnp.array(matrix * np.float32(magnitude))))
    assert found == pytest.approx(plain_rank(matrix), rel=1e-4)
    assert 1 - 1e-5 <= found <= min(shape) * (1 + 1e-5)


def test_stable_ranks_of_known_matrices():
    outer = jnp.outer(jnp.arange(1.0, 5.0), jnp.arange(1.0, 8.0))
    assert float(stable_rank(outer)) == pytest.approx(1.0)
    assert float(stable_rank(jnp.eye(6)[:, ::-1])) == pytest.approx(6.0)
    assert np.isnan(float(stable_rank(jnp.zeros((3, 2)))))


def test_the_mean_is_over_the_matrices_that_are_not_zero():
    tree = {"a": jnp.eye(4), "b": [jnp.ones((5, 2)), jnp.zeros((3, 3))], "scale": jnp.ones(9)}
    assert float(mean_stable_rank(tree)) == pytest.approx((4 + 1) / 2)
    assert np.isnan(float(mean_stable_rank({"scale": jnp.ones(9), "zeros": jnp.zeros((2, 2))})))
    assert np.isnan(float(mean_stable_rank([jnp.ones(3)])))
    # A gradient that is not a number is not passed over.
    assert np.isnan(float(mean_stable_rank([jnp.eye(3), jnp.full((2, 2), jnp.nan)])))


def test_the_lab_measures_the_gradients_of_its_sequences():
    """Against the gradients of one sequence after another, and of the whole batch's mean loss."""
    model = compiled_model(50, Size(16, 2, 2))
    parameters, _ = model.start(seed=1)
    rng = np.random.default_rng(2)
    tokens = rng.integers(1, 50, (5, 13), dtype=np.int32)
    segmentation = np.repeat([[1] * 6 + [2] * 7], 5, axis=0).astype(np.int32)
    segmentation[3, 9:] = 0
    batch = {
        "inputs": tokens,
        "targets": np.roll(tokens, -1, axis=1),
        "inputs_segmentation": segmentation,
        "targets_segmentation": segmentation * (rng.random((5, 13)) < 0.9),
        "inputs_position": np.repeat([[*range(6), *range(7)]], 5, axis=0).astype(np.int32),
    }
    diversity, rank = model.measure_gradients(parameters, batch)

    def leaves(rows, scale=1.0):
        part = {name: array[rows] for name, array in batch.items()}
        gradients = jax.grad(lambda parameters: model.losses(parameters, part).total * scale)(parameters)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]

    singles = [leaves([row]) for row in range(5)]
    assert float(diversity) == pytest.approx(plain_diversity(singles), rel=1e-3)
    assert 1 / 5 < float(diversity) < 2
    mean = leaves(list(range(5)), scale=1 / np.count_nonzero(batch["targets_segmentation"]))
    ranks = [plain_rank(leaf) for leaf in mean if leaf.ndim == 2]
    assert len(ranks) > 8
    assert float(rank) == pytest.approx(np.mean(ranks), rel=1e-3)

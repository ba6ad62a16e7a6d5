"""The contract of `order`: methods, seeds, objectives, errors."""

from __future__ import annotations

import numpy as np
import pytest

from jax_diversity import Characteristics, Objective, Ordering, order
from jax_diversity.ordering import METHODS
from tests.synthetic import synthetic_characteristics


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_deterministic_read_only_bijection(method: str) -> None:
    chars = synthetic_characteristics(150)
    first, second = (order(chars, method, seed=3) for _ in range(2))
    np.testing.assert_array_equal(np.sort(first.indices), np.arange(chars.num_sequences))
    np.testing.assert_array_equal(first.indices, second.indices)
    assert first.indices.dtype == np.int64
    assert not first.indices.flags.writeable
    assert first.info["method"] == method
    assert first.info["characteristics"] == chars.fingerprint


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "counts", [np.zeros((0, 3), int), np.array([[4, 1]]), np.full((7, 1), 2), np.zeros((4, 2), int)]
)
def test_corpora_of_nothing_of_one_and_of_equals(method: str, counts: np.ndarray) -> None:
    indices = order(Characteristics.from_counts({"topic": counts}), method).indices
    np.testing.assert_array_equal(np.sort(indices), np.arange(len(counts)))


def test_equal_rows_stay_in_order() -> None:
    chars = Characteristics.from_counts({"topic": np.full((20, 3), 5)})
    np.testing.assert_array_equal(order(chars, "greedy").indices, np.arange(20))


def test_shuffle_depends_on_its_seed_only() -> None:
    chars = synthetic_characteristics(150)
    assert (
        order(chars, "uniform_shuffle", seed=1).fingerprint != order(chars, "uniform_shuffle", seed=2).fingerprint
    )
    expected = np.random.default_rng(5).permutation(chars.num_sequences)
    np.testing.assert_array_equal(order(chars, "uniform_shuffle", seed=5).indices, expected)


def test_unknown_method_lists_all_and_suggests() -> None:
    chars = synthetic_characteristics(20)
    with pytest.raises(
        ValueError, match=r"Unknown ordering method 'gredy': expected one of .*did you mean 'greedy'"
    ):
        order(chars, "gredy")


def test_negative_seed() -> None:
    with pytest.raises(ValueError, match="Expected a seed >= 0, found -1"):
        order(synthetic_characteristics(20), seed=-1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norm_weight": -1.0}, "norm_weight to be finite and >= 0, found -1.0"),
        ({"self_weight": float("nan")}, "self_weight to be finite"),
        ({"window_weight": float("inf")}, "window_weight to be finite"),
        ({"windows": (0,)}, "windows to be whole numbers >= 1, found 0"),
        ({"family_weights": (0.0,)}, "a weight above zero"),
    ],
)
def test_bad_objectives(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Objective(**settings)


def test_objective_with_more_families_than_the_characteristics() -> None:
    chars = Characteristics.from_counts({"topic": np.ones((4, 2), int)})
    with pytest.raises(ValueError, match=r"weighs 2 families, the characteristics have 1 \(topic\)"):
        order(chars, objective=Objective.f3())


def test_presets_are_the_published_objectives() -> None:
    assert (Objective.f1().norm_weight, Objective.f1().self_weight, Objective.f1().family_weights) == (0, 1, (1.0,))
    assert (Objective.f2(3.0).norm_weight, Objective.f2(3.0).family_weights) == (3.0, (1.0,))
    assert (Objective.f3(0.2).norm_weight, Objective.f3(0.2).family_weights) == (0, (1.0, 0.2))


def test_weights_of_zero_leave_a_family_out() -> None:
    chars = synthetic_characteristics(150)
    alone = Characteristics.from_counts({"cluster": chars.counts["cluster"]}, sequence_length=chars.sequence_length)
    weighed = Characteristics.from_counts(
        chars.counts, weights={"length": 0.0}, sequence_length=chars.sequence_length
    )
    np.testing.assert_array_equal(order(weighed).indices, order(alone).indices)


def test_save_and_load(tmp_path) -> None:
    ordering = order(synthetic_characteristics(50))
    path = tmp_path / "mine.npy"
    ordering.save(path)
    loaded = Ordering.load(path)
    np.testing.assert_array_equal(loaded.indices, ordering.indices)
    assert loaded.info["method"] == "greedy"
    np.testing.assert_array_equal(np.load(path), ordering.indices)


def test_a_changed_ordering_is_refused(tmp_path) -> None:
    ordering = order(synthetic_characteristics(50))
    ordering.save(tmp_path / "mine.npy")
    np.save(tmp_path / "mine.npy", ordering.indices[::-1])
    with pytest.raises(ValueError, match="changed after it was saved"):
        Ordering.load(tmp_path / "mine.npy")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (np.array([0, 0, 1]), "each once, found 0 2 times"),
        (np.array([0, 3, 1]), "found 3"),
        (np.array([0, -1, 1]), "found -1"),
        (np.array([0.0, 1.0]), "one axis of integers, found float64"),
        (np.zeros((2, 2), int), r"found int64 of shape \(2, 2\)"),
    ],
)
def test_what_is_no_bijection(values: np.ndarray, sentence: str, tmp_path) -> None:
    np.save(tmp_path / "bad.npy", values)
    with pytest.raises(ValueError, match=sentence):
        Ordering.load(tmp_path / "bad.npy")


def test_files_that_hold_no_ordering(tmp_path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        Ordering.load(tmp_path / "absent.npy")
    (tmp_path / "text.npy").write_text("not an array")
    with pytest.raises(ValueError, match=r"Expected an ordering \(\.npy\)"):
        Ordering.load(tmp_path / "text.npy")
    with pytest.raises(ValueError, match=r"must end in \.npy"):
        Ordering(np.arange(3)).save(tmp_path / "order.txt")

"""The contract of `order`: objectives, errors, files. What every method promises stands in `test_methods`."""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Any

import numpy as np
import pytest

from jax_diversity import Characteristics, Objective, Ordering, UserError, order
from tests.support.synthetic import synthetic_characteristics

pytestmark = pytest.mark.core


def test_shuffle_depends_on_its_seed_only() -> None:
    chars = synthetic_characteristics(150)
    assert order(chars, "uniform_shuffle", seed=1).fingerprint != order(chars, "uniform_shuffle", seed=2).fingerprint
    expected = np.random.default_rng(5).permutation(chars.num_sequences)
    np.testing.assert_array_equal(order(chars, "uniform_shuffle", seed=5).indices, expected)


def test_unknown_method_lists_all_and_suggests() -> None:
    chars = synthetic_characteristics(20)
    with pytest.raises(
        ValueError, match="found the published objective 'f3'; give method='greedy' with objective='f3'"
    ):
        order(chars, "f3")
    with pytest.raises(ValueError, match=r"Unknown ordering method 'gredy': expected one of .*did you mean 'greedy'"):
        order(chars, "gredy")


def test_negative_seed() -> None:
    with pytest.raises(ValueError, match="Expected seed to be a whole number >= 0, found -1"):
        order(synthetic_characteristics(20), seed=-1)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"norm_weight": -1.0}, "norm_weight to be finite and >= 0, found -1.0"),
        ({"self_weight": float("nan")}, "self_weight to be finite"),
        ({"norm_weight": 1e300}, r"norm_weight to be at most 1e\+09, found 1e\+300"),
        ({"window_weight": float("inf")}, "window_weight to be finite"),
        ({"windows": (0,)}, "windows to be a whole number >= 1, found 0"),
        ({"family_weights": (1.0, -1.0)}, r"family_weights\[1\] to be finite and >= 0, found -1.0"),
        ({"family_weights": (0.0,)}, "a weight above zero"),
    ],
)
def test_bad_objectives(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Objective(**settings)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"windows": (float("nan"),)}, "windows to be a whole number >= 1, found nan"),
        ({"windows": (float("inf"),)}, "windows to be a whole number >= 1, found inf"),
        ({"windows": (2.5,)}, "windows to be a whole number >= 1, found 2.5"),
        ({"windows": ("wide",)}, "windows to be a whole number >= 1, found 'wide'"),
        ({"windows": ((1, 2),)}, r"windows to be a whole number >= 1, found \(1, 2\)"),
        ({"windows": None}, "windows to be a whole number >= 1, found None"),
        ({"norm_weight": "much"}, "norm_weight to be finite and >= 0, found 'much'"),
        ({"form": "norm"}, "the objective's form to be one of squares, norms, found 'norm'"),
    ],
)
def test_objectives_of_the_wrong_types(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Objective(**settings)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("windows", [256, np.int64(256), (256,), [256.0], np.array([256]), np.array(256)])
def test_a_bare_number_is_one_window(windows) -> None:
    objective = Objective(windows=windows)
    assert objective == Objective(windows=(256,))
    assert type(objective.windows[0]) is int


@pytest.mark.usefixtures("unchecked")
def test_numpy_scalars_become_plain_numbers() -> None:
    weights: dict[str, Any] = {"norm_weight": np.float32(1), "self_weight": np.int64(1), "windows": (np.int64(8),)}
    objective = Objective(**weights, family_weights=(np.float64(0.5),))
    assert json.loads(json.dumps(dataclasses.asdict(objective)))["windows"] == [8]
    chars = Characteristics.from_counts({"topic": np.eye(4, dtype=int)})
    seeds: list[Any] = [np.int64(1), 1.5]
    ordering = order(chars, seed=seeds[0], objective=objective)
    assert type(ordering.info["seed"]) is int
    json.dumps(dict(ordering.info))
    with pytest.raises(ValueError, match=r"seed to be a whole number >= 0, found 1\.5"):
        order(chars, seed=seeds[1])


@pytest.mark.parametrize("method", ["balance", "greedy", "greedy_pool", "sequence_spacing"])
def test_sequences_beyond_exact_sums_warn(method: str) -> None:
    def corpus(tokens: int) -> Characteristics:
        return Characteristics.from_counts({"topic": [[tokens, 0], [0, 7], [3, 4]]})

    with pytest.warns(UserWarning, match="sequences of at most 65,536 tokens, found 65,537: beyond that .* rounded"):
        beyond = order(corpus(65_537), method)
    np.testing.assert_array_equal(np.sort(beyond.indices), np.arange(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order(corpus(65_536), method)
        order(corpus(65_537), "uniform_shuffle")


def test_objective_with_more_families_than_the_characteristics() -> None:
    chars = Characteristics.from_counts({"topic": np.ones((4, 2), int)})
    with pytest.raises(ValueError, match=r"weighs 2 families, the characteristics have 1 \(topic\)"):
        order(chars, objective=Objective.f3())


def test_published_objectives_by_name() -> None:
    chars = synthetic_characteristics(60, num_clusters=5, num_bins=4)
    named = order(chars, "greedy", objective="f3")
    assert (named.indices == order(chars, "greedy", objective=Objective.f3()).indices).all()
    assert named.info["objective"]["norm_weight"] == 0
    with pytest.raises(UserError, match="Expected the objective to be one of f1, f2, f3, found 'f4'"):
        order(chars, "greedy", objective="f4")


def test_presets_are_the_published_objectives() -> None:
    assert (Objective.f1().norm_weight, Objective.f1().self_weight, Objective.f1().family_weights) == (0, 1, (1.0,))
    assert (Objective.f2(3.0).norm_weight, Objective.f2(3.0).family_weights) == (3.0, (1.0,))
    assert (Objective.f3(0.2).norm_weight, Objective.f3(0.2).family_weights) == (0, (1.0, 0.2))


def test_weights_of_zero_leave_a_family_out() -> None:
    chars = synthetic_characteristics(150)
    alone = Characteristics.from_counts({"cluster": chars.counts["cluster"]}, sequence_length=chars.sequence_length)
    weighed = Characteristics.from_counts(chars.counts, weights={"length": 0.0}, sequence_length=chars.sequence_length)
    for method in ("greedy", "balance"):
        np.testing.assert_array_equal(order(weighed, method).indices, order(alone, method).indices)


def test_save_and_load(tmp_path) -> None:
    ordering = order(synthetic_characteristics(50))
    path = tmp_path / "mine.npy"
    ordering.save(path)
    loaded = Ordering.load(path)
    np.testing.assert_array_equal(loaded.indices, ordering.indices)
    assert loaded.info["method"] == "balance"
    np.testing.assert_array_equal(np.load(path), ordering.indices)


def test_info_may_hold_numpy_values(tmp_path) -> None:
    info = {"seed": np.int64(1), "norm_weight": np.float32(1), "windows": (np.int64(256),), "all": np.arange(2)}
    Ordering(np.arange(3), info).save(tmp_path / "mine.npy")
    loaded = Ordering.load(tmp_path / "mine.npy")
    assert loaded.info == {"seed": 1, "norm_weight": 1.0, "windows": [256], "all": [0, 1]}


def test_info_cannot_pass_for_the_fingerprint(tmp_path) -> None:
    Ordering(np.arange(3), {"fingerprint": "mine", "num_sequences": 7}).save(tmp_path / "mine.npy")
    assert dict(Ordering.load(tmp_path / "mine.npy").info) == {}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("info", [{"made": object()}, {"made": 1 + 2j}, {(1, 2): 3}, {"made": {np.int64}}])
def test_info_that_json_cannot_hold_changes_no_file(info: dict, tmp_path) -> None:
    path = tmp_path / "mine.npy"
    Ordering(np.arange(3)).save(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(ValueError, match="Expected an ordering's info to have JSON values"):
        Ordering(np.array([2, 1, 0]), info).save(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_save_that_fails_leaves_the_old_files(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.npy"
    Ordering(np.arange(3)).save(path)

    def fail(file, values) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        Ordering(np.array([2, 1, 0])).save(path)
    np.testing.assert_array_equal(Ordering.load(path).indices, np.arange(3))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.json", "mine.npy"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "found invalid JSON"),
        (b"\xff\xfe", "found invalid JSON"),
        (b"[1, 2]", "found no fingerprint"),
        (b"3", "found no fingerprint"),
        (b'{"other": "program"}', "found no fingerprint"),
        (b'{"fingerprint": 3}', "found no fingerprint"),
    ],
)
def test_a_json_that_is_not_the_orderings(content: bytes, sentence: str, tmp_path) -> None:
    np.save(tmp_path / "mine.npy", np.arange(3))
    np.testing.assert_array_equal(Ordering.load(tmp_path / "mine.npy").indices, np.arange(3))
    (tmp_path / "mine.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"mine\.json to describe its ordering, {sentence}"):
        Ordering.load(tmp_path / "mine.npy")


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

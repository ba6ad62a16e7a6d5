"""Characteristics from one matrix, and from one label per sequence."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_array

import jax_diversity as jd


@pytest.mark.parametrize("matrix", [[[3, 1], [0, 4]], np.array([[3, 1], [0, 4]]), csr_array([[3, 1], [0, 4]])])
def test_one_matrix_is_one_family(matrix: Any) -> None:
    chars = jd.Characteristics.from_counts(matrix)
    assert chars.families == ("group",)
    assert chars.fingerprint == jd.Characteristics.from_counts({"group": [[3, 1], [0, 4]]}).fingerprint


@pytest.mark.parametrize(
    "labels", [["web", "code", "web"], np.array(["web", "code", "web"], object), np.array([7, 2, 7]), (1, 0, 1)]
)
def test_labels_are_one_group_a_sequence(labels: Any) -> None:
    chars = jd.Characteristics.from_counts(labels, sequence_length=512)
    assert chars.counts["group"].toarray().tolist() == [[0, 512], [512, 0], [0, 512]]
    assert jd.Characteristics.from_counts(labels).sequence_length == 1
    assert sorted(jd.order(chars).indices.tolist()) == [0, 1, 2]


def test_labels_beside_counts_have_the_tokens_of_the_sequences() -> None:
    chars = jd.Characteristics.from_counts({"source": ["a", "b"], "topic": [[3, 1], [0, 2]]})
    assert chars.families == ("source", "topic")
    assert chars.counts["source"].toarray().tolist() == [[4, 0], [0, 2]]


@pytest.mark.parametrize("kind", [np.asarray, csr_array, lambda rows: np.asarray(rows, np.float32), coo_array])
def test_shares_become_whole_tokens(kind: Any) -> None:
    """Against a slow reference: largest remainders, of equal ones the first; rows keep their totals."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(7, 0.3), 200)
    rows[rows < 0.05] = 0
    rows = np.round(rows / rows.sum(axis=1, keepdims=True) * 20) / 20  # many equal remainders
    rows[:, 0] += 1 - rows.sum(axis=1)
    rows = np.where((rows >= 0).all(axis=1)[:, None], rows, np.eye(7)[0])
    given = kind(rows)
    before = given.copy()
    chars = jd.Characteristics.from_counts({"mix": given}, sequence_length=509)
    found = chars.counts["mix"].toarray()
    for row, tokens in zip(rows, found, strict=True):
        exact = row / row.sum() * 509
        expected = np.floor(exact)
        by_remainder = sorted(np.flatnonzero(row), key=lambda group: (-round(exact[group] % 1, 3), group))
        for group in by_remainder[: int(509 - expected.sum())]:
            expected[group] += 1
        assert tokens.sum() == 509
        assert np.abs(tokens - exact).max() < 1
        if kind is np.asarray:
            assert tokens.tolist() == expected.tolist()
    assert (given != before).sum() == 0
    jd.order(chars)


def test_pure_rows_are_shares_beside_shares_and_in_sequences_of_several_tokens() -> None:
    pure, mixed = [[1.0, 0.0], [0.0, 1.0]], [[0.7, 0.3], [0.5, 0.5]]
    chars = jd.Characteristics.from_counts({"a": pure, "b": mixed}, sequence_length=512)
    assert chars.counts["a"].toarray().tolist() == [[512, 0], [0, 512]]
    assert chars.counts["b"].toarray().tolist() == [[358, 154], [256, 256]]
    labelled = jd.Characteristics.from_counts({"a": pure, "source": ["x", "y"]}, sequence_length=512)
    assert labelled.tokens.tolist() == [512, 512]
    assert jd.Characteristics.from_counts({"a": pure}).tokens.tolist() == [1, 1]
    assert jd.Characteristics.from_counts({"a": np.array(pure, int)}, sequence_length=512).tokens.tolist() == [1, 1]


def test_half_precision_and_tables_of_objects() -> None:
    half = jd.Characteristics.from_counts(np.array([[0.7, 0.3], [0.1, 0.9]], np.float16), sequence_length=100)
    assert half.counts["group"].toarray().tolist() == [[70, 30], [10, 90]]
    for kind in (object, np.float64):
        table = np.array([[7, 3], [5, 5]], kind)
        assert jd.Characteristics.from_counts(table).counts["group"].toarray().tolist() == [[7, 3], [5, 5]]
    with pytest.raises(jd.UserError, match="must contain whole token counts, found nan"):
        jd.Characteristics.from_counts(np.array([[7, None], [5, 5]], object))


def test_a_column_of_labels_is_a_group_and_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"'topic' has the shape \(3, 1\): one group"):
        chars = jd.Characteristics.from_counts({"topic": np.array([[3], [1], [2]])})
    assert chars.tokens.tolist() == [3, 1, 2]
    assert repr(jd.Characteristics.from_counts(["a", "b"])) == "Characteristics(2 sequences; group: 2 groups)"


def test_shares_beside_counts_and_labels_divide_the_tokens_of_the_sequences() -> None:
    counts = {"mix": [[0.7, 0.3], [0.5, 0.5], [1.0, 0.0]], "source": ["a", "b", "a"], "topic": [[3, 1], [0, 3], [0, 0]]}
    chars = jd.Characteristics.from_counts(counts)
    assert chars.families == ("mix", "source", "topic")
    assert chars.counts["mix"].toarray().tolist() == [[3, 1], [2, 1], [0, 0]]
    assert chars.counts["source"].toarray().tolist() == [[4, 0], [0, 3], [0, 0]]
    alone = jd.Characteristics.from_counts({name: counts[name] for name in ("mix", "source")}, sequence_length=8)
    assert alone.counts["mix"].toarray().tolist() == [[6, 2], [4, 4], [8, 0]]
    assert alone.tokens.tolist() == [8, 8, 8]


def test_mappings_are_rows_of_a_matrix() -> None:
    rows = [{"science": 0.7, "art": 0.3}, {"art": 1}, {"history": np.float16(0.5), "art": 0.5}]
    matrix = [[0.3, 0, 0.7], [1.0, 0, 0], [0.5, 0.5, 0]]
    chars, expected = (jd.Characteristics.from_counts({"topic": made}, sequence_length=9) for made in (rows, matrix))
    assert chars.names["topic"] == ("art", "history", "science")
    assert chars.counts["topic"].toarray().tolist() == expected.counts["topic"].toarray().tolist()
    pure = jd.Characteristics.from_counts([{"a": 1}, {"b": 1}], sequence_length=512)
    assert pure.tokens.tolist() == [512, 512]
    counted = jd.Characteristics.from_counts([{"b": 3, "a": 1}, {}, {"b": 4}])
    assert counted.counts["group"].toarray().tolist() == [[1, 3], [0, 0], [0, 4]]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([0.5, 0.5], "must have the shape"),
        (np.array([0.5, 0.5]), "labels that are texts or whole numbers, found the type float64"),
        ({"a": ["x", "y", "z"], "b": [[1], [1]]}, "'a' has 3 labels, the counts have 2 rows"),
        (np.array(["a", None], object), "found None at 1"),
        (["a", float("nan")], "found nan at 1"),
        ({"a": []}, "found no label"),
        ([("web", "en"), ("code", "de")], r"'group' must be .* found labels of the shape \(2, 2\); give each column"),
        ({"a": np.array([["web"], ["code"]], object)}, r"found labels of the shape \(2, 1\); give each column"),
    ],
)
def test_other_labels_are_refused(counts: Any, sentence: str) -> None:
    with pytest.raises(jd.UserError, match=sentence):
        jd.Characteristics.from_counts(counts)


@pytest.mark.campaign
def test_labels_and_columns_are_the_names_of_the_groups() -> None:
    table = pytest.importorskip("pandas").DataFrame({"short": [1, 0, 2], "long": [0, 1, 0]})
    chars = jd.Characteristics.from_counts({"topic": ["web", "code", "web"], "kind": [7, 3, 7], "length": table})
    assert chars.names == {"topic": ("code", "web"), "kind": ("3", "7"), "length": ("short", "long")}
    assert jd.Characteristics.from_counts([[1, 2]]).names == {}
    for again in (chars.take(np.array([2, 0])), pickle.loads(pickle.dumps(chars)), chars.with_weights({"kind": 2.0})):
        assert again.names == chars.names
    counts = {family: matrix.copy() for family, matrix in chars.counts.items()}
    assert jd.Characteristics.from_counts(counts).fingerprint == chars.fingerprint  # names change no order


def test_estimates_of_own_labels_have_their_names() -> None:
    labels = ["web", "code", "wiki", "web"] * 20
    chosen = jd.sample(jd.Characteristics.from_counts({"topic": labels}), 20)
    found = jd.estimate(np.arange(20.0), chosen, groups="topic")
    assert list(found.groups) == ["code", "web", "wiki"]
    assert "  wiki  " in str(found)


def test_warnings_of_own_labels_have_their_names() -> None:
    chars = jd.Characteristics.from_counts({"topic": ["code", "web", "web", "web"] * 16})
    with pytest.warns(UserWarning, match="the tokens of topic 'code'"):
        ordering = jd.order(chars, "greedy", targets={"topic": [0.5, 0.5]})
    with pytest.warns(UserWarning, match="the tokens of topic"):
        by_name = jd.order(chars, "greedy", targets={"topic": {"web": 0.5}})
    np.testing.assert_array_equal(by_name.indices, ordering.indices)
    with pytest.raises(jd.UserError, match=r"name its groups \(code, web\), found 'wob'; did you mean 'web'\?"):
        jd.order(chars, "greedy", targets={"topic": {"wob": 0.5}})


def test_settings_of_an_objective_are_not_options_of_the_method() -> None:
    with pytest.raises(jd.UserError, match=r"give objective=jd\.Objective\(windows=\.\.\.\)"):
        jd.order(jd.Characteristics.from_counts(["a", "b"]), windows=(8,))

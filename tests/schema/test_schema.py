"""Characteristics: what is accepted, what is refused, what cannot change afterwards."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import grain
import numpy as np
import pytest
from scipy import sparse

from jax_diversity import Characteristics, Ordering, UserError, order

pytestmark = pytest.mark.core

COUNTS = np.array([[3, 1], [0, 4]])


@pytest.mark.parametrize("make", [np.asarray, np.ndarray.tolist, sparse.csr_matrix, sparse.csr_array, sparse.coo_array])
def test_dense_and_sparse_counts_are_the_same(make) -> None:
    chars = Characteristics.from_counts({"topic": make(COUNTS)})
    np.testing.assert_array_equal(chars.counts["topic"].toarray(), COUNTS)
    assert (chars.num_sequences, chars.sequence_length, chars.families) == (2, 4, ("topic",))
    np.testing.assert_array_equal(chars.tokens, [4, 4])
    np.testing.assert_allclose(chars.target_share("topic"), [3 / 8, 5 / 8])


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ({}, "at least one family"),
        ({"topic": np.array([[1, -1]])}, "token counts >= 0, found -1"),
        ({"topic": np.array([[1.0, np.nan]])}, "whole token counts, found nan"),
        ({"topic": np.array([[1.0, np.inf]])}, "whole token counts, found inf"),
        (
            {"topic": np.array([[0.5, 0.7]])},
            "whole token counts, found 0.5; shares must add up to 1 in every row, and row 0 adds up to 1.2\\.",
        ),
        (
            {"topic": np.array([[0.5, 0.5]])},
            "Family 'topic' has shares in its rows, so sequence_length is needed, found None",
        ),
        ({"topic": np.array([[1.5, -0.5]])}, "whole token counts, found 1.5.*; cluster embeddings"),
        ({"topic": [0.0, 1.0]}, r"found \(2,\); labels are texts or whole numbers"),
        ({"topic": COUNTS, "mix": np.array([[0.5, 0.5]])}, "'mix' has 1 rows, the counts have 2"),
        ({"topic": np.array([[1e30, 1.0]])}, "up to 2\\^53, found 1e\\+30"),
        ({"topic": np.array([[2**63]], np.uint64)}, "up to 2\\^53, found 9223372036854775808"),
        (
            {"topic": sparse.coo_array(([0.5, 0.7], ([0, 0], [0, 0])), shape=(1, 1))},
            "whole token counts, found 0.5",
        ),
        ({"topic": np.array([[True, False]])}, "found the type bool"),
        ({"topic": [[1, 2], [3]]}, "must be a matrix"),
        (
            {"topic": [["a", "b"], ["a"]]},
            "found several labels of a sequence; give every sequence the shares of its labels",
        ),
        ({"topic": [{"a": 0.5, "b": 0.5}, ["a"]]}, "found several labels of a sequence"),
        ({"topic": [{"a": 0.5, "b": 0.4}, {"a": 1}]}, "found 0.5; shares must add up to 1"),
        ({"topic": [{"a": 1}, {1: 1}]}, r"texts as labels, found 1; write str\(label\)"),
        ({"topic": [{}]}, "texts as labels, found no label"),
        ({"topic": [{"a": None}]}, "a number for every label, found None"),
        ({"topic": [{"a": True}, {"a": 1}]}, "a number for every label, found True"),
        ({"topic": [{"a": 2**70}]}, "token counts up to 2"),
        ({"topic": [0.5, 1.5]}, r"found \(2,\)"),
        ({"topic": 3}, r"found \(\)"),
        ({"topic": np.ones((2, 2, 2), int)}, r"found \(2, 2, 2\)"),
        ({"topic": np.array([["a"]])}, "must be a matrix|integer token counts"),
        ({"topic": np.zeros((3, 0), int)}, r"found \(3, 0\)"),
        ({"topic": COUNTS, "length": COUNTS[:1]}, "'topic' has 2 rows, 'length' has 1"),
        ({"topic": COUNTS, "length": COUNTS + 1}, "sequence 0 has 4 tokens in 'topic' and 6 in 'length'"),
    ],
)
def test_bad_counts(counts: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Characteristics.from_counts(counts)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ({"topic": -1}, "finite and >= 0, found -1"),
        ({"topic": 0}, "At least one family must have a weight above zero"),
        ({"topics": 1}, r"unknown families \['topics'\]"),
        ({"topic": float("nan")}, "found nan"),
        ({"topic": 10**400}, "finite and >= 0, found 1000"),
    ],
)
def test_bad_weights(weights: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Characteristics.from_counts({"topic": COUNTS}, weights=weights)


def malformed(kind: type, **parts: np.ndarray) -> object:
    """A sparse matrix of two rows whose parts were replaced after SciPy looked at them."""
    matrix = kind(COUNTS)
    for name, values in parts.items():
        setattr(matrix, name, values)
    return matrix


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csr_array, sparse.csc_array, sparse.coo_array])
@pytest.mark.parametrize("index", [-1, 2, 1 << 30])
def test_indices_outside_the_matrix_reach_no_compiled_code(kind: type, dtype: type, index: int) -> None:
    name = "col" if kind is sparse.coo_array else "indices"
    matrix = malformed(kind, **{name: np.array([0, 1, index], dtype)})
    with pytest.raises(ValueError, match="Family 'topic' must be a matrix"):
        Characteristics.from_counts({"topic": matrix})
    if kind is sparse.csr_array:
        with pytest.raises(ValueError, match=r"indices must be|ind"):
            Characteristics({"topic": matrix}, {"topic": 1.0}, 4)


@pytest.mark.parametrize("indptr", [[0, 9, 3], [0, 2, 99], [1, 2, 3], [0, 3, 2], [0, 2], [0.0, 2.0, 3.0]])
def test_row_bounds_that_contradict_themselves(indptr: list) -> None:
    with pytest.raises(ValueError, match="Family 'topic' must be a matrix"):
        Characteristics.from_counts({"topic": malformed(sparse.csr_array, indptr=np.array(indptr))})


def test_a_sequence_of_more_tokens_than_can_be_summed() -> None:
    with pytest.raises(ValueError, match=r"at most 2\^53 tokens per sequence"):
        Characteristics.from_counts({"topic": np.full((1, 2048), 2**53)})


def test_sequence_length_below_the_rows() -> None:
    with pytest.raises(ValueError, match="at least 4, the largest row total, found 3"):
        Characteristics.from_counts({"topic": COUNTS}, sequence_length=3)


def test_the_users_matrix_stays_theirs() -> None:
    mine = sparse.csr_array(COUNTS)
    chars = Characteristics.from_counts({"topic": mine})
    mine.data[:] = 99
    np.testing.assert_array_equal(chars.counts["topic"].toarray(), COUNTS)
    with pytest.raises(ValueError, match="read-only"):
        chars.counts["topic"].data[0] = 7


def test_duplicate_entries_are_summed() -> None:
    entries = sparse.coo_array(([1, 2, 4], ([0, 0, 1], [0, 0, 1])), shape=(2, 2))
    np.testing.assert_array_equal(Characteristics.from_counts({"a": entries}).counts["a"].toarray(), [[3, 0], [0, 4]])


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "bsr", "dia", "lil", "dok"])
def test_narrow_types_do_not_overflow(form: str) -> None:
    ones = sparse.coo_array((np.ones(300, np.uint8), (np.zeros(300, int), np.zeros(300, int))), shape=(1, 2))
    if form in ("coo", "csr", "csc"):  # the others cannot hold a place twice
        if form != "coo":
            order_of = {"csr": [0, 300], "csc": [0, 300, 300]}[form]
            ones = getattr(sparse, f"{form}_array")((np.ones(300, np.uint8), np.zeros(300, int), order_of), (1, 2))
        assert Characteristics.from_counts({"a": ones}).counts["a"].toarray().tolist() == [[300, 0]]
        assert ones.nnz == 300
    matrix = sparse.coo_array(np.full((200, 2), 255, np.uint8)).T.asformat(form)
    chars = Characteristics.from_counts({"a": matrix})
    assert chars.tokens.tolist() == [255 * 200] * 2
    assert chars.counts["a"].dtype == np.int32


def test_dense_rows_of_narrow_counts_are_summed_in_full() -> None:
    assert Characteristics.from_counts({"a": np.full((1, 300), 255, np.uint8)}).sequence_length == 255 * 300


_COPIES = [lambda value: pickle.loads(pickle.dumps(value)), copy.deepcopy, copy.copy]


@pytest.mark.parametrize("copied", _COPIES, ids=["pickle", "deepcopy", "copy"])
def test_characteristics_go_to_other_processes(copied) -> None:
    chars = Characteristics.from_counts({"topic": COUNTS, "length": COUNTS[:, ::-1]}, weights={"length": 0.5})
    other = copied(chars)
    assert other.fingerprint == chars.fingerprint
    assert other.families == chars.families
    with pytest.raises(ValueError, match="read-only"):
        other.counts["topic"].data[0] = 7
    with pytest.raises(TypeError):
        other.counts["new"] = other.counts["topic"]
    with pytest.raises(TypeError):
        other.weights["topic"] = 2.0
    assert order(other).fingerprint == order(chars).fingerprint


@pytest.mark.parametrize("copied", _COPIES, ids=["pickle", "deepcopy", "copy"])
def test_orderings_go_to_other_processes(copied) -> None:
    ordering = Ordering(np.array([2, 0, 1]), {"method": "mine", "seed": 3})
    other = copied(ordering)
    assert other.fingerprint == ordering.fingerprint
    assert dict(other.info) == dict(ordering.info)
    with pytest.raises(ValueError, match="read-only"):
        other.indices[0] = 7
    with pytest.raises(TypeError):
        other.info["method"] = "theirs"


def test_orderings_read_as_their_arrays(tmp_path: Path) -> None:
    indices = np.array([2, 0, 1, 4, 3])
    plan = Ordering(indices)
    assert (plan[1], plan[-1], len(plan)) == (0, 3, 5)
    assert list(plan) == list(plan[:64]) == indices.tolist()
    assert plan[np.array([0, 3])].tolist() == [2, 4]
    with pytest.raises(IndexError):
        plan[5]
    assert np.asarray(plan).dtype == np.int64
    assert np.asarray(plan, np.int32).dtype == np.int32
    assert (2 * np.asarray(plan) == indices * 2).all()
    np.save(tmp_path / "plain.npy", plan)
    assert np.load(tmp_path / "plain.npy", allow_pickle=False).tolist() == indices.tolist()
    assert list(grain.MapDataset.source(plan)[1:3]) == [0, 1]
    # Still read-only: only a copy that was asked for can be changed, and does not change the ordering.
    for view in (np.asarray(plan), plan[1:]):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 7
    with pytest.raises(TypeError):
        plan[0] = 7
    np.array(plan)[0] = 7
    assert plan[0] == 2
    assert plan != Ordering(indices)  # compared by identity; fingerprints compare the content
    assert plan.fingerprint == Ordering(indices).fingerprint


def test_fingerprint_sees_counts_weights_and_length() -> None:
    prints = {
        Characteristics.from_counts({"a": COUNTS}).fingerprint,
        Characteristics.from_counts({"b": COUNTS}).fingerprint,
        Characteristics.from_counts({"a": COUNTS}, weights={"a": 2.0}).fingerprint,
        Characteristics.from_counts({"a": COUNTS}, sequence_length=8).fingerprint,
        Characteristics.from_counts({"a": COUNTS[::-1]}).fingerprint,
    }
    assert len(prints) == 5
    assert Characteristics.from_counts({"a": COUNTS.tolist()}).fingerprint in prints


def test_an_ordering_is_saved_into_a_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in ("absent", "file"):
        with pytest.raises(UserError, match=f"Expected a folder at .*{place}, found none; make it, or name another"):
            Ordering(np.arange(3)).save(tmp_path / place / "order.npy")

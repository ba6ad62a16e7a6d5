"""Characteristics: what is accepted, what is refused, what cannot change afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from jax_diversity import Characteristics

COUNTS = np.array([[3, 1], [0, 4]])


@pytest.mark.parametrize(
    "make", [np.asarray, np.ndarray.tolist, sparse.csr_matrix, sparse.csr_array, sparse.coo_array]
)
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
        ({"topic": np.array([[0.5, 0.5]])}, "whole token counts, found 0.5"),
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
    ],
)
def test_bad_weights(weights: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Characteristics.from_counts({"topic": COUNTS}, weights=weights)


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
    np.testing.assert_array_equal(
        Characteristics.from_counts({"a": entries}).counts["a"].toarray(), [[3, 0], [0, 4]]
    )


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

"""Documents in orders: which sequences are a document's, how often a batch meets one again, and what orders do."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.counts import token_counts
from jax_diversity.ordering.measures.documents import document_spread, num_repeats
from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.counts import sequence_copies, sequence_documents
from tests.support.ordering_cases import random_copies
from tests.support.synthetic import synthetic_characteristics


def segments(rows: list[tuple[int, int, int]], num_sequences: int) -> Segments:
    """Segments of (sequence, document, length)."""
    sequence, document, length = np.array(rows, np.int64).reshape(-1, 3).T
    zeros = np.zeros(len(rows), np.int64)
    return Segments(
        sequence_index=sequence,
        position=zeros,
        document_index=document,
        document_offset=zeros,
        length=length,
        ends_with_eos=zeros.astype(bool),
        num_sequences=num_sequences,
        sequence_length=100,
    )


def test_a_sequence_belongs_to_the_document_of_nearly_all_its_tokens() -> None:
    rows = [(0, 3, 100), (1, 3, 99), (1, 4, 1), (2, 4, 98), (2, 5, 2), (3, 5, 60), (3, 6, 10), (3, 5, 30), (5, 6, 7)]
    assert sequence_documents(segments(rows, 6)).tolist() == [3, 3, -1, -1, -1, 6]
    # Two segments of one document count together; a sequence without tokens belongs to none.
    rows = [(0, 7, 50), (0, 8, 1), (0, 7, 60)]
    assert sequence_documents(segments(rows, 2)).tolist() == [7, -1]
    assert sequence_documents(segments([], 0)).tolist() == []


def slow_copies(pairs: list[tuple[int, int]], duplicate_group: list[int], num_sequences: int) -> list[list[int]]:
    """The groups of copies of every sequence, at most four, from (sequence, document)."""
    many = [group for group, number in Counter(duplicate_group).items() if number > 1]
    held = [{duplicate_group[document] for at, document in pairs if at == index} for index in range(num_sequences)]
    spread = Counter(group for groups in held for group in groups if group in many)
    rows = [sorted((-spread[group], group) for group in groups if spread[group] > 1)[:4] for groups in held]
    return [sorted(group for _, group in row) for row in rows]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11)), max_size=40),
    st.lists(st.integers(0, 7), min_size=12, max_size=12),
)
# The first sequence has five groups, one more than are kept; they are in one to five others.
@example(
    [(0, group) for group in range(5)] + [(1 + other, group) for group in range(5) for other in range(group + 1)],
    [*range(6)] * 2,
)
def test_copies_of_sequences_against_counting(pairs: list[tuple[int, int]], duplicate_group: list[int]) -> None:
    pairs = sorted(pairs)
    found = sequence_copies(segments([(*pair, 1) for pair in pairs], 6), np.array(duplicate_group))
    expected = slow_copies(pairs, duplicate_group, 6)
    assert [sorted(group for group in row if group >= 0) for row in found.tolist()] == expected
    assert found.shape == (6, max(map(len, expected)))


def slow_spread(documents: np.ndarray, indices: np.ndarray, size: int) -> tuple[list[int], list[int]]:
    """Repeats a window and gaps, by counting."""
    held = [{int(group) for group in np.atleast_1d(documents[index]) if group >= 0} for index in indices]
    repeats = []
    for start in range(0, len(held) - size + 1, size):
        counts = Counter(group for groups in held[start : start + size] for group in groups)
        repeats.append(sum(number - 1 for number in counts.values()))
    gaps = []
    for document in sorted(set().union(*held)):
        places = [place for place, groups in enumerate(held) if document in groups]
        gaps += np.diff(places).tolist()
    return repeats, gaps


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 60), st.integers(1, 9))
def test_repeats_and_gaps_against_counting(data: st.DataObject, num_sequences: int, size: int) -> None:
    size = min(size, num_sequences)
    documents = np.array(data.draw(st.lists(st.integers(-2, 6), min_size=num_sequences, max_size=num_sequences)))
    # A schedule may repeat and omit sequences.
    indices = np.array(
        data.draw(st.lists(st.integers(0, num_sequences - 1), min_size=size, max_size=2 * num_sequences + size))
    )
    found = document_spread(documents, indices, (size,))
    repeats, gaps = slow_spread(documents, indices, size)
    assert found.repeats[size].tolist() == repeats
    assert found.gaps.tolist() == gaps
    sizes = Counter(int(documents[index]) for index in indices if documents[index] >= 0)
    even = [len(indices) / sizes[document] for document in sorted(sizes) for _ in range(sizes[document] - 1)]
    np.testing.assert_allclose(found.even_gaps, even)
    windows = len(indices) / size
    floor = sum(max(0.0, number - windows) for number in sizes.values()) / windows
    np.testing.assert_allclose(found.repeats_floor[size], floor)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**16), st.integers(3, 60), st.integers(1, 9))
def test_repeats_and_gaps_of_copies_against_counting(seed: int, num_sequences: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    size = min(size, num_sequences)
    copies, indices = random_copies(num_sequences, rng), rng.permutation(num_sequences)
    found = document_spread(copies, indices, (size,))
    repeats, gaps = slow_spread(copies, indices, size)
    assert found.repeats[size].tolist() == repeats
    assert found.gaps.tolist() == gaps
    assert found.place_correlation is None
    for start, number in enumerate(repeats):
        assert num_repeats(copies[indices[start * size : (start + 1) * size]]) == number


def test_place_correlation() -> None:
    documents = np.repeat([0, 1], 10)
    forward = np.arange(20).reshape(2, 10).T.ravel()  # both from start to end, in turn
    assert document_spread(documents, forward, ()).place_correlation == pytest.approx(1)
    assert document_spread(documents, forward[::-1], ()).place_correlation == pytest.approx(-1)
    mixed = np.concatenate([np.arange(10), np.arange(10, 20)[::-1]])  # one forward, one backward
    assert document_spread(documents, mixed, ()).place_correlation == pytest.approx(0)
    assert document_spread(np.repeat([0, 1, 2], 7)[:20], np.arange(20), ()).place_correlation is None


@pytest.mark.campaign
def test_orders_keep_documents_apart_at_no_cost() -> None:
    chars = synthetic_characteristics(3000, sequence_length=256, documents=True)
    shuffle = jd.order(chars, "uniform_shuffle")
    orders = {"shuffle": shuffle}
    for method in ("balance", "greedy", "greedy_pool"):
        orders[method] = jd.order(chars, method)
        orders[f"{method} without"] = jd.order(chars, method, objective=jd.Objective(document_weight=0))
    compared = jd.compare(chars, orders, windows=(64, 256), offsets=("0",))

    def value(name: str, measured: str, window: int) -> float:
        found = compared.value(name, "document", measured, window)
        assert found is not None
        return found

    for method in ("balance", "greedy", "greedy_pool"):
        assert value(method, "repeats_mean", 64) <= value("shuffle", "repeats_mean", 64) / 4
        floor = value(method, "repeats_floor", 256)
        assert value(method, "repeats_mean", 256) <= 1.3 * floor < value("shuffle", "repeats_mean", 256)
        correlation = compared.value(method, "document", "place_correlation")
        assert correlation is not None
        assert abs(correlation) < 0.1
        for family in chars.families:
            with_documents, without = (
                compared.value(name, family, "tv_mean", 256, "0") for name in (method, f"{method} without")
            )
            assert with_documents is not None
            assert without is not None
            assert with_documents < 1.06 * without  # a dozen windows: their noise


@pytest.mark.campaign
def test_orders_keep_copies_apart() -> None:
    chars = synthetic_characteristics(3000, sequence_length=256)
    rng = np.random.default_rng(0)
    # 60 groups of five copies, of which some sequences hold two; 40 copies of one document.
    copies = np.full((3000, 2), -1)
    copies[rng.permutation(3000)[:300], 0] = np.repeat(np.arange(60), 5)
    copies[rng.permutation(3000)[:40], 1] = 99
    chars = jd.Characteristics.from_counts(chars.counts, copies=copies)
    shuffle = jd.measure(chars, jd.order(chars, "uniform_shuffle"), windows=(64, 256)).copies
    assert shuffle is not None
    for method in ("balance", "greedy", "greedy_pool"):
        found = jd.measure(chars, jd.order(chars, method), windows=(64, 256)).copies
        assert found is not None
        assert found.repeats[64].mean() <= shuffle.repeats[64].mean() / 5, method
        assert found.repeats[256].mean() <= max(1.3 * found.repeats_floor[256], shuffle.repeats[256].mean() / 3), method
        assert found.summary()["gap_low"] > 0.3 > shuffle.summary()["gap_low"], method


def test_a_run_goes_on_from_the_documents_that_were_consumed() -> None:
    documents = np.repeat(np.arange(20), 2)
    chars = jd.Characteristics.from_counts({"topic": np.full((40, 1), 8)}, documents=documents)
    for method in ("greedy", "balance", "greedy_pool"):
        # A sequence of each of the first ten documents was read: next comes one of each of the others.
        rest = jd.order(chars, method, consumed=np.arange(0, 20, 2))[10:]
        assert set(documents[rest[:10]].tolist()) == set(range(10, 20)), method


def test_documents_of_characteristics() -> None:
    counts = {"topic": [[1, 1], [2, 0], [0, 2]]}
    plain = jd.Characteristics.from_counts(counts)
    known = jd.Characteristics.from_counts(counts, documents=[5, 5, -1])
    assert plain.documents is None
    assert known.documents is not None
    assert known.documents.tolist() == [5, 5, -1]
    assert plain.fingerprint != known.fingerprint
    assert pickle.loads(pickle.dumps(known)).fingerprint == known.fingerprint
    assert known.with_weights({"topic": 2.0}).documents is not None
    assert jd.measure(plain, np.arange(3), windows=(2,)).documents is None
    for wrong, said in (([1, 2], "documents of 3 sequences"), ([0.5, 1, 2], "integers"), ("abc", "integers")):
        with pytest.raises(jd.UserError, match=said):
            jd.Characteristics.from_counts(counts, documents=wrong)
    of_one = jd.Characteristics.from_counts(counts, copies=[4, -1, 4])
    assert of_one.copies is not None
    assert of_one.copies.tolist() == [[4], [-1], [4]]
    assert len({plain.fingerprint, known.fingerprint, of_one.fingerprint}) == 3
    assert pickle.loads(pickle.dumps(of_one)).fingerprint == of_one.fingerprint
    assert of_one.with_weights({"topic": 2.0}).copies is not None
    no_copies = jd.Characteristics.from_counts(counts, copies=np.empty((3, 0), int))
    assert jd.measure(no_copies, np.arange(3), windows=(2,)).copies is None
    assert sorted(jd.order(no_copies).indices.tolist()) == [0, 1, 2]
    for wrong, said in (
        ([[1, 2]], "copies of 3 sequences"),
        ([[1, 2], [1], [3, 4]], r"array \(sequence, member\)"),
        ([[0.5], [1.0], [2.0]], "integers"),
        ([[1, 2], [-1, -1], [7, 7]], "found 7 twice in sequence 2"),
    ):
        with pytest.raises(jd.UserError, match=said):
            jd.Characteristics.from_counts(counts, copies=wrong)
    with pytest.raises(jd.UserError, match="document_weight"):
        jd.Objective(document_weight=-1)
    with pytest.raises(jd.UserError, match="ties"):
        jd.order(known, "greedy", ties="first")


@pytest.mark.parametrize(
    ("method", "rows"), [("balance", 1 << 20), ("balance", 750), ("greedy", 1 << 20), ("greedy_pool", 1 << 20)]
)
def test_documents_and_copies_stay_apart_over_the_seam_of_two_epochs(
    method: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_counts, "MOST_ROWS", rows)
    chars = synthetic_characteristics(3000, sequence_length=256, documents=True)
    copies = np.where(np.arange(3000) % 30 == 0, np.arange(3000) // 300, -1)[:, None]
    chars = jd.Characteristics.from_counts(chars.counts, documents=chars.documents, copies=copies)
    first = jd.order(chars, method)
    following = {
        "alone": jd.order(chars, method, seed=1),
        "after": jd.order(chars, method, seed=1, previous=first),
    }
    shortest = {}
    for name, second in following.items():
        both = np.concatenate([first.indices, second.indices])
        for kind, groups in (("document", chars.documents), ("copy", chars.copies[:, 0])):
            held = groups[both]
            across = []
            for group in np.unique(held[held >= 0]):
                places = np.flatnonzero(held == group)
                if (size := len(places) // 2) > 1:
                    across.append((places[size] - places[size - 1]) * size / 3000)
            shortest[name, kind] = np.quantile(across, 0.1)
    for kind in ("document", "copy"):
        assert shortest["after", kind] > max(0.35, 1.1 * shortest["alone", kind]), (kind, shortest)
    assert not np.array_equal(first.indices, following["after"].indices)


def test_the_epoch_before_is_checked() -> None:
    chars = jd.Characteristics.from_counts({"topic": np.full((6, 1), 8)}, documents=[0, 0, 0, 1, 1, 1])
    # The last sequence read was of document 1: the next is of document 0.
    second = jd.order(chars, "greedy", previous=np.array([0, 3, 1, 4, 2, 5]))
    assert chars.documents is not None
    assert chars.documents[second.indices].tolist() == [0, 1, 0, 1, 0, 1]
    with pytest.raises(jd.UserError, match="previous epoch as an ordering of 6 sequences, found one of 3"):
        jd.order(chars, "greedy", previous=np.array([0, 2, 1]))
    with pytest.raises(jd.UserError, match="continue from earlier sequences"):
        jd.order(chars, "uniform_shuffle", previous=np.arange(6))


def test_documents_of_no_sequences() -> None:
    empty = np.zeros((0, 2), np.int64)
    for copies in (np.zeros((0, 0), np.int64), np.zeros((0, 3), np.int64)):
        chars = jd.Characteristics.from_counts({"topic": empty}, documents=np.zeros(0, np.int64), copies=copies)
        for method in ("balance", "greedy", "greedy_pool"):
            assert len(jd.order(chars, method)) == 0
    chars = jd.Characteristics.from_counts({"topic": [[1, 1]] * 4}, documents=[0, 0, 1, 1])
    nothing = jd.measure(chars, jd.make_run(chars, positions=[]), windows=())
    assert nothing.documents is not None
    assert nothing.documents.gaps.tolist() == []

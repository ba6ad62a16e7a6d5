"""Spacing of documents and of unequal sequences, against slow references and exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from jax_diversity import Characteristics, Objective, measure, order


def documents(lengths: np.ndarray, clusters: np.ndarray) -> Characteristics:
    """Documents as rows, each of one cluster."""
    num_clusters = int(clusters.max(initial=0)) + 1
    rows = csr_array((lengths, clusters, np.arange(len(lengths) + 1)), shape=(len(lengths), num_clusters))
    return Characteristics.from_counts({"cluster": rows})


def drawn(num_documents: int, num_clusters: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-normal lengths, Zipf clusters."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(8, rng.lognormal(6.2, 1.2, num_documents)).astype(np.int64)
    popularity = 1 / np.arange(1, num_clusters + 1)
    return lengths, rng.choice(num_clusters, num_documents, p=popularity / popularity.sum())


def spaced_slowly(lengths: np.ndarray, clusters: np.ndarray) -> list[int]:
    """The rule as it is written, over all documents at every step, in float64."""
    totals = np.bincount(clusters, weights=lengths)
    target = totals / max(totals.sum(), 1)
    placed, num_placed = np.zeros(len(totals)), 0.0
    left = np.ones(len(lengths), bool)
    out: list[int] = []
    for _ in lengths:
        miss = np.abs(placed[clusters] + lengths - target[clusters] * (num_placed + lengths))
        best = np.where(left, miss, np.inf)
        document = int(np.flatnonzero(best <= best.min() + 1e-9)[0])
        out.append(document)
        left[document] = False
        placed[clusters[document]] += lengths[document]
        num_placed += lengths[document]
    return out


def largest_excess(lengths: np.ndarray, clusters: np.ndarray, indices: np.ndarray) -> Fraction:
    """How much worse the chosen document was than the best, at most, in exact arithmetic (tokens)."""
    tokens: list[int] = lengths.tolist()
    cluster_of: list[int] = clusters.tolist()
    totals = [0] * (max(cluster_of) + 1)
    for length, cluster in zip(tokens, cluster_of, strict=True):
        totals[cluster] += length
    num_tokens = max(sum(totals), 1)
    placed, num_placed, worst = [0] * len(totals), 0, Fraction(0)
    left = set(range(len(tokens)))
    for chosen in indices.tolist():
        # All misses times the number of tokens are whole numbers.
        misses = {
            document: abs(
                num_tokens * (placed[cluster_of[document]] + tokens[document])
                - totals[cluster_of[document]] * (num_placed + tokens[document])
            )
            for document in left
        }
        worst = max(worst, Fraction(misses[chosen] - min(misses.values()), num_tokens))
        left.remove(chosen)
        placed[cluster_of[chosen]] += tokens[chosen]
        num_placed += tokens[chosen]
    return worst


@pytest.mark.parametrize(("num_documents", "num_clusters"), [(1500, 1), (1500, 2), (1500, 40), (600, 600)])
def test_document_spacing_against_the_slow_rule(num_documents: int, num_clusters: int) -> None:
    lengths, clusters = drawn(num_documents, num_clusters)
    indices = order(documents(lengths, clusters), "document_spacing").indices
    assert indices.tolist() == spaced_slowly(lengths, clusters)


def posts_and_books(num_documents: int) -> tuple[np.ndarray, np.ndarray]:
    """A cluster of short documents and one of long ones: each book makes the posts' cluster skip over many."""
    lengths = np.arange(num_documents)
    return np.concatenate([lengths + 1, 50 * num_documents + lengths]), np.repeat([0, 1], num_documents)


def test_short_and_long_documents_against_the_slow_rule() -> None:
    lengths, clusters = posts_and_books(700)
    indices = order(documents(lengths, clusters), "document_spacing").indices
    assert indices.tolist() == spaced_slowly(lengths, clusters)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=40))
def test_small_corpora_in_exact_arithmetic(corpus: list[tuple[int, int]]) -> None:
    """Small numbers make many ties, equal lengths, clusters of one document and documents without tokens."""
    lengths, clusters = (np.array(column) for column in zip(*corpus, strict=True))
    indices = order(documents(lengths, clusters), "document_spacing").indices
    assert sorted(indices.tolist()) == list(range(len(corpus)))
    with_tokens = indices[lengths[indices] > 0]
    kept = np.flatnonzero(lengths > 0)
    if len(kept):
        renumbered = np.searchsorted(kept, with_tokens)
        assert largest_excess(lengths[kept], clusters[kept], renumbered) <= Fraction(1, 10**9)
        np.testing.assert_array_equal(
            with_tokens, kept[order(documents(lengths[kept], clusters[kept]), "document_spacing").indices]
        )


@pytest.mark.parametrize("scale", [1, 10**6, 10**9 + 7])
def test_precision_does_not_depend_on_the_number_of_tokens(scale: int) -> None:
    """Up to 10^14 tokens, of awkward lengths."""
    lengths, clusters = drawn(150, 6, seed=1)
    lengths = lengths * scale + np.arange(150)
    indices = order(documents(lengths, clusters), "document_spacing").indices
    assert largest_excess(lengths, clusters, indices) <= Fraction(int(lengths.sum()), 10**14)


def test_a_power_of_two_more_tokens_makes_the_same_order() -> None:
    lengths, clusters = drawn(2000, 30)
    first, second = (order(documents(lengths * scale, clusters), "document_spacing") for scale in (1, 2**20))
    assert first.fingerprint == second.fingerprint


def test_documents_of_one_cluster_stay_in_the_corpus_order() -> None:
    lengths, _ = drawn(300, 1)
    np.testing.assert_array_equal(
        order(documents(lengths, np.zeros(300, int)), "document_spacing").indices, np.arange(300)
    )


def test_equal_documents_go_round_the_clusters() -> None:
    clusters = np.repeat(np.arange(4), 25)
    indices = order(documents(np.full(100, 7), clusters), "document_spacing").indices
    for round_start in range(0, 100, 4):
        assert sorted(clusters[indices[round_start : round_start + 4]].tolist()) == [0, 1, 2, 3]
    for cluster in range(4):
        own = indices[clusters[indices] == cluster]
        np.testing.assert_array_equal(own, np.sort(own))


def test_documents_without_tokens_come_first() -> None:
    lengths = np.array([5, 0, 3, 0, 4])
    indices = order(documents(lengths, np.array([0, 0, 1, 1, 1])), "document_spacing").indices
    assert indices[:2].tolist() == [1, 3]


def test_a_document_counts_whole_in_its_heaviest_group() -> None:
    lengths, clusters = drawn(200, 5)
    mixed = np.zeros((200, 5), np.int64)
    mixed[np.arange(200), clusters] = lengths - lengths // 3
    mixed[np.arange(200), (clusters + 1) % 5] += lengths // 3
    chars = Characteristics.from_counts({"cluster": mixed, "all": lengths[:, None]})
    assert (
        order(chars, "document_spacing").fingerprint
        == order(documents(lengths, clusters), "document_spacing").fingerprint
    )


def test_documents_stay_within_a_few_lengths_of_the_target() -> None:
    lengths, clusters = drawn(4000, 50)
    chars = documents(lengths, clusters)
    spaced, shuffled = (
        measure(chars, order(chars, method), windows=(256,)) for method in ("document_spacing", "uniform_shuffle")
    )
    assert spaced.prefix_l2["cluster"].max() < 0.7 * shuffled.prefix_l2["cluster"].max()
    assert np.median(spaced.prefix_l2["cluster"]) < 0.1 * np.median(shuffled.prefix_l2["cluster"])
    assert spaced.window_tv["cluster"][256].mean() < 0.8 * shuffled.window_tv["cluster"][256].mean()


def test_short_documents_come_first() -> None:
    """Not a wish but what the rule does; whoever packs by it should know."""
    lengths, clusters = drawn(4000, 50)
    ordered = lengths[order(documents(lengths, clusters), "document_spacing").indices]
    assert np.median(ordered[:400]) < 0.5 * np.median(lengths) < np.median(lengths) < 0.5 * np.median(ordered[-400:])


@pytest.mark.parametrize("num_documents", [1, 300, 1024, 2500])
def test_progress_counts_every_document(num_documents: int) -> None:
    told: list[int] = []
    order(documents(*drawn(num_documents, 8)), "document_spacing", advance=told.append)
    assert sum(told) == num_documents


@pytest.mark.parametrize("corpus", [drawn(9_000, 1000), posts_and_books(6_000)], ids=["drawn", "posts, books"])
def test_large_corpora(corpus: tuple[np.ndarray, np.ndarray]) -> None:
    chars = documents(*corpus)
    indices = order(chars, "document_spacing").indices
    np.testing.assert_array_equal(np.sort(indices), np.arange(chars.num_sequences))


@pytest.mark.parametrize("method", ["document_spacing", "sequence_spacing"])
@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((0, 3), int),
        np.zeros((3, 2), int),
        np.array([[0, 0], [4, 0], [0, 0], [1, 3]]),
        np.ones((9, 1), int),
    ],
    ids=["nothing", "all empty", "some empty", "equals"],
)
def test_degenerate_corpora(method: str, counts: np.ndarray) -> None:
    indices = order(Characteristics.from_counts({"topic": counts}), method).indices
    np.testing.assert_array_equal(np.sort(indices), np.arange(len(counts)))


def unequal_sequences() -> Characteristics:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 40, (300, 12)) * (rng.random((300, 12)) < 0.3)
    return Characteristics.from_counts(
        {"topic": counts, "half": counts.reshape(300, 2, 6).sum(axis=2)}, weights={"topic": 0.3}
    )


def test_sequence_spacing_against_the_slow_rule() -> None:
    chars = unequal_sequences()
    counts = chars.counts["topic"].toarray().astype(np.float64)
    excess = counts - chars.tokens[:, None] * chars.target_share("topic")
    deviation, left = np.zeros(excess.shape[1]), np.ones(len(excess), bool)
    for chosen in order(chars, "sequence_spacing").indices:
        after = np.where(left, ((deviation + excess) ** 2).sum(axis=1), np.inf)
        assert after[chosen] <= after.min() * (1 + 1e-6) + 1e-2
        left[chosen] = False
        deviation += excess[chosen]


def test_sequence_spacing_is_f1() -> None:
    chars = unequal_sequences()
    expected = order(chars, "greedy", objective=Objective.f1())
    assert expected.fingerprint != order(chars, "greedy").fingerprint
    assert order(chars, "sequence_spacing").fingerprint == expected.fingerprint


def test_golden_orders() -> None:
    chars = documents(*drawn(200, 12))
    assert order(chars, "document_spacing").indices[:12].tolist() == GOLDEN_DOCUMENTS
    assert order(unequal_sequences(), "sequence_spacing", ties="lowest").indices[:12].tolist() == GOLDEN_SEQUENCES


GOLDEN_DOCUMENTS = [159, 69, 138, 12, 190, 178, 108, 146, 98, 191, 123, 155]
GOLDEN_SEQUENCES = [101, 135, 167, 272, 296, 84, 109, 277, 268, 62, 187, 39]

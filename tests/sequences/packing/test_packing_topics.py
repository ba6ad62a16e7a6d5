"""Packing by topic: slow obvious references, and what meets in a sequence, compared with plain concatenation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.packing import neighbors
from jax_diversity.sequences.packing.base import METHODS, Packed, pack
from tests.support.packing_cases import same_columns, tokens_of

TOPICS = ("nearest", "same_cluster", "spread")


def documents_of(packed: Packed) -> list[int]:
    """The documents as they follow one another, each where it begins."""
    segments = packed.segments
    return segments.document_index[segments.document_offset == 0].tolist()


def topics_corpus(num: int = 3000, num_clusters: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lengths, clusters of unequal sizes, vectors around their cluster's center, a random order."""
    rng = np.random.default_rng(0)
    odds = 1 / np.arange(1, num_clusters + 1)
    clusters = rng.choice(num_clusters, num, p=odds / odds.sum())
    centers = rng.normal(size=(num_clusters, 24))
    vectors = (centers[clusters] + 0.5 * rng.normal(size=(num, 24))).astype(np.float32)
    lengths = np.maximum(rng.lognormal(4, 1, num), 1).astype(np.int64)
    return lengths, clusters, vectors, rng.permutation(num)


def neighbour_cosine(documents: list[int], vectors: np.ndarray) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float((unit[documents[1:]] * unit[documents[:-1]]).sum(axis=1).mean())


# What a sequence brings together.


def test_same_cluster_and_nearest_bring_related_documents_together() -> None:
    lengths, clusters, vectors, order = topics_corpus()
    plain = pack(lengths, 512, document_order=order, clusters=clusters)
    same = pack(lengths, 512, method="same_cluster", document_order=order, clusters=clusters)
    near = pack(lengths, 512, method="nearest", document_order=order, clusters=clusters, vectors=vectors)
    assert plain.report.largest_cluster_share is not None
    assert plain.report.largest_cluster_share < 0.6
    assert same.report.largest_cluster_share is not None
    assert same.report.largest_cluster_share > 0.95
    assert same.report.clusters_per_sequence is not None
    assert same.report.clusters_per_sequence < 1.2
    assert near.report.largest_cluster_share is not None
    assert near.report.largest_cluster_share > 0.85
    assert neighbour_cosine(documents_of(near), vectors) > 0.75 > 0.2 > neighbour_cosine(documents_of(plain), vectors)
    for packed in (same, near):  # no more is lost than by concatenation
        assert packed.report.num_tokens_dropped == plain.report.num_tokens_dropped


def test_spread_brings_more_topics_together_than_a_shuffle() -> None:
    lengths, clusters, _, order = topics_corpus()
    plain = pack(lengths, 1024, document_order=order, clusters=clusters).report
    spread = pack(lengths, 1024, method="spread", document_order=order, clusters=clusters).report
    assert plain.clusters_per_sequence is not None
    assert spread.clusters_per_sequence is not None
    assert spread.clusters_per_sequence > 1.1 * plain.clusters_per_sequence
    assert spread.num_tokens_dropped == plain.num_tokens_dropped


@pytest.mark.parametrize("per_sequence", [3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_spread_comes_near_the_most_distinct_clusters_that_are_possible(seed: int, per_sequence: int) -> None:
    rng = np.random.default_rng(seed)
    odds = 1 / np.arange(1, 30) ** rng.uniform(0, 1.5)
    clusters = rng.choice(len(odds), 800, p=odds / odds.sum())
    report = pack(np.full(800, 5), 5 * per_sequence, method="spread", clusters=clusters).report
    # A cluster counts at most once a sequence, and once for every document.
    most = np.minimum(np.bincount(clusters), report.num_sequences).sum() / report.num_sequences
    assert report.clusters_per_sequence is not None
    assert 0.95 * most < report.clusters_per_sequence <= most


def test_spread_keeps_the_mixture_all_along() -> None:
    lengths, clusters, _, order = topics_corpus()
    dealt = documents_of(pack(lengths, 512, method="spread", document_order=order, clusters=clusters))
    share = np.bincount(clusters, lengths) / lengths.sum()
    for part in np.array_split(dealt, 6):
        found = np.bincount(clusters[part], lengths[part], minlength=len(share)) / lengths[part].sum()
        assert np.abs(found - share).sum() / 2 < 0.1


# References.


@settings(max_examples=80)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=25),
    st.integers(1, 9),
    st.sampled_from(["drop", "pad"]),
    st.integers(0, 2**16),
)
def test_same_cluster_equals_streams_that_fill_one_by_one(
    corpus: list[tuple[int, int]], length: int, last: str, seed: int
) -> None:
    lengths, clusters = np.array(corpus, np.int64).reshape(-1, 2).T
    order = np.random.default_rng(seed).permutation(len(lengths))[: len(lengths) * 3 // 4]
    streams: dict[int, list[tuple[int, int]]] = {}
    expected = []
    for document in order.tolist():
        stream = streams.setdefault(int(clusters[document]), [])
        for offset in range(lengths[document]):
            stream.append((document, offset))
            if len(stream) == length:
                expected.append(stream.copy())
                stream.clear()
    rest = [token for cluster in sorted(streams) for token in streams[cluster]]
    rests = [rest[start : start + length] for start in range(0, len(rest), length)]
    expected += [tokens for tokens in rests if last == "pad" or len(tokens) == length]
    packed = pack(lengths, length, method="same_cluster", document_order=order, clusters=clusters, last_sequence=last)
    assert tokens_of(packed.segments, lengths) == expected


def test_the_rests_of_neighbouring_clusters_stand_together() -> None:
    # Clusters 0 and 3, 1 and 2 are neighbours; each has 6 documents, of which 4 make a sequence.
    centers = np.array([[1, 0], [0, 1], [0.1, 1], [1, 0.1]], np.float32)
    clusters = np.arange(24) % 4
    packed = pack(np.ones(24, int), 4, method="same_cluster", clusters=clusters, vectors=centers[clusters])
    rests = [set(clusters[[document for document, _ in t]]) for t in tokens_of(packed.segments, np.ones(24, int))[4:]]
    assert sorted(map(sorted, rests)) == [[0, 3], [1, 2]]
    by_number = pack(np.ones(24, int), 4, method="same_cluster", clusters=clusters).report
    assert by_number.clusters_per_sequence == packed.report.clusters_per_sequence


def slow_path(whole: np.ndarray, num_neighbors: int) -> list[int]:
    """The greedy path through all documents' exact neighbours; those with equal vectors go as one."""
    rows = [tuple(row) for row in whole.tolist()]
    kinds = list(dict.fromkeys(rows))
    num = len(kinds)
    near = [[sum(x * y for x, y in zip(one, other, strict=True)) for other in kinds] for one in kinds]
    graph: list[set[int]] = [set() for _ in kinds]
    for kind in range(num):
        others = sorted((other for other in range(num) if other != kind), key=lambda o: (-near[kind][o], o))
        for other in others[:num_neighbors]:
            if near[kind][other] > 0:
                graph[kind].add(other)
                graph[other].add(kind)
    left = set(range(num))
    path = []
    while left:
        kind = min(left, key=lambda k: (len(graph[k]), k))
        while True:
            path.append(kind)
            left.remove(kind)
            free = graph[kind] & left
            if not free:
                break
            kind = min(free, key=lambda o: (-near[kind][o], o))
    return [document for kind in path for document in range(len(rows)) if rows[document] == kinds[kind]]


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 6), st.booleans(), st.integers(0, 2**16))
def test_nearest_follows_the_greedy_path(num: int, width: int, num_neighbors: int, coarse: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(num, width)).astype(np.float32)
    if coarse:  # equal vectors, equal cosines, zeros
        vectors = np.rint(vectors).astype(np.float32)
    order = rng.permutation(num)
    packed = pack(
        np.ones(num, int), 1, method="nearest", document_order=order, vectors=vectors, num_neighbors=num_neighbors
    )
    path = slow_path(neighbors.rounded_units(vectors, order), num_neighbors)
    assert documents_of(packed) == order[path].tolist()


# Spread's promises.


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(0, 2**16),
)
def test_spread_keeps_a_clusters_documents_apart_and_in_order(
    corpus: list[tuple[int, int]], length: int, seed: int
) -> None:
    lengths, clusters = np.array(corpus, np.int64).T
    order = np.random.default_rng(seed).permutation(len(lengths))
    packed = pack(lengths, length, method="spread", document_order=order, clusters=clusters, last_sequence="pad")
    dealt = documents_of(packed)
    assert sorted(dealt) == list(range(len(lengths)))
    for cluster in range(5):
        assert [d for d in dealt if clusters[d] == cluster] == [d for d in order if clusters[d] == cluster]
    if 2 * np.bincount(clusters).max() <= len(clusters) + 1:
        assert (np.diff(clusters[dealt]) != 0).all()


def test_spread_puts_the_others_evenly_among_a_cluster_that_is_most_of_the_corpus() -> None:
    clusters = np.array([0] * 90 + [1] * 10)
    dealt = clusters[documents_of(pack(np.ones(100, int), 10, method="spread", clusters=clusters))]
    gaps = np.diff(np.flatnonzero(dealt))
    assert set(gaps.tolist()) <= {9, 10, 11}


# Exact arithmetic, cells, determinism.


@pytest.mark.parametrize("width", [1, 3, 128, 1024])
def test_products_of_rounded_vectors_are_exact(width: int) -> None:
    rng = np.random.default_rng(width)
    vectors = rng.normal(size=(200, width)) * np.exp(rng.normal(size=(200, 1)) * 20)
    vectors[:50] = np.abs(vectors[:50])
    vectors[7] = 0
    vectors[8] = rng.choice([1, -1], width)  # all features round the same way
    whole = neighbors.rounded_units(vectors.astype(np.float32), np.arange(200))
    exact = whole.astype(np.int64) @ whole.astype(np.int64).T
    assert exact.max() <= 2**24
    np.testing.assert_array_equal(neighbors.products(whole, whole), exact)
    assert not whole[7].any()
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-300)
    size = 4096 - width**0.5 / 2
    off = np.abs(exact / size**2 - unit @ unit.T)
    assert off.max() < 1e-2
    assert off.mean() < 2e-4


@pytest.mark.parametrize("kind", ["topics", "equal", "one and the rest", "a line"])
def test_cells_hold_every_row_once_and_stay_small(kind: str) -> None:
    rng = np.random.default_rng(0)
    vectors = topics_corpus()[2]
    if kind == "equal":
        vectors = np.ones((3000, 2), np.float32)
    elif kind == "one and the rest":
        vectors = np.where(rng.random((3000, 1)) < 0.99, 1, rng.normal(size=(3000, 8))).astype(np.float32)
    elif kind == "a line":
        vectors = np.stack([np.ones(3000), np.linspace(-1, 1, 3000)], axis=1).astype(np.float32)
    cells = neighbors.divide(neighbors.rounded_units(vectors, np.arange(3000)), 40)
    np.testing.assert_array_equal(np.sort(np.concatenate(cells)), np.arange(3000))
    assert 1 <= min(map(len, cells)) <= max(map(len, cells)) <= 80
    assert all((np.diff(cell) > 0).all() for cell in cells)


def test_cells_find_most_of_the_neighbours() -> None:
    vectors = topics_corpus(4000)[2]
    whole = neighbors.rounded_units(vectors, np.arange(4000))
    exact = neighbors.nearest_rows(whole, 10, 4000)
    found = neighbors.nearest_rows(whole, 10, 600)
    assert (exact > 0).multiply(found > 0).nnz > 0.85 * exact.nnz
    assert abs(found - found.T).nnz == 0


@pytest.mark.parametrize("num_candidates", [100, 4000])
def test_nearest_is_the_same_for_any_threads_blocks_and_kinds_of_file(
    num_candidates: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths, _, vectors, order = topics_corpus(2000)
    np.save(tmp_path / "vectors.npy", vectors)
    arguments = {"method": "nearest", "document_order": order}
    monkeypatch.setattr("jax_diversity.sequences.packing.nearest.CANDIDATES", num_candidates)
    first = pack(lengths, 256, vectors=vectors, **arguments)
    with threadpool_limits(1), pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbors, "_QUERIES", 37)
        patch.setattr(neighbors, "_ROWS_ROUNDED", 111)
        patch.setattr(neighbors, "_ROWS_ASSIGNED", 53)
        again = pack(lengths, 256, vectors=np.load(tmp_path / "vectors.npy", mmap_mode="r"), **arguments)
    assert same_columns(first, again)


@pytest.mark.parametrize("vectors", [np.ones((6000, 4)), np.zeros((6000, 4)), np.full((6000, 4), 1e38)])
def test_copies_of_one_text_stand_together_in_their_order(vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jax_diversity.sequences.packing.nearest.CANDIDATES", 50)
    order = np.random.default_rng(0).permutation(6000)
    vectors = vectors.astype(np.float32)
    vectors[17] = [0, 0, 1, 0]
    packed = pack(np.ones(6000, int), 8, method="nearest", document_order=order, vectors=vectors)
    assert [d for d in documents_of(packed) if d != 17] == [d for d in order.tolist() if d != 17]


@settings(max_examples=100)
@given(st.integers(1, 300), st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**16))
def test_the_largest_values_of_a_row_are_found(width: int, num: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_queries = 5
    values = np.zeros((num_queries, -(-width // 64) * 64), np.float32)
    values[:, :width] = rng.integers(-most, most + 1, (num_queries, width))
    own = rng.integers(0, width, num_queries)
    row, column, value = neighbors._largest(values.copy(), own, num)
    for query in range(num_queries):
        others = [c for c in range(width) if c != own[query] and values[query, c] > 0]
        expected = sorted(others, key=lambda c: (-values[query, c], c))[:num]
        assert column[row == query].tolist() == expected
        assert value[row == query].tolist() == values[query, expected].tolist()


# Bad input.


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("same_cluster", {}, "Packing 'same_cluster' needs the documents' clusters, found none; pass clusters=..."),
        ("spread", {"clusters": [0, 1]}, "Expected one cluster for each of 3 documents, found 2."),
        (
            "same_cluster",
            {"clusters": [0, -1, 0]},
            r"Expected clusters >= 0 and below 2147483648, found -1",
        ),
        (
            "nearest",
            {"vectors": np.ones((2, 4))},
            r"a row of numbers for each of 3 documents, found shape \(2, 4\)",
        ),
        ("nearest", {"vectors": np.ones(3)}, r"a row of numbers for each of 3 documents, found shape \(3,\)"),
        ("nearest", {"vectors": [[1.0], [np.nan], [1.0]]}, "found NaN or infinity in document 1's; repair"),
        ("nearest", {"vectors": [[1.0], [1.0], [np.inf]]}, "found NaN or infinity in document 2's; repair"),
        (
            "same_cluster",
            {"clusters": [0, 1, 0], "vectors": [[1.0], [np.nan], [1.0]]},
            "found NaN or infinity in document 1's; repair",
        ),
        (
            "nearest",
            {"vectors": np.ones((3, 1)), "num_neighbors": 0},
            "Expected num_neighbors to be a whole number",
        ),
    ],
)
def test_bad_input_is_told_in_one_sentence(method: str, arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        pack([3, 2, 4], 2, method=method, **arguments)


def test_vectors_of_documents_that_are_not_packed_do_not_matter() -> None:
    vectors = np.array([[1.0, 0], [np.nan, 0], [0, 1]], np.float32)
    packed = pack([3, 2, 4], 7, method="nearest", document_order=[2, 0], vectors=vectors)
    assert sorted(documents_of(packed)) == [0, 2]


def test_vectors_without_features_are_refused() -> None:
    with pytest.raises(UserError, match="Expected vectors of at least one feature"):
        pack([3, 2, 4], 7, method="nearest", vectors=np.zeros((3, 0), np.float32))


@pytest.mark.parametrize("method", TOPICS)
def test_the_methods_are_registered_and_tell_their_progress(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert method in METHODS
    lengths, clusters, vectors, order = topics_corpus(500)
    lengths[::7] = 0
    done: list[int] = []
    monkeypatch.setattr("jax_diversity.sequences.packing.nearest.CANDIDATES", 50)
    pack(
        lengths,
        64,
        method=method,
        document_order=order[:400],
        clusters=clusters,
        vectors=vectors,
        advance=done.append,
    )
    assert sum(done) == (0 if method == "same_cluster" else 400)

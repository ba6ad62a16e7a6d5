"""Names, maps and purity of clusters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_diversity.sequences.clustering.maps import LARGEST_MAP, map_positions
from jax_diversity.sequences.clustering.naming import TermCounts, documents_per_cluster, name_clusters
from jax_diversity.sequences.clustering.purity import majority_labels, purity


def names_of(texts: list[list[str]], centroids: np.ndarray | None = None, num_terms: int = 8):
    counted = TermCounts()
    for cluster, group in enumerate(texts):
        for text in group:
            counted.add(cluster, text)
    centroids = np.eye(len(texts), dtype=np.float32) if centroids is None else centroids
    return name_clusters(counted, centroids, num_terms)


TOPICS = ["ship sail harbour", "bread flour oven", "court judge law", "goal team league"]


def topical_texts(num_documents: int = 6) -> list[list[str]]:
    rng = np.random.default_rng(0)
    common = ["the", "of", "and", "to", "it", "is", "was", "for"]
    return [
        [" ".join(rng.permutation([*common, *topic.split(), f"word{rng.integers(99)}"])) for _ in range(num_documents)]
        for topic in TOPICS
    ]


def test_names_are_topics_and_not_the_words_of_every_text():
    found = names_of(topical_texts(), num_terms=3)
    for terms, topic in zip(found.top_terms, TOPICS, strict=True):
        assert set(terms) == set(topic.split())
    assert all(name == ", ".join(terms) for name, terms in zip(found.names, found.top_terms, strict=True))


def test_the_order_of_documents_changes_nothing():
    texts = topical_texts()
    pairs = [(cluster, text) for cluster, group in enumerate(texts) for text in group]
    expected = names_of(texts)
    for seed in range(5):
        counted = TermCounts()
        for place in np.random.default_rng(seed).permutation(len(pairs)):
            counted.add(*pairs[place])
        assert name_clusters(counted, np.eye(4, dtype=np.float32)) == expected


def test_terms_that_share_the_last_candidates_score_go_by_the_term():
    """A hundred terms of one score, of which sixty are candidates: the first document decides on their columns."""
    words = [f"term{first}{second}" for first, second in itertools.product("abcdefghij", repeat=2)]
    texts, others = [" ".join(words), " ".join(reversed(words))], ["bread and butter"] * 2
    found = names_of([texts, others], num_terms=3)
    assert found.top_terms[0] == ["termaa", "termab", "termac"]
    assert names_of([texts[::-1], others], num_terms=3) == found


def test_words_of_a_rare_language_do_not_name_each_of_its_clusters():
    german = ["der die und miete", "der die und garten", "der die und steuer"]
    english = [f"the of and topic{letter}" for letter in "abcdefghijklmnopqrst"]
    texts = [[text] * 5 for text in german + english]
    languages = np.zeros((23, 23), np.float32)
    languages[:3, 0] = languages[3:, 1] = 1
    centroids = (languages + 0.3 * np.eye(23)).astype(np.float32)
    found = names_of(texts, centroids)
    assert [terms[0] for terms in found.top_terms[:3]] == ["miete", "garten", "steuer"]
    assert [terms[0] for terms in found.top_terms[3:]] == [text.split()[-1] for text in english]


def test_forms_of_one_word_are_named_once():
    found = names_of([["ships ship shipping vessel"] * 4, ["bread"] * 4, ["law"] * 4])
    assert sum(term.startswith("ship") for term in found.top_terms[0]) <= 2
    assert "vessel" in found.top_terms[0]
    for first, second in itertools.combinations(found.top_terms[0], 2):
        assert not (first.startswith(second) and len(first) - len(second) <= 3)
    chinese = names_of([["明月松間照"] * 4, ["清泉石上流"] * 4]).top_terms
    assert all(len(set("".join(terms))) == len("".join(terms)) for terms in chinese)  # no character twice


def test_numbers_and_message_ids_are_no_names():
    found = names_of([["1993 93apr15113851 19930415 modem"] * 4, ["2020 bread file1"] * 4])
    assert found.top_terms == [["modem"], ["bread", "file1"]]


def test_a_term_of_one_document_is_no_name_of_many():
    texts = [["ship"] * 9 + ["ship zebra"], ["bread"] * 10]
    assert names_of(texts).top_terms == [["ship"], ["bread"]]


def test_no_two_clusters_have_one_name():
    texts = [["film story actor"] * 4 + [f"film story actor extra{letter}"] * 3 for letter in "abcdefgh"]
    found = names_of([*texts, ["bread"] * 5, [], [], ["bread"] * 5])
    assert len(set(found.names)) == 12
    assert found.names[9:11] == ["(9)", "(10)"]
    assert found.names[11] == "bread (11)"


@given(st.lists(st.lists(st.text(max_size=30), max_size=4), min_size=1, max_size=7))
def test_any_texts_give_names(texts):
    found = names_of(texts)
    assert len(found.names) == len(found.top_terms) == len(texts)
    assert all(len(terms) <= 8 and len(set(terms)) == len(terms) for terms in found.top_terms)
    assert all(found.names)


def test_the_work_is_bounded():
    assert documents_per_cluster(100) == 50
    assert documents_per_cluster(10_000) == 10
    assert documents_per_cluster(1_000_000) == 3


# ---- the map


def test_near_topics_stand_near_each_other():
    rng = np.random.default_rng(0)
    topic = np.repeat(np.arange(5), 10)
    centroids = (rng.standard_normal((5, 20))[topic] * 3 + rng.standard_normal((50, 20)) * 0.5).astype(np.float32)
    positions = map_positions(centroids)
    assert positions.shape == (50, 2)
    assert np.abs(positions).max() == pytest.approx(1, abs=1e-6)
    apart = np.square(positions[:, None] - positions[None]).sum(axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (topic[apart.argmin(axis=1)] == topic).mean() > 0.95
    np.testing.assert_array_equal(positions, map_positions(centroids))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_few_clusters_have_a_map_too(count):
    positions = map_positions(np.random.default_rng(0).standard_normal((count, 5)).astype(np.float32))
    assert positions.shape == (count, 2)
    assert np.isfinite(positions).all()
    assert len(np.unique(positions, axis=0)) == count


def test_equal_centroids_and_one_axis_have_a_map():
    assert not map_positions(np.ones((40, 3), np.float32)).any()
    assert np.isfinite(map_positions(np.arange(30, dtype=np.float32)[:, None] + 1)).all()
    with pytest.raises(ValueError, match=f"at most {LARGEST_MAP}"):
        map_positions(np.zeros((LARGEST_MAP + 1, 2), np.float32))


# ---- purity


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abcd")), max_size=60))
def test_purity_against_counting(pairs):
    assignments = np.array([cluster for cluster, _ in pairs], np.int64)
    labels = [label for _, label in pairs]
    agreeing = 0
    for cluster in set(assignments.tolist()):
        members = [label for label, where in zip(labels, assignments, strict=True) if where == cluster]
        agreeing += max(members.count(label) for label in members)
    assert purity(assignments, labels) == (agreeing / len(pairs) if pairs else 1.0)


def test_majority_labels_and_their_ties():
    codes = np.array([0, 1, 1, 0, 2])
    majority = majority_labels(np.array([0, 0, 0, 2, 2]), codes, 4)
    assert majority.tolist() == [1, -1, 0, -1]
    assert purity(np.array([0, 0, 0, 2, 2]), codes) == pytest.approx(0.6)

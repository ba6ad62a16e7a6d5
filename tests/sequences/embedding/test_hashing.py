"""Hashing: stateless vectors, checked against a slow reference; scripts, hostile texts, what it keeps apart."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils import murmurhash3_32

from jax_diversity.sequences.embedding import hashing as module
from jax_diversity.sequences.embedding.base import Embedder, make_embedder
from jax_diversity.sequences.embedding.hashing import NUM_BUCKETS, HashingEmbedder, hashing, make_signs, split_marks
from tests.support.tiny_corpus import TOPICS


def embedder(**settings: int) -> HashingEmbedder:
    return hashing(**{"dimensions": 64, **settings})


def reference(text: str, signs: np.ndarray) -> np.ndarray:
    """One term at a time; the library takes the absolute value of a signed 32-bit hash."""
    vector = np.zeros(signs.shape[1])
    buckets = Counter(abs(murmurhash3_32(term.encode())) % NUM_BUCKETS for term in split_marks(text))
    for bucket, count in buckets.items():
        vector += (1 + math.log(count)) * signs[bucket]
    return vector / (np.linalg.norm(vector) or 1)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Recipes: 明月!", ["recip", ":", "明", "月", "!"]),
        ("get_user(x1, y)", ["get", "_", "user", "(", "x1", ",", ")"]),
        ("用Python写", ["用", "pytho", "写"]),
        ("हिन्दी।", ["हिन्द", "।"]),
        ("Grüße -- Straße", ["grüße", "-", "-", "straß"]),
        ("a 1 \n\t", []),
        ("\ud800", ["\ud800"]),
        ("", []),
    ],
)
def test_what_is_counted(text, terms):
    assert split_marks(text) == terms


@given(st.text("ab_-.,\n ", max_size=60))
def test_the_patterns_for_ascii_and_for_any_text_agree(text):
    terms = split_marks(text)
    assert split_marks(text + " 明") == [*terms, "明"]


@given(st.lists(st.text("ab cd_-明月é!\n", max_size=40), max_size=5))
@settings(max_examples=50)
def test_vectors_match_a_slow_reference(texts):
    found = embedder(dimensions=16, seed=3).embed(texts)
    signs = make_signs(16, 3)
    expected = np.array([reference(text, signs) for text in texts]).reshape(-1, 16)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=6))
@settings(max_examples=60)
def test_any_texts_give_rows_of_length_one_or_zero(texts):
    vectors = embedder().embed([*texts, "", " \n"])
    assert vectors.shape == (len(texts) + 2, 64)
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    assert (np.isclose(lengths, 1, atol=1e-5) | (lengths == 0)).all()
    assert not vectors[-2:].any()


def test_a_vector_depends_on_its_text_alone(monkeypatch):
    texts = [f"{words} {number}" for number, words in enumerate([*TOPICS.values()] * 8)]
    whole = embedder().embed(texts)
    monkeypatch.setattr(module, "_BLOCK_DOCUMENTS", 5)
    np.testing.assert_array_equal(embedder().embed(texts), whole)
    np.testing.assert_array_equal(np.concatenate([embedder().embed([text]) for text in texts]), whole)
    assert not np.array_equal(embedder(seed=1).embed(texts), whole)


def test_the_first_tokens_are_read():
    words = [f"word{number}," for number in range(50)]  # a word and a comma: two tokens
    whole, beginning = " ".join(words), " ".join(words[:10])
    np.testing.assert_array_equal(hashing(max_tokens=20).embed([whole]), hashing().embed([beginning]))
    assert (hashing(max_tokens=21).embed([whole]) != hashing().embed([beginning])).any()
    np.testing.assert_array_equal(hashing(max_tokens=100).embed([whole]), hashing().embed([whole]))


@pytest.mark.campaign
def test_another_process_makes_the_same_vectors(tmp_path):
    script = (
        "import sys, numpy as np; from jax_diversity.sequences.embedding.hashing import hashing;"
        "np.save(sys.argv[1], hashing(dimensions=64).embed(['wind and sail', '明月光']))"
    )
    path = tmp_path / "there.npy"
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, env={"PYTHONHASHSEED": "7"})
    np.testing.assert_array_equal(np.load(path), embedder().embed(["wind and sail", "明月光"]))


def test_a_topic_is_nearest_to_itself():
    rng = np.random.default_rng(0)
    names = [name for name in TOPICS for _ in range(20)]
    texts = [" ".join(rng.choice(TOPICS[name].split(), 30)) for name in names]
    vectors = embedder(dimensions=128).embed(texts)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    assert [names[place] for place in similarity.argmax(axis=1)] == names


def test_inflections_share_a_direction_and_kinds_of_text_are_told_apart():
    vectors = embedder(dimensions=512).embed(["simmering", "simmered", "violin"])
    assert vectors[0] @ vectors[1] == pytest.approx(1)
    assert abs(vectors[0] @ vectors[2]) < 0.3
    prose, code, again = embedder(dimensions=512).embed(
        ["add the list, then go on.", "add(list).then(go_on())", "wind took the sail, then it fell."]
    )
    assert prose @ again > code @ again


def test_angles_are_kept_about_as_they_are():
    """The projection's error is of the size that 1 / √dimensions says."""
    rng = np.random.default_rng(0)
    words = [f"{number:05d}" for number in range(2000)]
    texts = [" ".join(rng.choice(words[:400], 100)) for _ in range(60)]
    rows = module.make_vectorizer().transform(texts)
    rows.data = 1 + np.log(rows.data)
    rows = rows.toarray() / np.linalg.norm(rows.toarray(), axis=1, keepdims=True)
    vectors = embedder(dimensions=256).embed(texts)
    error = (vectors @ vectors.T - rows @ rows.T)[np.triu_indices(60, 1)]
    assert np.sqrt(np.mean(error**2)) < 1.2 / 16


def test_it_is_an_embedder_by_its_name():
    found = make_embedder("hashing", {"dimensions": 8})
    assert isinstance(found, Embedder)
    assert isinstance(found, HashingEmbedder)
    assert found.dimensions == 8

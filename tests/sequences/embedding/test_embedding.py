"""TF-IDF and SVD: exactness against a slow reference, scripts, tiny corpora, stored bytes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.embedding import tfidf_svd as module
from jax_diversity.sequences.embedding.tfidf_svd import TfidfSvd, tfidf_svd

TOPICS = {
    "sea": "ship sail harbour wave anchor captain storm tide deck rope",
    "bread": "flour butter oven yeast dough crust salt baker loaf grain",
    "code": "def return import class_name self.value get_user_name list dict yield lambda",
    "poem": "明月 清風 江水 白雲 故人 春風 秋山 夜雨 長安 思君",
}


def topical_texts(num_each: int, seed: int = 0) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(seed)
    texts, topics = [], []
    for topic, line in TOPICS.items():
        words = line.split()
        glue = "" if topic == "poem" else " "
        for _ in range(num_each):
            texts.append(glue.join(rng.choice(words, 8)) + " the and of")
            topics.append(topic)
    return texts, topics


def fit(texts: list[str], **settings: int) -> TfidfSvd:
    return tfidf_svd(texts=lambda: texts, **{"dimensions": 4, **settings})


def reference_rows(texts: list[str], terms: tuple[str, ...], num_fitted: int, frequency: Counter) -> np.ndarray:
    rows = np.zeros((len(texts), len(terms)))
    for row, text in enumerate(texts):
        counts = Counter(text.lower().split())
        for column, term in enumerate(terms):
            if counts[term]:
                rows[row, column] = (1 + math.log(counts[term])) * math.log((1 + num_fitted) / frequency[term])
        rows[row] /= np.linalg.norm(rows[row]) or 1
    return rows


def test_vectors_match_an_exact_decomposition():
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(30)]
    texts = [" ".join(rng.choice(words[group * 10 : group * 10 + 12], 25)) for group in (0, 1) for _ in range(30)]
    found = fit(texts, dimensions=2)
    frequency = Counter(word for text in texts for word in set(text.split()))
    assert set(found.terms) == {word for word, times in frequency.items() if times >= 2}
    rows = reference_rows(texts, found.terms, len(texts), frequency)
    _, _, exact = np.linalg.svd(rows, full_matrices=False)
    expected = rows @ exact[:2].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    vectors = found.embed(texts)
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T, atol=2e-2)
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(2), atol=1e-5)


def test_a_topic_is_nearest_to_itself():
    texts, topics = topical_texts(20)
    vectors = fit(texts, dimensions=8).embed(texts)
    similarity = vectors @ vectors.T
    np.fill_diagonal(similarity, -1)
    assert [topics[place] for place in similarity.argmax(axis=1)] == topics


@given(st.lists(st.text(alphabet="ab 明月光_1\n", max_size=12), max_size=8), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_any_texts_give_rows_of_length_one_or_zero(texts, dimensions):
    found = fit(texts, dimensions=dimensions)
    vectors = found.embed([*texts, "", "never seen"])
    assert vectors.shape == (len(texts) + 2, dimensions)
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    assert (np.isclose(lengths, 1, atol=1e-5) | (lengths == 0)).all()
    assert not vectors[-1].any()


def test_a_document_does_not_depend_on_its_neighbours(monkeypatch):
    texts, _ = topical_texts(20)
    found = fit(texts)
    whole = found.embed(texts)
    monkeypatch.setattr(module, "_BLOCK_DOCUMENTS", 7)
    np.testing.assert_array_equal(found.embed(texts), whole)
    np.testing.assert_array_equal(np.concatenate([found.embed([text]) for text in texts]), whole)
    assert found.embed([]).shape == (0, 4)


def test_the_first_words_are_read():
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in rng.integers(10, 40, 60)) for _ in range(30)]
    beginnings = [" ".join(text.split()[:20]) for text in texts]
    fitted = tfidf_svd(texts=lambda: texts, dimensions=4, max_tokens=20)
    expected = tfidf_svd(texts=lambda: beginnings, dimensions=4)
    np.testing.assert_array_equal(fitted.components, expected.components)
    np.testing.assert_array_equal(fitted.embed(texts), expected.embed(beginnings))


def test_a_corpus_too_small_is_padded_with_zeros():
    found = fit(["ship and sail", "sail and rope"], dimensions=64)
    vectors = found.embed(["ship and sail", "sail and rope", "anchor"])
    assert vectors.shape == (3, 64)
    assert not vectors[:, 2:].any()
    np.testing.assert_allclose(np.linalg.norm(vectors[:2], axis=1), 1, atol=1e-6)
    assert not vectors[2].any()


def test_terms_of_one_document_are_kept_only_if_there_are_no_others():
    assert set(fit(["one two", "two three"]).terms) == {"two"}
    assert set(fit(["one two", "three four"]).terms) == {"one", "two", "three", "four"}
    single = fit(["only one document"])
    assert single.embed(["only"]).any()


@pytest.mark.parametrize("texts", [[], [""], ["", " \n", "! ?"], ["a", "b"]])
def test_texts_without_terms(texts):
    found = fit(texts)
    assert found.terms == ()
    assert not found.embed(["anything", ""]).any()


def test_copies_of_one_text_span_one_direction():
    found = fit(["ship sail rope"] * 10, dimensions=3)
    assert found.components.any(axis=1).tolist() == [True, False, False]
    vectors = found.embed(["ship sail rope", "rope"])
    np.testing.assert_allclose(np.abs(vectors[:, 0]), 1, atol=1e-6)


def test_the_most_frequent_terms_are_kept(monkeypatch):
    monkeypatch.setattr(module, "MAX_TERMS", 2)
    texts = ["aa bb cc", "aa bb", "aa cc", "aa bb"]
    assert fit(texts).terms == ("aa", "bb")


def test_random_strings_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr(module, "MOST_CANDIDATES", 50)
    texts = [f"common {number:x}{number * 7919:x}" for number in range(500)]
    found = fit(texts)
    assert found.terms == ("common",)
    assert found.embed(texts).any(axis=1).all()


def test_the_same_seed_gives_the_same_bits():
    texts = [f"word{number} word{number + 1}" for number in range(200)]
    first, again, other = fit(texts), fit(texts), fit(texts, seed=1)
    assert first.terms == again.terms
    np.testing.assert_array_equal(first.components, again.components)
    assert first.terms != other.terms  # the same terms, in another order


def test_saved_and_loaded_is_the_same(tmp_path):
    texts, _ = topical_texts(10)
    found = fit([*texts, "क्षत्रिय 𠀀𠀁", "क्षत्रिय 𠀀𠀁"])
    found.save(tmp_path / "a.npz")
    fit([*texts, "क्षत्रिय 𠀀𠀁", "क्षत्रिय 𠀀𠀁"]).save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    loaded = TfidfSvd.load(tmp_path / "a.npz")
    assert loaded.terms == found.terms
    np.testing.assert_array_equal(loaded.embed(texts), found.embed(texts))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_an_embedding_without_terms_is_saved_too(tmp_path):
    fit([]).save(tmp_path / "none.npz")
    assert not TfidfSvd.load(tmp_path / "none.npz").embed(["text"]).any()


def test_an_embedding_cannot_be_changed():
    found = fit(["one two", "two three"])
    with pytest.raises(AttributeError):
        found.terms = ()  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        found.components[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        found.weights[0] = 1


def test_files_that_are_no_embedding_are_named(tmp_path):
    path = tmp_path / "embedding.npz"
    with pytest.raises(UserError, match="no such file"):
        TfidfSvd.load(path)
    fit(["one two", "two three"]).save(path)
    whole = path.read_bytes()
    np.savez(tmp_path / "other.npz", terms=np.zeros(0, np.uint8))
    np.save(tmp_path / "array.npy", np.zeros(3))
    broken = [b"", b"text", whole[:100], whole[:-30], (tmp_path / "other.npz").read_bytes()]
    broken.append((tmp_path / "array.npy").read_bytes())
    for content in broken:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"embedding\.npz"):
            TfidfSvd.load(path)
    np.savez(
        path,
        terms=np.frombuffer(b"a\nb", np.uint8),
        weights=np.zeros(3, np.float32),
        components=np.zeros((2, 2), np.float32),
        max_tokens=np.int64(1024),
    )
    with pytest.raises(UserError, match="found 2 terms, weights"):
        TfidfSvd.load(path)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_byte_is_refused_or_harmless(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flip") / "embedding.npz"
    whole = fit(["one two", "two three"])
    whole.save(path)
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    with suppress(UserError):
        loaded = TfidfSvd.load(path)
        np.testing.assert_array_equal(loaded.embed(["one", "two three"]), whole.embed(["one", "two three"]))
        assert list(loaded.terms) == list(whole.terms)


@pytest.mark.campaign
@pytest.mark.parametrize("num_threads", ["1", "3"])
def test_hash_order_and_threads_do_not_show_in_the_bytes(tmp_path, num_threads):
    texts, _ = topical_texts(30)
    fit(texts, dimensions=16).save(tmp_path / "here.npz")
    script = (
        "import sys, json, pathlib; from jax_diversity.sequences.embedding.tfidf_svd import tfidf_svd;"
        "tfidf_svd(texts=lambda: json.load(sys.stdin), stored=pathlib.Path(sys.argv[1]), dimensions=16)"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": num_threads, "PYTHONHASHSEED": num_threads}
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "there.npz")],
        input=json.dumps(texts),
        text=True,
        check=True,
        env=environment,
    )
    assert (tmp_path / "here.npz").read_bytes() == (tmp_path / "there.npz").read_bytes()

"""Splitting text into terms: scripts with and without spaces, marks, lone surrogates, cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.text.terms import split_terms

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Hello, wide World! a 42", ["hello", "wide", "world", "42"]),
        ("get_user_name(x1, y)", ["get", "user", "name", "x1"]),
        ("_ __ ___", []),
        ("明月光", ["明", "月", "光", "明月", "月光"]),
        ("用Python写code。好", ["python", "code", "用", "写", "好"]),
        ("カタカナ・語", ["カ", "タ", "カ", "ナ", "カタ", "タカ", "カナ", "語"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("Grüße, Straße", ["grüße", "straße"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("t17 t4 t17", ["t17", "t4", "t17"]),
        ("", []),
        ("\ud800 lone \udfff", ["lone"]),
    ],
)
def test_terms_of_many_scripts(text, terms):
    assert split_terms(text) == terms


@pytest.mark.parametrize(
    ("text", "most", "terms"),
    [
        ("a wide, wide_world", 2, ["wide", "wide"]),
        ("Grüße an alle Welt", 3, ["grüße", "an", "alle"]),
        ("用Python写code。好", 3, ["python", "用", "写"]),
        ("明月光 two", 2, ["明", "月", "明月"]),
        ("明月光 two", 0, []),
    ],
)
def test_terms_of_the_first_words(text, most, terms):
    assert split_terms(text, most) == terms


@given(st.text(st.sampled_from("ab _,明月ไเ\u093eé"), max_size=40), st.integers(0, 40))
def test_the_first_words_are_a_beginning_of_the_text(text, most):
    found = split_terms(text, most)
    beginnings = [split_terms(text[:length]) for length in range(len(text) + 1)]
    assert found in beginnings
    # Pairs of neighbours are not words of their own.
    num_words = len(re.findall("[明月ไเ]|[abé\u093e]{2,}", text))
    assert found == split_terms(text) if most >= num_words else len(found) >= most


@given(st.text(max_size=80))
@settings(max_examples=300)
def test_terms_are_lower_case_words_and_fewer_than_two_a_character(text):
    terms = split_terms(text)
    assert len(terms) < 2 * max(len(text), 1)
    assert all(term and not set(term) & set(" \n_") for term in terms)
    assert all(term.lower() == term for term in terms)


@given(st.lists(st.text(st.characters(categories=["Ll", "Nd"]), max_size=8), max_size=8))
def test_terms_of_parts_are_terms_of_the_whole(parts):
    """A blank ends whatever went before."""
    whole = sorted(split_terms(" ".join(parts)))
    assert whole == sorted(term for part in parts for term in split_terms(part))


def test_a_long_text_without_spaces_is_split_in_linear_time():
    text = "".join(chr(0x4E00 + number % 5000) for number in range(100_000))
    terms = split_terms(text)
    assert len(terms) == 2 * len(text) - 1
    assert terms[:100_000] == list(text)
    assert terms[100_000] == text[:2]

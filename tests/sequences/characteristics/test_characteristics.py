"""Documents' codes: names, numbers, hosts, copies, metadata fields; and sequences' counts of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.sequences.characteristics.codes import (
    OTHER,
    UNKNOWN,
    Codes,
    FieldValues,
    categorical,
    copies,
    encoded,
    host_of,
    joined,
    numeric_bins,
)
from jax_diversity.sequences.characteristics.counts import count_tokens
from jax_diversity.sequences.packing.base import pack


def blocks_of(values: list[Any]) -> list[list[Any]]:
    """The values as they come from stored groups, some of which may be small."""
    return [values[:1], values[1:1], values[1:4], values[4:]]


def codes_of(values: list[str | None], max_groups: int | None = None) -> Codes:
    return categorical(joined([encoded(block) for block in blocks_of(values)]), max_groups)


def field_codes(name: str, values: list[Any], num_bins: int, max_groups: int) -> Codes:
    field = FieldValues(name)
    for block in blocks_of(values):
        field.add(block)
    return field.codes(num_bins, max_groups)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | st.sampled_from(["a", "b", "ß", " ", "unknown", "(other)", "z" * 50])), st.integers(2, 5))
def test_every_document_has_the_group_of_its_value(values: list[str | None], max_groups: int) -> None:
    plain = [UNKNOWN if value is None or not value.strip() else value for value in values]
    free = codes_of(values)
    assert [free.names[group] for group in free.group] == plain
    assert list(free.names) == sorted(set(plain))
    assert free.num_missing == sum(value is None or not value.strip() for value in values)
    few = codes_of(values, max_groups)
    assert len(few.names) <= max(max_groups, 2)
    named = [few.names[group] for group in few.group]
    joined = sum(found == OTHER != expected for found, expected in zip(named, plain, strict=True))
    assert few.num_joined == joined
    assert all(found in (expected, OTHER) for found, expected in zip(named, plain, strict=True))
    if len(set(plain)) > max_groups:
        sizes = Counter(value for value in plain if value not in (UNKNOWN, OTHER))
        kept = {name for name in few.names if name not in (UNKNOWN, OTHER)}
        assert all(sizes[name] >= sizes[other] for name in kept for other in set(sizes) - kept)
        assert UNKNOWN in few.names or UNKNOWN not in plain


def test_a_hundred_thousand_values_keep_the_largest_groups() -> None:
    values = [f"site {index % 50_000 if index % 3 else index % 7}" for index in range(150_000)]
    codes = codes_of([*values], 1000)
    assert len(codes.names) == 1000
    assert {f"site {index}" for index in range(7)} <= set(codes.names)
    sizes = np.bincount(codes.group, minlength=1000)
    assert sizes[codes.names.index(OTHER)] == codes.num_joined > 90_000
    assert sizes.sum() == len(values)


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=60), st.integers(1, 8))
def test_numeric_bins_are_ordered_and_equal_values_stay_together(values: list[float], num_bins: int) -> None:
    array = np.array(values, float)
    codes = numeric_bins(array, num_bins)
    known = ~np.isnan(array)
    assert codes.num_missing == (~known).sum()
    assert (UNKNOWN in codes.names) == bool(codes.num_missing)
    order = np.argsort(array[known], kind="stable")
    groups = codes.group[known][order]
    assert (np.diff(groups) >= 0).all()
    assert len(set(groups.tolist())) <= num_bins
    for value in set(array[known].tolist()):
        assert len(set(codes.group[array == value].tolist())) == 1


def test_numeric_bins_hold_about_as_many_documents_each() -> None:
    codes = numeric_bins(np.random.default_rng(0).normal(size=5000), 10)
    np.testing.assert_array_equal(np.bincount(codes.group), np.full(10, 500))


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("https://www.Example.org:8080/a?b#c", "example.org"),
        ("http://user:password@news.example.org/", "news.example.org"),
        ("example.org/path", "example.org"),
        ("//cdn.example.org/x", "cdn.example.org"),
        ("https://xn--bcher-kva.example./", "xn--bcher-kva.example"),
        ("https://[2001:db8::1]:443/", "2001:db8::1"),
        ("https://[broken/", UNKNOWN),
        ("mailto:someone@example.org", UNKNOWN),
        ("urn:isbn:123", UNKNOWN),
        ("C:\\x\\y.txt", UNKNOWN),
        ("data:text/plain,x", UNKNOWN),
        ("javascript:alert(1)", UNKNOWN),
        ("localhost:8080/x", "localhost"),
        ("example.org:443", "example.org"),
        ("some words", UNKNOWN),
        ("", UNKNOWN),
        (None, UNKNOWN),
        ("https://", UNKNOWN),
        ("  https://example.org  ", "example.org"),
    ],
)
def test_hosts(address: str | None, host: str) -> None:
    assert (host_of(address) or UNKNOWN) == host


def test_what_is_no_text_is_no_address() -> None:
    values = [17, ["https://example.org"], {"url": "x"}, "https://example.org"]
    assert [host_of(value) for value in values] == [None] * 3 + ["example.org"]


def test_copies_are_groups_and_all_else_is_one() -> None:
    codes = copies(np.array([3, 0, 3, 1, 2, 0]))
    assert codes.names == ("unique", "copies 1", "copies 2")
    assert codes.group.tolist() == [2, 1, 2, 0, 0, 1]
    assert copies(np.arange(4)).names == ("unique",)
    assert len(copies(np.zeros(0, np.int64)).group) == 0


def test_a_field_of_numbers_is_binned_and_one_of_names_is_not() -> None:
    scores = field_codes("quality", [0.5, None, 1, 0.25, 3], 2, 10)
    assert scores.names == ("0.25 to 0.5", "1 to 3", UNKNOWN)
    assert scores.group.tolist() == [0, 2, 1, 0, 1]
    names = field_codes("licence", ["MIT", None, "MIT", "BSD"], 2, 10)
    assert [names.names[group] for group in names.group] == ["MIT", UNKNOWN, "MIT", "BSD"]
    flags = field_codes("reviewed", [True, False, None], 2, 10)
    assert [flags.names[group] for group in flags.group] == ["True", "False", UNKNOWN]
    mixed = field_codes("version", ["3.1", 3, "3.1"], 2, 10)
    assert [mixed.names[group] for group in mixed.group] == ["3.1", "3", "3.1"]
    # The first blocks hold floats alone; what comes later makes names of them, too.
    late = field_codes("version", [1.0, 2.5, None, 1e16, 3, "3.0"], 2, 10)
    assert [late.names[group] for group in late.group] == ["1.0", "2.5", UNKNOWN, "1e+16", "3", "3.0"]
    assert categorical(joined([])).names == ()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([None] * 5, "a value in the metadata field 'x', found none among 5"),
        ([], "found none among 0"),
        (["a", ["b"], "c"], r"found \['b'\] in document 1"),
        ([{"deep": 1}], "in document 0"),
        ([1, 10**400], "found a number of 401 digits in document 1"),
        ([1, 2.5, 3, 4, 5, -(10**400)], "found a number of 402 digits in document 5"),
        ([f"id {index}" for index in range(100)], "100 different values in 100 documents, like an id"),
    ],
)
def test_fields_that_make_no_groups_are_refused(values: list, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        field_codes("x", values, 10, 20)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**16))
def test_counts_equal_a_loop(lengths: list[int], length: int, num_groups: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    segments = pack(lengths, length, document_order=rng.permutation(len(lengths)), last_sequence="pad").segments
    groups = rng.integers(0, num_groups, len(lengths)).astype(np.int32)
    expected = np.zeros((segments.num_sequences, num_groups), np.int64)
    for sequence, document, tokens in zip(
        segments.sequence_index, segments.document_index, segments.length, strict=True
    ):
        expected[sequence, groups[document]] += tokens
    counts = count_tokens(segments, Codes(groups, tuple(map(str, range(num_groups)))))
    np.testing.assert_array_equal(counts.toarray(), expected)
    assert counts.dtype == np.int32
    assert counts.has_canonical_format


def test_a_group_without_a_name_is_refused_before_it_is_counted() -> None:
    segments = pack([3, 4], 3).segments
    with pytest.raises(ValueError, match=r"groups of 0 \.\. 1, found 0 \.\. 2"):
        count_tokens(segments, Codes(np.array([0, 2], np.int32), ("a", "b")))
    with pytest.raises(ValueError, match=r"found -1"):
        count_tokens(segments, Codes(np.array([0, -1], np.int32), ("a", "b")))

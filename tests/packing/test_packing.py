"""Concatenation against a slow reference, the promises of the validation split, and what codes count."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.characteristics.codes import Codes, length_bins
from jax_diversity.characteristics.counts import count_tokens
from jax_diversity.packing import stored
from jax_diversity.packing.base import pack, pack_in_blocks
from jax_diversity.packing.concat import concat
from jax_diversity.packing.report import PackingReport, documents_cut
from jax_diversity.packing.split import validation_mask
from jax_diversity.packing.stored import write_segments
from jax_diversity.schema import Segments

pytestmark = pytest.mark.core


def slow_concat(lengths: list[int], order: list[int], length: int, last: str) -> list[list[tuple[int, int]]]:
    stream = [(document, offset) for document in order for offset in range(lengths[document])]
    sequences = [stream[start : start + length] for start in range(0, len(stream), length)]
    return [tokens for tokens in sequences if last == "pad" or len(tokens) == length]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 12), max_size=25),
    st.integers(1, 9),
    st.sampled_from(["drop", "pad"]),
    st.integers(0, 2**16),
)
def test_concat_places_every_token_once_and_in_order(
    lengths: list[int], length: int, last: Literal["drop", "pad"], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths)).astype(np.int64)
    segments = concat(np.array(lengths, np.int64), order, length, last_sequence=last)
    expected = slow_concat(lengths, order.tolist(), length, last)
    assert segments.num_sequences == len(expected)
    found: list[list[tuple[int, int]]] = [[] for _ in expected]
    for row in range(len(segments)):
        sequence = found[segments.sequence_index[row]]
        assert segments.position[row] == len(sequence)
        document, offset = int(segments.document_index[row]), int(segments.document_offset[row])
        count = int(segments.length[row])
        assert count > 0
        sequence += [(document, offset + token) for token in range(count)]
        assert bool(segments.ends_with_eos[row]) == (offset + count == lengths[document])
    assert found == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), max_size=25),
    st.integers(1, 9),
    st.sampled_from(["drop", "pad"]),
    st.integers(1, 6),
    st.integers(0, 2**16),
)
def test_blocks_of_documents_give_the_same_packing(
    lengths: list[int], length: int, last: Literal["drop", "pad"], size: int, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(lengths))[: max(len(lengths) - 2, 0)]
    whole = pack(lengths, length, document_order=order, last_sequence=last)
    counts = np.array(lengths, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax_diversity.packing.concat.ROWS", size)
        blocks = list(
            pack_in_blocks(counts, length, method="concat", document_order=order.astype(np.int32), last_sequence=last)
        )
    assert len(blocks) == max(-(-len(order) // size), 1)
    for column in Segments.COLUMNS:
        joined = np.concatenate([getattr(block.segments, column) for block in blocks])
        np.testing.assert_array_equal(joined, getattr(whole.segments, column))
        assert joined.dtype == getattr(whole.segments, column).dtype
    assert PackingReport.joined([block.report for block in blocks], length) == whole.report


@pytest.mark.parametrize("sizes", [[0], [0, 0], [4, 0], [10], [0, 4, 0, 6], [3, 3, 3, 1], [8, 2], [4, 4], [1] * 10])
def test_a_file_of_segments_does_not_depend_on_its_tables(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_GROUP_ROWS", 4)
    table = pa.table({"position": np.arange(sum(sizes))})
    pq.write_table(table, tmp_path / "whole", row_group_size=4, compression="zstd")
    ends = np.cumsum(sizes).tolist()
    write_segments(tmp_path / "parts", (table.slice(end - size, size) for end, size in zip(ends, sizes, strict=True)))
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_documents_that_are_cut_are_counted() -> None:
    lengths = np.array([3, 2, 5])
    assert not len(documents_cut(concat(lengths, np.arange(3), 5), lengths))
    assert documents_cut(concat(lengths, np.arange(3), 4), lengths).tolist() == [1]


def test_validation_split_is_stable_and_keeps_copies_together() -> None:
    ids = [f"document {index}" for index in range(20_000)]
    groups = np.arange(20_000)
    groups[1::2] = groups[::2]  # pairs
    mask = validation_mask(ids, groups, 0.1)
    assert abs(mask.mean() - 0.1) < 0.01
    np.testing.assert_array_equal(mask[::2], mask[1::2])
    # Neither more documents nor another order change what was chosen.
    fewer = validation_mask(ids[:1000], groups[:1000], 0.1)
    np.testing.assert_array_equal(fewer, mask[:1000])
    order = np.random.default_rng(0).permutation(1000)
    np.testing.assert_array_equal(validation_mask([ids[i] for i in order], groups[order], 0.1), mask[order])


@pytest.mark.parametrize(("fraction", "expected"), [(0.0, 0), (1.0, 50)])
def test_validation_split_of_nothing_and_of_everything(fraction: float, expected: int) -> None:
    assert validation_mask([str(i) for i in range(50)], np.zeros(50, np.int64), fraction).sum() == expected
    assert len(validation_mask([], np.zeros(0, np.int64), fraction)) == 0


def test_large_groups_are_chosen_as_often_as_single_documents() -> None:
    ids = [str(index) for index in range(30_000)]
    mask = validation_mask(ids, np.arange(30_000) // 10, 0.2)
    assert abs(mask.mean() - 0.2) < 0.03


def test_counts_are_the_tokens_of_every_group() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 30, 200)
    segments = concat(lengths, rng.permutation(200), 16, last_sequence="pad")
    codes = Codes(rng.integers(0, 7, 200).astype(np.int32), tuple("abcdefg"))
    expected = np.zeros((segments.num_sequences, 7), np.int64)
    for row in range(len(segments)):
        expected[segments.sequence_index[row], codes.group[segments.document_index[row]]] += segments.length[row]
    counts = count_tokens(segments, codes)
    np.testing.assert_array_equal(counts.toarray(), expected)
    assert counts.dtype == np.int32
    assert counts.sum() == lengths.sum()


def test_length_bins_hold_about_as_many_documents_each() -> None:
    lengths = np.random.default_rng(0).permutation(1000) + 1
    bins = length_bins(lengths, 10)
    np.testing.assert_array_equal(np.bincount(bins.group), np.full(10, 100))
    assert bins.names[0] == "1-100"
    order = np.argsort(lengths)
    assert (np.diff(bins.group[order]) >= 0).all()


def test_equal_lengths_share_a_bin() -> None:
    bins = length_bins(np.array([5] * 90 + [7] * 10), 20)
    assert set(zip(bins.group.tolist(), [5] * 90 + [7] * 10, strict=True)) == {(0, 5), (1, 7)}
    assert length_bins(np.array([3, 3]), 4).names == ("3-3",)
    assert len(length_bins(np.zeros(0, np.int64), 4).names) == 0

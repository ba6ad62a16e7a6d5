"""Concatenation against a slow reference, the promises of the validation split, and what codes count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.codes import Codes, length_bins
from jax_diversity.sequences.characteristics.counts import count_tokens
from jax_diversity.sequences.packing import pieces, stored
from jax_diversity.sequences.packing.base import pack, pack_in_blocks
from jax_diversity.sequences.packing.pieces import joined_blocks
from jax_diversity.sequences.packing.report import PackingReport, documents_cut
from jax_diversity.sequences.packing.split import validation_mask
from jax_diversity.sequences.packing.stored import write_segments
from tests.support.packing_cases import packings, registered, same_columns

pytestmark = pytest.mark.core
IN_BLOCKS = {"concat", "nearest", "pad", "spread"}


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
    segments = pack(lengths, length, document_order=order, last_sequence=last).segments
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


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("method", registered())
@settings(max_examples=60)
@given(st.data(), st.integers(1, 4), st.integers(0, 2**16))
def test_blocks_are_the_same_packing_with_the_same_report(
    method: str, weighed: bool, data: st.DataObject, size: int, seed: int
) -> None:
    several = packings(method).filter(lambda drawn: len(drawn[1]) > size)  # more documents than a block has
    lengths, order, length, arguments = data.draw(several)
    rng = np.random.default_rng(seed)
    if rng.random() < 0.5:  # without atoms, in blocks
        arguments.pop("atom_size", None)
    arguments["clusters"] = rng.integers(0, 3, len(lengths))
    if weighed:
        arguments["appearances"] = rng.integers(1, 4, len(lengths))
    whole = pack(lengths, length, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "ROWS", size)
        joined = pack(lengths, length, **arguments)
        blocks = list(pack_in_blocks(lengths, length, **arguments))
    assert same_columns(joined, whole)
    assert joined.report == whole.report
    assert blocks[-1].report == replace(whole.report, clusters_per_sequence=None, largest_cluster_share=None)
    for column in Segments.COLUMNS:
        types = {getattr(each.segments, column).dtype for each in (whole, joined, *blocks)}
        assert types == {np.dtype(bool if column == "ends_with_eos" else np.int64)}
    if method == "spread":  # documents without tokens are left out
        order = order[lengths[order] > 0]
    in_blocks = method in IN_BLOCKS and arguments.get("atom_size") is None and not weighed
    assert len(blocks) == (max(-(-len(order) // size), 1) if in_blocks else 1)
    before = PackingReport.of_documents(lengths, arguments["document_order"])
    for number, block in enumerate(blocks[:-1], 1):
        so_far = joined_blocks(each.segments for each in blocks[:number])
        assert block.report == before.with_block(so_far, lengths)


def test_a_document_that_lies_on_both_sides_of_a_border_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "ROWS", 1)
    # Document 1 begins in the last sequence of the block before, and ends in the first sequence of the block after.
    blocks = list(pack_in_blocks([3, 9, 2, 2], 4, method="concat"))
    assert [block.segments.sequence_index.tolist() for block in blocks] == [[0], [0, 1, 2], [3], [3]]
    assert [block.report.num_documents_cut for block in blocks] == [0, 1, 1, 1]
    assert [block.report.num_padding_tokens for block in blocks] == [13, 4, 2, 0]
    assert [block.report.num_tokens_dropped for block in blocks] == [13, 4, 2, 0]


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
    assert not len(documents_cut(pack(lengths, 5).segments, lengths))
    assert documents_cut(pack(lengths, 4).segments, lengths).tolist() == [1]


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
    segments = pack(lengths, 16, document_order=rng.permutation(200), last_sequence="pad").segments
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


def test_length_bins_with_equal_numbers_of_tokens() -> None:
    lengths = np.maximum(np.random.default_rng(0).lognormal(5, 1.2, 5000), 2).astype(np.int64)
    by_tokens, by_documents = length_bins(lengths, 10, "tokens"), length_bins(lengths, 10)
    tokens = np.bincount(by_tokens.group, lengths)
    assert len(tokens) == 10
    assert np.abs(tokens / lengths.sum() - 0.1).max() < 0.02
    assert np.bincount(by_documents.group, lengths).max() > 0.4 * lengths.sum()
    assert all(np.diff(by_tokens.group[np.argsort(lengths, kind="stable")]) >= 0)
    assert length_bins(lengths, by_tokens.bins or 0).group.tolist() == by_tokens.group.tolist()
    assert length_bins(np.zeros(3, np.int64), 4, "tokens").names == ("0-0",)
    assert len(length_bins(np.zeros(0, np.int64), 4, "tokens").names) == 0

"""What holds for every packing method: a method that is registered is tested here."""

from __future__ import annotations

import doctest
import importlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.sequences.packing import pieces, report
from jax_diversity.sequences.packing.base import METHODS, pack
from tests.support.packing_cases import INSERTED, packed, packings, registered, same_columns, tokens_of

# Shuffled atoms smaller than L, rotated rows and Megatron's samples promise no order of a document's parts.
KEEPS_ORDER = sorted(set(METHODS) - {"partial_shuffle", "megatron"})
INSERTS_ENDS = {"pad"}


@pytest.mark.parametrize("method", registered())
@settings(max_examples=60)
@given(st.data())
def test_segments_are_a_sound_index(method: str, data: st.DataObject) -> None:
    lengths, order, length, arguments = data.draw(packings(method))
    segments = packed(lengths, length, arguments).segments
    assert segments.sequence_length == length + segments.overlap
    assert (segments.length > 0).all()
    assert (segments.document_offset >= 0).all()
    stop = segments.document_offset + segments.length
    inserted = segments.inserted_ends(lengths)
    assert (stop - inserted <= lengths[segments.document_index]).all()
    assert np.isin(segments.document_index, order).all()
    # A segment that reaches its document's end says so; where one ends early with an end token, it was inserted.
    at_end = stop == lengths[segments.document_index]
    assert segments.ends_with_eos[at_end].all()
    np.testing.assert_array_equal(segments.ends_with_eos & ~at_end, inserted)
    assert method in INSERTS_ENDS or not inserted.any()
    # Sorted and disjoint, no gap before the padding (except between small atoms), no sequence beyond the last.
    same = np.diff(segments.sequence_index) == 0
    assert (np.diff(segments.sequence_index) >= 0).all()
    gaps = segments.position[1:][same] - (segments.position + segments.length)[:-1][same]
    assert (gaps >= 0).all()
    assert not gaps.any() or (method == "pad" and arguments["atom_size"] < length)
    assert not segments.position[:1].any()
    assert not segments.position[1:][~same].any()
    filled = np.bincount(segments.sequence_index, segments.length, segments.num_sequences)
    assert len(filled) == segments.num_sequences
    assert (filled <= segments.sequence_length).all()
    assert (filled > 0).all(), "a sequence of padding alone"


@pytest.mark.parametrize("method", registered())
@settings(max_examples=60)
@given(st.data())
def test_every_token_is_kept_once_or_counted(method: str, data: st.DataObject) -> None:
    lengths, order, length, arguments = data.draw(packings(method))
    done = packed(lengths, length, arguments)
    segments, about = done.segments, done.report
    places = Counter(token for tokens in tokens_of(segments, lengths) for token in tokens)
    num_ends = sum(number for token, number in places.items() if token[1] == INSERTED)
    kept = {token: number for token, number in places.items() if token[1] != INSERTED}
    assert "num_epochs" in METHODS.options(method) or set(kept.values()) <= {1}
    assert about.num_documents == len(order)
    assert about.num_tokens == lengths[order].sum() == about.num_tokens_kept + about.num_tokens_dropped
    assert about.num_tokens_kept == len(kept)
    assert about.num_tokens_repeated == sum(kept.values()) - len(kept)
    assert about.num_inserted_ends == num_ends
    num_places = segments.num_sequences * segments.sequence_length
    assert about.num_padding_tokens == num_places - sum(kept.values()) - num_ends
    assert (about.num_sequences, about.num_segments) == (segments.num_sequences, len(segments))
    if not about.num_tokens_repeated:
        held = {(d, s) for s, d in zip(segments.sequence_index.tolist(), segments.document_index.tolist(), strict=True)}
        times = Counter(document for document, _ in held)
        assert about.num_documents_cut == sum(number > 1 for number in times.values())


@pytest.mark.parametrize("method", registered())
@settings(max_examples=25)
@given(st.data())
def test_the_result_is_the_same_every_time_and_for_any_chunks(method: str, data: st.DataObject) -> None:
    lengths, _, length, arguments = data.draw(packings(method))
    arguments["clusters"] = np.random.default_rng(0).integers(0, 3, len(lengths))
    first = packed(lengths, length, arguments)
    again = packed(lengths.astype(np.int32), length, arguments)
    assert same_columns(first, again)
    assert first.report == again.report
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "ROWS", 3)
        patch.setattr(report, "_ROWS", 2)
        again = packed(lengths, length, arguments)
    assert same_columns(first, again)
    for name, value in vars(first.report).items():
        assert getattr(again.report, name) == (value if value is None else pytest.approx(value)), name


@pytest.mark.parametrize("method", KEEPS_ORDER)
@settings(max_examples=40)
@given(st.data())
def test_a_documents_tokens_stay_in_their_order_within_a_sequence(method: str, data: st.DataObject) -> None:
    lengths, _, length, arguments = data.draw(packings(method))
    atom_size = arguments.pop("atom_size", None)
    if atom_size is not None and atom_size >= length:
        arguments["atom_size"] = atom_size
    segments = packed(lengths, length, arguments).segments
    by_document = np.lexsort((segments.position, segments.document_index, segments.sequence_index))
    document, sequence = segments.document_index[by_document], segments.sequence_index[by_document]
    same = (np.diff(document) == 0) & (np.diff(sequence) == 0)
    assert (np.diff(segments.document_offset[by_document])[same] > 0).all()


@pytest.mark.parametrize("method", registered())
def test_no_documents_and_empty_ones_make_no_sequences(method: str) -> None:
    for lengths in (np.zeros(0, np.int64), np.zeros(5, np.int64)):
        given: dict = {}
        if METHODS.takes(method, "clusters"):
            given["clusters"] = np.zeros(len(lengths), np.int64)
        if METHODS.takes(method, "vectors"):
            given["vectors"] = np.zeros((len(lengths), 2), np.float32)
        done = pack(lengths, 8, method=method, **given)
        assert (done.segments.num_sequences, len(done.segments)) == (0, 0)
        assert (done.report.num_tokens, done.report.num_padding_tokens, done.report.mean_segments) == (0, 0, 0.0)


@pytest.mark.parametrize("method", registered())
def test_positions_beyond_32_bits(method: str) -> None:
    lengths = np.array([5, 2**31 + 2**26 + 1, 3, 2**30], np.int64)
    given: dict = {"clusters": np.array([0, 1, 0, 1])} if METHODS.takes(method, "clusters") else {}
    if METHODS.takes(method, "vectors"):
        given["vectors"] = np.eye(4, dtype=np.float32)
    done = pack(lengths, 2**20, method=method, **given)
    total = int(lengths.sum())
    assert done.report.num_tokens == total
    assert total - done.report.num_tokens_kept < 17 * 2**20
    assert done.segments.document_offset.max() > 2**31
    taken = done.report.num_tokens_kept + done.report.num_tokens_repeated + done.report.num_inserted_ends
    assert done.report.num_sequences * done.segments.sequence_length == taken + done.report.num_padding_tokens


@pytest.mark.parametrize("method", [*registered(), "base", "pieces", "neighbors", "report"])
def test_the_docstrings_examples_are_true(method: str) -> None:
    module = importlib.import_module(f"jax_diversity.sequences.packing.{METHODS.get(method, method)}")
    assert doctest.testmod(module, extraglobs={"np": np}).failed == 0

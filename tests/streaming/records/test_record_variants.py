"""What packing methods ask of records beyond plain segments: inserted end tokens, overlap, merged segments."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.schema import Segments
from jax_diversity.streaming.records.reading import RecordReader
from jax_diversity.streaming.records.writing import record_paths, write_records
from tests.support.tiny_dataset import ListStore, pack, reference_row

END = 7


def written(folder: Path, segments: Segments, store: ListStore, **settings) -> RecordReader:
    order = np.arange(segments.num_sequences)
    counts = write_records(segments, store.gather, "uint16", order, folder, "train", sequences_per_file=5, **settings)
    paths = record_paths(folder, "train", len(counts))
    length = segments.sequence_length
    return RecordReader(paths, counts, sequence_length=length, dtype="uint16", overlap=segments.overlap)


def make_store(lengths: list[int], seed: int = 0) -> ListStore:
    rng = np.random.default_rng(seed)
    return ListStore([rng.integers(10, 60_000, length).astype(np.uint16) for length in lengths])


def columns(rows: list[tuple[int, int, int, int, int, bool]]) -> list[np.ndarray]:
    table = list(zip(*rows, strict=True))
    return [*(np.array(column, np.int64) for column in table[:5]), np.array(table[5], bool)]


def test_inserted_end_tokens_stand_in_the_records_and_no_token_is_lost(tmp_path: Path) -> None:
    lengths = np.array([9, 4], np.int64)
    store = make_store(lengths.tolist())
    # Document 0: three tokens and an inserted end, three and an inserted end, three of which the last is its own.
    rows = [(0, 0, 0, 0, 4, True), (0, 4, 0, 3, 4, True), (1, 0, 0, 6, 3, True), (1, 3, 1, 0, 4, True)]
    segments = Segments(*columns(rows), num_sequences=2, sequence_length=8)
    inserted = segments.inserted_ends(lengths)
    assert inserted.tolist() == [True, True, False, False]
    reader = written(tmp_path, segments, store, inserted_ends=inserted, end_id=END)
    batch = reader.read_batch(np.arange(2))
    first, second = store.documents
    assert batch["inputs"][0].tolist() == [*first[:3], END, *first[3:6], END]
    assert batch["inputs"][1].tolist() == [*first[6:], *second, 0]
    assert batch["inputs_segmentation"].tolist() == [[1] * 4 + [2] * 4, [1] * 3 + [2] * 4 + [0]]
    assert batch["targets"][0].tolist() == [*first[1:3], END, 0, *first[4:6], END, 0]


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    length=st.integers(2, 21),
    overlap=st.sampled_from([0, 1]),
)
def test_merged_segments_are_one(tmp_path_factory, lengths: list[int], length: int, overlap: int) -> None:
    segments, store = pack(lengths, length + overlap), make_store(lengths)
    segments = Segments(
        *(getattr(segments, name) for name in Segments.COLUMNS),
        num_sequences=segments.num_sequences,
        sequence_length=length + overlap,
        overlap=overlap,
    )
    reader = written(tmp_path_factory.mktemp("records"), segments, store)
    places = np.arange(segments.num_sequences)
    apart = reader.read_batch(places)
    merged = reader.read_batch(places, merge_segments=True)
    assert all(rows.shape == (len(places), length) and rows.flags.c_contiguous for rows in merged.values())
    np.testing.assert_array_equal(merged["inputs"], apart["inputs"])
    np.testing.assert_array_equal(merged["inputs_segmentation"], apart["inputs_segmentation"] > 0)
    for row in places:
        tokens = np.concatenate(
            [
                store.documents[segments.document_index[index]][segments.document_offset[index] :][
                    : segments.length[index]
                ]
                for index in np.flatnonzero(segments.sequence_index == row)
            ]
        )
        num_targets = min(len(tokens) - 1, length)
        assert merged["targets"][row, :num_targets].tolist() == tokens[1 : num_targets + 1].tolist()
        assert merged["targets_segmentation"][row].tolist() == [1] * num_targets + [0] * (length - num_targets)
        visible = min(len(tokens), length)
        assert merged["inputs_position"][row].tolist() == [*range(visible), *([0] * (length - visible))]


def test_the_last_target_of_an_overlapping_sequence_is_the_token_after_it(tmp_path: Path) -> None:
    lengths = [30]
    store = make_store(lengths)
    starts = np.arange(0, 24, 8)  # sequences of 8 positions hold 9 tokens, the last of which is the next one's first
    rows = [(index, 0, 0, int(start), 9, False) for index, start in enumerate(starts)]
    segments = Segments(*columns(rows), num_sequences=3, sequence_length=9, overlap=1)
    reader = pickle.loads(pickle.dumps(written(tmp_path, segments, store)))
    assert reader.width == 8
    batch = reader.read_batch(np.arange(3))
    stream = store.documents[0]
    assert batch["inputs"].reshape(-1).tolist() == stream[:24].tolist()
    assert batch["targets"].reshape(-1).tolist() == stream[1:25].tolist()
    assert batch["targets_segmentation"].min() == 1


@pytest.mark.parametrize("end_id", [0, 1])
def test_an_end_token_that_is_also_the_padding_ends_segments_all_the_same(tmp_path: Path, end_id: int) -> None:
    documents = [
        np.array([5, 6, end_id], np.uint16),
        np.array([end_id], np.uint16),
        np.array([8, end_id], np.uint16),
    ]
    segments = pack([3, 1, 2], 8)
    store = ListStore(documents)
    batch = written(tmp_path, segments, store).read_batch(np.arange(1))
    assert batch["inputs_segmentation"].tolist() == [[1, 1, 1, 2, 3, 3, 0, 0]]
    for field, expected in reference_row(segments, store, 0).items():
        np.testing.assert_array_equal(batch[field][0], expected, err_msg=field)

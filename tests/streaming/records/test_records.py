"""Records: what is written comes back, byte-identical each time, and damage never becomes tokens."""

from __future__ import annotations

import hashlib
import pickle
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from jax_diversity.foundation.errors import UserError
from jax_diversity.schema import Segments
from jax_diversity.streaming.records.codec import (
    CorruptRecordError,
    OtherBuildError,
    check_bodies,
    documents_path,
    read_documents,
    write_documents,
)
from jax_diversity.streaming.records.decoding import FIELDS, decode
from jax_diversity.streaming.records.reading import RecordReader
from jax_diversity.streaming.records.writing import file_counts, record_paths, write_records
from tests.support.stored_records import stored
from tests.support.tiny_dataset import ListStore, pack, reference_row

L = 16
BODY = 66  # bytes of a record's header, uint16 tokens and segment starts; eight bytes of checksum follow
UINT16 = np.dtype("<u2")


def make_store(lengths: list[int], dtype: str = "uint16", seed: int = 0) -> ListStore:
    rng = np.random.default_rng(seed)
    high = 60_000 if dtype == "uint16" else 2_000_000_000
    return ListStore([rng.integers(1, high, length).astype(dtype) for length in lengths])


@pytest.fixture
def written(tmp_path: Path) -> tuple[Segments, ListStore, RecordReader]:
    lengths = np.random.default_rng(3).integers(1, 40, 60).tolist()
    segments, store = pack(lengths, L), make_store(lengths)
    counts = write(segments, store, np.arange(segments.num_sequences), tmp_path)
    return segments, store, open_reader(tmp_path, counts)


def write(segments: Segments, store: ListStore, order: np.ndarray, folder: Path, **settings) -> tuple[int, ...]:
    settings = {"dtype": "uint16", "stem": "train", "sequences_per_file": 20, **settings}
    dtype, stem = settings.pop("dtype"), settings.pop("stem")
    return write_records(segments, store.gather, dtype, order, folder, stem, **settings)


def matrix(records: list[bytes]) -> np.ndarray:
    """The records, one a row."""
    return np.array([list(record) for record in records], np.uint8).reshape(-1, BODY + 8)


def open_reader(folder: Path, counts: tuple[int, ...], dtype: str = "uint16", length: int = L) -> RecordReader:
    return RecordReader(record_paths(folder, "train", len(counts)), counts, sequence_length=length, dtype=dtype)


def with_gaps(segments: Segments, longest: int, seed: int) -> Segments:
    """Tokens left out at both ends of segments: padding before, between and behind them."""
    front, back = np.random.default_rng(seed).integers(0, longest + 1, (2, len(segments)))
    length = segments.length - front - back
    moved = (segments.sequence_index, segments.position + front, segments.document_index)
    columns = (*moved, segments.document_offset + front, length, segments.ends_with_eos & (back == 0))
    rows = length > 0
    return Segments(*(column[rows] for column in columns), segments.num_sequences, segments.sequence_length)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    length=st.integers(2, 21),
    dtype=st.sampled_from(["uint16", "int32"]),
    seed=st.integers(0, 9),
    longest_gap=st.integers(0, 3),
)
def test_batches_equal_a_slow_decode(tmp_path_factory, lengths, length, dtype, seed, longest_gap):
    segments, store = with_gaps(pack(lengths, length), longest_gap, seed), make_store(lengths, dtype)
    folder = tmp_path_factory.mktemp("records")
    order = np.random.default_rng(seed).permutation(segments.num_sequences)
    counts = write(segments, store, order, folder, dtype=dtype, sequences_per_file=3)
    reader = open_reader(folder, counts, dtype, length)
    places = np.random.default_rng(seed).permutation(segments.num_sequences)
    batch = reader.read_batch(places, expected=order[places])
    assert tuple(batch) == FIELDS
    assert all(array.dtype == np.int32 and array.shape == (len(places), length) for array in batch.values())
    for row, sequence in enumerate(order[places]):
        for field, expected in reference_row(segments, store, int(sequence)).items():
            np.testing.assert_array_equal(batch[field][row], expected, err_msg=field)
        tokens = reader.read_tokens(places[row : row + 1])[0]
        np.testing.assert_array_equal(tokens, batch["inputs"][row])
        np.testing.assert_array_equal(
            reader.read_batch(places[row : row + 1], fields=("inputs",))["inputs"][0], batch["inputs"][row]
        )
    merged = reader.read_batch(places, merge_segments=True)
    held = batch["inputs_segmentation"] > 0
    # A target is the next token, if one follows without padding between.
    has_next = held & np.pad(held, ((0, 0), (0, 1)))[:, 1:]
    followed = np.pad(batch["inputs"], ((0, 0), (0, 1)))[:, 1:] * has_next
    expected = {"inputs": batch["inputs"], "inputs_segmentation": held, "inputs_position": np.arange(length) * held}
    expected |= {"targets": followed, "targets_segmentation": has_next}
    for field, rows in expected.items():
        np.testing.assert_array_equal(merged[field], rows, err_msg=field)
    for place, (documents, sizes) in zip(places, reader.read_segments(places, expected=order[places]), strict=True):
        mine = segments.sequence_index == order[place]
        np.testing.assert_array_equal(documents, segments.document_index[mine])
        np.testing.assert_array_equal(sizes, segments.length[mine])


def test_a_sequence_without_tokens_is_all_padding(tmp_path):
    segments = pack([5], L)
    segments = Segments(*(getattr(segments, name) for name in Segments.COLUMNS), num_sequences=3, sequence_length=L)
    counts = write(segments, make_store([5]), np.array([2, 0, 1]), tmp_path)
    batch = open_reader(tmp_path, counts).read_batch(np.array([0, 1]), expected=np.array([2, 0]))
    assert all(not array[0].any() for array in batch.values())
    assert (batch["inputs"][1] != 0).sum() == 5


def test_only_the_fields_asked_for_are_made(written):
    _, _, reader = written
    assert list(reader.read_batch(np.arange(3), fields=("targets", "inputs"))) == ["targets", "inputs"]


def test_arrays_of_a_batch_share_no_memory_but_positions(written):
    _, _, reader = written
    batch = reader.read_batch(np.arange(4))
    for first in FIELDS:
        for second in FIELDS:
            positions = first.endswith("_position") and second.endswith("_position")
            assert (first == second or positions) == np.shares_memory(batch[first], batch[second])
        assert batch[first].flags.writeable != first.endswith("_position")


def test_files_are_named_counted_and_byte_identical(tmp_path):
    lengths = [7] * 50
    segments, store = pack(lengths, L), make_store(lengths)
    order = np.arange(segments.num_sequences)[::-1].copy()
    hashes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        done: list[int] = []
        counts = write(segments, store, order, tmp_path / name, sequences_per_file=10, advance=done.append)
        assert counts == (10, 10, 2)
        assert sum(done) == 22
        names = sorted(path.name for path in (tmp_path / name).iterdir())
        endings = ("array_record", "documents.npy")
        assert names == [f"train-0000{index}-of-00003.{ending}" for index in range(3) for ending in endings]
        hashes.append([hashlib.sha256((tmp_path / name / file).read_bytes()).hexdigest() for file in names])
    assert hashes[0] == hashes[1]


def test_bytes_do_not_depend_on_the_chunks(tmp_path, monkeypatch):
    lengths = [7] * 50
    segments, store = pack(lengths, L), make_store(lengths)
    files = []
    for name, size in (("a", 1), ("b", 10**6)):
        (tmp_path / name).mkdir()
        monkeypatch.setattr("jax_diversity.streaming.records.writing._CHUNK_BYTES", size)
        write(segments, store, np.arange(segments.num_sequences), tmp_path / name)
        files.append([path.read_bytes() for path in sorted((tmp_path / name).iterdir())])
    assert files[0] == files[1]


def test_no_sequences_make_no_files(tmp_path):
    segments = pack([], L)
    assert write(segments, make_store([]), np.zeros(0, np.int64), tmp_path) == ()
    assert list(tmp_path.iterdir()) == []
    assert len(open_reader(tmp_path, ())) == 0
    assert file_counts(0, 5) == ()


@pytest.mark.parametrize(
    ("position", "length"), [([0, 3], [4, 2]), ([0, 5], [4, 0]), ([0, 15], [4, 2]), ([4, 0], [2, 2])]
)
def test_segments_that_overlap_or_leave_their_sequence_are_refused(tmp_path, position, length):
    zeros = np.zeros(2, np.int64)
    segments = Segments(zeros, np.array(position), zeros, zeros, np.array(length), np.zeros(2, bool), 1, L)
    with pytest.raises(ValueError, match="in order, within 16 places"):
        write(segments, make_store([9]), np.array([0]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_mark_of_padding_is_refused_as_a_token(tmp_path):
    segments, store = pack([5], L), ListStore([np.array([1, 2, 65_535, 4, 5], np.uint16)])
    with pytest.raises(ValueError, match="none of them the value that marks padding"):
        write(segments, store, np.array([0]), tmp_path)


def test_a_full_disk_is_a_sentence_and_leaves_no_file(tmp_path):
    lengths = [4000] * 30
    segments, store = pack(lengths, 1000), make_store(lengths)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(UserError, match=r"Could not write .*train-00000.*; free space"):
            write(segments, store, np.arange(segments.num_sequences), tmp_path, sequences_per_file=1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_reads_across_files_in_any_order(written):
    segments, _, reader = written
    everything = reader.read_tokens(np.arange(segments.num_sequences))
    for places in (np.random.default_rng(0).permutation(segments.num_sequences), np.array([19, 20, 21, 21, 0])):
        np.testing.assert_array_equal(reader.read_tokens(places), everything[places])
        for place, (documents, sizes) in zip(places, reader.read_segments(places), strict=True):
            assert len(documents) == len(sizes) == (segments.sequence_index == place).sum()
    assert reader.read_segments(np.zeros(0, np.int64)) == []
    assert reader.read_tokens(np.zeros(0, np.int64)).shape == (0, L)


def test_places_may_be_a_list(written):
    np.testing.assert_array_equal(written[2].read_tokens([3, 1]), written[2].read_tokens(np.array([3, 1])))


@pytest.mark.parametrize("place", [-1, 10**6])
def test_places_outside_are_refused(written, place):
    with pytest.raises(IndexError, match="Expected places"):
        written[2].read_segments(np.array([place]))


def test_readers_pickle_by_name_and_reopen(written):
    _, _, reader = written
    first = reader.read_tokens(np.arange(5))
    copy = pickle.loads(pickle.dumps(reader))
    assert len(pickle.dumps(reader)) < 2000
    np.testing.assert_array_equal(copy.read_tokens(np.arange(5)), first)
    reader.close()
    np.testing.assert_array_equal(reader.read_tokens(np.arange(5)), first)


def test_eight_threads_read_the_same(written):
    segments, _, reader = written
    everything = reader.read_tokens(np.arange(segments.num_sequences))
    wrong: list[int] = []

    def work(seed: int) -> None:
        draws = np.random.default_rng(seed).integers(0, segments.num_sequences, (200, 8))
        wrong.extend(seed for places in draws if (reader.read_tokens(places) != everything[places]).any())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_flipped_bits_are_found_or_harmless(written, tmp_path):
    segments, _, reader = written
    expected = reader.read_batch(np.arange(segments.num_sequences))
    path = reader.paths[0]
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    found = 0
    for place in rng.integers(0, 4000, 150):  # where the records lie
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        fresh = pickle.loads(pickle.dumps(reader))
        sentence, batch = "", expected
        try:
            batch = fresh.read_batch(np.arange(segments.num_sequences))
        except UserError as error:
            sentence = str(error)
        found += path.name in sentence
        assert sentence == "" or path.name in sentence
        assert all(np.array_equal(batch[field], expected[field]) for field in FIELDS)
    assert found > 50


def test_damage_names_the_file_and_the_record(written):
    _, _, reader = written
    (record,) = stored(reader, [23])
    path = reader.paths[1]
    whole = bytearray(path.read_bytes())
    whole[whole.index(record) + 40] ^= 1
    path.write_bytes(whole)
    fresh = pickle.loads(pickle.dumps(reader))
    with pytest.raises(UserError, match=r"Record 3 of .*train-00001-of-\d+\.array_record is damaged .*checksum"):
        fresh.read_batch(np.arange(20, 30))
    fresh.read_batch(np.arange(20, 23))


def test_damaged_documents_are_found_when_they_are_read(written):
    segments, _, reader = written
    path = documents_path(reader.paths[1])
    whole = bytearray(path.read_bytes())
    mine = segments.document_index[(segments.sequence_index >= 20) & (segments.sequence_index < 40)]
    whole[whole.index(mine.astype("<i8").tobytes()) + 3] ^= 1
    path.write_bytes(whole)
    fresh = pickle.loads(pickle.dumps(reader))
    fresh.read_batch(np.arange(20, 30))
    with pytest.raises(UserError, match=r"train-00001-of-\d+\.documents\.npy is damaged .*checksum"):
        fresh.read_segments(np.arange(20, 30))
    fresh.read_segments(np.arange(20))


def test_the_documents_of_another_file_are_refused(tmp_path):
    path = tmp_path / "a.documents.npy"
    write_documents(path, np.array([2, 0, 1]), np.array([7, 8, 9]))
    assert [each.tolist() for each in read_documents(path, 3, np.array([0, 1, 2]))] == [[7, 8], [], [9]]
    assert [each.tolist() for each in read_documents(path, 3, np.array([2, 0]))] == [[9], [7, 8]]
    for count in (2, 4, 100):
        with pytest.raises(ValueError, match="does not have the documents"):
            read_documents(path, count, np.array([0]))
    numbers = np.load(path)
    for wrong in (numbers[:-1], numbers[1:], numbers[:0], numbers.reshape(1, -1), numbers.astype(float)):
        np.save(path, wrong)
        with pytest.raises(ValueError, match=r"checksum|does not have the documents"):
            read_documents(path, 3, np.array([0]))
    path.unlink()
    with pytest.raises(ValueError, match="No such file"):
        read_documents(path, 3, np.array([0]))


@pytest.mark.parametrize("what", ["missing", "empty", "cut", "garbage", "unclosed"])
def test_broken_files_are_a_sentence(written, tmp_path, what):
    _, _, reader = written
    path = reader.paths[1]
    whole = path.read_bytes()
    writer = None
    if what == "missing":
        path.unlink()
    elif what == "unclosed":
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        writer.write(b"x" * 100)
    else:
        path.write_bytes({"empty": b"", "cut": whole[:-100], "garbage": b"hello " * 1000}[what])
    with pytest.raises(UserError, match=r"Expected .*train-00001"):
        pickle.loads(pickle.dumps(reader)).read_segments(np.array([25]))
    if writer is not None:
        writer.close()


def test_swapped_files_never_give_wrong_tokens(written):
    _, _, reader = written
    first, second = reader.paths[:2]
    first.rename(first.with_suffix(".aside"))
    second.rename(first)
    first.with_suffix(".aside").rename(second)
    fresh = pickle.loads(pickle.dumps(reader))
    with pytest.raises(UserError, match=r"Record 2 of .*train-00000.*sequence 2 expected, 22 found"):
        fresh.read_batch(np.array([2, 3]), expected=np.array([2, 3]))


def test_records_of_another_build_are_never_taken_for_its_own(tmp_path):
    """A reader opened before a rebuild of the same sizes refuses what lies there now."""
    lengths = [9] * 40
    segments, order = pack(lengths, L), np.arange(23)
    counts = write(segments, make_store(lengths), order, tmp_path, identity="a1" * 32)
    paths = record_paths(tmp_path, "train", len(counts))
    reader = RecordReader(paths, counts, sequence_length=L, dtype="uint16", identity="a1" * 32)
    expected = reader.read_batch(np.arange(2))
    inside = paths[0].read_bytes()
    write(segments, make_store(lengths, seed=1), order, tmp_path, identity="b2" * 32)  # files are not kept
    assert paths[0].read_bytes() != inside
    still = reader.read_batch(np.arange(2))  # an open file is the one that was opened
    np.testing.assert_array_equal(still["inputs"], expected["inputs"])
    for fresh in (pickle.loads(pickle.dumps(reader)), reader):
        with pytest.raises(UserError, match=r"train-00001-of-00002.* written again .*a1a1a1a1a1a1a1a1 expected"):
            fresh.read_batch(np.array([21, 22]), expected=np.array([21, 22]))
    open_reader(tmp_path, counts).read_batch(np.arange(23))  # which asks for no build
    with pytest.raises(OtherBuildError) as caught:
        check_bodies(matrix(stored(reader, [0, 1, 2])), L, UINT16, identity="")
    assert caught.value.row == 0


def test_many_rows_decode_like_few(written, monkeypatch):
    segments, _, reader = written
    places = np.arange(segments.num_sequences)
    whole = reader.read_batch(places)
    monkeypatch.setattr("jax_diversity.streaming.records.decoding._PIECE_TOKENS", 3 * L)
    for field, array in reader.read_batch(places).items():
        np.testing.assert_array_equal(array, whole[field])


def sealed(record: bytes) -> bytes:
    """With the checksum that fits."""
    return record[:BODY] + xxh3_64_intdigest(record[:BODY]).to_bytes(8, "little")


def damaged(record: bytes, offset: int, value: int) -> bytes:
    return record[:offset] + value.to_bytes(4, "little") + record[offset + 4 :]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda record: b"XX" + record[2:], "checksum does not match"),
        (lambda record: sealed(b"JD\2" + record[3:]), "format is not version 6, uint16 tokens"),
        (lambda record: sealed(record[:3] + b"\4" + record[4:]), "format is not version 6, uint16 tokens"),
        (lambda record: damaged(record, 4, 0), "checksum does not match"),
        (lambda record: damaged(record, 12, 32), "checksum does not match"),
        (lambda record: sealed(damaged(record, 16, 77)), "sequence 5 expected, 77 found"),
    ],
)
def test_changed_bodies_are_refused(written, change, reason):
    records = stored(written[2], [4, 5])
    decode(check_bodies(matrix(records), L, UINT16, expected=np.array([4, 5])))
    bodies = matrix([records[0], change(records[1])])
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        check_bodies(bodies, L, UINT16, expected=np.array([4, 5]))
    assert caught.value.row == 1


@settings(max_examples=100, deadline=None)
@given(garbage=st.lists(st.binary(min_size=BODY + 8, max_size=BODY + 8), min_size=1, max_size=3))
def test_garbage_is_never_decoded(garbage):
    with pytest.raises(CorruptRecordError):
        check_bodies(matrix(garbage), L, UINT16)


def test_no_records_decode_to_no_rows():
    assert decode(check_bodies(matrix([]), L, UINT16))["inputs"].shape == (0, L)


def test_sequences_are_read_wherever_their_records_lie(tmp_path):
    lengths = np.random.default_rng(3).integers(1, 40, 60).tolist()
    segments, store = pack(lengths, L), make_store(lengths)
    order = np.random.default_rng(1).permutation(segments.num_sequences)
    counts = write(segments, store, order, tmp_path)
    np.save(tmp_path / "order.npy", order)
    paths, layout = record_paths(tmp_path, "train", len(counts)), tmp_path / "order.npy"
    reader = RecordReader(paths, counts, sequence_length=L, dtype="uint16", layout=layout)
    sequences = np.array([5, 0, 17, 5])
    for each in (reader, pickle.loads(pickle.dumps(reader)), reader.forward(), reader.moved(paths)):
        np.testing.assert_array_equal(order[each.places_of(sequences)], sequences)
        batch = each.read_sequences(sequences)
        for row, sequence in enumerate(sequences.tolist()):
            np.testing.assert_array_equal(batch["inputs"][row], reference_row(segments, store, sequence)["inputs"])
    with pytest.raises(IndexError, match="Expected sequences in 0"):
        reader.read_sequences(np.array([len(order)]))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "found no readable file"),
        (np.arange(3), "an array of shape"),
        ("last", "sequence 0 expected"),
    ],
)
def test_a_layout_that_is_not_the_records_is_a_sentence(written, tmp_path, content, sentence):
    _, _, reader = written
    if content is not None:
        np.save(tmp_path / "order.npy", np.arange(len(reader))[::-1] if isinstance(content, str) else content)
    settings = {"sequence_length": L, "dtype": "uint16", "layout": tmp_path / "order.npy"}
    with pytest.raises(UserError, match=sentence):
        RecordReader(reader.paths, reader.counts, **settings).read_sequences(np.array([0]))

"""Records read from memory maps: the bytes that ArrayRecord reads, or a sentence that says what is wrong."""

from __future__ import annotations

import errno
import os
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.records.decoding import FIELDS
from jax_diversity.streaming.records.files import RecordFile
from jax_diversity.streaming.records.reading import RecordReader
from jax_diversity.streaming.records.writing import record_paths, write_records
from tests.support.stored_records import stored
from tests.support.tiny_dataset import ListStore, pack, reference_row

BLOCK = 2**16


def write_file(path: Path, records: list[bytes], options: str = "group_size:1,uncompressed") -> Path:
    writer = array_record_module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def random_records(sizes: list[int], seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.bytes(size) for size in sizes]


def dataset(folder: Path, lengths: list[int], length: int, dtype: str = "uint16", per_file: int = 7):
    rng = np.random.default_rng(1)
    segments = pack(lengths, length)
    store = ListStore([rng.integers(1, 60_000, each).astype(dtype) for each in lengths])
    order = np.arange(segments.num_sequences)
    counts = write_records(segments, store.gather, dtype, order, folder, "train", sequences_per_file=per_file)
    return (
        segments,
        store,
        RecordReader(record_paths(folder, "train", len(counts)), counts, sequence_length=length, dtype=dtype),
    )


# Around the sizes at which a length takes a byte more, a record just fits, or meets one block header or several.
SIZES = st.one_of(
    st.integers(1, 300),
    st.sampled_from([127, 128, 16_383, 16_384, BLOCK - 24, BLOCK - 24 - 43, BLOCK - 24 - 44, BLOCK, 3 * BLOCK]),
    st.integers(60_000, 200_000),
)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(SIZES, min_size=1, max_size=30), seed=st.integers(0, 99))
def test_a_map_gives_the_bytes_that_array_record_gives(tmp_path_factory, sizes: list[int], seed: int) -> None:
    path = write_file(tmp_path_factory.mktemp("map") / "a.array_record", random_records(sizes, seed))
    library = array_record_module.ArrayRecordReader(str(path))
    places = np.random.default_rng(seed).integers(0, len(sizes), 2 * len(sizes))
    for num_bytes in {min(sizes), (min(sizes) + 1) // 2}:
        file = RecordFile(path, len(sizes), num_bytes)
        assert len(file) == len(sizes)
        rows, row = file.bodies(places), np.zeros(num_bytes, np.uint8)
        for place, found in zip(places.tolist(), rows, strict=True):
            file.copy_body(place, row)
            assert found.tobytes() == row.tobytes() == library.read(place, place + 1)[0][:num_bytes]
        unmapped = RecordFile(path, len(sizes), num_bytes, memory_map=False)
        np.testing.assert_array_equal(unmapped.bodies(places), rows)
    with pytest.raises(UserError, match=f"at least {min(sizes) + 1} bytes expected, a record of {min(sizes)} found"):
        RecordFile(path, len(sizes), min(sizes) + 1)


def test_without_a_map_a_file_that_is_cut_while_it_is_read_is_a_sentence(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.array_record", random_records([100] * 20))
    file = RecordFile(path, 20, 100, memory_map=False)
    assert file.is_whole()
    os.truncate(path, 500)  # after the check, where a map would end the process
    with pytest.raises(UserError, match=r"a\.array_record as it was opened, found it cut short"):
        file.bodies(np.arange(20))


def test_many_small_records(tmp_path: Path) -> None:
    records = random_records([100 + index % 50 for index in range(20_000)])
    rows = RecordFile(write_file(tmp_path / "a.array_record", records), 20_000, 100).bodies(np.arange(20_000))
    assert rows.tobytes() == b"".join(record[:100] for record in records)


@pytest.mark.parametrize(
    "options", ["group_size:4,uncompressed", "group_size:1,zstd:3", "group_size:1,uncompressed,transpose:true"]
)
def test_files_of_another_layout_are_refused(tmp_path: Path, options: str) -> None:
    _, _, reader = dataset(tmp_path, [9, 30, 4, 17], 16, per_file=100)
    write_file(reader.paths[0], stored(reader, list(range(len(reader)))), options)
    reader.close()
    with pytest.raises(UserError, match=r"train-00000.* as `jax-diversity write` made it, .* written by another prog"):
        reader.read_batch(np.arange(len(reader)))


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(BLOCK), bytes(2 * BLOCK), b"\xff" * 3 * BLOCK])
def test_what_is_no_array_record_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError):
        RecordFile(tmp_path / "a", 1, 1)


def test_a_damaged_index_never_gives_other_rows(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [13] * 300, 16, per_file=1000)
    places = np.arange(len(reader))
    expected = reader.read_batch(places)
    path, (last,) = reader.paths[0], stored(reader, [len(places) - 1])
    content = path.read_bytes()
    footer = content.rindex(last) + len(last)
    rng, outcomes = np.random.default_rng(0), {"not opened": 0, "refused": 0, "same": 0}
    for place in rng.choice(footer + np.flatnonzero(np.frombuffer(content[footer:], np.uint8)), 300).tolist():
        damaged = bytearray(content)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            RecordFile(path, len(places), 1)
        except UserError:
            outcomes["not opened"] += 1
        try:
            found = pickle.loads(pickle.dumps(reader)).read_batch(places, expected=places)
        except UserError:
            outcomes["refused"] += 1
        else:
            outcomes["same"] += all(np.array_equal(found[field], expected[field]) for field in FIELDS)
    assert outcomes["refused"] + outcomes["same"] == 300
    assert min(outcomes.values()) > 20, outcomes


@pytest.mark.parametrize(("dtype", "length"), [("uint16", 16), ("int32", 21), ("uint16", 40_000), ("int32", 70_001)])
def test_batches_of_long_sequences(tmp_path: Path, dtype: str, length: int) -> None:
    segments, store, reader = dataset(tmp_path, [length // 3 + 1] * 40, length, dtype, per_file=5)
    places = np.random.default_rng(0).permutation(len(reader))
    batch = reader.read_batch(places, expected=places)
    tokens = reader.read_tokens(places, expected=places)
    assert tokens.dtype == dtype
    np.testing.assert_array_equal(tokens, batch["inputs"])
    for row, place in enumerate(places[:4].tolist()):
        for field, expected in reference_row(segments, store, place).items():
            np.testing.assert_array_equal(batch[field][row], expected, err_msg=field)
    assert {field: rows.shape for field, rows in reader.read_batch(places[:0]).items()} == dict.fromkeys(
        FIELDS, (0, length)
    )


def test_a_file_cut_while_it_is_open_is_a_sentence(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [5000] * 60, 1000, per_file=1000)
    reader.read_batch(np.arange(4))
    with reader.paths[0].open("r+b") as file:
        file.truncate(BLOCK)
    with pytest.raises(UserError, match=r"Expected .*train-00000.* as it was opened, found it cut short"):
        reader.read_batch(np.arange(290, 300))


def test_one_of_several_files_cut_while_they_are_open_is_a_sentence(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [5000] * 40, 1000, per_file=50)
    places = np.random.default_rng(0).permutation(200)
    reader.read_batch(places)
    os.truncate(reader.paths[3], 0)
    with pytest.raises(UserError, match=r"Expected .*train-00003.* as it was opened, found it cut short"):
        reader.read_batch(places)


def test_a_file_removed_or_replaced_while_it_is_open_stays_as_it_was(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [5000] * 4, 1000, per_file=10)
    places = np.random.default_rng(0).permutation(20)
    expected = reader.read_batch(places)["inputs"].copy()
    reader.paths[0].unlink()
    (tmp_path / "other").write_bytes(b"short")
    (tmp_path / "other").replace(reader.paths[1])
    np.testing.assert_array_equal(reader.read_batch(places)["inputs"], expected)


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """A process that may open that many more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/dev/fd")))
    free = (number for number in count() if number not in taken)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(islice(free, most, None)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_files_take_few_descriptors(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [16] * 100, 16, per_file=2)
    places = np.random.default_rng(0).permutation(100)
    with descriptors(10):
        batch = reader.read_batch(places, expected=places)
    assert len(reader.paths) == 50
    np.testing.assert_array_equal(batch["inputs"], pickle.loads(pickle.dumps(reader)).read_batch(places)["inputs"])


@pytest.mark.parametrize("whole", [False, True])
def test_too_many_open_files_are_a_sentence_of_their_own_and_pass(tmp_path: Path, whole: bool) -> None:
    _, _, reader = dataset(tmp_path, [16] * 100, 16, per_file=2)
    places = np.arange(100)
    read = reader.read_segments if whole else reader.read_batch
    taken: list[int] = []
    with descriptors(20):
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        try:
            with pytest.raises(UserError, match=r"train-00000.*\(Too many open files\); raise the limit \(`ulimit -n`"):
                read(places)
        finally:
            for descriptor in taken:
                os.close(descriptor)
    assert len(read(places)) == (100 if whole else len(FIELDS))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read_for_now_is_read_later(tmp_path: Path, monkeypatch, number: int) -> None:
    _, _, reader = dataset(tmp_path, [16] * 4, 16, per_file=2)
    path_open = Path.open

    def failing(path: Path, *arguments: object, **named: object) -> object:
        if path == reader.paths[1]:
            raise OSError(number, os.strerror(number))
        return path_open(path, *arguments, **named)  # pyright: ignore[reportArgumentType, reportCallIssue]

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", failing)
        for read in (reader.read_batch, reader.read_segments):
            with pytest.raises(UserError, match=rf"train-00001.*\({os.strerror(number)}\); make it readable"):
                read(np.arange(4))
    assert len(reader.read_batch(np.arange(4))["inputs"]) == 4


def test_a_file_that_comes_later_is_read(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [16] * 4, 16, per_file=2)
    reader.paths[1].rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"Expected the record file .*train-00001.*, found none"):
        reader.read_batch(np.arange(4))
    (tmp_path / "elsewhere").rename(reader.paths[1])
    assert len(reader.read_batch(np.arange(4))["inputs"]) == 4


def test_a_file_without_its_first_block_is_a_sentence(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [5000] * 60, 1000, per_file=1000)
    content = reader.paths[0].read_bytes()
    assert len(content) >= 10 * BLOCK
    reader.paths[0].write_bytes(content[BLOCK:])
    for read in (reader.read_batch, reader.read_segments):
        with pytest.raises(UserError, match=r"train-00000.* (damaged|checksum|cut short)"):
            read(np.arange(4))


@pytest.mark.parametrize("places", [[0, 1], []])
def test_an_unknown_field_is_refused(tmp_path: Path, places: list[int]) -> None:
    _, _, reader = dataset(tmp_path, [16] * 4, 16)
    with pytest.raises(ValueError, match=r"Expected fields among inputs, .*, found 'input', 'target'\."):
        reader.read_batch(np.array(places, np.int64), fields=("inputs", "input", "target"))


def test_a_file_written_to_while_it_is_open_is_noticed(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [5000] * 60, 1000, per_file=1000)
    (record,) = stored(reader, [7])
    expected = reader.read_batch(np.arange(10))
    with reader.paths[0].open("r+b") as file:
        file.seek(reader.paths[0].read_bytes().index(record) + 500)
        file.write(b"\0\1\2\3")
    with pytest.raises(UserError, match=r"Record 7 of .*train-00000.* is damaged"):
        reader.read_batch(np.arange(10))
    np.testing.assert_array_equal(reader.read_batch(np.arange(7))["inputs"], expected["inputs"][:7])


def test_in_sequence_two_files_stay_open(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [16] * 50, 16, per_file=10)
    forward = reader.forward()
    for start in range(0, 50, 5):
        np.testing.assert_array_equal(
            forward.read_batch(np.arange(start, start + 5))["inputs"],
            reader.read_batch(np.arange(start, start + 5))["inputs"],
        )
    assert list(forward._files) == [3, 4]
    assert list(reader._files) == [0, 1, 2, 3, 4]
    forward.close(4)
    assert list(forward._files) == [3]
    reader.close()
    assert not reader._files


def test_other_sequences_than_expected_are_refused_by_tokens_too(tmp_path: Path) -> None:
    _, _, reader = dataset(tmp_path, [16] * 20, 16)
    with pytest.raises(UserError, match=r"Record 1 of .*train-00001.*sequence 9 expected, 8 found"):
        reader.read_tokens(np.array([8]), expected=np.array([9]))
    with pytest.raises(IndexError, match="Expected places"):
        reader.read_tokens(np.array([20]))

"""Streams by ranges of bytes: what is fetched, what is tried again, and what is refused."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation import object_store
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader import ranges
from jax_diversity.streaming.records.codec import body_bytes
from jax_diversity.streaming.records.files import RecordFile, record_range
from jax_diversity.streaming.records.reading import RecordReader
from jax_diversity.streaming.records.writing import write_array_record
from jax_diversity.streaming.run.source import SequenceSource
from tests.support.range_server import Behaviour, serve
from tests.support.remote_datasets import Reads, upload
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset

IN_A_RECORD = int(record_range(np.array([5]), body_bytes(16, np.dtype("uint16")))[0][0]) + 30


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory) -> TinyDataset:
    root = tmp_path_factory.mktemp("ordered") / "out"
    return write_tiny_dataset(root, layout="ordered", num_documents=120, sequences_per_file=64)


@pytest.fixture
def server(ordered: TinyDataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Behaviour]]:
    pytest.importorskip("obstore")
    monkeypatch.setattr(object_store, "_FIRST_WAIT_SECONDS", 0.001)
    with serve(ordered.root) as served:
        yield served


def read(where: object, folder: Path, **choices: object) -> list[np.ndarray]:
    settings = {"global_batch_size": 8, "fields": ("inputs",), "cache_folder": folder, **choices}
    return [batch["inputs"] for batch in jd.stream_batches(where, **settings)]  # pyright: ignore[reportArgumentType]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected) > 0
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, other)


# Places and ranges


@settings(max_examples=25, deadline=None)
@given(
    size=st.one_of(st.integers(1, 300), st.sampled_from([127, 128, 16_383, 16_384, 2**16 - 24, 2**16, 3 * 2**16])),
    count=st.integers(1, 40),
)
def test_a_place_gives_its_range_without_a_footer(tmp_path_factory, size: int, count: int) -> None:
    records = [np.random.default_rng(number).bytes(size) for number in range(count)]
    path = tmp_path_factory.mktemp("file") / "a.array_record"
    write_array_record(path, [records], count, "group_size:1,uncompressed")
    starts, ends = record_range(np.arange(count), size)
    np.testing.assert_array_equal(starts, RecordFile(path, count, size)._starts)
    content = path.read_bytes()
    for start, end, record in zip(starts.tolist(), ends.tolist(), records, strict=True):
        assert content[start] == record[0]
        assert content[end - 1] == record[-1]
        assert end - start - size in range(0, 24 * (size // 2**15 + 2), 24)


@settings(max_examples=50, deadline=None)
@given(places=st.lists(st.integers(0, 199), min_size=1, max_size=20), gap=st.sampled_from([0, 200, 16_384]))
def test_ranges_cover_the_records_and_gaps_are_bounded(places: list[int], gap: int) -> None:
    reader = RecordReader(["a", "b", "c"], [80, 80, 40], sequence_length=16, dtype="uint16")
    rows = np.array(places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "LARGEST_GAP", gap)
        found = list(ranges.ranges_of(reader, rows))
    assert sorted(np.concatenate([part.rows for part in found]).tolist()) == list(range(len(places)))
    numbers, within = reader.locate(rows)
    starts, ends = record_range(within, reader.record_bytes)
    for part in found:
        assert set(numbers[part.rows]) == {part.file}
        np.testing.assert_array_equal(part.starts, starts[part.rows])
        assert part.start == starts[part.rows].min()
        assert part.stop == ends[part.rows].max()
        assert (part.starts[1:] - ends[part.rows][:-1] <= gap).all()
    for former, later in pairwise(found):
        assert former.file < later.file or later.start - former.stop > gap


# What is fetched


@pytest.mark.parametrize("num_hosts", [1, 2, 8])
def test_every_host_fetches_its_share_and_no_more(server, ordered, tmp_path, num_hosts: int) -> None:
    address, behaviour = server
    whole = read(ordered.root, tmp_path)
    record_bytes = jd.open_dataset(ordered.root).records.record_bytes
    for host in range(num_hosts):
        before = behaviour.counts()
        found = read(address, tmp_path, num_hosts=num_hosts, host_index=host)
        rows = 8 // num_hosts
        assert_same(found, [batch[host * rows : (host + 1) * rows] for batch in whole])
        after = behaviour.counts()
        share = len(found) * rows * record_bytes
        # Chunk headers of ArrayRecord lie between these small records.
        assert after["bytes"] - before["bytes"] <= share * (record_bytes + 43) / record_bytes
        assert after["requests"] - before["requests"] <= len(found) + len(list((ordered.root / "records").iterdir()))


def test_requests_in_advance_are_bounded(ordered, tmp_path, monkeypatch) -> None:
    address = upload(ordered.root, "memory://ranges/ahead")
    reads = Reads(monkeypatch)
    iterator = iter(jd.stream_batches(address, global_batch_size=2, num_prefetch=0, cache_folder=tmp_path))
    monkeypatch.setattr(ranges, "MOST_AHEAD_BYTES", 500)
    next(iterator)
    time.sleep(0.1)
    assert 2 <= len([name for name, _, _ in reads.ranges if name.endswith(".array_record")]) <= 6
    iterator.close()


def test_an_iterator_may_be_moved_and_shared_by_threads(server, ordered, tmp_path) -> None:
    address, _ = server
    expected = read(ordered.root, tmp_path, num_epochs=3)
    iterator = iter(jd.stream_batches(address, global_batch_size=8, num_epochs=3, cache_folder=tmp_path))
    state = iterator.get_state()
    for step in (0, 31, 2, 17):
        iterator.set_state(state | {"position": 8 * step})
        np.testing.assert_array_equal(next(iterator)["inputs"], expected[step])
    assert_same(read(address, tmp_path, num_epochs=3, num_threads=4, num_prefetch=8), expected)


@pytest.mark.parametrize("num_threads", [2, 8])
def test_threads_request_every_batch_once(ordered, tmp_path, monkeypatch, num_threads: int) -> None:
    address = upload(ordered.root, "memory://ranges/threads")
    expected, reads = read(ordered.root, tmp_path, global_batch_size=3, num_epochs=2), Reads(monkeypatch)
    choices = {"global_batch_size": 3, "num_epochs": 2, "num_threads": num_threads, "num_prefetch": num_threads}
    assert_same(read(address, tmp_path, **choices), expected)
    fetched = [each for each in reads.ranges if each[0].endswith(".array_record")]
    assert len(fetched) == 2 * len(set(fetched))  # once per epoch


def test_an_iterator_that_went_back_requests_in_advance_again(ordered, tmp_path, monkeypatch) -> None:
    address = upload(ordered.root, "memory://ranges/back")
    iterator = iter(jd.stream_batches(address, global_batch_size=2, num_prefetch=0, cache_folder=tmp_path))
    state = iterator.get_state()
    for _ in range(12):
        next(iterator)
    iterator.set_state(state)
    reads = Reads(monkeypatch)
    next(iterator)
    end = time.monotonic() + 10
    while len(reads.ranges) < 12 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(reads.ranges) >= 12
    iterator.close()


# What goes wrong


def test_failures_that_pass_are_tried_again(server, ordered, tmp_path) -> None:
    address, behaviour = server
    expected, before = read(ordered.root, tmp_path), behaviour.counts()["bytes"]
    behaviour.fail_every = 3  # 503, half a body, a closed connection
    assert_same(read(address, tmp_path), expected)
    assert behaviour.counts()["bytes"] > before


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (404, "found no such object"),
        (403, "the store refused to give it to this user; set the credentials"),
        (401, "the store refused to give it to this user; set the credentials"),
        (500, "could not be read \\(tried 6 times\\).*500 Internal Server Error"),
    ],
)
@pytest.mark.parametrize("num_prefetch", [0, 2])
def test_failures_that_last_are_one_sentence_and_the_next_call_goes_on(
    server, ordered, tmp_path, status: int, sentence: str, num_prefetch: int
) -> None:
    address, behaviour = server
    choices = {"global_batch_size": 8, "num_prefetch": num_prefetch, "cache_folder": tmp_path}
    iterator = iter(jd.stream_batches(address, **choices))
    behaviour.status = status
    with pytest.raises(UserError, match=f"{address}/records/train-00000.*{sentence}") as caught:
        next(iterator)
    assert "\n" not in str(caught.value)
    behaviour.status = 0
    for _ in range(3):  # requests in advance may have failed meanwhile
        try:
            batch = next(iterator)
            break
        except UserError:
            continue
    np.testing.assert_array_equal(batch["inputs"], read(ordered.root, tmp_path)[0])


def test_a_replaced_object_is_refused(server, ordered, tmp_path) -> None:
    address, _ = server
    choices = {"global_batch_size": 8, "num_prefetch": 0, "num_epochs": None, "cache_folder": tmp_path}
    iterator = iter(jd.stream_batches(address, **choices))
    next(iterator)
    for path in (ordered.root / "records").glob("train-*.array_record"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))  # the server's ETag
    with pytest.raises(UserError, match=r"train-0000.* another object replaced it \(its ETag changed\); open the data"):
        [next(iterator) for _ in range(1000)]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda content: content[:IN_A_RECORD] + b"??" + content[IN_A_RECORD + 2 :], "Record 5 of .* is damaged"),
        (lambda content: content[:300], "could not be read"),
        (None, "no such object"),
    ],
)
def test_damaged_cut_and_missing_objects_are_named_by_fsspec_too(ordered, tmp_path, monkeypatch, change, sentence):
    monkeypatch.setattr(object_store, "_FIRST_WAIT_SECONDS", 0.001)
    memory = fsspec.filesystem("memory")
    address = upload(ordered.root, "memory://ranges/damaged")
    name = next(path for path in memory.find("/ranges/damaged") if "train-00001" in path)
    content = memory.cat_file(name)
    memory.rm(name)
    if change is not None:
        memory.pipe_file(name, change(content))
    with pytest.raises(UserError, match=sentence) as caught:
        read(address, tmp_path)
    assert "memory://ranges/damaged/records/train-00001" in str(caught.value)


def test_a_stream_that_is_closed_ends_its_tries(server, tmp_path, monkeypatch) -> None:
    address, behaviour = server
    before = set(threading.enumerate())
    monkeypatch.setattr(object_store, "_FIRST_WAIT_SECONDS", 60.0)
    iterator = iter(jd.stream_batches(address, global_batch_size=8, cache_folder=tmp_path))
    behaviour.status = 503
    iterator.start_prefetch()
    time.sleep(0.2)
    iterator.close()
    end = time.monotonic() + 10
    while (left := _ours(before)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not left


def test_a_stream_that_is_closed_begins_no_request(server, tmp_path) -> None:
    address, behaviour = server
    iterator = iter(jd.stream_batches(address, global_batch_size=2, cache_folder=tmp_path))
    behaviour.delay = 0.3
    iterator.start_prefetch()
    time.sleep(0.1)
    iterator.close()
    before = behaviour.counts()["requests"]
    time.sleep(0.6)
    assert behaviour.counts()["requests"] == before <= 16


def test_a_forked_process_is_told_to_be_spawned_and_its_parent_goes_on(server, ordered, tmp_path) -> None:
    address, _ = server
    source = SequenceSource(jd.open_dataset(address, cache_folder=tmp_path))
    first = source[0]["inputs"]
    said, say = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this process has threads
        child = os.fork()
    if not child:
        signal.alarm(20)
        for read in (lambda: source[len(source) - 1], lambda: jd.open_dataset(address, cache_folder=tmp_path)):
            try:
                read()
            except UserError as error:
                os.write(say, str(error).encode())
        os.write(say, b"; a file in the cache: %d" % (source[0]["inputs"] == first).all())
        os._exit(0)
    os.close(say)
    assert os.waitpid(child, 0)[1] == 0
    with open(said, encoding="utf-8") as file:
        text = file.read()
    assert text.count('found a fork of it; start its processes by the method "spawn"') == 2
    assert text.endswith("a file in the cache: 1")
    expected = SequenceSource(ordered.root)
    for row in range(0, len(source), 20):
        np.testing.assert_array_equal(source[row]["inputs"], expected[row]["inputs"])


def _ours(before: set[threading.Thread]) -> list[threading.Thread]:
    """New threads of loaders and streams; the server has threads, too."""
    return [each for each in threading.enumerate() if each not in before and each.name.startswith("jax-diversity")]

"""Streams give the batches of the window contract, from local files and from an object store alike."""

from __future__ import annotations

import gc
import json
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.loader.streaming import FilesOfBatch, StreamedFiles, StreamedRun
from jax_diversity.streaming.records.reading import RecordReader
from tests.support.corruptions import CORRUPTIONS
from tests.support.remote_datasets import Reads, upload
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


@pytest.fixture(scope="module", params=["packed", "ordered"])
def tiny(tmp_path_factory, request) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out", layout=request.param)


@pytest.fixture(scope="module")
def ordered(tmp_path_factory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("ordered") / "out", layout="ordered")


@pytest.fixture(scope="module")
def address(ordered) -> str:
    return upload(ordered.root, "memory://streams/ordered")


def layout_order(tiny: TinyDataset) -> np.ndarray:
    name = jd.open_dataset(tiny.root).layout_ordering
    return np.arange(tiny.segments.num_sequences) if name is None else tiny.orders[name]


def assert_same_batches(found, expected) -> None:
    found, expected = list(found), list(expected)
    assert len(found) == len(expected) > 0
    for mine, other in zip(found, expected, strict=True):
        assert mine.keys() == other.keys()
        for field in mine:
            np.testing.assert_array_equal(mine[field], other[field], err_msg=field)


def files_in(folder: Path) -> list[Path]:
    return [path for path in (folder / "streams").rglob("*") if path.is_file()]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(("batch_size", "num_hosts", "num_epochs"), [(4, 1, 1), (6, 3, 2), (10, 2, 3)])
def test_batches_are_those_of_the_loader(tiny, tmp_path, remote, drop, batch_size, num_hosts, num_epochs):
    where = upload(tiny.root, "memory://streams/same") if remote else tiny.root
    for host in range(num_hosts):
        choices = {"global_batch_size": batch_size, "num_epochs": num_epochs, "drop_remainder": drop}
        choices |= {"host_index": host, "num_hosts": num_hosts}
        stream = jd.stream_batches(where, **choices, cache_folder=tmp_path, read_ahead_files=1)
        loader = jd.make_loader(tiny.root, ordering=layout_order(tiny), **choices)
        assert stream.num_batches == loader.num_batches
        assert_same_batches(stream, loader)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_threads_and_choices_change_nothing(ordered, address, tmp_path, num_threads):
    choices = {"global_batch_size": 4, "num_epochs": 3, "merge_segments": True, "names": {"inputs": "tokens"}}
    stream = jd.stream_batches(address, **choices, num_threads=num_threads, num_prefetch=5, cache_folder=tmp_path)
    assert_same_batches(stream, jd.make_loader(ordered.root, **choices))
    assert_same_batches(stream, stream)


def test_states_are_those_of_the_loader_at_every_step(ordered, address, tmp_path):
    choices = {"global_batch_size": 5, "num_epochs": 2}
    stream = jd.stream_batches(address, **choices, cache_folder=tmp_path)
    iterator = iter(stream)
    states, batches = [], []
    for batch in iterator:
        states.append(json.loads(json.dumps(iterator.get_state())))
        batches.append(batch)
    for step in range(0, len(states) - 1, 3):
        for maker, where in ((jd.stream_batches, address), (jd.make_loader, ordered.root)):
            other = iter(maker(where, **choices, cache_folder=tmp_path))
            other.set_state(states[step])
            np.testing.assert_array_equal(next(other)["inputs"], batches[step + 1]["inputs"])
            other.close()


def test_a_resumed_stream_fetches_from_its_position_on(ordered, address, tmp_path, monkeypatch):
    reads = Reads(monkeypatch)
    stream = jd.stream_batches(
        address, global_batch_size=7, start_position=21, read_ahead_files=0, cache_folder=tmp_path, num_prefetch=0
    )
    next(iter(stream))
    assert min(reads.records()).startswith("train-00003")
    shuffled = jd.stream_batches(
        address,
        global_batch_size=7,
        start_position=21,
        read_ahead_files=0,
        cache_folder=tmp_path,
        shuffle_buffer=7,
        num_prefetch=0,
    )
    reads.ranges.clear()
    next(iter(shuffled))
    assert len(reads.records()) <= 3  # the files of the blocks of one batch, and of the next in advance


def test_a_stream_in_the_order_of_the_records_writes_no_file(address, tmp_path):
    assert len(list(jd.stream_batches(address, global_batch_size=2, cache_folder=tmp_path))) > 6
    assert not (tmp_path / "streams").exists()


def test_files_are_removed_and_the_disk_is_bounded(ordered, address, tmp_path, monkeypatch):
    reads = Reads(monkeypatch)
    num_files = len(list((ordered.root / "records").glob("train-*.array_record")))
    assert num_files > 6
    iterator = iter(
        jd.stream_batches(
            address, global_batch_size=1, num_epochs=2, read_ahead_files=1, cache_folder=tmp_path, shuffle_buffer=3
        )
    )
    most = 0
    for _ in iterator:
        most = max(most, len([path for path in files_in(tmp_path) if path.suffix == ".array_record"]))
    assert most <= 6  # behind, here and ahead; a prefetched batch may be a file further
    assert num_files < len(reads.records()) <= 2 * num_files  # once an epoch, and none twice where epochs meet
    iterator.close()
    assert files_in(tmp_path) == []
    with pytest.raises(ValueError, match="closed"):
        next(iterator)


@pytest.mark.parametrize("shuffle_buffer", [0, 5])
def test_a_dropped_stream_leaves_no_thread_and_no_file(address, tmp_path, shuffle_buffer):
    before = set(threading.enumerate())
    choices = {"shuffle_buffer": shuffle_buffer, "cache_folder": tmp_path}
    iterator = iter(jd.stream_batches(address, global_batch_size=2, **choices))
    next(iterator)
    del iterator
    gc.collect()
    end = time.monotonic() + 10
    while [thread for thread in threading.enumerate() if thread not in before] and time.monotonic() < end:
        time.sleep(0.02)
    assert not [thread.name for thread in threading.enumerate() if thread not in before]
    assert files_in(tmp_path) == []


@pytest.mark.campaign
def test_a_program_that_ends_or_is_killed_leaves_files_to_nobody(ordered, address, tmp_path):
    program = """if True:
        import os, signal, sys
        from pathlib import Path
        import jax_diversity as jd
        from tests.support.remote_datasets import upload
        upload(Path(sys.argv[1]), "memory://own/out")
        choices = {"global_batch_size": 2, "cache_folder": sys.argv[2]}
        iterator = iter(jd.stream_batches("memory://own/out", shuffle_buffer=5, **choices))
        next(iterator)
        print("read", flush=True)
        if sys.argv[3] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    for ending, left in (("end", False), ("kill", True)):
        arguments = [sys.executable, "-c", program, str(ordered.root), str(tmp_path), ending]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout == "read\n", done.stderr
        assert done.stderr == ""
        assert bool(files_in(tmp_path)) == left
    iterator = iter(jd.stream_batches(address, global_batch_size=2, cache_folder=tmp_path, shuffle_buffer=5))
    assert len(list((tmp_path / "streams").glob("*.lock"))) == 1  # the killed one's folder is gone
    iterator.close()
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("shuffle_buffer", [0, 5])
def test_two_iterators_do_not_disturb_one_another(ordered, address, tmp_path, shuffle_buffer):
    choices = {"global_batch_size": 3, "shuffle_buffer": shuffle_buffer}
    stream = jd.stream_batches(address, read_ahead_files=0, cache_folder=tmp_path, **choices)
    expected = list(jd.stream_batches(ordered.root, **choices))
    first, second = iter(stream), iter(stream)
    found = [next(first), *second, *first]
    assert_same_batches(found, [expected[0], *expected, *expected[1:]])


def test_a_stream_pickles(address, tmp_path, ordered):
    stream = jd.stream_batches(address, global_batch_size=4, shuffle_buffer=9, cache_folder=tmp_path)
    assert_same_batches(pickle.loads(pickle.dumps(stream)), stream)


def test_a_global_array_is_the_same(ordered, address, tmp_path):
    import jax

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    stream = jd.stream_batches(address, global_batch_size=4, sharding=sharding, cache_folder=tmp_path)
    assert_same_batches(stream, jd.make_loader(ordered.root, global_batch_size=4))


# The shuffle


def with_counts(*counts: int) -> jd.Dataset:
    """A dataset of files with so many records; the files do not exist: a stream's run reads none."""
    files = [Path(str(file)) for file in range(len(counts))]
    records = RecordReader(files, counts, sequence_length=4, dtype="uint16")
    return Mock(spec=jd.Dataset, records=records, layout_ordering=None)


@settings(max_examples=60)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    buffer=st.integers(1, 80),
    seed=st.integers(0, 3),
    num_ahead=st.integers(0, 3),
    batch_size=st.integers(1, 7),
)
def test_every_record_comes_once_an_epoch_and_files_are_known_before(counts, buffer, seed, num_ahead, batch_size):
    total = sum(counts)
    end = 3 * total
    order = StreamedRun(with_counts(*counts), end=end, shuffle_buffer=buffer, seed=seed, num_ahead=num_ahead)
    places = order.record_places(np.arange(end))
    for epoch in range(3):
        assert sorted(places[epoch * total : (epoch + 1) * total]) == list(range(total))
    file = np.repeat(np.arange(len(counts)), counts)
    for start in range(0, end, batch_size):
        positions = np.arange(start, min(start + batch_size, end))
        np.testing.assert_array_equal(order.record_places(positions), places[positions])  # of the position alone
        needed = file[places[positions]]
        files = order.files(positions, needed)
        assert set(needed) == set(files.needed) <= set(files.ahead)
        assert len(files.ahead) <= len(counts) * 3


def test_sequences_stay_within_their_stretch_and_epochs_differ():
    order = StreamedRun(with_counts(*[10] * 30), end=900, shuffle_buffer=50, seed=0)
    unshuffled = StreamedRun(with_counts(*[10] * 30), end=900)
    np.testing.assert_array_equal(unshuffled.record_places(np.arange(900)), np.arange(900) % 300)
    epochs = order.record_places(np.arange(900)).reshape(3, 300)
    assert (epochs[0] != epochs[1]).mean() > 0.9
    assert (epochs[1] != epochs[2]).mean() > 0.9
    for epoch in epochs:
        # Files come in another order, so that a step's distance counts in the order of first appearance.
        turns = {file: number for number, file in enumerate(dict.fromkeys((epoch // 10).tolist()))}
        assert len(turns) == 30
        assert np.mean(np.diff(epoch) == 1) < 0.1


def test_a_buffer_of_everything_is_a_uniform_shuffle():
    order = StreamedRun(with_counts(4, 3), end=7 * 20_000, shuffle_buffer=7, seed=5)
    came = order.record_places(np.arange(7 * 4000)).reshape(-1, 7)
    counts = Counter((place, step) for row in came.tolist() for step, place in enumerate(row))
    assert min(counts.values()) > 4000 / 7 * 0.8
    assert max(counts.values()) < 4000 / 7 * 1.2


SHUFFLED = [0, 3, 1, 8, 2, 5, 9, 11, 4, 10, 6, 7, 6, 7, 5, 4, 0, 8, 10, 11, 9, 2, 1, 3]


def test_the_shuffle_is_the_same_for_ever():
    order = StreamedRun(with_counts(4, 4, 4), end=24, shuffle_buffer=5, seed=7)
    assert order.record_places(np.arange(24)).tolist() == SHUFFLED
    for others in ({"shuffle_buffer": 5, "seed": 8}, {"shuffle_buffer": 6, "seed": 7}):
        other = StreamedRun(with_counts(4, 4, 4), end=24, **others)
        assert order.fingerprint != other.fingerprint


def test_a_shuffled_stream_resumes_at_every_step(tiny, tmp_path):
    where = upload(tiny.root, "memory://streams/shuffled")
    choices = {"global_batch_size": 5, "num_epochs": 2, "shuffle_buffer": 20, "seed": 3}
    for place in (tiny.root, where):
        batches = list(jd.stream_batches(place, **choices, cache_folder=tmp_path))
        assert len(batches) == 2 * tiny.segments.num_sequences // 5
        iterator = iter(jd.stream_batches(place, **choices, cache_folder=tmp_path))
        for step in range(0, len(batches), 4):
            state = iterator.get_state() | {"position": 5 * step}
            iterator.set_state(state)
            np.testing.assert_array_equal(next(iterator)["inputs"], batches[step]["inputs"])
        with pytest.raises(UserError, match="ordering of fingerprint"):
            iter(jd.stream_batches(place, **choices | {"seed": 4}, cache_folder=tmp_path)).set_state(state)
    rows = np.concatenate([batch["inputs"] for batch in batches])
    plain = np.concatenate(
        [batch["inputs"] for batch in jd.stream_batches(tiny.root, global_batch_size=1, num_epochs=2)]
    )
    kept = {row.tobytes() for row in plain}
    assert {row.tobytes() for row in rows} <= kept


# What goes wrong


def test_a_fault_names_the_object_and_the_next_try_goes_on(ordered, address, tmp_path, monkeypatch):
    reads = Reads(monkeypatch)
    choices = {"global_batch_size": 7, "shuffle_buffer": 1}  # blocks of one: the files alone are shuffled
    expected = list(jd.stream_batches(ordered.root, **choices))
    iterator = iter(jd.stream_batches(address, read_ahead_files=0, num_prefetch=0, cache_folder=tmp_path, **choices))
    found = [next(iterator)]
    reads.fail_next = PermissionError("no right")
    with pytest.raises(UserError, match=r"memory://streams/ordered/records/train-000.*refused to give it"):
        next(iterator)
    found += iterator
    assert_same_batches(found, expected)


@pytest.mark.parametrize("num_prefetch", [0, 2])
def test_changed_cut_and_missing_objects_are_named(ordered, tmp_path, monkeypatch, num_prefetch):
    import fsspec

    monkeypatch.setattr("jax_diversity.foundation.object_store._FIRST_WAIT_SECONDS", 0.001)
    memory = fsspec.filesystem("memory")
    changes = {
        "SHA-256": lambda content: content[:99] + bytes([content[99] ^ 1]) + content[100:],
        "bytes came; if this stays so, upload": lambda content: content[:-5],
        "no such object": None,
    }
    for sentence, change in changes.items():
        where = upload(ordered.root, "memory://streams/damaged")
        name = next(path for path in memory.find("/streams/damaged") if "train-00002" in path)
        content = memory.cat_file(name)
        memory.rm(name)
        if change is not None:
            memory.pipe_file(name, change(content))
        choices = {"num_prefetch": num_prefetch, "shuffle_buffer": 7}
        stream = jd.stream_batches(where, global_batch_size=7, cache_folder=tmp_path, **choices)
        with pytest.raises(UserError, match=f"{sentence}.*") as caught:
            list(stream)
        assert "train-00002" in str(caught.value)


def test_damaged_local_files_never_give_other_tokens(ordered, tmp_path):
    root = tmp_path / "out"
    shutil.copytree(ordered.root, root)
    paths = sorted((root / "records").glob("train-*.array_record"))
    sound = {path: path.read_bytes() for path in paths}
    choices = {"global_batch_size": 1, "fields": ("inputs",), "num_prefetch": 0}
    expected = [batch["inputs"] for batch in jd.stream_batches(root, **choices)]
    found = 0
    for seed in range(20 * len(CORRUPTIONS)):
        CORRUPTIONS[seed % len(CORRUPTIONS)](paths, np.random.default_rng(seed))
        try:
            came = [batch["inputs"] for batch in jd.stream_batches(root, **choices)]
        except UserError:
            found += 1
        else:
            np.testing.assert_array_equal(came, expected)
        for path, content in sound.items():
            path.write_bytes(content)
    assert found > 80


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"shuffle_buffer": -1}, "shuffle_buffer to be a whole number >= 0, found -1"),
        ({"read_ahead_files": -2}, "read_ahead_files to be a whole number >= 0, found -2"),
        ({"seed": -1}, "seed to be a whole number >= 0"),
        ({"global_batch_size": 10**6}, "global batch size in 1"),
        ({"num_hosts": 3}, "number of hosts that divides"),
        ({"num_epochs": 0}, "num_epochs to be a whole number >= 1"),
        ({"fields": ("words",)}, "fields among"),
    ],
)
def test_settings_that_cannot_be(ordered, choice, sentence):
    with pytest.raises(UserError, match=sentence):
        jd.stream_batches(ordered.root, **{"global_batch_size": 4, **choice})


def test_threads_that_wait_for_one_failed_fetch_all_get_its_error(ordered, tmp_path, monkeypatch):
    """The thread that learns of the failure first drops the file before the others look for it."""
    root = upload(ordered.root, "memory://streams/raced")
    dataset = jd.open_dataset(root, cache_folder=tmp_path)
    files = StreamedFiles(dataset.remote, dataset.records)
    Reads(monkeypatch).fail_next = PermissionError("no right")
    both_asked, first_is_done, wait = threading.Barrier(2), threading.Event(), files._wait

    def in_turn(file, *rest):
        """Both have asked for the file; one waits for it when the other has dropped it."""
        if both_asked.wait(timeout=60):  # a number for each thread
            first_is_done.wait(timeout=60)
        try:
            wait(file, *rest)
        finally:
            first_is_done.set()

    monkeypatch.setattr(files, "_wait", in_turn)
    errors = []

    def read():
        try:
            with files.hold(FilesOfBatch((1,))):
                pass
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    files.close()
    assert [type(error) for error in errors] == [UserError, UserError], errors
    assert all("refused to give it" in str(error) for error in errors)

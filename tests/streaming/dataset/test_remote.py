"""Datasets on an object store: fetched when needed, checked, kept; what is wrong there is one sentence."""

from __future__ import annotations

import json
import pickle
import sys
import threading
from pathlib import Path

import fsspec
import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.foundation.artifacts import signed
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.object_store import is_address
from jax_diversity.streaming.dataset.remote import RemoteFolder
from tests.support.remote_datasets import Reads, upload
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> TinyDataset:
    return write_tiny_dataset(tmp_path_factory.mktemp("tiny") / "out")


@pytest.fixture
def address(tiny) -> str:
    return upload(tiny.root, "memory://bucket/tiny")


@pytest.fixture
def memory():
    return fsspec.filesystem("memory")


def manifest_with(memory, change) -> None:
    manifest = json.loads(memory.cat_file("/bucket/tiny/manifest.json"))
    change(manifest["stages"])
    memory.pipe_file("/bucket/tiny/manifest.json", json.dumps(signed(manifest)).encode())


def test_every_artifact_is_that_of_the_folder(tiny, address, tmp_path):
    local, remote = jd.open_dataset(tiny.root), jd.open_dataset(address, cache_folder=tmp_path)
    assert remote.fingerprint == local.fingerprint
    assert repr(remote).splitlines()[1:] == repr(local).splitlines()[1:]
    assert address in repr(remote)
    for name in local.orderings:
        np.testing.assert_array_equal(remote.orderings[name].indices, local.orderings[name].indices)
    np.testing.assert_array_equal(remote.segments.length, local.segments.length)
    for family, counts in local.characteristics.counts.items():
        assert (remote.characteristics.counts[family] != counts).nnz == 0
    assert remote.documents.to_table().equals(local.documents.to_table())
    np.testing.assert_array_equal(remote.tokens.document_lengths, local.tokens.document_lengths)
    places = np.arange(len(local.validation_records))
    found, expected = remote.validation_records.read_segments(places), local.validation_records.read_segments(places)
    assert [[part.tolist() for part in row] for row in found] == [[part.tolist() for part in row] for row in expected]
    assert remote.verify() == []
    assert (pickle.loads(pickle.dumps(remote))).fingerprint == local.fingerprint


@pytest.mark.parametrize("slash", ["", "/"])
def test_only_what_is_needed_is_fetched_and_only_once(tiny, address, tmp_path, monkeypatch, slash):
    reads = Reads(monkeypatch)
    choices = {"ordering": "uniform_shuffle", "global_batch_size": 4, "num_prefetch": 0}
    iterator = iter(jd.make_loader(address + slash, **choices, cache_folder=tmp_path))
    assert reads.names == ["manifest.json", "uniform_shuffle.npy"]
    batch = next(iterator)
    needed = np.unique(tiny.orders["uniform_shuffle"][:4] // 7)
    assert len(reads.records()) == len(needed)
    list(iterator)
    fetched = reads.records()
    assert len(fetched) == len(set(fetched)) == -(-tiny.segments.num_sequences // 7)
    again = jd.make_loader(address + slash, **choices, cache_folder=tmp_path)
    np.testing.assert_array_equal(next(iter(again))["inputs"], batch["inputs"])
    assert reads.records() == fetched
    assert reads.names[-1] == "manifest.json"  # read anew each time


def test_batches_are_those_of_the_folder_in_any_layout(tmp_path):
    for layout in ("packed", "ordered"):
        root = write_tiny_dataset(tmp_path / layout, layout=layout).root
        where = upload(root, f"memory://bucket/{layout}")
        for ordering in ("balance", "uniform_shuffle"):
            choices = {"ordering": ordering, "global_batch_size": 4, "num_epochs": 2}
            remote = jd.make_loader(where, **choices, num_threads=3, cache_folder=tmp_path / "cache")
            for mine, other in zip(remote, jd.make_loader(root, **choices), strict=True):
                for field, rows in other.items():
                    np.testing.assert_array_equal(mine[field], rows)


def test_states_pass_between_a_folder_and_its_copy(tiny, address, tmp_path):
    iterator = iter(jd.make_loader(tiny.root, global_batch_size=4))
    next(iterator)
    other = iter(jd.make_loader(address, global_batch_size=4, cache_folder=tmp_path))
    other.set_state(iterator.get_state())
    np.testing.assert_array_equal(next(other)["inputs"], next(iterator)["inputs"])


def test_local_paths_and_file_addresses_are_not_copied(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for path in (tiny.root, str(tiny.root), f"file://{tiny.root}"):
        dataset = jd.open_dataset(path)
        assert dataset.remote is None
        assert dataset.root == tiny.root
        next(iter(jd.make_loader(path, global_batch_size=4)))
        next(iter(jd.stream_batches(path, global_batch_size=4)))
    assert list(tmp_path.iterdir()) == []
    assert not is_address("out/")
    assert is_address("simplecache::gs://bucket/out")


def test_the_cache_lies_in_the_users_cache_folder(address, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    jd.open_dataset(address)
    assert (tmp_path / "jax-diversity" / "datasets").is_dir()


def test_a_stage_made_anew_is_all_that_is_fetched_anew(tiny, address, tmp_path, memory, monkeypatch):
    next(iter(jd.make_loader(address, global_batch_size=51, cache_folder=tmp_path)))
    former = jd.open_dataset(address, cache_folder=tmp_path)
    reads = Reads(monkeypatch)
    upload(write_tiny_dataset(tmp_path / "other").root, "memory://bucket/other")
    manifest_with(memory, lambda stages: stages["order/balance"]["counts"].update(note="made anew"))
    dataset = jd.open_dataset(address, cache_folder=tmp_path)
    assert dataset.root != former.root
    next(iter(jd.make_loader(dataset, global_batch_size=51)))
    assert reads.records() == []
    np.testing.assert_array_equal(former.orderings["balance"].indices, tiny.orders["balance"])


def test_threads_share_one_fetch(tiny, address, tmp_path, monkeypatch):
    reads = Reads(monkeypatch)
    folders = [RemoteFolder(address, tmp_path) for _ in range(4)]
    name = next(name for name in folders[0].files if "train-00001" in name)
    threads = [threading.Thread(target=folder.fetch, args=(name,)) for folder in folders * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders[0].fetch(name).read_bytes() == (tiny.root / name).read_bytes()
    assert len(reads.records()) == 1


def test_what_is_cut_off_or_lost_in_the_cache_is_fetched_again(tiny, address, tmp_path, monkeypatch):
    folder = RemoteFolder(address, tmp_path)
    name = next(name for name in folder.files if "train-00001" in name)
    reads = Reads(monkeypatch)
    reads.fail_next = PermissionError("no right")
    with pytest.raises(UserError, match=r"memory://bucket/tiny/records/train-00001.*refused to give it"):
        folder.fetch(name)
    assert [path for path in (tmp_path / "files").iterdir() if path.suffix != ".lock"] == []
    stored = folder.fetch(name).resolve()
    stored.write_bytes(b"cut")
    assert folder.fetch(name).read_bytes() == (tiny.root / name).read_bytes()
    stored.unlink()
    assert folder.fetch(name).read_bytes() == (tiny.root / name).read_bytes()


def test_verify_names_every_object_that_is_wrong(address, memory, tmp_path, monkeypatch):
    monkeypatch.setattr("jax_diversity.foundation.object_store._FIRST_WAIT_SECONDS", 0.001)
    names = [path for path in memory.find("/bucket/tiny") if "train-0000" in path]
    memory.rm(names[0])
    memory.pipe_file(names[1], memory.cat_file(names[1])[:-1])
    content = bytearray(memory.cat_file(names[2]))
    content[70] ^= 1
    memory.pipe_file(names[2], bytes(content))
    done: list[int] = []
    faults = jd.open_dataset(address, cache_folder=tmp_path).verify(done.append)
    assert [Path(fault.file).name for fault in faults] == [Path(name).name for name in names[:3]]
    assert sum(done) > 1000


def test_every_read_is_tried_again(tiny, tmp_path, memory, monkeypatch):
    monkeypatch.setattr("jax_diversity.foundation.object_store._FIRST_WAIT_SECONDS", 0.001)
    for module in ("foundation.artifacts", "streaming.dataset.orderings", "streaming.dataset.remote"):
        monkeypatch.setattr(f"jax_diversity.{module}.PIECE_BYTES", 1024)
    root = write_tiny_dataset(tmp_path / "out", layout="ordered").root
    where = upload(root, "memory://bucket/failing")
    failed, read = set(), type(memory).cat_file

    def cat_file(filesystem, path, start=None, end=None):
        if (path, start, end) not in failed:
            failed.add((path, start, end))
            raise ConnectionError("lost")
        return read(filesystem, path, start=start, end=end)

    monkeypatch.setattr(type(memory), "cat_file", cat_file)
    for number, loader in enumerate((jd.make_loader, jd.stream_batches)):
        more = {"shuffle_buffer": 8} if loader is jd.stream_batches else {}
        found = loader(where, global_batch_size=8, cache_folder=tmp_path / str(number), **more)
        for mine, other in zip(found, loader(root, global_batch_size=8, **more), strict=True):
            np.testing.assert_array_equal(mine["inputs"], other["inputs"])
        failed.clear()
    assert jd.open_dataset(where, cache_folder=tmp_path / "verified").verify() == []


@pytest.mark.parametrize("missing", ["manifest.json", "orderings/balance.npy"])
def test_missing_objects_are_named(address, memory, tmp_path, missing):
    memory.rm(f"/bucket/tiny/{missing}")
    with pytest.raises(UserError, match=f"{missing}, found no such object"):
        jd.make_loader(address, global_batch_size=4, cache_folder=tmp_path)


def test_changed_and_cut_objects_are_refused_and_not_kept(address, memory, tmp_path, monkeypatch):
    monkeypatch.setattr("jax_diversity.foundation.object_store._FIRST_WAIT_SECONDS", 0.001)
    content = memory.cat_file("/bucket/tiny/orderings/balance.npy")
    for changed, sentence in (
        (content[:-8], r"balance\.npy, but it could not be read \(tried 6 times\): \d+ of \d+ bytes came.*upload"),
        (content[:200] + b"\1" + content[201:], "SHA-256"),
    ):
        memory.pipe_file("/bucket/tiny/orderings/balance.npy", changed)
        with pytest.raises(UserError, match=sentence):
            jd.open_dataset(address, cache_folder=tmp_path).orderings["balance"]
    memory.pipe_file("/bucket/tiny/orderings/balance.npy", content)
    assert len(jd.open_dataset(address, cache_folder=tmp_path).orderings["balance"]) > 0


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", "records/../../outside"])
def test_a_manifest_cannot_reach_out_of_the_cache(address, memory, tmp_path, name):
    manifest_with(memory, lambda stages: stages["write"]["files"].update({name: {"bytes": 1, "sha256": "a" * 64}}))
    with pytest.raises(UserError, match="names a file outside its folder"):
        jd.open_dataset(address, cache_folder=tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b'{"stages": 3}', b'{"stages": {"write": {}}}'])
def test_a_manifest_of_anything_is_a_sentence(address, memory, tmp_path, content):
    memory.pipe_file("/bucket/tiny/manifest.json", content)
    with pytest.raises(UserError, match="not a dataset's manifest"):
        jd.open_dataset(address, cache_folder=tmp_path)


def test_a_newer_dataset_is_refused(address, memory, tmp_path):
    manifest = json.loads(memory.cat_file("/bucket/tiny/manifest.json"))
    memory.pipe_file("/bucket/tiny/manifest.json", json.dumps(manifest | {"format_version": 99}).encode())
    with pytest.raises(UserError, match="format 99"):
        jd.open_dataset(address, cache_folder=tmp_path)


@pytest.mark.parametrize(("scheme", "extra"), [("gs", "gcs"), ("s3", "s3")])
def test_an_absent_driver_names_its_extra(monkeypatch, scheme, extra, tmp_path):
    import fsspec.core

    monkeypatch.setitem(sys.modules, "obstore", None)

    def absent(address: str) -> None:
        raise ImportError(f"Install the driver of {address}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", absent)
    for read in (jd.open_dataset, lambda *where, **how: jd.make_loader(*where, global_batch_size=2, **how)):
        with pytest.raises(UserError, match=rf"pip install 'jax-diversity\[{extra}\]'"):
            read(f"{scheme}://bucket/out", cache_folder=tmp_path)


def test_an_unknown_address_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="address that fsspec supports, found nowhere://out"):
        jd.open_dataset("nowhere://out", cache_folder=tmp_path)


def test_a_cache_that_cannot_be_written_is_a_sentence(address, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="choose another cache_folder"):
        jd.open_dataset(address, cache_folder=tmp_path / "file")


def test_a_large_ordering_is_fetched_in_pieces_and_each_once(tmp_path, memory, monkeypatch):
    for module in ("foundation.artifacts", "streaming.dataset.orderings", "streaming.dataset.remote"):
        monkeypatch.setattr(f"jax_diversity.{module}.PIECE_BYTES", 256)
    tiny = write_tiny_dataset(tmp_path / "out", layout="ordered")
    where = upload(tiny.root, "memory://bucket/pieces")
    name, order = "/bucket/pieces/orderings/balance.npy", tiny.orders["balance"]
    reads, cache = Reads(monkeypatch), tmp_path / "cache"

    def ranges() -> list[int]:
        return [start for read, start, _ in reads.ranges if read == "balance.npy"]

    ordering = jd.open_dataset(where, cache_folder=cache).open_ordering("balance")
    assert ranges() == [0]  # the header
    np.testing.assert_array_equal(ordering.at(np.array([2, len(order) - 1])), order[[2, -1]])
    assert ranges() == [0, (128 + 8 * (len(order) - 1)) // 256 * 256]
    again = jd.open_dataset(where, cache_folder=cache).open_ordering("balance")
    np.testing.assert_array_equal(again.indices, order)
    assert sorted(ranges()) == list(range(0, 128 + 8 * len(order), 256))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).indices, order)

    folder = RemoteFolder(where, cache)
    whole = folder.fetch("orderings/balance.npy").resolve()
    assert folder.pieces_path("orderings/balance.npy") == whole
    before = len(ranges())
    whole_again = jd.open_dataset(where, cache_folder=cache).open_ordering("balance")
    np.testing.assert_array_equal(whole_again.indices, order)
    assert len(ranges()) == before

    content = bytearray(memory.cat_file(name))
    content[300] ^= 1
    memory.pipe_file(name, bytes(content))
    other = jd.open_dataset(where, cache_folder=tmp_path / "other").open_ordering("balance")
    assert other.at(np.array([0])) == order[0]
    with pytest.raises(UserError, match=r"found a part \(piece 1\)"):
        other.at(np.arange(30))
    memory.rm(name)
    with pytest.raises(UserError, match="no such object"):
        jd.open_dataset(where, cache_folder=tmp_path / "third").open_ordering("balance")

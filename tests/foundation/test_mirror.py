"""A folder whose files are kept in an object store: the same objects after any kill and fault, and one sentence each.

The store is fsspec's memory. A small build of two stages with jobs stands for a build.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from pathlib import Path

import pytest

from jax_diversity.foundation import jobs as package_jobs
from jax_diversity.foundation import mirror as mirrors
from jax_diversity.foundation import object_store, shards
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.executors import Here
from jax_diversity.foundation.mirror import local_folder, mirror_of, scratch_folder
from jax_diversity.foundation.mirrored_folder import MirroredFolder
from jax_diversity.foundation.shards import FirstShard
from tests.support.followers import ABOUT, Follower
from tests.support.mirrored_build import build
from tests.support.store_faults import ADDRESS, Faults, KilledError


@pytest.fixture(autouse=True)
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(package_jobs, "_PACKAGE", "tests")
    for module, name, value in (
        (object_store, "_FIRST_WAIT_SECONDS", 1e-4),
        (mirrors, "_FIRST_WAIT_SECONDS", 1e-4),
        (mirrors, "_DEAD_SECONDS", 0.01),
        (shards, "_BEAT_SECONDS", 0.01),
        (shards, "_LOOK_SECONDS", 0.002),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no test here ends the machine
    return Faults(monkeypatch)


def lose_scratch() -> None:
    shutil.rmtree(local_folder(ADDRESS).parent)


def stored(faults: Faults) -> dict[str, bytes]:
    return {name: content for name, content in faults.objects().items() if not name.startswith((".lease", ".shards"))}


@pytest.mark.parametrize("loses", [False, True], ids=["same-machine", "other-machine"])
def test_a_build_killed_after_any_request_ends_the_same(faults: Faults, loses: bool) -> None:
    build(number=2)
    whole, num_changes = stored(faults), len(faults.changes)
    assert whole["lengths/lengths-1.txt"] == b"a11"
    assert not [name for name in whole if name.startswith(".")]
    for left in range(loses, num_changes, 2):
        faults.clear()
        lose_scratch()
        faults.left = left
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it waits for the lease of the killed build
            with pytest.raises(KilledError):
                build(number=2)
            faults.left = None
            if loses:
                lose_scratch()
            build(number=2)
        assert stored(faults) == whole, left


def test_every_object_is_put_once_and_the_manifest_after_its_files(faults: Faults) -> None:
    build()
    put = [name for kind, name in faults.changes if kind == "put" and not name.startswith(".lease")]
    assert len([name for name in put if name != "manifest.json"]) == len({*put} - {"manifest.json"})
    changed = [name for kind, name in faults.changes if kind != "delete"]
    words, lengths = (place for place, name in enumerate(changed) if name == "manifest.json")
    places = {place: name.partition("/")[0] for place, name in enumerate(changed)}
    assert max(place for place, folder in places.items() if folder == "words") < words
    assert max(place for place, folder in places.items() if folder == "lengths") < lengths
    faults.changes.clear()
    build()  # nothing to do
    assert {name[:6] for _, name in faults.changes} == {".lease"}


def test_other_settings_replace_the_files_and_leave_none_behind(faults: Faults) -> None:
    build("b", number=2)
    whole = stored(faults)
    faults.clear()
    lose_scratch()
    build("a", number=4)
    lose_scratch()
    faults.left = 20  # the third build goes on in the place of a killed one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(KilledError):
            build("c", number=5)
        faults.left = None
        build("b", number=2)
    assert stored(faults) == whole


@pytest.mark.parametrize("fault", [{"fail_every": 3}, {"cut_every": 4}, {"stale": 2}])
def test_faults_that_pass_change_nothing(faults: Faults, fault: dict[str, int]) -> None:
    build()
    whole = stored(faults)
    faults.clear()
    lose_scratch()
    for name, value in fault.items():
        setattr(faults, name, value)
    build()
    lose_scratch()
    build("a", number=3)
    assert stored(faults) == whole


def test_a_store_that_cannot_be_written_is_one_sentence(faults: Faults) -> None:
    faults.refused = True
    with pytest.raises(UserError, match=r"Expected the right to write memory://.*\.lease.* right to write\."):
        build()
    faults.refused = False
    faults.ignores_condition = True
    with pytest.raises(UserError, match=r"only if it does not exist \(If-None-Match\) .* use another store"):
        build()


def test_a_file_that_the_store_has_lost_is_made_again(faults: Faults) -> None:
    folder = build()
    whole = stored(faults)
    lose_scratch()
    folder.mirror.store.delete("words/words-1.txt")
    build()
    assert stored(faults) == whole


def test_two_builds_of_one_address_are_one_sentence(faults: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "_DEAD_SECONDS", 5.0)
    monkeypatch.setattr(mirrors, "_BEAT_SECONDS", 0.03)
    folder = MirroredFolder(ADDRESS)
    with folder.lock():
        with pytest.raises(UserError, match="is being written by this process"), MirroredFolder(ADDRESS).lock():
            pass
        other = mirror_of(other_scratch("other"))  # another machine
        assert other is not None
        with (
            pytest.warns(UserWarning, match=r"waiting 5 seconds"),
            pytest.raises(UserError, match=r"memory://bucket/dataset is being written by process \d+ on .* \(out\)"),
            mirrors.Lease(other).held(),
        ):
            pass
        monkeypatch.setattr(mirrors, "_DEAD_SECONDS", 0.0)  # as if this process had been stopped for a minute
        with (
            pytest.warns(UserWarning, match="waiting 0 seconds"),
            mirrors.Lease(other).held(),
            pytest.raises(UserError, match=r"Expected this build alone .* has taken it over"),
        ):
            folder.write_manifest()
    with MirroredFolder(ADDRESS).lock():
        pass


def other_scratch(name: str) -> Path:
    """A scratch folder of the same address, as another machine has."""
    first = local_folder(ADDRESS)
    root = first.parent.with_name(name) / "dataset"
    root.mkdir(parents=True, exist_ok=True)
    (root.parent / "address").write_text(ADDRESS)
    (root.parent / "token").write_text(name)
    return root


def follower(index: int, count: int) -> Follower:
    return Follower(other_scratch(f"host-{index}"), index, count)


@pytest.mark.parametrize("fault", [{}, {"fail_every": 7}, {"cut_every": 5}, {"stale": 2}])
def test_hosts_that_share_only_the_store_make_the_same(faults: Faults, fault: dict[str, int]) -> None:
    build(number=7)
    whole = stored(faults)
    faults.clear()
    lose_scratch()
    for name, value in fault.items():
        setattr(faults, name, value)
    followers = [follower(index, 3) for index in (1, 2)]
    root = local_folder(ADDRESS)
    with FirstShard(root, 3, Here(), ABOUT, 20.0) as executor:
        build(inner=executor, number=7)
    assert [each.end().error for each in followers] == [None, None]
    assert [each.num_jobs for each in followers] == [4, 4]
    assert stored(faults) == whole
    assert not list(followers[0].root.glob("lengths/*"))  # published by host 0 alone


def test_a_finished_job_whose_file_is_gone_is_one_sentence_and_runs_again(faults: Faults) -> None:
    build(number=3)
    whole = stored(faults)
    faults.clear()
    lose_scratch()
    second = follower(1, 2)
    faults.lost = "words-1.txt"
    root = local_folder(ADDRESS)
    with (
        pytest.raises(UserError, match=r"Expected 2 bytes with SHA-256 .*words-1\.txt, found no such object"),
        FirstShard(root, 2, Here(), ABOUT, 20.0) as executor,
    ):
        build(inner=executor, number=3)
    assert re.search(r"Shard 0 of 2 failed", str(second.end().error))
    faults.lost = ""
    second = follower(1, 2)
    with FirstShard(root, 2, Here(), ABOUT, 20.0) as executor:
        build(inner=executor, number=3)
    assert second.end().error is None
    assert stored(faults) == whole


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"who": "a\\nb", "beat": {}}'])
def test_a_damaged_lease_is_taken_over(faults: Faults, content: bytes) -> None:
    folder = MirroredFolder(ADDRESS)
    folder.mirror.store.put(".lease/00000007", content)
    with pytest.warns(UserWarning, match=r"(None|a b) was writing to memory://bucket/dataset; waiting 0.01 seconds"):
        build()
    assert {name for name in faults.objects() if name.startswith(".")} == {".lease/00000008"}


def test_a_scratch_folder_is_known_by_its_place(tmp_path: Path, faults: Faults) -> None:
    root = local_folder(ADDRESS)
    assert root.name == "dataset"
    assert mirror_of(root) is mirror_of(root) is not None
    copy = shutil.copytree(root.parent, tmp_path / "copy") / root.name
    assert mirror_of(copy) is None
    assert mirrors.mirror_of_file(root) is None
    assert mirrors.mirror_of_file(root / "words" / "a") is mirror_of(root)


@pytest.mark.parametrize("address", ["memory://", "memory://b/..", "gs://bucket/.", "gs://bucket/a\nb"])
def test_an_address_without_a_name_is_one_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match="ends in the name of the dataset, such as gs://bucket/dataset, found"):
        scratch_folder(address)
    assert not any(tmp_path.iterdir())

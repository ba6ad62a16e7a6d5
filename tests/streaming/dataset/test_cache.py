"""The cache of remote datasets has a limit: the least recently used files go first, and no file in use goes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import jax_diversity as jd
from jax_diversity.foundation.errors import UserError
from jax_diversity.streaming.dataset import cache
from jax_diversity.streaming.dataset.remote import RemoteFolder
from tests.support.remote_datasets import upload
from tests.support.tiny_dataset import write_tiny_dataset

PAGE = 4096
FILE = "records/train-00001-of-"


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three datasets with different records."""
    folder = tmp_path_factory.mktemp("datasets")
    return [
        upload(write_tiny_dataset(folder / str(seed), seed=seed).root, f"memory://bucket/cached-{seed}")
        for seed in range(3)
    ]


def fetch(address: str, folder: Path, time: float) -> tuple[RemoteFolder, Path]:
    """Fetch one record file, and let it be used last at a time."""
    remote = RemoteFolder(address, folder)
    path = remote.fetch(next(name for name in remote.files if name.startswith(FILE))).resolve()
    os.utime(path.with_name(f"{path.name}.lock"), (time, time))
    return remote, path


def let_fit(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Set the limit to the size of some files."""
    monkeypatch.setattr(cache, "CACHE_BYTES", sum(512 * path.stat().st_blocks for path in paths) + PAGE // 2)


def test_the_least_recently_used_file_goes_first(addresses, tmp_path, monkeypatch) -> None:
    paths = [fetch(address, tmp_path, time)[1] for address, time in zip(addresses, (2.0, 1.0), strict=False)]
    (tmp_path / "files" / "notes").write_text("of someone else" * 10_000)
    let_fit(monkeypatch, *paths)
    third = fetch(addresses[2], tmp_path, 3.0)[1]
    assert [path.exists() for path in (*paths, third)] == [True, False, True]
    again = fetch(addresses[1], tmp_path, 4.0)[1]  # a removed file is fetched again
    assert [path.exists() for path in (paths[0], again, third)] == [False, True, True]
    assert (tmp_path / "files" / "notes").exists()


def test_files_of_an_open_dataset_stay(addresses, tmp_path, monkeypatch) -> None:
    remote, first = fetch(addresses[0], tmp_path, 1.0)
    copy = pickle.loads(pickle.dumps(remote))
    del remote
    second = fetch(addresses[1], tmp_path, 2.0)[1]
    let_fit(monkeypatch, first)
    third = fetch(addresses[2], tmp_path, 3.0)[1]
    assert [path.exists() for path in (first, second, third)] == [True, False, True]
    del copy
    fetch(addresses[1], tmp_path, 4.0)
    assert not first.exists()


HOLDER = """
import sys
from pathlib import Path
from jax_diversity.streaming.dataset.cache import keep_files
class Owner: pass
owner = Owner()
keep_files(Path(sys.argv[1]), Path(sys.argv[2]), owner)
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(*paths: Path) -> Iterator[None]:
    """Another process that has opened a dataset; it is killed in the end."""
    command = [sys.executable, "-c", HOLDER, *map(str, paths)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield
        process.kill()


@pytest.mark.campaign
def test_another_process_may_use_the_files_until_it_is_killed(addresses, tmp_path, monkeypatch) -> None:
    remote, first = fetch(addresses[0], tmp_path, 1.0)
    root = remote.root
    let_fit(monkeypatch, first)
    with holder(tmp_path, root):
        del remote
        fetch(addresses[1], tmp_path, 2.0)
        assert first.exists()
    fetch(addresses[2], tmp_path, 3.0)
    assert not first.exists()


def test_a_dataset_larger_than_the_limit_is_read_whole(addresses, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(cache, "CACHE_BYTES", PAGE)
    loader = jd.make_loader(addresses[0], ordering="balance", global_batch_size=4, cache_folder=tmp_path)
    assert sum(1 for _ in loader) == len(loader)
    assert len(list((tmp_path / "files").glob("[0-9a-f]*[0-9a-f]"))) > 3


def test_a_damaged_manifest_of_an_open_dataset_is_a_sentence(addresses, tmp_path, monkeypatch) -> None:
    remote, first = fetch(addresses[0], tmp_path, 1.0)
    (remote.root / "manifest.json").write_text("{}")
    let_fit(monkeypatch, first)
    with pytest.raises(UserError, match=r"manifest\.json is not a dataset's manifest"):
        fetch(addresses[1], tmp_path, 2.0)

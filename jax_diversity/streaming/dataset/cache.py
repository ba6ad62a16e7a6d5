"""The local folder for files from object stores: locks, and a limit of its size.

The limit is for the folders `files` and `pieces`. Before a file is fetched, the files that were used least recently
are removed until it fits. A file is in use while a process has opened a dataset whose manifest names it: the process
holds a lock in the folder of this dataset, and the operating system releases the lock when the process ends. Files in
use are not removed, so the cache may be larger than the limit.
"""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jax_diversity.foundation.artifacts import manifest_files, parse_manifest
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.locks import lock

CACHE_BYTES = 100 * 10**9
"""The limit, if the disk has at least twice this size; otherwise half of the disk."""
FILES, PIECES, DATASETS = "files", "pieces", "datasets"
_IN_USE = "in_use.lock"
_LOCK = ".lock"
_IS_HASH = re.compile("[0-9a-f]{64}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert failures to write a file of the cache to a `UserError` of one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Could not write {path}: {error.strerror or error}; free space or choose another cache_folder."
        ) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the place of a file in the cache; the lock is released at the latest when the process ends."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _lock_of(path).open("a")
    # The lock file is not removed. Otherwise one process could lock the removed file, and another process a new file.
    with file:
        lock(file)
        yield


def keep_files(cache: Path, dataset: Path, owner: object) -> None:
    """Mark the files of a dataset as in use until `owner` is freed; `dataset` is its folder, with its manifest."""
    # With the lock of `make_room`, a file that exists from here on is not removed any more.
    with locked(cache / "room"), writing(dataset):
        handle = os.open(dataset / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        lock(handle, shared=True)
    weakref.finalize(owner, os.close, handle)


def mark_used(path: Path) -> None:
    """Note that a file of the cache is used now."""
    # The time of the file itself is not changed: it would look like a changed file, which is hashed again.
    with suppress(OSError):
        os.utime(_lock_of(path))


def make_room(cache: Path, num_bytes: int) -> None:
    """Remove files that no process uses, the least recently used first, until a file of `num_bytes` fits."""
    with locked(cache / "room"), writing(cache):
        sizes = {}
        for path in (path for folder in (FILES, PIECES) for path in (cache / folder).glob("*")):
            if _IS_HASH.fullmatch(path.name):  # not a lock, nor a file of others
                sizes[path] = 512 * path.lstat().st_blocks  # files of pieces have holes: their sizes are larger
        excess = sum(sizes.values()) + num_bytes - min(CACHE_BYTES, shutil.disk_usage(cache).total // 2)
        if excess <= 0:
            return
        kept = _hashes_in_use(cache / DATASETS)
        for path in sorted((path for path in sizes if path.name not in kept), key=_last_use):
            if excess <= 0:
                return
            with suppress(PermissionError):  # a file of another user
                path.unlink(missing_ok=True)
                excess -= sizes[path]


def _hashes_in_use(datasets: Path) -> set[str]:
    """Return the SHA-256 of all files in the manifests of the datasets that processes have opened."""
    hashes = set[str]()
    for mark in filter(_is_locked, datasets.glob(f"*/{_IN_USE}")):
        path = mark.with_name("manifest.json")
        files = manifest_files(parse_manifest(path.read_bytes(), str(path)))
        hashes |= {description["sha256"] for description in files.values()}
    return hashes


def _is_locked(path: Path) -> bool:
    try:
        with path.open("a") as file:
            return not lock(file, wait=False)
    except OSError:  # it belongs to another user, who may use it
        return True


def _last_use(path: Path) -> float:
    with suppress(OSError):
        return _lock_of(path).stat().st_mtime
    return 0.0


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)

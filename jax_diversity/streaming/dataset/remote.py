"""Datasets on object stores: needed files are fetched into a local folder, checked, and kept.

The address of a dataset is any address that fsspec supports, such as `gs://bucket/out` or `s3://bucket/out`. When the
dataset is opened, its manifest is read. The manifest has the length and the SHA-256 of all other files. The cache
contains:

    files/SHA256                a fetched file, shared by all datasets, always complete and checked
    datasets/KEY/               the folder of a dataset, one folder for each manifest: links to the fetched files
    pieces/SHA256               a large array; the file contains only the pieces that were read
    streams/                    files that `loader.stream_batches` reads once and removes

If a stage was made again, only the files of this stage are fetched again. Any number of processes may share a cache.
Its size has a limit (`jax_diversity.streaming.dataset.cache`). The cache may be removed when no process reads from it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import (
    PIECE_BYTES,
    Fault,
    atomic_path,
    is_as_written,
    manifest_files,
    parse_manifest,
    remove_leftovers,
    write_text,
)
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import user_cache
from jax_diversity.foundation.object_store import ObjectStore, sleep
from jax_diversity.streaming.dataset.cache import (
    DATASETS,
    FILES,
    PIECES,
    keep_files,
    locked,
    make_room,
    mark_used,
    writing,
)


def local_path(path: str | Path) -> Path:
    """A local path, possibly given as a `file://` address."""
    return Path(path.removeprefix("file://")) if isinstance(path, str) else path


class RemoteFolder:
    """The folder of a dataset at an address on an object store, and the local folder for its fetched files.

    Any number of threads and processes may fetch; a pickle contains only names. Files are kept in `cache_folder`; None
    means `jax-diversity` in the cache folder of the user.
    """

    def __init__(self, address: str, cache_folder: str | Path | None = None) -> None:
        self.address = address.rstrip("/")
        self.store = ObjectStore(self.address)
        self.cache_folder = user_cache() if cache_folder is None else Path(cache_folder).absolute()
        manifest = bytes(self.store.read_surely("manifest.json", what="a dataset's manifest"))
        # One folder for every manifest: a new build does not change an open dataset.
        key = hashlib.sha256(self.address.encode() + b"\n" + manifest).hexdigest()[:32]
        self.root = self.cache_folder / DATASETS / key
        self.files = manifest_files(parse_manifest(manifest, f"{self.address}/manifest.json"))
        # The name of the folder is the hash of the manifest, so an existing manifest is equal.
        path = self.root / "manifest.json"
        with locked(self.root / "manifest"):
            if not path.exists() or path.read_bytes() != manifest:
                write_text(path, manifest.decode("utf-8"))
        keep_files(self.cache_folder, self.root, self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        keep_files(self.cache_folder, self.root, self)

    def __repr__(self) -> str:
        return f"RemoteFolder({self.address})"

    def fetch(self, name: str, *, checked: bool = True) -> Path:
        """Return the local path of a file of the manifest; the file is fetched first if it is absent.

        A damaged file in the cache is fetched again. `checked=False` compares only sizes, for files with their own
        checksums.
        """
        description, is_good = self.files[name], _is_whole if checked else _is_there
        path, stored = self.root / name, self.cache_folder / FILES / self.files[name]["sha256"]
        if not is_good(path, description):
            # By content: datasets that share a file, and new builds of one dataset, fetch it once.
            with locked(stored):
                if not is_good(stored, description):
                    remove_leftovers(stored.parent, stored.name)
                    make_room(self.cache_folder, description["bytes"])
                    with writing(stored), atomic_path(stored) as temporary:
                        self.download(name, temporary)
                # The stored file is locked, not the link: waiting threads find the link afterwards.
                if not _is_there(path, description):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.unlink(missing_ok=True)  # a link to a file that was removed
                    path.symlink_to(stored)
        mark_used(stored)
        return path

    def pieces_path(self, name: str) -> Path:
        """Return the local path of a large array of which only the pieces that are read are fetched.

        It is the whole file, if that was fetched. Otherwise a file is made here, without content; see `OrderingFile`.
        """
        description = self.files[name]
        if _is_there(whole := self.cache_folder / FILES / description["sha256"], description):
            return whole
        path = self.cache_folder / PIECES / description["sha256"]
        with locked(path):
            if not _is_there(path, description):
                make_room(self.cache_folder, description["bytes"])
                with writing(path), atomic_path(path) as temporary:
                    os.truncate(temporary, description["bytes"])
        mark_used(path)
        return path

    def fetch_piece(self, name: str, piece: int) -> bytes:
        """Return a piece of a file of the manifest, unchecked."""
        start = piece * PIECE_BYTES
        return bytes(self.store.read_surely(name, start, min(start + PIECE_BYTES, self.files[name]["bytes"])))

    def fetch_path(self, path: Path) -> None:
        """Fetch the file that belongs at a path of the local folder, comparing its size only."""
        self.fetch(path.relative_to(self.root).as_posix(), checked=False)

    def download(self, name: str, path: Path, wait: Callable[[float], bool] = sleep) -> None:
        """Write a file of the manifest to a path, and check it; its pieces are fetched in parallel.

        `wait` waits for some seconds before a further try, and for none between pieces. If it returns True, the work
        ends with `InterruptedError` and leaves an incomplete file.
        """

        def write(piece: bytes) -> None:
            file.write(piece)
            if wait(0):
                raise InterruptedError

        expected = self.files[name]["sha256"]
        with path.open("wb") as file:
            present_hash = self._hash(name, write, wait)
        if present_hash != expected:
            raise UserError(
                f"Expected the file with SHA-256 {expected[:16]} at {self.address}/{name}, found one with "
                f"{present_hash[:16]}: it was changed, or written again after the dataset was opened; open "
                "the dataset again, or upload the file again."
            )

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare all objects with the manifest, without storing them; `advance` gets the number of bytes read."""
        faults = []
        for name, description in self.files.items():
            try:
                present_hash = self._hash(name, lambda piece: advance and advance(len(piece)))
            except UserError as error:
                faults.append(Fault(name, f"{description['bytes']} bytes", str(error)))
            else:
                if present_hash != description["sha256"]:
                    faults.append(Fault(name, f"sha256 {description['sha256']}", f"sha256 {present_hash}"))
        return faults

    def _hash(self, name: str, use: Callable[[bytes], Any], wait: Callable[[float], bool] = sleep) -> str:
        """Return the SHA-256 of a file at the address; `use` is called with the pieces of the file in order."""
        digest = hashlib.sha256()
        for piece in self.store.pieces(name, self.files[name]["bytes"], wait):
            digest.update(piece)
            use(piece)
        return digest.hexdigest()


def _is_there(path: Path, description: Mapping[str, Any]) -> bool:
    """Whether a fetched file still exists; its bytes were checked before it got its name."""
    try:
        return path.stat().st_size == description["bytes"]
    except OSError:
        return False


def _is_whole(path: Path, description: Mapping[str, Any]) -> bool:
    """Whether a fetched file still exists with the same bytes."""
    return _is_there(path, description) and is_as_written(path, description)

"""Datasets on object stores: needed files are fetched into a local folder, checked, and kept.

A dataset's address is anything that fsspec reads, `gs://bucket/out` or `s3://bucket/out`. Every opening of
the dataset reads its manifest, which has the length and the SHA-256 of every other file. The cache contains

    files/SHA256                one file each, for all datasets, always complete and checked
    datasets/KEY/               a dataset's folder, one for each manifest: links to the fetched files
    streams/                    files that `loader.stream_batches` reads once and removes

After a stage was made again, only that stage's files are fetched again. Any number of processes may share a
cache. It may be removed when nothing reads from it.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import (
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
from jax_diversity.foundation.libraries import missing_driver

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_PIECE_BYTES = 8 * 2**20
_PIECES_AT_A_TIME = 4


def is_address(path: str | Path) -> bool:
    """Whether this is an address on an object store rather than a local path."""
    return isinstance(path, str) and _ADDRESS.match(path) is not None and not path.startswith("file://")


def local_path(path: str | Path) -> Path:
    """A local path, possibly given as a `file://` address."""
    return Path(path.removeprefix("file://")) if isinstance(path, str) else path


class RemoteFolder:
    """A dataset's folder at an address that fsspec knows, and the local folder that its files are fetched into.

    Any number of threads and processes may fetch; a pickle carries names only. Files are kept in `cache_folder`, None
    takes `jax-diversity` below the user's cache directory.
    """

    def __init__(self, address: str, cache_folder: str | Path | None = None) -> None:
        self.address = address.rstrip("/")
        self.cache_folder = user_cache() if cache_folder is None else Path(cache_folder).absolute()
        with _faults(f"{self.address}/manifest.json", "a dataset's manifest"):
            manifest = self._read("manifest.json")
        # One folder for every manifest: a new build does not change an open dataset.
        key = hashlib.sha256(self.address.encode() + b"\n" + manifest).hexdigest()[:32]
        self.root = self.cache_folder / "datasets" / key
        self.files = manifest_files(parse_manifest(manifest, f"{self.address}/manifest.json"))
        # The folder's name is the manifest's hash: an existing manifest is equal.
        path = self.root / "manifest.json"
        with locked(self.root / "manifest"):
            if not path.exists() or path.read_bytes() != manifest:
                write_text(path, manifest.decode("utf-8"))

    def __getstate__(self) -> dict[str, Any]:
        # Connections do not survive a pickle; the other process opens its own.
        return {name: value for name, value in self.__dict__.items() if name != "_opened"}

    def __repr__(self) -> str:
        return f"RemoteFolder({self.address})"

    def fetch(self, name: str, *, checked: bool = True) -> Path:
        """The local path of one of the manifest's files, which is fetched first if it is absent.

        A damaged file in the cache is fetched again. `checked=False` compares only sizes, for files with their own
        checksums.
        """
        about, is_good = self.files[name], _is_whole if checked else _is_there
        path = self.root / name
        if not is_good(path, about):
            # By content: datasets that share a file, and new builds of one dataset, fetch it once.
            stored = self.cache_folder / "files" / about["sha256"]
            with locked(stored):
                if not is_good(stored, about):
                    remove_leftovers(stored.parent, stored.name)
                    with _writing(stored), atomic_path(stored) as temporary:
                        self.download(name, temporary)
                # The lock is the stored file's, not the link's: waiting threads find the link afterwards.
                if not _is_there(path, about):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.unlink(missing_ok=True)  # a link to a file that was removed
                    path.symlink_to(stored)
        return path

    def fetch_path(self, path: Path) -> None:
        """Fetch the file that belongs at a path of the local folder, comparing its size only."""
        self.fetch(path.relative_to(self.root).as_posix(), checked=False)

    def download(self, name: str, path: Path, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Write one of the manifest's files to a path, in pieces that are fetched in parallel, and check it.

        `is_stopped` is called between pieces; True ends the work with `InterruptedError` and leaves half a file.
        """

        def write(piece: bytes) -> None:
            file.write(piece)
            if is_stopped():
                raise InterruptedError

        expected = self.files[name]["sha256"]
        with path.open("wb") as file:
            found = self._hash(name, write)
        if found != expected:
            raise UserError(
                f"Expected the file of SHA-256 {expected[:16]} at {self.address}/{name}, found one of "
                f"{found[:16]}: it was changed, or written again after the dataset was opened; open "
                "the dataset again, or upload the file again."
            )

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare every object with the manifest, without keeping any; `advance` is called with the bytes read."""
        faults = []
        for name, about in self.files.items():
            try:
                found = self._hash(name, lambda piece: advance and advance(len(piece)))
            except UserError as error:
                faults.append(Fault(name, f"{about['bytes']} bytes", str(error)))
            else:
                if found != about["sha256"]:
                    faults.append(Fault(name, f"sha256 {about['sha256']}", f"sha256 {found}"))
        return faults

    def _hash(self, name: str, use: Callable[[bytes], Any]) -> str:
        """SHA-256 of a file at the address; `use` is called with its pieces in order."""
        digest = hashlib.sha256()
        for piece in self._pieces(name):
            digest.update(piece)
            use(piece)
        return digest.hexdigest()

    def _pieces(self, name: str) -> Iterator[bytes]:
        """A file's bytes in order; the next pieces are fetched while one is used."""
        size = self.files[name]["bytes"]
        starts = deque(range(0, size, _PIECE_BYTES))
        coming: deque[Future[bytes]] = deque()  # in the order of the file, so that the hash can be taken piece by piece
        # One connection rarely uses the whole network; a few parallel pieces do, with bounded memory.
        with ThreadPoolExecutor(_PIECES_AT_A_TIME, thread_name_prefix="jax-diversity-fetch") as threads:
            try:
                while starts or coming:
                    while starts and len(coming) < _PIECES_AT_A_TIME:
                        start = starts.popleft()
                        coming.append(threads.submit(self._piece, name, start, min(start + _PIECE_BYTES, size)))
                    yield coming.popleft().result()
            finally:  # also if the reader stops early: pieces that have not begun are not fetched
                threads.shutdown(wait=False, cancel_futures=True)

    def _piece(self, name: str, start: int, stop: int) -> bytes:
        with _faults(f"{self.address}/{name}", f"{stop - start} bytes from byte {start} on"):
            piece = self._read(name, start=start, end=stop)
        if len(piece) != stop - start:
            raise UserError(
                f"Expected {self.files[name]['bytes']} bytes at {self.address}/{name}, found {start + len(piece)}; "
                "upload the file again."
            )
        return piece

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        import fsspec

        # In a chain such as simplecache::gs://bucket the last protocol names the store.
        protocol = self.address.partition("://")[0].rpartition("::")[2]
        try:
            return fsspec.core.url_to_fs(self.address)
        except ImportError as error:
            raise missing_driver(protocol, error) from None
        except ValueError as error:
            raise UserError(f"Expected an address that fsspec knows, found {self.address}: {error}.") from None

    def _read(self, name: str, **span: int) -> bytes:
        filesystem, path = self._opened
        return bytes(filesystem.cat_file(f"{path.rstrip('/')}/{name}", **span))


def _is_there(path: Path, about: Mapping[str, Any]) -> bool:
    """Whether a fetched file still exists; its bytes were checked before it got its name."""
    try:
        return path.stat().st_size == about["bytes"]
    except OSError:
        return False


def _is_whole(path: Path, about: Mapping[str, Any]) -> bool:
    """Whether a fetched file still exists with the same bytes."""
    return _is_there(path, about) and is_as_written(path, about)


@contextmanager
def _faults(where: str, what: str) -> Iterator[None]:
    """Turn the drivers' various exceptions into a `UserError` of one sentence."""
    try:
        yield
    except UserError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise UserError(
            f"Expected {what} at {where}, found no such object; check the address, or upload it again."
        ) from None
    except Exception as error:
        reason = " ".join(str(error).split()) or repr(error)
        raise UserError(f"Expected {what} at {where}, but it could not be read: {reason}.") from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Could not write {path}: {error.strerror or error}; free space or choose another cache_folder."
        ) from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a file's place in the cache; the lock ends with the process in any case."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("a")
    # The lock file stays. Otherwise a process that opened it before its removal and one that made it again would lock
    # two different files.
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

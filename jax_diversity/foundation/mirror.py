"""A dataset's folder whose files are kept in an object store: a local *scratch* folder, and the store's objects.

A build writes into the scratch folder, as it would into a dataset's folder. Every file that a stage or a job has
finished is written to the store under the same name; then the record of the job or the manifest follows. A file that
is absent in the scratch folder is fetched when it is needed, and compared with its SHA-256. So the scratch folder may
be lost at any time, and hosts with their own scratch folders share the work of a build.

The scratch folder is `builds/KEY/NAME` in the user's cache folder, where KEY is a hash of the address. Its place says
that it belongs to an address: a folder from elsewhere cannot.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import CACHE, atomic_path, is_as_written, note_hash, write_text
from jax_diversity.foundation.errors import UserError, in_one_line, quoted
from jax_diversity.foundation.folders import inside, make_folder, user_cache
from jax_diversity.foundation.object_store import ObjectStore, is_address, sleep

_LEASES = ".lease"
_ADDRESS, _TOKEN = "address", "token"
_BEAT_SECONDS = 10.0
_DEAD_SECONDS = 60.0
"""A lease that does not change for this long belongs to a build that has ended."""
_TRIES, _FIRST_WAIT_SECONDS = 6, 0.2
_AT_A_TIME = 8


def scratch_folder(address: str) -> Path:
    """Return the scratch folder of an address, which is made if it does not exist.

    Raises:
        UserError: the address has no name of a dataset, or the folder cannot be made.
    """
    address = address.rstrip("/")
    name = address.partition("://")[2].rpartition("/")[2]
    if name in ("", ".", "..") or not name.isprintable():
        raise UserError(
            f"Expected an address that ends in the name of the dataset, such as gs://bucket/dataset, found "
            f"{quoted(address)}."
        )
    try:
        builds = _builds()
    except RuntimeError:
        raise UserError(
            f"Expected a home folder for the local files of {address}, found none; set XDG_CACHE_HOME to a folder on a "
            "disk with space for the dataset."
        ) from None
    # The report's title is the name of the folder, so the scratch folder has the name of the dataset.
    root = builds / hashlib.sha256(address.encode()).hexdigest()[:32] / name
    make_folder(root)
    if _read_address(root) != address:
        write_text(root.parent / _TOKEN, secrets.token_hex(16))
        write_text(root.parent / _ADDRESS, address)
    return root


def local_folder(out: str | Path) -> Path:
    """Return a dataset's folder; for an address, its scratch folder."""
    return scratch_folder(str(out)) if is_address(out) else Path(out)


def mirror_of(root: Path) -> Mirror | None:
    """Return the mirror of a scratch folder, one in a process; None for all other folders."""
    try:
        if root.parent.parent != _builds():
            return None
    except RuntimeError:  # no home folder
        return None
    address = _read_address(root)
    return None if address is None else _mirror(root, address)


def mirror_of_file(path: Path) -> Mirror | None:
    """Return the mirror of the scratch folder with this file; None for files elsewhere."""
    try:
        names = path.relative_to(_builds()).parts
    except (RuntimeError, ValueError):
        return None
    return mirror_of(_builds() / names[0] / names[1]) if len(names) > 2 else None


def _builds() -> Path:
    return user_cache().absolute() / "builds"


def _read_address(root: Path) -> str | None:
    try:
        return (root.parent / _ADDRESS).read_text(encoding="utf-8")
    except OSError:
        return None


@lru_cache(16)
def _mirror(root: Path, address: str) -> Mirror:
    return Mirror(root, address)


class Mirror:
    """A scratch folder and the objects of its address. The names of files and objects are equal.

    Attributes:
        root: the scratch folder.
        store: the objects.
        plain: the files of the running stage that no job wrote: name -> `bytes` and `sha256`.
    """

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.store = root, ObjectStore(address)
        self.plain: dict[str, dict[str, Any]] = {}

    def name(self, path: str | Path) -> str:
        """The name of a file in the scratch folder."""
        return Path(path).relative_to(self.root).as_posix()

    def push(self, names: list[str]) -> None:
        """Write files to the store, some at a time."""
        if len(names) == 1:
            self.store.put(names[0], inside(self.root, names[0]))
            return
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="jax-diversity-push") as threads:
            for _ in threads.map(lambda name: self.store.put(name, inside(self.root, name)), names):
                pass

    def fetch(self, name: str, about: Mapping[str, Any], *, checked: bool = True) -> Path:
        """Fetch a file, unless the scratch folder has it; return its path.

        Args:
            name: the file.
            about: its `bytes` and `sha256`.
            checked: whether a file in the scratch folder is compared with its hash, and not only with its size.

        Raises:
            UserError: the store has no such object, or another one.
        """
        path = inside(self.root, name)

        def is_here() -> bool:
            is_whole = path.is_file() and path.stat().st_size == about["bytes"]
            return is_whole and (not checked or is_as_written(path, about))

        if is_here():
            return path
        with self._fetching(name):
            if is_here():
                return path
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                self._download(name, about, temporary)
            note_hash(path, about["sha256"])
        return path

    @contextmanager
    def _fetching(self, name: str) -> Iterator[None]:
        # Several processes of a machine may need the same file: one fetches it.
        folder = inside(self.root, CACHE)
        folder.mkdir(exist_ok=True)
        with (folder / f"fetch-{hashlib.sha256(name.encode()).hexdigest()[:2]}").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _download(self, name: str, about: Mapping[str, Any], path: Path) -> None:
        # A store may give an older object, or none, for a moment after it was written: this is tried again, too.
        seconds, found = _FIRST_WAIT_SECONDS, "no such object"
        for number in range(_TRIES):
            if number:
                sleep(seconds)
                seconds *= 2
            self.store.forget(name)
            size = self.store.size(name)
            if size is None or size != about["bytes"]:
                found = "no such object" if size is None else f"{size} bytes"
                continue
            digest = hashlib.sha256()
            with path.open("wb") as file:
                for piece in self.store.pieces(name, size):
                    digest.update(piece)
                    file.write(piece)
            if digest.hexdigest() == about["sha256"]:
                return
            found = f"SHA-256 {digest.hexdigest()[:16]}"
        raise LostObjectError(
            f"Expected {about['bytes']} bytes with SHA-256 {about['sha256'][:16]} at {self.store.address}/{name}, "
            f"found {found}; run the same command again, which makes the file again."
        )

    def fetch_manifest(self, sha256: str) -> None:
        """Fetch the manifest with this hash, which another host has announced."""
        path = inside(self.root, "manifest.json")
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256:
            return
        seconds = _FIRST_WAIT_SECONDS
        for _ in range(_TRIES):
            content = self.store.find("manifest.json") or b""
            if hashlib.sha256(content).hexdigest() == sha256:
                write_text(path, content.decode())
                return
            sleep(seconds)
            seconds *= 2
        raise UserError(
            f"Expected the manifest that shard 0 has announced at {self.store.address}/manifest.json, found another "
            "one: two builds may write there; run the same command again on all hosts."
        )


class LostObjectError(UserError):
    """The store has no such object, or another one."""


class Lease:
    """The right of one build to write to an address: an object that its holder renews.

    A lease is an object `.lease/NUMBER`, made with the next number by a conditional PUT: of two builds, one makes it.
    The holder writes a growing number into it every few seconds. A lease whose number does not change for a minute
    belongs to a build that has ended; clocks of different machines are never compared.
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror, self._store = mirror, mirror.store
        self._number, self._beat, self._stops = 0, 0, threading.Event()
        self._who = f"process {os.getpid()} on {socket.gethostname()}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease.

        Raises:
            UserError: another build holds it; the store refuses to be written, or cannot write under a condition.
        """
        self._take()
        thread = threading.Thread(target=self._renew, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stops.set()
            thread.join()
            with suppress(UserError):  # another build waits for a minute
                if self._last()[0] == self._number:
                    self._store.put(_lease_name(self._number), self._content(ended=True))

    def check(self) -> None:
        """Raise if another build has taken the lease, because this process did not renew it for a minute."""
        number, state = self._last()
        if number != self._number:
            raise UserError(
                f"Expected this build alone to write to {self._store.address}, found that {_holder(state)} has taken "
                "it over, because this process was stopped for a minute or could not reach the store; run one build."
            )

    def _take(self) -> None:
        while True:
            number, state = self._last()
            if number and not state.get("ended"):
                self._wait_for_end(number, state)
            self._number = number + 1
            name = _lease_name(self._number)
            if not self._store.create(name, self._content()):
                continue  # another build made it first
            if self._last()[0] > self._number:  # older leases were deleted meanwhile
                self._store.delete(name)
                continue
            # A store that ignores the condition would let every build begin.
            if self._store.create(name, b"{}"):
                raise UserError(
                    f"Expected a store that can write an object only if it does not exist (If-None-Match) at "
                    f"{self._store.address}, found one that replaced it; use another store, or build into a folder."
                )
            for older in self._store.sizes(_LEASES):
                if older < name:
                    self._store.delete(older)
            return

    def _wait_for_end(self, number: int, state: Mapping[str, Any]) -> None:
        """Wait until it is certain that the holder has ended; raises if it works."""
        # The scratch folder is locked now, so its former owner has ended.
        if state.get("scratch") == self._scratch():
            return
        warnings.warn(
            f"{_holder(state)} was writing to {self._store.address}; waiting {_DEAD_SECONDS:g} seconds to see "
            "whether it still works.",
            stacklevel=2,
        )
        end = time.monotonic() + _DEAD_SECONDS
        while time.monotonic() < end:
            sleep(min(_BEAT_SECONDS, _DEAD_SECONDS) / 2)
            now, latest = self._last()
            if now == number and latest.get("ended"):
                return
            if now != number or latest.get("beat") != state.get("beat"):
                raise UserError(
                    f"{self._store.address} is being written by {_holder(latest)}; wait for it or choose another "
                    "place (out)."
                )

    def _last(self) -> tuple[int, dict[str, Any]]:
        names = [name for name in self._store.sizes(_LEASES) if name[len(_LEASES) + 1 :].isdecimal()]
        if not names:
            return 0, {}
        try:
            content = json.loads(self._store.find(max(names)) or b"")
        except (ValueError, RecursionError):
            content = {}
        return int(max(names)[len(_LEASES) + 1 :]), content if isinstance(content, dict) else {}

    def _content(self, *, ended: bool = False) -> bytes:
        about = {"who": self._who, "scratch": self._scratch(), "beat": self._beat, "ended": ended}
        return json.dumps(about).encode()

    def _scratch(self) -> str:
        return f"{socket.gethostname()} {(self._mirror.root.parent / _TOKEN).read_text(encoding='utf-8')}"

    def _renew(self) -> None:
        while not self._stops.wait(_BEAT_SECONDS):
            self._beat += 1
            try:
                if self._last()[0] == self._number:
                    self._store.put(_lease_name(self._number), self._content())
            except UserError:
                continue  # the next beat tries again; `check` finds out if the lease is lost


def _lease_name(number: int) -> str:
    return f"{_LEASES}/{number:08d}"


def _holder(state: Mapping[str, Any]) -> str:
    return in_one_line(state.get("who"))

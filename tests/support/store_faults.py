"""Faults of an object store, and the end of a process at any request that changes the store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from jax_diversity.foundation.artifacts import RECORD
from jax_diversity.foundation.object_store import ObjectStore

ADDRESS = "memory://bucket/dataset"


class KilledError(BaseException):
    """The process has ended; it makes no further request."""


class Faults:
    """What the store does wrong, while it is installed (`monkeypatch`), and the requests that changed it.

    Attributes:
        left: requests that change the store before the process ends; None for any number.
        fail_every: every so many PUTs and GETs fail.
        cut_every: every so many PUTs store a part of the body, and report success.
        stale: how many reads of an object give its former content after it was written.
        refused: whether the store refuses to be written.
        ignores_condition: whether conditional PUTs replace objects.
        lost: the end of the names of objects that the store has lost when their record is written.
    """

    def __init__(self, monkeypatch: Any) -> None:
        self.clear()
        self.left: int | None = None
        self.fail_every = self.cut_every = self.stale = 0
        self.refused = self.ignores_condition = False
        self.lost = ""
        self._count, self._lock = 0, threading.Lock()
        read, write, copy, delete = ObjectStore.read, ObjectStore.write, ObjectStore.copy, ObjectStore.delete

        def faulty_read(store: ObjectStore, name: str, *given: Any) -> Any:
            self._live()
            self._fail()
            former, times = self._former.get(name, (None, 0))
            if times and not given:
                self._former[name] = former, times - 1
                if former is None:
                    raise FileNotFoundError(name)
                return former
            return read(store, name, *given)

        def faulty_write(store: ObjectStore, name: str, content: Any, *, create: bool = False) -> None:
            self._change("put", name)
            if self.lost and name.endswith(RECORD):
                for key in [key for key in MemoryFileSystem.store if key.endswith(self.lost)]:
                    del MemoryFileSystem.store[key]
            if self.refused:
                raise PermissionError(name)
            self._fail()
            body = content.read_bytes() if isinstance(content, Path) else content
            if self.stale and not create:
                self._former[name] = self.objects().get(name), self.stale
            if self.cut_every and self._count % self.cut_every == 0 and not create:
                body = body[: len(body) // 2]
            write(store, name, body, create=create and not self.ignores_condition)

        def faulty_copy(store: ObjectStore, name: str, to: str) -> None:
            self._change("copy", to)
            copy(store, name, to)

        def faulty_delete(store: ObjectStore, name: str) -> None:
            self._change("delete", name)
            delete(store, name)

        for name, function in {
            "read": faulty_read,
            "write": faulty_write,
            "copy": faulty_copy,
            "delete": faulty_delete,
        }.items():
            monkeypatch.setattr(ObjectStore, name, function)

    def clear(self) -> None:
        """Delete all objects."""
        MemoryFileSystem.store.clear()
        self.changes: list[tuple[str, str]] = []
        self._former: dict[str, tuple[bytes | None, int]] = {}

    def objects(self, address: str = ADDRESS) -> dict[str, bytes]:
        """The objects below an address."""
        start = f"{address.removeprefix('memory:/')}/"
        found = {name.removeprefix(start): file for name, file in MemoryFileSystem.store.items() if start in name}
        return {name: bytes(file.getbuffer()) for name, file in found.items()}

    def _live(self) -> None:
        if self.left is not None and self.left < 0:
            raise KilledError

    def _change(self, kind: str, name: str) -> None:
        with self._lock:
            if self.left is not None:
                self.left -= 1
            self._live()
            self.changes.append((kind, name))

    def _fail(self) -> None:
        with self._lock:
            self._count += 1
            if self.fail_every and self._count % self.fail_every == 0:
                raise ConnectionError("the connection was closed")

"""Datasets put into fsspec's memory, which stands for an object store, and a record of what is read there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


def upload(root: Path, address: str) -> str:
    """Put a dataset's files at an address; what was there goes."""
    filesystem, path = fsspec.core.url_to_fs(address)
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)
    for file in sorted(root.rglob("*")):
        if file.is_file() and file.name != ".lock":
            filesystem.pipe_file(f"{path}/{file.relative_to(root).as_posix()}", file.read_bytes())
    return address


class Reads:
    """Names and ranges read from memory while it is installed (`monkeypatch`), and failures to order."""

    def __init__(self, monkeypatch: Any) -> None:
        self.ranges: list[tuple[str, int | None, int | None]] = []
        self.fail_next: Exception | None = None
        self._lock = threading.Lock()
        read = MemoryFileSystem.cat_file

        def cat_file(filesystem: Any, path: str, start: int | None = None, end: int | None = None) -> bytes:
            with self._lock:
                self.ranges.append((Path(path).name, start, end))
                error, self.fail_next = self.fail_next, None
            if error is not None:
                raise error
            return read(filesystem, path, start=start, end=end)

        monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)

    @property
    def names(self) -> list[str]:
        """The names of the objects that were read, in order, each once in a row."""
        with self._lock:
            names = [name for name, _, _ in self.ranges]
        return [name for name, former in zip(names, [None, *names], strict=False) if name != former]

    def records(self) -> list[str]:
        """The record files among them."""
        return [name for name in self.names if name.endswith(".array_record")]

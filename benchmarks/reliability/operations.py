"""File operations of a process, counted, so that a kill or an error occurs at exactly the n-th.

Only operations of Python are counted; kills at random moments also reach the writes of compiled libraries.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "truncate", "ftruncate", "link")
_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Operations:
    """Patches functions of this process that touch files beneath a folder; `act(number, name)` is called before each.

    `reads` also counts files that are opened for reading.
    """

    def __init__(self, folder: Path, act: Callable[[int, str], None], *, reads: bool = False) -> None:
        self._root, self._act, self._reads = str(folder), act, reads
        self._number = 0

    def install(self) -> None:
        """Patch this process permanently."""
        for name in _CHANGES:
            setattr(os, name, self._wrapped(getattr(os, name), name))
        opened = io.open
        system_open = os.open

        def open_file(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wax+"):
                self._count(f"open {mode}", file)
            elif self._reads:
                self._count("open r", file)
            return opened(file, mode, *arguments, **options)

        def open_handle(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if flags & _FLAGS:
                self._count("os.open", path, options.get("dir_fd"))
            return system_open(path, flags, *arguments, **options)

        io.open = builtins.open = open_file
        os.open = open_handle

    def _wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            self._count(name, path, options.get("dir_fd", options.get("src_dir_fd")))
            return function(path, *arguments, **options)

        return call

    def _count(self, name: str, path: Any, folder: int | None = None) -> None:
        if self._is_ours(path, folder):
            self._number += 1
            self._act(self._number, name)

    def _is_ours(self, path: Any, folder: int | None) -> bool:
        try:
            if isinstance(path, int):
                text = os.readlink(f"/proc/self/fd/{path}")
            elif folder is not None:
                text = f"{os.readlink(f'/proc/self/fd/{folder}')}/{os.fspath(path)}"
            else:
                text = os.path.abspath(os.fspath(path))
        except (OSError, TypeError, ValueError):
            return False
        return str(text).startswith(self._root)


def count_operations(folder: Path, log: Path, *, reads: bool = False) -> Callable[[], None]:
    """Patch a fork to write the name of every operation into a log."""

    def install() -> None:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
        Operations(folder, lambda number, name: os.write(handle, f"{name}\n".encode()) and None, reads=reads).install()

    return install


def kill_at(folder: Path, number: int) -> Callable[[], None]:
    """Patch a fork to end by SIGKILL just before its n-th operation."""

    def install() -> None:
        process = os.getpid()

        def act(current: int, name: str) -> None:
            if current == number:
                os.kill(process, signal.SIGKILL)

        Operations(folder, act).install()

    return install


def fail_at(folder: Path, number: int, code: int = errno.EIO) -> Callable[[], None]:
    """Patch a fork so that its n-th operation, including reads, raises an error of the disk."""

    def install() -> None:
        def act(current: int, name: str) -> None:
            if current == number:
                raise OSError(code, os.strerror(code), "a file of the attack")

        Operations(folder, act, reads=True).install()

    return install

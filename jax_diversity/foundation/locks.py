"""Locks between processes: the only module that calls `flock`.

The operating system releases a lock when the process that holds it ends, also after a kill, so that no lock is left
behind. A lock belongs to an open file: two threads of a process exclude each other too. On a network file system, the
server must support locks: NFS since Linux 2.6.12 locks ranges of bytes for `flock`, which belong to a process.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder

_NAME = ".lock"
_LOOKS, _PAUSE_SECONDS = 20, 0.01
_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
"""The folders that this thread has locked."""
_open_locks: set[int] = set()


def _close_locks() -> None:
    """Close the locks in a forked process; otherwise it would keep them locked after its parent has ended."""
    while _open_locks:
        os.close(_open_locks.pop())


os.register_at_fork(after_in_child=_close_locks)


def lock(file: int | IO[Any], *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file until it is closed.

    Args:
        file: the file, or its descriptor.
        shared: whether other shared locks of the file are allowed at the same time.
        wait: whether to wait while another lock excludes this one.

    Returns:
        Whether the file is locked now; False only without `wait`.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and lock it for writing; the operating system releases the lock when the process ends.

    If the block raises an error, folders that this call made are removed again, unless they have content.

    Raises:
        UserError: a process or thread, possibly this one, has locked the folder; or it cannot be written to.
    """
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    make_folder(folder)
    path = folder.resolve() / _NAME
    handle = _lock(path)
    _open_locks.add(handle)
    is_complete = False
    try:
        yield
        is_complete = True
    finally:
        with suppress(OSError):  # the lock must be released even if the disk fails
            path.unlink()  # before the release, because the file of the next lock has the same name
            for new_folder in () if is_complete else new_folders:
                new_folder.rmdir()  # an error if it is not empty
        _open_locks.discard(handle)
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether a process or thread has locked a folder for writing."""
    try:
        handle = os.open(folder / _NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not lock(handle, shared=True, wait=False)
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether this thread has locked a folder with `hold`."""
    return folder.resolve() in _held.get()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Like `locked`, but a thread can lock the same folder again: functions that use `hold` can call one another."""
    path = folder.resolve()
    if path in (locked_paths := _held.get()):
        yield
        return
    with locked(folder):
        before = _held.set(locked_paths | {path})
        try:
            yield
        finally:
            _held.reset(before)


def _lock(path: Path) -> int:
    while True:
        try:
            # O_NOFOLLOW: this writes to the file; a link in its place could lead to any other file.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise UserError(
                f"Expected a folder that can be written, found {path.parent} ({path.name}: {error.strerror}); choose "
                "another one."
            ) from None
        if not lock(handle, wait=False):
            holder = _holder(handle)
            os.close(handle)
            who = f"{'this' if holder == str(os.getpid()) else 'another'} process (id {holder})"
            raise UserError(f"{path.parent} is being written by {who}; wait for it or choose another folder.") from None
        # The holder may have removed the file between the two calls: a lock on a removed file protects nothing.
        if num_names := os.fstat(handle).st_nlink:
            if num_names > 1:  # a hard link: writing the process number would overwrite another file
                os.close(handle)
                raise UserError(f"Expected a file with one name at {path}, found a hard link; remove it.")
            with suppress(OSError):  # the disk is full; the number is used only in the message above
                os.ftruncate(handle, 0)
                os.pwrite(handle, str(os.getpid()).encode(), 0)
            return handle
        os.close(handle)


def _holder(handle: int) -> str:
    """The process number in a locked file; the holder writes it a moment after it has locked the file."""
    for _ in range(_LOOKS):
        if number := os.pread(handle, 20, 0).decode(errors="replace"):
            return number
        time.sleep(_PAUSE_SECONDS)
    return "unknown"

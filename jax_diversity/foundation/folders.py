"""Make folders, and lock them for one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path, PurePath
from typing import TextIO

from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError, quoted, shortened

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


# Names of numbered files: datatrove's 00000_tokens, web_00000_tokens, 00000_00003_shuffled; dolma's part-0-00000;
# Spark's part-00000-c0ffee00-....-c000.snappy; web-00000-of-00512, also with the hash that the Hugging Face hub adds;
# shard_3, web-0001; WikiExtractor's AA/wiki_00. A year or a month is not a file's number: wiki-2024, wiki-202401.
_FILE_NUMBER = re.compile(
    r"(?:^|[-_.])\d{5}(?:_\d{5})?_(?:tokens|shuffled|unshuffled)$"
    r"|(?:^|[-_.])(?:part|shard|chunk|file)[-_.]?\d+(?:[-_.]\d+)*$"
    r"|(?:^|[-_.])(?:(?:part|shard|chunk|file)[-_.])?\d{3,}-of-\d{3,}(?:-[0-9a-f]{16})?$"
    r"|^part-\d+-(?:tid-\d+-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}.*$"
    r"|^\d+$"
    r"|(?<=^wiki)_\d\d$"
    r"|[-_.](?!(?:19|20)\d\d(?:\d\d)?$)\d{3,6}$"
)


def source_of_file(name: str, folder: str) -> str:
    """Return the source of a file's documents: its name without the file's number, or its folder if nothing is left.

    Args:
        name: the base name of the file without endings, or of a prefix of Megatron's files.
        folder: the name of its folder.

    Example:
        >>> source_of_file("books_text_document", "tokens"), source_of_file("00000_tokens", "web")
        ('books_text_document', 'web')
        >>> source_of_file("wiki-0001", "texts"), source_of_file("wiki-2024", "texts")
        ('wiki', 'wiki-2024')
    """
    return _FILE_NUMBER.sub("", name) or folder or name


def distinct_ends(paths: Sequence[str]) -> tuple[str, ...]:
    """The shortest distinct ends of some paths; the paths themselves if two of them are equal.

    Example:
        >>> distinct_ends(["a/web", "b/web", "b/code"])
        ('a/web', 'b/web', 'b/code')
    """
    parts = [Path(path).absolute().parts for path in paths]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(path[-length:]) for path in parts]
        if len(set(names)) == len(names):
            return tuple(names)
    return tuple(paths)


def user_cache() -> Path:
    """The package's folder in the user's cache folder; raises a RuntimeError if the user has no home folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jax-diversity"


def as_path(name: str, path: str | os.PathLike[str]) -> Path:
    """Check that an argument can be the path of a file or folder, and return it as a path.

    Raises:
        UserError: another type; a name that the file system cannot have, because it is too long or has a NUL.

    Example:
        >>> as_path("out", "dataset")
        PosixPath('dataset')
    """
    check_type(name, path, str | os.PathLike, "a path")
    found, reason = Path(path), ""
    try:
        os.lstat(found)
    except ValueError as error:  # a NUL
        reason = str(error)
    except OSError as error:
        reason = "its name is too long" if error.errno == errno.ENAMETOOLONG else ""
    if reason:
        raise UserError(
            f"Expected {name} to be a path that can exist, found {shortened(quoted(str(path)), 80)} ({reason})."
        )
    return found


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; raises a `UserError` if it cannot be made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    except OSError as error:
        reason = error.strerror or repr(error)
    if reason:
        raise UserError(f"Expected a folder that can be written, found {folder} ({reason}); choose another folder.")


def inside(root: Path, *names: str) -> Path:
    """Return the path of a file or folder below `root`, if no part of it below `root` is a symbolic link or a device.

    A folder may come from elsewhere: a link in it could lead to any file, and reading a named pipe may never end. Only
    `root` itself and its parents may be links.

    Raises:
        UserError: a part is a link or a device, or the names lead to a place outside the folder.

    Example:
        >>> inside(Path("dataset"), "embeddings/embeddings-00000.npy")
        PosixPath('dataset/embeddings/embeddings-00000.npy')
    """
    parts = PurePath(*names).parts
    if PurePath(*names).is_absolute() or ".." in parts:
        raise UserError(f"Expected a file in {root}, found {quoted(str(PurePath(*names)))}, which is outside it.")
    path = root
    for part in parts:
        path /= part
        if _leads_elsewhere(path):
            raise UserError(
                f"Expected no links and devices in {root}, found a link or device at {path.relative_to(root)}, which "
                f"could lead to any file; remove it, or make a copy without links (`cp -rL {root} COPY`)."
            )
    return path


def _leads_elsewhere(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def refuse_links(root: Path, *names: str) -> Path:
    """Like `inside`, but everything below that folder is also checked."""
    folder = inside(root, *names)
    for path in folder.rglob("*"):
        if _leads_elsewhere(path):
            inside(root, str(path.relative_to(root)))
    return folder


def open_to_append(path: Path) -> TextIO:
    """Open a text file for appending; symbolic links and files with several names (hard links) are refused.

    Raises:
        UserError: the path is a link, has other names (hard links), or is not a file.
    """
    try:
        # O_NONBLOCK: otherwise opening a named pipe would wait for a reader.
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise UserError(f"Expected a log that can be written at {path}, found: {error.strerror}; remove it.") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(handle)
        raise UserError(f"Expected a log that can be written at {path}, found a hard link or no file; remove it.")
    return open(handle, "a", encoding="utf-8")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder and lock it for writing; the operating system releases the lock when the process ends.

    Raises:
        UserError: a process or thread, possibly this one, has locked the folder; or it cannot be written to.
    """
    make_folder(folder)
    path = folder.resolve() / _NAME
    handle = _lock(path)
    _open_locks.add(handle)
    try:
        yield
    finally:
        with suppress(OSError):  # the lock must be released even if the disk fails
            path.unlink()  # before the release, because the file of the next lock has the same name
        _open_locks.discard(handle)
        os.close(handle)


@contextmanager
def space_for(folder: Path) -> Iterator[None]:
    """Turn the errors of a full disk into one sentence.

    Raises:
        UserError: there is no space for the files in the folder.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f"Expected space for the files in {folder}, found {error.strerror}; free some space and repeat the call."
        ) from None


def is_locked(folder: Path) -> bool:
    """Whether a process or thread has locked a folder for writing."""
    try:
        handle = os.open(folder / _NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def is_held(folder: Path) -> bool:
    """Whether this thread has locked a folder with `hold`."""
    return folder.resolve() in _held.get()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Like `locked`, but a thread can lock the same folder again: functions that use `hold` can call one another."""
    path = folder.resolve()
    if path in (held := _held.get()):
        yield
        return
    with locked(folder):
        before = _held.set(held | {path})
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
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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


def valid_name(name: str) -> str:
    """Return a file's name as text that can be stored. Names on disk may contain any bytes."""
    return os.fsencode(name).decode("utf-8", "replace")

"""Paths: names that can exist, folders that can be written, and no links below a folder of the package."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TextIO

from jax_diversity.foundation.checks import check_type
from jax_diversity.foundation.errors import UserError, quoted, shortened

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


def valid_name(name: str) -> str:
    """Return a file's name as text that can be stored. Names on disk may contain any bytes."""
    return os.fsencode(name).decode("utf-8", "replace")

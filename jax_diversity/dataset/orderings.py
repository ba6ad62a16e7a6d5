"""Orderings as files: a dataset's own by name, and those from elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import NO_ARRAY
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.ordering.stored import ORDERINGS
from jax_diversity.schema import Ordering

if TYPE_CHECKING:
    _ByName = Mapping[str, Ordering]
else:
    _ByName = Mapping  # a run-time check of types would read an ordering from disk to look at its type


class Orderings(_ByName):
    """Orderings by name, read when asked for; an unknown name raises a `UserError` that lists the known ones."""

    def __init__(self, paths: Mapping[str, Path], read: Callable[[str], Ordering]) -> None:
        self.paths = dict(paths)
        self._read = read
        self._loaded: dict[str, Ordering] = {}

    def check(self, name: str) -> None:
        """Refuse an unknown name."""
        if name not in self.paths:
            known = ", ".join(self.paths) or "none yet"
            raise UserError(f"Unknown ordering {name!r}; the dataset has {known}; make one with `jax-diversity order`.")

    def __getitem__(self, name: str) -> Ordering:
        self.check(name)
        if name not in self._loaded:
            self._loaded[name] = self._read(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self.paths

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __repr__(self) -> str:
        return f"Orderings({', '.join(self.paths)})"


class OrderingFile:
    """Numbers of sequences in a file (.npy, int64) that is memory-mapped.

    The hash of the file alone shows that it holds the expected ordering, which was checked when it was saved. To
    hash ten million numbers takes 0.05 s and no memory; to prove that they are a permutation takes 0.3 s and
    240 MB. The file that was hashed is also the one that is mapped: when another file gets its name, the map does
    not change. A file that is written to in place is refused from then on.

    Attributes:
        indices: the sequence at every position, read-only.
        fingerprint: hash of them.

    Raises:
        UserError: no such file, or one of other numbers.
    """

    def __init__(self, path: Path, fingerprint: str, num_positions: int) -> None:
        self._path, self.fingerprint = path, fingerprint
        found, shape = "no ordering", (num_positions,)
        try:
            self._file = path.open("rb")
            weakref.finalize(self, self._file.close)
            self._status = _status(self._file)  # before the hash: what is written after this line is noticed
            np.lib.format.read_magic(self._file)
            stored = np.lib.format.read_array_header_1_0(self._file)
            start = self._file.tell()
            if stored == (shape, False, np.dtype("<i8")):
                # From here to the end: the numbers without the file's header, of which a fingerprint is the hash.
                found = hashlib.file_digest(self._file, "sha256").hexdigest()
        except FileNotFoundError:
            raise UserError(f"Expected an ordering at {path}, found no such file.") from None
        except NO_ARRAY as error:
            raise UserError(f"Expected an ordering (.npy) at {path}: {in_one_line(error)}") from None
        if found != fingerprint:
            raise changed_ordering(path, fingerprint, found)
        self.indices = np.zeros(0, np.int64)
        if num_positions:  # an empty file cannot be mapped
            self.indices = np.memmap(self._file, np.int64, "r", start, shape).view(np.ndarray)

    @classmethod
    def of(cls, path: Path, ordering: Ordering) -> OrderingFile | None:
        """The file that an ordering was loaded from; None where it holds the numbers in another type."""
        with suppress(UserError):
            return cls(path, ordering.fingerprint, len(ordering))
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that unpickles maps the file itself.
        return OrderingFile, (self._path, self.fingerprint, len(self.indices))

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions; refused when the file was written to since it was opened."""
        # One system call a batch. To read a map beyond the end of a file that was cut ends the process.
        if _status(self._file) != self._status:
            raise UserError(
                f"Expected {self._path} as it was when it was opened, found it written to since; make what follows it, "
                "a loader or an export, again."
            )
        return self.indices[positions]


def _status(file: Any) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def is_file_name(ordering: Any) -> bool:
    """Tell whether an ordering is given as a .npy file, not by name nor as itself."""
    return isinstance(ordering, Path) or (isinstance(ordering, str) and ordering.endswith(".npy"))


def load_ordering(path: Path, num_sequences: int | None = None, *, expected: str | None = None) -> Ordering:
    """An ordering of so many sequences and of the expected fingerprint from a .npy file; None takes any."""
    try:
        ordering = Ordering.load(path)
    except ValueError as error:
        raise UserError(str(error)) from None
    if num_sequences not in (None, len(ordering)):
        raise UserError(
            f"Expected an ordering of {num_sequences} sequences at {path}, found one of {len(ordering)}; it was "
            "made for another dataset."
        )
    if expected not in (None, ordering.fingerprint):
        raise changed_ordering(path, str(expected), ordering.fingerprint)
    return ordering


def changed_ordering(path: Path, expected: str, found: str) -> UserError:
    """The error of a file that holds another ordering than when its fingerprint was read."""
    return UserError(
        f"Expected the ordering of fingerprint {expected[:16]} at {path}, found {found[:16]}: it was changed, or made "
        "again after the dataset or the loader was opened; open it again, or run `jax-diversity order`."
    )


def packed_beside(path: Path) -> str | None:
    """The fingerprint of the packing of the dataset in whose `orderings` folder a file lies."""
    folder = path.absolute().parent
    if folder.name != ORDERINGS:
        return None
    try:
        manifest = json.loads((folder.parent / "manifest.json").read_text(encoding="utf-8"))
        return manifest["stages"]["pack"]["fingerprint"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no dataset, or a damaged manifest: nothing is known of the file

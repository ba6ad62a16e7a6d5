"""Read orderings from files: the orderings of a dataset by name, and other .npy files."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int64

from jax_diversity.foundation.artifacts import NO_ARRAY, PIECE_BYTES
from jax_diversity.foundation.errors import UserError, did_you_mean, in_one_line
from jax_diversity.ordering.stored import ORDERINGS
from jax_diversity.schema import Ordering
from jax_diversity.schema.orderings import Order
from jax_diversity.streaming.dataset.cache import writing

if TYPE_CHECKING:
    _ByName = Mapping[str, Ordering]
else:
    _ByName = Mapping  # a check of types at run time would read an ordering from disk


class Orderings(_ByName):
    """Orderings by name, each read at its first use; an unknown name raises a `UserError` that lists the known ones."""

    def __init__(self, paths: Mapping[str, Path], read: Callable[[str], Ordering]) -> None:
        self.paths = dict(paths)
        self._read = read
        self._loaded: dict[str, Ordering] = {}

    def check(self, name: str) -> None:
        """Refuse an unknown name."""
        if name not in self.paths:
            names = ", ".join(self.paths) or "none yet"
            repeat = "" if self.paths else "repeat the command that built it, or "
            advice = did_you_mean(name, self.paths).rstrip(".") or f"; {repeat}make one with `jax-diversity order`."
            raise UserError(f"Unknown ordering {name!r}; the dataset has {names}{advice}")

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


class OrderingFile(Order):
    """An ordering's sequence indices in a memory-mapped file (.npy, int64).

    Hashes show that it is the expected ordering, which was checked when it was saved. Proving that it is a permutation
    takes six times as long, and 240 MB for ten million indices. With `pieces`, opening hashes nothing: every piece is
    hashed before its first read. Otherwise the whole file is hashed when it is opened. The file that was opened is
    mapped: if another file gets the same name, the map does not change. If the file is changed in place, reading raises
    an error.

    Args:
        path: the file.
        fingerprint: hash of the indices.
        num_positions: the number of indices.
        pieces: the SHA-256 of every piece of the file (`artifacts.describe_file`); empty for a file of one piece.
        fetch_piece: returns the bytes of a piece, given its number. The file then has the full size, and contains only
            the pieces that were read before.

    Raises:
        UserError: the file is absent or contains another ordering.
    """

    is_bijection = True

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        num_positions: int,
        pieces: Sequence[str] = (),
        fetch_piece: Callable[[int], bytes] | None = None,
    ) -> None:
        self._path, self._fingerprint, self.info = path, fingerprint, {}
        self._pieces, self._fetch_piece = tuple(pieces), fetch_piece
        self._is_checked = np.zeros(len(self._pieces), np.bool_)
        present, shape = "no ordering", (num_positions,)
        try:
            self._file: Any = path.open("rb" if fetch_piece is None else "r+b")
            weakref.finalize(self, self._file.close)
            self._status = _status(self._file)  # taken before the hash, so that later changes are noticed
            if self._pieces:
                self._check(np.zeros(1, np.int64))  # the header
            np.lib.format.read_magic(self._file)
            stored = np.lib.format.read_array_header_1_0(self._file)
            self._start = self._file.tell()
            if stored == (shape, False, np.dtype("<i8")):
                # Hash from here to the end of the file: a fingerprint is the hash of the indices without the header.
                present = fingerprint if self._pieces else hashlib.file_digest(self._file, "sha256").hexdigest()
        except FileNotFoundError:
            raise UserError(f"Expected an ordering at {path}, found no such file.") from None
        except UserError:
            raise
        except NO_ARRAY as error:
            raise UserError(f"Expected an ordering (.npy) at {path}: {in_one_line(error)}") from None
        if present != fingerprint:
            raise changed_ordering(path, fingerprint, present[:16])
        self._indices = np.zeros(0, np.int64)
        if num_positions:  # an empty file cannot be mapped
            self._indices = np.memmap(self._file, np.int64, "r", self._start, shape).view(np.ndarray)

    @classmethod
    def of(cls, path: Path, ordering: Ordering) -> OrderingFile | None:
        """The file that an ordering was loaded from; None if the numbers in the file have another type than int64."""
        with suppress(UserError):
            return cls(path, ordering.fingerprint, len(ordering))
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that unpickles maps the file itself.
        return OrderingFile, (self._path, self._fingerprint, len(self), self._pieces, self._fetch_piece)

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def num_sequences(self) -> int:
        """Number of sequences of the dataset; each occurs once."""
        return len(self)

    @property
    def fingerprint(self) -> str:
        """Hash of the indices."""
        return self._fingerprint

    @property
    def indices(self) -> Int64[np.ndarray, " position"]:
        """The sequence at every position, read-only. The whole file is checked."""
        self._check(np.arange(len(self._pieces)))
        return self._indices

    def at(self, positions: Int64[np.ndarray, " row"]) -> Int64[np.ndarray, " row"]:
        """The sequences at some positions; raises a `UserError` if the file was changed after it was opened."""
        # One system call per batch. Reading a map beyond the end of a truncated file would end the process. Other
        # processes may write pieces to a file in the cache.
        if self._fetch_piece is None and _status(self._file) != self._status:
            raise UserError(
                f"Expected {self._path} to be unchanged since it was opened, found that it was written to; make the "
                "loader or the export again."
            )
        if self._pieces:
            self._check(np.unique((self._start + positions * 8) // PIECE_BYTES))
        return self._indices[positions]

    def _check(self, pieces: Int64[np.ndarray, " piece"]) -> None:
        """Compare pieces with their hashes, each once, and fetch the pieces that are not in the file yet."""
        for piece in pieces[~self._is_checked[pieces]].tolist():
            expected, place = self._pieces[piece], piece * PIECE_BYTES
            # The bytes are read from the file, because pages of a map count as memory of the process.
            present = self._hash_at(place)
            if present != expected and self._fetch_piece is not None:
                content = self._fetch_piece(piece)
                present = hashlib.sha256(content).hexdigest()
                if present == expected:
                    with writing(self._path):
                        _write_at(self._file.fileno(), content, place)
                    # The map shows what lies in the file, so this is what must have the hash.
                    present = self._hash_at(place)
            if present != expected:
                raise changed_ordering(self._path, self._fingerprint, f"a part (piece {piece}) with {present[:16]}")
            self._is_checked[piece] = True

    def _hash_at(self, place: int) -> str:
        return hashlib.sha256(os.pread(self._file.fileno(), PIECE_BYTES, place)).hexdigest()


def _write_at(descriptor: int, content: bytes, place: int) -> None:
    """Write all bytes at a place of a file; one call may write fewer, for example on a full disk."""
    rest = memoryview(content)
    while rest:
        count = os.pwrite(descriptor, rest, place)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rest, place = rest[count:], place + count


def _status(file: Any) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def is_file_name(ordering: Any) -> bool:
    """Whether an ordering is given as a .npy file."""
    return isinstance(ordering, Path) or (isinstance(ordering, str) and ordering.endswith(".npy"))


def load_ordering(path: Path, num_sequences: int | None = None, *, expected: str | None = None) -> Ordering:
    """Read an ordering from a .npy file and compare its length and its fingerprint; None means no comparison."""
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
        raise changed_ordering(path, str(expected), ordering.fingerprint[:16])
    return ordering


def changed_ordering(path: Path, expected: str, present: str) -> UserError:
    """The error for a file whose ordering changed after its fingerprint was read."""
    return UserError(
        f"Expected the ordering of fingerprint {expected[:16]} at {path}, found {present}: it was changed, or made "
        "again after the dataset or the loader was opened; open it again, or run `jax-diversity order`."
    )


def packed_beside(path: Path) -> str | None:
    """The packing fingerprint of the dataset whose `orderings` folder contains a file; None if it is unknown."""
    folder = path.absolute().parent
    if folder.name != ORDERINGS:
        return None
    try:
        manifest = json.loads((folder.parent / "manifest.json").read_text(encoding="utf-8"))
        return manifest["stages"]["pack"]["fingerprint"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # not a dataset, or a damaged manifest

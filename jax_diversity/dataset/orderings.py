"""Orderings as files: a dataset's own by name, and those from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.foundation.errors import UserError
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
    if folder.name != "orderings":
        return None
    try:
        manifest = json.loads((folder.parent / "manifest.json").read_text(encoding="utf-8"))
        return manifest["stages"]["pack"]["fingerprint"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no dataset, or a damaged manifest: nothing is known of the file

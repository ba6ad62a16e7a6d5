"""Orderings as files: a dataset's own by name, and the check that one from elsewhere was made for it."""

from __future__ import annotations

import json
import warnings
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


def load_ordering(path: Path, num_sequences: int | None = None) -> Ordering:
    """An ordering of so many sequences from a .npy file; None takes any.

    Raises:
        UserError: no such file, one that holds no ordering, or one of another number of sequences.
    """
    try:
        ordering = Ordering.load(path)
    except ValueError as error:
        raise UserError(str(error)) from None
    if num_sequences not in (None, len(ordering)):
        raise UserError(
            f"Expected an ordering of {num_sequences} sequences at {path}, found one of {len(ordering)}; it was "
            "made for another dataset."
        )
    return ordering


def check_origin(
    stages: Mapping[str, Any],
    info: Mapping[str, Any],
    path: Path | None = None,
    known: frozenset[str] = frozenset(),
) -> None:
    """Refuse an ordering that lies in another dataset, and warn of one that was made of other token counts.

    The number of sequences proves little: datasets of one corpus packed by other rules often agree in it. A file in a
    dataset's `orderings` folder belongs to the sequences that this dataset was packed into. Other token counts are
    no proof: an ordering by weights or matrices of the user's own has others than the dataset's and is valid.

    Args:
        stages: the dataset's stages, as its manifest lists them.
        info: how the ordering was made.
        path: its file, where it has one.
        known: fingerprints of token counts known to be the dataset's, besides those of its orderings.

    Raises:
        UserError: the file lies in a dataset of other sequences.
    """
    theirs = None if path is None else _packed_beside(path)
    if theirs is not None and theirs != (ours := stages["pack"]["fingerprint"]):
        raise UserError(
            f"Expected an ordering of this dataset's sequences (packing {ours[:16]}), found {path} of a "
            f"dataset packed otherwise ({theirs[:16]}); make one with `jax-diversity order`. To use it all the same, "
            "read it with jax_diversity.Ordering.load and give the ordering itself."
        )
    made_of = info.get("characteristics")  # none in an ordering of one's own
    own = known | {entry["counts"]["characteristics"] for stage, entry in stages.items() if stage.startswith("order/")}
    if isinstance(made_of, str) and own and made_of not in own:
        warnings.warn(
            f"The ordering was made of token counts of fingerprint {made_of[:16]}, none of the dataset's orderings "
            f"was ({', '.join(sorted(mark[:16] for mark in own))}): this is right if you gave weights or counts of "
            "your own (its `indices` alone give no such warning); if not, it may be of another dataset.",
            stacklevel=2,
        )


def _packed_beside(path: Path) -> str | None:
    """The fingerprint of the packing of the dataset in whose `orderings` folder a file lies."""
    folder = path.absolute().parent
    if folder.name != "orderings":
        return None
    try:
        return json.loads((folder.parent / "manifest.json").read_text(encoding="utf-8"))["stages"]["pack"][
            "fingerprint"
        ]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # no dataset, or a damaged manifest: nothing is known of the file

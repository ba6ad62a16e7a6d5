"""A spool: temporary files, one for each part, to which rows are appended in any order of the parts.

A *row* is a sequence with its token counts. Rows that are read in one order and needed in another order are first
spooled by part. Then each part is read as a whole. Memory grows with a part, not with the corpus.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from jax_diversity.counts.characteristics import Characteristics
from jax_diversity.counts.narrow import NarrowCounts
from jax_diversity.foundation.errors import UserError, in_one_line
from jax_diversity.foundation.hashed_arrays import DIGEST_BYTES, pack_arrays, unpack_arrays

_NUMBERS = "numbers"
_HEADER = 8


class Rows(NamedTuple):
    """Some sequences: their numbers (the index of a sequence, or a position), and their token counts."""

    numbers: Int64[np.ndarray, " row"]
    counts: Characteristics

    def take(self, rows: Int64[np.ndarray, " row"]) -> Rows:
        """Return some rows, in the given order."""
        return Rows(self.numbers[rows], self.counts.take(rows))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays by name, in narrow types; see `from_arrays`."""
        return {_NUMBERS: self.numbers, **self.counts.narrow().arrays()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], like: Characteristics) -> Rows:
        """Make the rows from the arrays of `arrays`; families, weights and lengths are those of `like`."""
        columns = {name: values for name, values in arrays.items() if name != _NUMBERS}
        return cls(arrays[_NUMBERS], like.of_narrow(NarrowCounts.from_arrays(columns)))

    @staticmethod
    def joined(several: Sequence[Rows]) -> Rows:
        """Return the rows of several, one after another."""
        numbers = np.concatenate([rows.numbers for rows in several])
        return Rows(numbers, Characteristics.joined([rows.counts for rows in several]))


class Spool:
    """The files of a spool in a folder.

    Every piece is a length, and arrays with a hash (`pack_arrays`). A process that was killed may have appended pieces
    after it stored the sizes; `cut_back` removes these pieces.

    Args:
        folder: the folder of the files.
        num_parts: the number of parts.
        like: counts with the families, weights and lengths of all rows; its sequences do not matter.
    """

    def __init__(self, folder: Path, num_parts: int, like: Characteristics) -> None:
        self._like = like
        self._paths = [folder / f"part-{number:06}.spool" for number in range(num_parts)]

    def append(self, part: int, rows: Rows) -> None:
        """Append rows to a part."""
        content = pack_arrays(rows.arrays())
        with self._paths[part].open("ab") as file:
            file.write((len(content) - DIGEST_BYTES).to_bytes(_HEADER, "little"))
            file.write(content)

    def read(self, part: int) -> Rows:
        """Read all rows of a part, in the order in which they were appended.

        Raises:
            UserError: the file is absent, cut or changed, or the part has no rows.
        """
        pieces: list[dict[str, np.ndarray]] = []
        path = self._paths[part]
        try:
            with path.open("rb") as file:
                while header := file.read(_HEADER):
                    size = DIGEST_BYTES + int.from_bytes(header, "little")
                    with unpack_arrays(file.read(min(size, os.fstat(file.fileno()).st_size))) as stored:
                        pieces.append({name: stored[name] for name in stored.files})
        except (OSError, ValueError) as error:
            raise self._damaged(path, error) from None
        if not pieces:
            raise self._damaged(path, "no rows")
        # Narrow arrays are joined before they get SciPy's wider types.
        return Rows.from_arrays(NarrowCounts.joined(pieces), self._like)

    def sizes(self) -> Int64[np.ndarray, " part"]:
        """Return the sizes of all files in bytes; 0 for absent files."""
        return np.array([path.stat().st_size if path.exists() else 0 for path in self._paths], np.int64)

    def sync(self) -> None:
        """Write all pieces to the disk: after a power cut a noted size must not be larger than its file."""
        for path in self._paths:
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())

    def cut_back(self, sizes: Any) -> None:
        """Cut the files back to the given sizes in bytes.

        Raises:
            UserError: a file is smaller.
        """
        for path, size, size_found in zip(self._paths, sizes.tolist(), self.sizes().tolist(), strict=True):
            if size_found < size:
                raise self._damaged(path, f"{size_found:,} bytes in place of {size:,}")
            if size_found > size:
                os.truncate(path, size)

    def _damaged(self, path: Path, reason: object) -> UserError:
        return UserError(
            f"Expected rows of counts in {path}, found: {in_one_line(reason)}; the file was changed: delete the folder "
            f"{path.parent} and start again."
        )

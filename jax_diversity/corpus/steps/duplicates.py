"""The common parts of the steps that remove copies of whole documents.

Documents are divided into groups, and one document of every group is kept. It is from the source that comes first in
`precedence`. In their first pass, `exact_duplicates` and `minhash` compute a signature of each document. The signatures
decide the groups.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.corpus.passes.notes import Notes
from jax_diversity.corpus.steps.base import Candidate, Measured, Survey, at_most
from jax_diversity.foundation.artifacts import read_json, write_json


class Groups(Survey):
    """Removes all but one document of every group, or marks the groups.

    Subclasses declare the options `mark` and `precedence`.
    """

    PHRASES: ClassVar[Mapping[str, str]] = {
        "duplicate": "copy of a document that was kept",
    }
    mark: bool
    precedence: tuple[str, ...]

    @abstractmethod
    def kept(self, notes: Notes, ranks: Int64[np.ndarray, " noted"]) -> Int64[np.ndarray, " noted"]:
        """Return, for every document with a note, the kept document of its group; for a single document, itself.

        `ranks` are the ranks of the documents' sources. The kept document has the lowest rank of its group.
        """

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write every document's group (-1 without copies), the kept document of each group, and their ids."""
        noted = notes.noted
        kept_of = self.kept(notes, notes.ranks(self.precedence)[noted])
        has_copies = np.bincount(kept_of, minlength=len(notes))[kept_of] > 1
        # The kept documents number the groups.
        kept, groups = np.unique(kept_of[has_copies], return_inverse=True)
        group = np.full(len(notes), -1)
        group[noted[has_copies]] = groups
        np.save(folder / "group.npy", group)
        np.save(folder / "kept.npy", kept)
        write_json(folder / "ids.json", notes.ids(kept))

    def load_resolved(self, folder: Path) -> None:
        """Read these files."""
        self._group, self._kept = np.load(folder / "group.npy", mmap_mode="r"), np.load(folder / "kept.npy")
        self._ids = read_json(folder / "ids.json", "prepare")

    def judge(self, candidate: Candidate) -> Iterator[Measured]:
        """Set the document's group. Remove the document if another document of the group is kept."""
        group = int(self._group[candidate.number])
        if group >= 0:
            candidate.duplicate_group, candidate.duplicate_of = group, self._ids[group]
            if self.mark:
                candidate.scores[f"{candidate.step}_group"] = group
            yield at_most("duplicate", int(self._kept[group] != candidate.number and not self.mark), 0)


class SignedGroups(Groups):
    """Groups of documents by signatures. The kept document of a group is the one that was read first."""

    @abstractmethod
    def sign(self, candidate: Candidate) -> bytes:
        """Return a document's signature, always of the same length; empty for a document that cannot have copies."""

    @abstractmethod
    def join(self, signatures: UInt8[np.ndarray, "signed byte"]) -> Int64[np.ndarray, " signed"]:
        """Return a number for every signature. Documents of one group have the same number."""

    def note(self, candidate: Candidate) -> bytes:
        """Return the signature."""
        return self.sign(candidate)

    def kept(self, notes: Notes, ranks: Int64[np.ndarray, " signed"]) -> Int64[np.ndarray, " signed"]:
        """Return, for every document, the first document of its group, by rank and then in the order of reading."""
        signed = notes.noted
        if not len(signed):
            return signed
        joined = self.join(notes.data.reshape(len(signed), -1))
        order = np.lexsort((ranks, joined))
        begins = np.diff(joined[order], prepend=joined[order[0]] - 1) != 0
        kept = np.empty(len(signed), np.int64)
        kept[order] = signed[order[begins]][np.cumsum(begins) - 1]
        return kept

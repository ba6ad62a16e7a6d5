"""The common parts of the steps that remove copies of whole documents.

Documents are divided into groups, and one document of every group is kept. It is from the source that comes first in
`precedence`. In their first pass, `exact_duplicates`, `url_duplicates` and `minhash` compute a signature of each
document. The signatures decide the groups. They can be stored, and a later run can compare its documents with them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.foundation.artifacts import file_hash, read_json, write_json
from jax_diversity.preparation.passes.notes import Notes
from jax_diversity.preparation.steps.base import Candidate, Measured, Survey, at_most
from jax_diversity.preparation.steps.signatures import (
    SIGNATURES,
    read_ids,
    read_signatures,
    signature_files,
    write_signatures,
)


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

        `ranks` are the ranks of the documents' sources. The kept document has the lowest rank of its group. Numbers
        from the number of all documents on are documents of earlier runs.
        """

    def earlier_ids(self, documents: Int64[np.ndarray, " chosen"]) -> list[str]:
        """Return the ids of documents of earlier runs."""
        if len(documents):
            raise ValueError("the step compares with no earlier run")
        return []

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write every document's group (-1 without copies), the kept document of each group, and their ids."""
        noted = notes.noted
        kept_of = self.kept(notes, notes.ranks(self.precedence)[noted])
        has_copies = (np.bincount(kept_of, minlength=len(notes))[kept_of] > 1) | (kept_of >= len(notes))
        # The kept documents number the groups.
        kept, groups = np.unique(kept_of[has_copies], return_inverse=True)
        group = np.full(len(notes), -1)
        group[noted[has_copies]] = groups
        np.save(folder / "group.npy", group)
        np.save(folder / "kept.npy", kept)
        of_earlier_runs = kept[kept >= len(notes)] - len(notes)
        write_json(folder / "ids.json", [*notes.ids(kept[kept < len(notes)]), *self.earlier_ids(of_earlier_runs)])

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
    """Groups of documents by signatures. The kept document of a group is the one that was read first.

    Subclasses declare the options `against`, which names earlier runs, and `keep_signatures`.
    """

    kept_files = (SIGNATURES,)
    against: tuple[str, ...]
    keep_signatures: bool

    @property
    @abstractmethod
    def form(self) -> dict[str, Any]:
        """The step and its options that decide the signatures. Only signatures of one form can be compared."""

    @abstractmethod
    def sign(self, candidate: Candidate) -> bytes:
        """Return a document's signature, always of the same length; empty for a document that cannot have copies."""

    @abstractmethod
    def join(self, signatures: UInt8[np.ndarray, "signed byte"]) -> Int64[np.ndarray, " signed"]:
        """Return a number for every signature. Documents of one group have the same number."""

    def note(self, candidate: Candidate) -> bytes:
        """Return the signature."""
        return self.sign(candidate)

    def identity(self) -> Any:
        """Return the hashes of the earlier runs' signatures."""
        return [file_hash(path) for path in self._earlier_files()] or None

    def _earlier_files(self) -> list[Path]:
        return signature_files(self.against, self.form)

    def earlier_ids(self, documents: Int64[np.ndarray, " chosen"]) -> list[str]:
        """Return the ids of documents of earlier runs, given by ascending numbers."""
        return read_ids(self._earlier_files(), documents)

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write the groups, and with `keep_signatures` the signatures of the first documents of the groups."""
        super().resolve(notes, folder)
        if self.keep_signatures:
            signed = notes.noted
            group, kept = np.load(folder / "group.npy"), np.load(folder / "kept.npy")
            first = (group[signed] < 0) | (kept[group[signed]] == signed) if len(kept) else np.ones(len(signed), bool)
            signatures = notes.data.reshape(len(signed), -1)[first] if len(signed) else np.zeros((0, 1), np.uint8)
            write_signatures(folder / SIGNATURES, notes.ids(signed[first]), signatures, self.form)

    def kept(self, notes: Notes, ranks: Int64[np.ndarray, " signed"]) -> Int64[np.ndarray, " signed"]:
        """Return, for every document, the first document of its group: of an earlier run, by rank, then as read."""
        signed = notes.noted
        if not len(signed):
            return signed
        signatures = notes.data.reshape(len(signed), -1)
        places = signed
        if self.against:
            earlier = read_signatures(self._earlier_files(), signatures.shape[1])
            signatures = np.concatenate([earlier, signatures])
            places = np.concatenate([len(notes) + np.arange(len(earlier)), signed])
            ranks = np.concatenate([np.full(len(earlier), -1), ranks])
        joined = self.join(signatures)
        order = np.lexsort((ranks, joined))
        begins = np.diff(joined[order], prepend=joined[order[0]] - 1) != 0
        kept = np.empty(len(places), np.int64)
        kept[order] = places[order[begins]][np.cumsum(begins) - 1]
        return kept[len(places) - len(signed) :]


class HashedGroups(SignedGroups):
    """Groups of documents with equal hashes of 128 bits, which no option of the step decides.

    Subclasses are dataclasses and name themselves in `STEP`.
    """

    STEP: ClassVar[str]

    def __post_init__(self) -> None:
        signature_files(self.against, self.form)  # checks the names

    @property
    def form(self) -> dict[str, Any]:
        """The step."""
        return {"step": self.STEP}

    def join(self, signatures: UInt8[np.ndarray, "signed 16"]) -> Int64[np.ndarray, " signed"]:
        """Return equal numbers for equal hashes."""
        halves = np.ascontiguousarray(signatures).view(np.uint64)
        order = np.lexsort((halves[:, 1], halves[:, 0]))
        is_new = np.diff(halves[order], axis=0, prepend=~halves[order[:1]]).any(axis=1)
        groups = np.empty(len(order), np.int64)
        groups[order] = np.cumsum(is_new)
        return groups

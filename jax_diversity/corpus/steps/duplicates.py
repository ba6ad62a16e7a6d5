"""What the steps that look for copies of whole documents have in common.

Documents are put into groups; of every group one is kept, which belongs to the first of the sources that take
precedence. In the first pass of `exact_duplicates` and `minhash` a document is signed, and the signatures tell which
documents belong together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.corpus.passes.notes import Notes
from jax_diversity.corpus.steps.base import Candidate, Measured, Survey, at_most
from jax_diversity.foundation.artifacts import read_json, write_json

Sign = Callable[[Candidate], bytes]
"""A document's signature, of always the same length; empty for a document that has no copies."""
Join = Callable[[UInt8[np.ndarray, "signed byte"]], Int64[np.ndarray, " signed"]]
"""A number for every signature: the same for documents that belong together."""


class Groups(Survey):
    """A survey that removes all but one document of every group, or marks the groups.

    Args:
        mark: whether all are kept, with the field `STEP_group`.
        precedence: sources between spaces, the first one's documents are kept before those of the next; sources that
            are not named come last.
    """

    def __init__(self, *, mark: bool, precedence: str) -> None:
        self._mark, self._precedence = mark, precedence

    @abstractmethod
    def kept(self, notes: Notes, ranks: Int64[np.ndarray, " noted"]) -> Int64[np.ndarray, " noted"]:
        """Of every noted document the one that is kept of its group, which is itself where it is alone.

        `ranks` are those of the documents' sources: of a group one of the lowest rank is kept.
        """

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write every document's group (-1: it has no copies), the kept document of each, and their ids."""
        noted = notes.noted
        kept_of = self.kept(notes, notes.ranks(self._precedence)[noted])
        has_copies = np.bincount(kept_of, minlength=len(notes))[kept_of] > 1
        # Groups are numbered by the document that is kept.
        kept, groups = np.unique(kept_of[has_copies], return_inverse=True)
        group = np.full(len(notes), -1)
        group[noted[has_copies]] = groups
        np.save(folder / "group.npy", group)
        np.save(folder / "kept.npy", kept)
        write_json(folder / "ids.json", notes.ids(kept))

    def rules(self, folder: Path) -> Callable[[Candidate, int], Iterator[Measured]]:
        """Documents of a group are told what it is; those that are not kept go."""
        group, kept = np.load(folder / "group.npy", mmap_mode="r"), np.load(folder / "kept.npy")
        ids = read_json(folder / "ids.json", "prepare")

        def judge(candidate: Candidate, number: int) -> Iterator[Measured]:
            of_document = int(group[number])
            if of_document >= 0:
                candidate.duplicate_group, candidate.duplicate_of = of_document, ids[of_document]
                if self._mark:
                    candidate.scores[f"{candidate.step}_group"] = of_document
                yield at_most("duplicate", int(kept[of_document] != number and not self._mark), 0)

        return judge


class Duplicates(Groups):
    """The groups of documents whose signatures belong together; of each the one that was read first is kept.

    Args:
        sign: makes signatures.
        join: groups them.
        mark: whether all are kept.
        precedence: sources whose documents are kept before others.
    """

    def __init__(self, sign: Sign, join: Join, *, mark: bool, precedence: str) -> None:
        super().__init__(mark=mark, precedence=precedence)
        self._sign, self._join = sign, join

    def note(self, candidate: Candidate) -> bytes:
        """The signature."""
        return self._sign(candidate)

    def kept(self, notes: Notes, ranks: Int64[np.ndarray, " signed"]) -> Int64[np.ndarray, " signed"]:
        """The first one of each group, by rank and then in the order of reading."""
        signed = notes.noted
        if not len(signed):
            return signed
        joined = self._join(notes.data.reshape(len(signed), -1))
        order = np.lexsort((ranks, joined))
        begins = np.diff(joined[order], prepend=joined[order[0]] - 1) != 0
        kept = np.empty(len(signed), np.int64)
        kept[order] = signed[order[begins]][np.cumsum(begins) - 1]
        return kept

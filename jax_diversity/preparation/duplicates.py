"""What the steps that look for copies of whole documents have in common.

In the first pass a document is signed. The signatures tell which documents belong together; of every group one is
kept: of the sources that take precedence, then the one that was read first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.foundation.artifacts import read_json, write_json
from jax_diversity.preparation.base import Candidate, Measured, Survey, at_most
from jax_diversity.preparation.notes import Notes

Sign = Callable[[Candidate], bytes]
"""A document's signature, of always the same length; empty for a document that has no copies."""
Join = Callable[[UInt8[np.ndarray, "signed byte"]], Int64[np.ndarray, " signed"]]
"""A number for every signature: the same for documents that belong together."""


class Duplicates(Survey):
    """The survey that removes all but one document of every group, or marks the groups.

    Args:
        sign: makes signatures.
        join: groups them.
        mark: whether all are kept, with the field `STEP_group`.
        precedence: sources between spaces, the first one's documents are kept before those of the next; sources that
            are not named come last.
    """

    def __init__(self, sign: Sign, join: Join, *, mark: bool, precedence: str) -> None:
        self._sign, self._join, self._mark = sign, join, mark
        self._ranks = {source: rank for rank, source in enumerate(precedence.split())}

    def note(self, candidate: Candidate) -> bytes:
        """The signature."""
        return self._sign(candidate)

    def resolve(self, notes: Notes, folder: Path) -> None:
        """Write every document's group (-1: it has no copies), the kept document of each, and their ids."""
        signed = notes.noted
        group = np.full(len(notes), -1)
        kept = np.zeros(0, np.int64)
        if len(signed):
            _, joined, counts = np.unique(
                self._join(notes.data.reshape(len(signed), -1)), return_inverse=True, return_counts=True
            )
            copies = np.flatnonzero(counts[joined] > 1)
            # By group, and in it the one that is kept first.
            ranks = [self._ranks.get(notes.sources[document], len(self._ranks)) for document in signed[copies]]
            order = np.lexsort((copies, np.array(ranks), joined[copies]))
            begins = np.diff(joined[copies][order], prepend=-1) != 0
            kept = signed[copies[order[begins]]]
            # Groups are numbered by the document that is kept.
            kept_of = kept[np.cumsum(begins) - 1]
            kept = np.sort(kept)
            group[signed[copies[order]]] = np.searchsorted(kept, kept_of)
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

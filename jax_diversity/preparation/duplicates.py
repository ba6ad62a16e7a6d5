"""What the steps that look for duplicates have in common: two passes, with the signatures between them.

The first pass notes a signature of every document and puts the documents on disk. Between the passes the signatures
alone, which lie in memory, tell which documents belong together. The second pass takes the documents back in their
order. Of a group the document that was read first is kept.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from jax_diversity.preparation.base import Candidate, at_most


def without_duplicates(
    candidates: Iterable[Candidate],
    sign: Callable[[Candidate], bytes | None],
    join: Callable[[bytearray], Int64[np.ndarray, " signed"]],
    *,
    mark: bool,
    scratch: Path | None,
) -> Iterator[Candidate]:
    """Remove all but the first document of every group of duplicates.

    Args:
        candidates: removed ones pass.
        sign: a document's signature, of always the same length; None for a document that is no duplicate of any.
        join: the first document of the group of each, counted over those that have a signature, from all signatures
            end to end.
        mark: keep all, and give those of a group the field `STEP_group`.
        scratch: a folder for the documents on their way.
    """
    signatures = bytearray()
    # The file has no name: it is gone when the process ends, however it ends.
    with tempfile.TemporaryFile(dir=scratch) as spool:
        for candidate in candidates:
            signature = None if candidate.removed is not None else sign(candidate)
            signatures += signature or b""
            candidate.forget_words()  # they are several times as long as the text
            pickle.dump((signature is not None, candidate), spool, pickle.HIGHEST_PROTOCOL)
        size = spool.tell()
        firsts = join(signatures)
        signatures.clear()
        counts = np.bincount(firsts, minlength=len(firsts))
        groups: dict[int, tuple[int, str]] = {}  # first document -> the group's number, the document's id
        index = 0
        spool.seek(0)
        while spool.tell() < size:
            is_signed, candidate = pickle.load(spool)
            if is_signed:
                first = int(firsts[index])
                if counts[first] > 1:
                    known = groups.setdefault(first, (len(groups), candidate.document.id))
                    candidate.duplicate_group, candidate.duplicate_of = known
                    if mark:
                        candidate.scores[f"{candidate.step}_group"] = candidate.duplicate_group
                    candidate.judge(at_most("copies_before", int(index != first and not mark), 0))
                index += 1
            yield candidate

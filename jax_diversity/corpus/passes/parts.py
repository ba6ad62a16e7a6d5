"""Parts of a corpus between the phases, as files: documents with the steps' findings, and accounts.

A part is some megabytes of text. It is written as a whole or not at all, so that a killed run continues after the
finished parts.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from jax_diversity.corpus.passes.account import Account
from jax_diversity.corpus.steps.base import Candidate, Removal
from jax_diversity.foundation.artifacts import atomic_path
from jax_diversity.schema import Document

_PART_BYTES = 8 * 2**20
_PART_DOCUMENTS = 8192
_CODEC = "lz4"
_SIZE_BYTES = 8


def split(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in parts of some megabytes; the division does not depend on the number of processes."""
    part: list[Document] = []
    size = 0
    for document in documents:
        part.append(document)
        size += len(document.text)
        if size >= _PART_BYTES or len(part) == _PART_DOCUMENTS:
            yield part
            part, size = [], 0
    if part:
        yield part


def write_part(path: Path, accounts: Sequence[Account], candidates: Sequence[Candidate]) -> None:
    """Store a part, without the texts of removed documents."""
    content = pickle.dumps((accounts, [*map(_row, candidates)]), pickle.HIGHEST_PROTOCOL)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(len(content).to_bytes(_SIZE_BYTES, "little"))
        file.write(pa.compress(content, _CODEC))


def read_part(path: Path) -> tuple[list[Account], list[Candidate]]:
    """Read a stored part."""
    stored = memoryview(path.read_bytes())
    size = int.from_bytes(stored[:_SIZE_BYTES], "little")
    accounts, rows = pickle.loads(pa.decompress(stored[_SIZE_BYTES:], size, _CODEC))
    return accounts, [*map(_candidate, rows)]


# Tuples of plain values: pickling objects would take several times as long.
def _row(candidate: Candidate) -> tuple[Any, ...]:
    document, removed = candidate.document, candidate.removed
    labels = (document.id, document.source, document.language, document.title)
    found = (dict(candidate.scores), candidate.measured, candidate.duplicate_group, candidate.duplicate_of)
    place = (candidate.language, candidate.step, candidate.entered, candidate.is_edited, candidate.size)
    if removed is not None:
        return (*labels, "", {}, tuple(removed), *found, *place)
    return (*labels, candidate.text, dict(document.metadata), None, *found, *place)


def _candidate(row: tuple[Any, ...]) -> Candidate:
    id, source, language, title, text, metadata, removed, *found, now, step, entered, is_edited, size = row
    scores, measured, group, duplicate_of = found
    return Candidate(
        Document(id, text, source, language, title, metadata),
        now,
        scores,
        measured,
        None if removed is None else Removal(*removed),
        group,
        duplicate_of,
        step=step,
        entered=entered,
        is_edited=is_edited,
        _size=size,
    )

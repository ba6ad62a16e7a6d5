"""The notes of a survey on all documents. The first pass stores them part by part; then they are gathered."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from jax_diversity.preparation.passes.blocks import damage_as_error, read_blocks, write_blocks


class NoteBook:
    """The notes of one part during its pass."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._sources: list[str] = []
        self._languages: list[str | None] = []
        self._lengths: list[int] = []
        self._data = bytearray()

    def add(self, identifier: str, source: str, language: str | None, note: bytes) -> None:
        """Add the note of the next document."""
        self._ids.append(identifier)
        self._sources.append(source)
        self._languages.append(language)
        self._lengths.append(len(note))
        self._data += note

    def write(self, path: Path) -> None:
        """Store all notes. If this fails, no file is written."""
        plain = (self._ids, (self._sources, self._languages, self._lengths))
        write_blocks(path, *(json.dumps(note).encode() for note in plain), self._data)


@dataclass(frozen=True)
class Notes:
    """The notes of all documents that reached a survey, in the order of reading.

    Attributes:
        data: the bytes of all notes, one note after another; it may be a memory map.
        lengths: number of bytes of every document's note.
        sources: the documents' sources.
        languages: the documents' languages after the previous steps; None if unknown.
        paths: the files of the parts.
        starts: the number of every part's first document, then the number of all documents.
    """

    data: UInt8[np.ndarray, " byte"]
    lengths: Int64[np.ndarray, " document"]
    sources: list[str]
    languages: list[str | None]
    paths: tuple[Path, ...]
    starts: Int64[np.ndarray, " part_and_end"]

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def ends(self) -> Int64[np.ndarray, " document"]:
        """The end of every document's note in `data`."""
        return np.cumsum(self.lengths)

    @cached_property
    def noted(self) -> Int64[np.ndarray, " noted"]:
        """The documents whose notes are not empty."""
        return np.flatnonzero(self.lengths)

    def ranks(self, precedence: Sequence[str]) -> Int64[np.ndarray, " document"]:
        """Return the rank of every document's source in a list. Sources that are not in the list come last."""
        places = {source: place for place, source in enumerate(precedence)}
        return np.array([places.get(source, len(places)) for source in self.sources], np.int64)

    def ids(self, documents: Int64[np.ndarray, " chosen"]) -> list[str]:
        """Return the ids of some documents, given by ascending numbers. Only one part's ids are in memory at a time."""
        ids: list[str] = []
        for index, path in enumerate(self.paths):
            low, high = np.searchsorted(documents, self.starts[index : index + 2])
            if low < high:
                with damage_as_error(path):
                    (block,) = read_blocks(path, 1)
                    of_part = json.loads(bytes(block))
                    ids += [of_part[number - self.starts[index]] for number in documents[low:high]]
        return ids


def gather(paths: Sequence[Path], folder: Path) -> Notes:
    """Gather the notes of all parts. Their bytes are written to a file in `folder`, which is mapped into memory."""
    sources: list[str] = []
    languages: list[str | None] = []
    lengths: list[np.ndarray] = []
    names: dict[str | None, str | None] = {}  # so that each name is one object, for any number of documents

    def named(values: Sequence) -> Iterator:
        return (names.setdefault(value, value) for value in values)

    end_to_end = folder / "notes.bin"
    with open(end_to_end, "wb") as file:
        for path in paths:
            with damage_as_error(path):
                _, plain, data = read_blocks(path, 3)
                of_sources, of_languages, of_lengths = json.loads(bytes(plain))
                sources += named(of_sources)
                languages += named(of_languages)
                lengths.append(np.array(of_lengths, np.int64))
                if not len(of_sources) == len(of_languages) == len(of_lengths) or lengths[-1].sum() != len(data):
                    raise ValueError(path)
            file.write(data)
    size = end_to_end.stat().st_size
    data = np.memmap(end_to_end, np.uint8, "r") if size else np.zeros(0, np.uint8)
    starts = np.cumsum([0, *map(len, lengths)])
    return Notes(data, np.concatenate([*lengths, np.zeros(0, np.int64)]), sources, languages, tuple(paths), starts)

"""The jobs of the stage `prepare`: read a group of files, and store the documents of a group.

Without steps one job reads and stores a group. With steps, a job reads it into parts; the phases run on the parts of
all groups; then a job stores the documents and the decisions of a group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.attempts import time_limit
from jax_diversity.foundation.jobs import work
from jax_diversity.foundation.progress import tell
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.preparation.markup import MarkupCounts
from jax_diversity.preparation.passes.decisions import decisions_writer
from jax_diversity.preparation.passes.parts import split, write_documents_part
from jax_diversity.preparation.passes.tally import Tally
from jax_diversity.preparation.readers.chat import with_loss_spans
from jax_diversity.preparation.readers.reading import Group, Reading, read_group
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.schema import Document
from jax_diversity.schema.document_store import write_documents

DOCUMENTS, DECISIONS, TALLY, IDS = ".documents", ".decisions", ".tally", ".ids.npy"
"""What follows the name of a job in the names of its files."""


@work("reading", patience=5.0)
def store_group(name: Path, corpus: dict[str, Any], group: list[Any], seconds: float, is_first: bool) -> dict[str, Any]:
    """Read the documents of a group of files and store them.

    Args:
        name: the job's name.
        corpus: the settings of the corpus.
        group: a `Group`.
        seconds: the time limit of a record; 0 means no limit.
        is_first: whether the group is the first one of the corpus.

    Returns:
        The counts of reading, of storing, and of markup; and the number of bytes that were read.
    """
    job = _ReadJob(name, corpus, group)
    with time_limit(seconds):
        return _stored(name, job.documents(), job.config, is_first) | job.finish()


@work("reading", patience=5.0, is_passing=True)
def read_into_parts(name: Path, corpus: dict[str, Any], group: list[Any], seconds: float) -> dict[str, Any]:
    """Read the documents of a group of files into parts, `NAME.000000` ...; see `store_group`.

    Returns:
        The counts of reading, the number of parts, and the number of bytes that were read.
    """
    job, num_parts = _ReadJob(name, corpus, group), 0
    with time_limit(seconds):
        for part in split(job.documents()):
            write_documents_part(raw_part(name, num_parts), part)
            num_parts += 1
        return {"num_parts": num_parts} | job.finish()


def document_files(name: Path, number: int) -> list[Path]:
    """Return the first `number` files of documents of a job."""
    return [Path(f"{name}{DOCUMENTS}.{index:05d}") for index in range(number)]


def decision_files(name: Path) -> list[Path]:
    """Return the files of decisions of a job, in order."""
    files = name.parent.glob(f"{name.name}{DECISIONS}.*")
    return sorted((path for path in files if path.suffix[1:].isdecimal()), key=lambda path: int(path.suffix[1:]))


def raw_part(name: Path, number: int) -> Path:
    """Return the file of a part as `read_into_parts` wrote it."""
    return Path(f"{name}.{number:06d}")


@work("storing documents", patience=5.0)
def store_parts(
    name: Path, corpus: dict[str, Any], folder: str, num_steps: int, last: int, start: int, stop: int, is_first: bool
) -> dict[str, Any]:
    """Store the kept documents of some parts, the decisions on all their documents, and the counts.

    Args:
        name: the job's name.
        corpus: the settings of the corpus.
        folder: the folder of the parts.
        num_steps: the number of steps.
        last: the last phase.
        start: the first part.
        stop: the number after the last part.
        is_first: whether the parts are the first ones of the corpus.

    Returns:
        The counts of storing and of markup.
    """
    config, tally = settings_from_plain(CorpusConfig, corpus, "corpus"), Tally(num_steps)
    with ExitStack() as files:
        write = files.enter_context(
            decisions_writer(name.parent, lambda number: f"{name.name}{DECISIONS}.{number:05d}")
        )

        def kept() -> Iterator[Document]:
            for candidate in tally.of_parts(Path(folder), last, range(start, stop)):
                write(candidate)
                if candidate.removed is None:
                    yield candidate.finished()

        counts = _stored(name, kept(), config, is_first)
    tally.write(Path(f"{name}{TALLY}"))
    return counts


def _stored(name: Path, documents: Iterator[Document], config: CorpusConfig, is_first: bool) -> dict[str, Any]:
    further: dict[str, int] = {}
    markup = MarkupCounts(config.keep_markup)
    if config.format == "chat":
        documents = with_loss_spans(documents, config, further)
    if config.format not in ("megatron", "tokens"):
        documents = markup.looked_at(documents, is_first)
    stored = write_documents(
        documents, name.parent, config.file_bytes, lambda number: f"{name.name}{DOCUMENTS}.{number:05d}"
    )
    return {"stored": dataclasses.asdict(stored), "further": further, "markup": markup.plain()}


class _ReadJob:
    """The documents of a group of files, and their counts."""

    def __init__(self, name: Path, corpus: dict[str, Any], group: list[Any]) -> None:
        self.config = settings_from_plain(CorpusConfig, corpus, "corpus")
        self._name, self._group, self._reading, self._num_bytes = name, Group(*group), Reading(self.config), 0

    def documents(self) -> Iterator[Document]:
        return read_group(self._group, self._reading, self._advance)

    def _advance(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        tell(num_bytes)

    def finish(self) -> dict[str, Any]:
        write_array(Path(f"{self._name}{IDS}"), self._reading.ids.hashes())
        return {"reading": self._reading.plain(), "num_bytes": self._num_bytes}

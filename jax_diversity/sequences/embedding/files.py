"""Makes a file of vectors from a file of documents: the work of one job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jax_diversity.foundation.artifacts import write_array
from jax_diversity.foundation.jobs import Opened, opened, work
from jax_diversity.foundation.progress import Advance, ignore, tell
from jax_diversity.foundation.settings import settings_from_plain
from jax_diversity.sequences.embedding.base import CHARACTERS_PER_TOKEN, check_embedded, make_embedder, own_code
from jax_diversity.sequences.embedding.settings import EmbeddingConfig

FIT_DOCUMENTS = 20_000
"""Largest number of documents that an embedder is fitted on."""
_made: dict[str, Any] = {}
"""The embedder of this process, by the arguments of `make_once`."""


def make_once(dataset: Opened, settings: dict[str, Any], stored: str, advance: Advance = ignore) -> Any:
    """Return the embedder of the settings, or the `PrecomputedVectors`; it is made once in a process.

    Args:
        dataset: the dataset whose documents it may be fitted on.
        settings: an `EmbeddingConfig` as plain values.
        stored: the file of the fitted state.
        advance: called with the numbers of documents that are read to fit it.
    """
    key = json.dumps([list(dataset), settings, stored])
    if key not in _made:
        forget_embedder()
        config = settings_from_plain(EmbeddingConfig, settings, "embedding")
        whole = opened(dataset)
        _made[key] = make_embedder(
            config.method,
            config.options,
            max_tokens=config.max_tokens,
            seed=config.seed,
            texts=lambda: _drawn_texts(whole.beginnings(config.max_tokens * CHARACTERS_PER_TOKEN), config, advance),
            stored=Path(stored),
            document_ids=lambda: whole.document_store.columns(["id"])["id"],
        )
    return _made[key]


def forget_embedder() -> None:
    """Free the memory of the embedder."""
    _made.clear()


def _drawn_texts(beginnings: Any, config: EmbeddingConfig, advance: Advance) -> list[str]:
    """Draw the documents that the embedder is fitted on, and return their beginnings in stored order."""
    # We use a mask, not a list of indices, because files of documents are read in their order, and each needs its part.
    is_wanted = np.zeros(beginnings.num_documents, bool)
    count = min(FIT_DOCUMENTS, len(is_wanted))
    is_wanted[np.random.default_rng(config.seed).choice(len(is_wanted), count, replace=False)] = True
    drawn: list[str] = []
    for path in beginnings.paths:
        for texts in beginnings.of_file(path, is_wanted):
            drawn += texts
            advance(len(texts))
    return drawn


@work("embedding", patience=10.0)
def embed_file(name: Path, *arguments: Any) -> tuple[int, int]:
    """See `_embed`; for embedders that use one core."""
    return _embed(name, *arguments)


@work("embedding", alone=True)
def embed_file_alone(name: Path, *arguments: Any) -> tuple[int, int]:
    """See `_embed`; for embedders that use all cores or an accelerator."""
    return _embed(name, *arguments)


def _embed(
    name: Path, dataset: Opened, number: int, first: int, settings: dict[str, Any], stored: str
) -> tuple[int, int]:
    """Store the vectors of a file of documents.

    Args:
        name: the path of the vectors' file without its ending.
        dataset: the dataset of the documents.
        number: the number of the file of documents.
        first: the index of its first document.
        settings: an `EmbeddingConfig` as plain values.
        stored: the file of the fitted state.

    Returns:
        The number of documents, and how many of their vectors are zeros.
    """
    part, embedder, vectors = opened(dataset).file_of_documents(number), make_once(dataset, settings, stored), []

    def name_document(row: int) -> str:
        [document] = part.document_store.rows(np.array([num_done + row]), ["id"])
        return f"document {document['id']!r} (number {first + num_done + row})"

    num_done = 0
    for texts in _beginnings(part, settings):
        with own_code(settings["method"]):
            vectors.append(embedder.embed(texts))
        check_embedded(vectors[-1], len(texts), int(embedder.dimensions), name_document)
        num_done += len(texts)
        tell(len(texts))
    rows = np.concatenate(vectors)
    write_array(name.with_name(f"{name.name}.npy"), rows)
    return len(rows), int((~rows.any(axis=1)).sum())


def _beginnings(part: Any, settings: dict[str, Any]) -> Iterator[list[str]]:
    beginnings = part.beginnings(settings["max_tokens"] * CHARACTERS_PER_TOKEN)
    return beginnings.of_file(beginnings.paths[0])

"""The first stage: read the corpus, store its documents; and what later stages read of their texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.progress import Advance


def prepare(context: Context, partial: Path) -> Counts:
    """Read the corpus and store its documents."""
    from jax_diversity import corpus

    config = context.config.corpus
    report = corpus.ReadReport()
    with context.progress.task("prepare documents", corpus.input_size(config), "bytes") as advance:
        stored = corpus.write_documents(corpus.read_documents(config, report, advance), partial, config.file_bytes)
    return dataclasses.asdict(report) | {
        "num_files": stored.num_files,
        "metadata_fields": stored.metadata_fields,
        "has_text": stored.num_texts == stored.num_documents,
    }


def corpus_fingerprint(context: Context) -> str:
    """A hash of the files (or packages) that `prepare` would read; content hashes are remembered."""
    from jax_diversity import corpus

    cache = context.root / ".cache" / "inputs.json"
    cache.parent.mkdir(parents=True, exist_ok=True)
    return corpus.input_fingerprint(context.config.corpus, cache)


def all_texts(context: Context, max_characters: int | None = None) -> Iterator[str]:
    """Every document's text, or its beginning, in the corpus's order."""
    from jax_diversity import corpus

    for path in corpus.document_paths(context.root / "documents"):
        for texts in corpus.read_texts(path, max_characters):
            yield from texts


def counted(texts: Iterable[str], advance: Advance) -> Iterator[str]:
    """The texts again, each told to `advance`."""
    for text in texts:
        advance(1)
        yield text


def duplicate_groups(text_hashes: list[bytes]) -> Int64[np.ndarray, " document"]:
    """Equal numbers for copies of one text, 0 .. number of different texts - 1."""
    _, groups = np.unique(np.array(text_hashes, dtype="S16"), return_inverse=True)
    return groups.astype(np.int64)

"""The stage of the embeddings: documents' beginnings -> vectors, a file at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jax_diversity.artifacts import atomic_path
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import all_texts


def embed(context: Context, partial: Path) -> Counts:
    """Fit the embedding on a part of the documents and apply it to all, one file a document file."""
    from jax_diversity import corpus
    from jax_diversity.embedding import TfidfSvd

    config = context.config.embedding
    num_documents = context.counts("prepare")["num_documents"]
    model_path = partial / "embedding.npz"
    if model_path.exists():
        model = TfidfSvd.load(model_path)
    else:
        with context.progress.task("fit embedding", None, "documents") as advance:
            model = TfidfSvd.fit(_drawn_texts(context, num_documents), config)
            advance(num_documents)
        with atomic_path(model_path) as temporary:
            model.save(temporary)
    parts = []
    with context.progress.task("embed documents", num_documents, "documents") as advance:
        for index, path in enumerate(corpus.document_paths(context.root / "documents")):
            parts.append(partial / f"part-{index:05d}.npy")
            if parts[-1].exists():
                advance(len(np.load(parts[-1], mmap_mode="r")))
                continue
            vectors = []
            for texts in corpus.read_texts(path, config.max_characters):
                vectors.append(model.embed(texts))
                advance(len(texts))
            save_array(parts[-1], np.concatenate(vectors))
    join_arrays(partial / "embeddings.npy", parts, num_documents)
    for part in parts:
        part.unlink()
    return {"num_documents": num_documents, "dimensions": config.dimensions}


def _drawn_texts(context: Context, num_documents: int) -> list[str]:
    """The beginnings of the documents that the embedding is fitted on, in corpus order."""
    config = context.config.embedding
    wanted = np.zeros(num_documents, bool)
    count = min(config.fit_documents, num_documents)
    wanted[np.random.default_rng(config.seed).choice(num_documents, count, replace=False)] = True
    texts = all_texts(context, config.max_characters)
    return [text for text, chosen in zip(texts, wanted, strict=True) if chosen]


def save_array(path: Path, values: np.ndarray) -> None:
    """Write one .npy, whole or not at all."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, values)


def join_arrays(path: Path, parts: list[Path], num_rows: int) -> None:
    """One array file of many, a part in memory at a time."""
    first = np.load(parts[0], mmap_mode="r")
    with atomic_path(path) as temporary:
        joined = np.lib.format.open_memmap(temporary, "w+", first.dtype, (num_rows, *first.shape[1:]))
        start = 0
        for part in parts:
            values = np.load(part, mmap_mode="r")
            joined[start : start + len(values)] = values
            start += len(values)
        joined.flush()

"""The stage `embed`: documents' beginnings -> vectors, a stored file of documents at a time."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.embedding.settings import EmbeddingConfig
from jax_diversity.foundation.artifacts import HashMemory, atomic_path, fingerprint, write_array
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.stage import Context, Counts, Stage

if TYPE_CHECKING:
    from jax_diversity.embedding.base import Embedder
    from jax_diversity.embedding.precomputed import PrecomputedVectors

_BLOCK_ROWS = 65_536


def embed(context: Context, partial: Path) -> Counts:
    """Give every document its vector: from its beginning, or from files with `embedding.method=precomputed`."""
    from jax_diversity.embedding.base import learns, make_embedder
    from jax_diversity.embedding.precomputed import PrecomputedVectors

    config, dataset = context.config.embedding, context.dataset
    beginnings = dataset.beginnings(config.max_tokens)
    num_fitted = min(config.fit_documents, beginnings.num_documents)
    with (
        context.progress.task("fit embedding", num_fitted, "documents") if learns(config) else nullcontext(ignore)
    ) as advance:
        made = make_embedder(
            config,
            texts=lambda: _drawn_texts(beginnings, config, advance),
            stored=partial / "embedding.npz",
            document_ids=lambda: dataset.document_store.columns(["id"])["id"],
        )
    target = partial / "embeddings.npy"
    about: Counts = {}
    if isinstance(made, PrecomputedVectors):
        _copy_vectors(context, made, target)
        about["num_unused_vectors"] = made.num_unused
    else:
        _embed_documents(context, made, beginnings, target)
    vectors = np.load(target, mmap_mode="r")
    num_documents, dimensions = vectors.shape
    return about | {
        "num_documents": num_documents,
        "dimensions": dimensions,
        "num_zero_vectors": _num_zero_rows(vectors),
    }


def _input_fingerprint(context: Context) -> str:
    """A hash of the files besides the corpus that the vectors depend on; content hashes are remembered."""
    from jax_diversity.embedding.base import check_method

    files = check_method(context.config.embedding)
    if not files:
        return ""
    memory = HashMemory(context.root / ".cache" / "embedding.json")
    hashes = [[path.name, memory.hash(path)] for path in files]
    memory.save()
    return fingerprint(hashes)


def _embed_documents(context: Context, embedder: Embedder, beginnings: Any, target: Path) -> None:
    """Embed all documents, one file of vectors a stored file."""
    parts = []
    with context.progress.task("embed documents", beginnings.num_documents, "documents") as advance:
        for index, path in enumerate(beginnings.paths):
            parts.append(target.with_name(f"part-{index:05d}.npy"))
            # A file of an earlier run that was cut off is whole, because it was renamed when it was finished.
            if parts[-1].exists():
                advance(len(np.load(parts[-1], mmap_mode="r")))
            else:
                write_array(parts[-1], _embed_file(context, embedder, beginnings, path, advance))
    join_arrays(target, parts, beginnings.num_documents)
    for part in parts:
        part.unlink()


def _embed_file(context: Context, embedder: Embedder, beginnings: Any, path: Path, advance: Advance) -> np.ndarray:
    from jax_diversity.embedding.base import check_embedded

    def name_document(row: int) -> str:
        index = first + row
        [document] = context.dataset.document_store.rows(np.array([index]), ["id"])
        return f"document {document['id']!r} (number {index})"

    vectors = []
    first = beginnings.first_document(path)
    for texts in beginnings.of_file(path):
        vectors.append(embedder.embed(texts))
        check_embedded(vectors[-1], len(texts), int(embedder.dimensions), name_document)
        first += len(texts)
        advance(len(texts))
    return np.concatenate(vectors)


def _drawn_texts(beginnings: Any, config: EmbeddingConfig, advance: Advance) -> list[str]:
    """The beginnings of the documents that the embedder learns from, in stored order."""
    wanted = np.zeros(beginnings.num_documents, bool)
    count = min(config.fit_documents, len(wanted))
    wanted[np.random.default_rng(config.seed).choice(len(wanted), count, replace=False)] = True
    drawn: list[str] = []
    for path in beginnings.paths:
        for texts in beginnings.of_file(path, wanted):
            drawn += texts
            advance(len(texts))
    return drawn


def _copy_vectors(context: Context, found: PrecomputedVectors, target: Path) -> None:
    """Write the vectors of the user's files in the documents' order."""
    num_documents = context.counts("prepare")["num_documents"]
    with (
        atomic_path(target) as temporary,
        context.progress.task("copy vectors", num_documents, "documents") as advance,
    ):
        vectors = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.float32), (num_documents, found.dimensions))
        for documents, rows in found.blocks():
            vectors[documents] = rows
            advance(len(rows))
        vectors.flush()


def _num_zero_rows(vectors: np.ndarray) -> int:
    starts = range(0, len(vectors), _BLOCK_ROWS)
    return sum(int((~vectors[start : start + _BLOCK_ROWS].any(axis=1)).sum()) for start in starts)


def join_arrays(path: Path, parts: list[Path], num_rows: int) -> None:
    """Join array files to one, a part in memory at a time."""
    first = np.load(parts[0], mmap_mode="r")
    with atomic_path(path) as temporary:
        joined = np.lib.format.open_memmap(temporary, "w+", first.dtype, (num_rows, *first.shape[1:]))
        start = 0
        for part in parts:
            values = np.load(part, mmap_mode="r")
            joined[start : start + len(values)] = values
            start += len(values)
        joined.flush()


def summary(counts: Counts) -> str:
    """How many vectors of which width."""
    return f"{counts['num_documents']:,} vectors of {counts['dimensions']}"


EMBED = Stage(
    "embed",
    help="Turn every document into a vector.",
    section="embedding",
    destination="embeddings",
    run=embed,
    summary=summary,
    settings=lambda config: {"embedding": dataclasses.asdict(config.embedding)},
    inputs=lambda context: ("prepare", "tokenize"),
    outside=_input_fingerprint,
    resumable=True,
    packages=("jax", "numpy", "scikit-learn", "scipy"),
)

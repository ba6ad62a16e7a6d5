"""The stage `embed`: makes vectors from the beginnings of documents, one stored file of documents at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.embedding.settings import EmbeddingConfig
from jax_diversity.embedding.stored import EMBEDDINGS, FITTED, VECTORS, fitted_file
from jax_diversity.foundation.artifacts import (
    CACHE,
    HashMemory,
    atomic_path,
    copy_file,
    file_hash,
    fingerprint,
    read_array,
    write_array,
)
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.progress import Advance, ignore
from jax_diversity.foundation.stage import Context, Counts, Stage

if TYPE_CHECKING:
    from jax_diversity.embedding.base import Embedder

FIT_DOCUMENTS = 20_000
"""Largest number of documents that an embedder is fitted on."""
_BLOCK_ROWS = 65_536


def embed(context: Context, partial: Path) -> Counts:
    """Make a vector for every document from its beginning; with `embedding.method=precomputed`, copy it from files."""
    from jax_diversity.embedding.base import CHARACTERS_PER_TOKEN, learns, make_embedder
    from jax_diversity.embedding.precomputed import PrecomputedVectors

    config, dataset = context.config.embedding, context.dataset
    beginnings = dataset.beginnings(config.max_tokens * CHARACTERS_PER_TOKEN)
    stored = partial / FITTED
    if context.reference is not None:
        _take_learnt(context.reference, config, stored)
    num_fitted = min(FIT_DOCUMENTS, beginnings.num_documents)
    fits = learns(config.method, config.options) and context.reference is None
    shown = context.progress.task("fit embedding", num_fitted, "documents") if fits else nullcontext(ignore)
    with shown as advance:
        made = make_embedder(
            config.method,
            config.options,
            max_tokens=config.max_tokens,
            seed=config.seed,
            texts=lambda: _drawn_texts(beginnings, config, advance),
            stored=stored,
            document_ids=lambda: dataset.document_store.columns(["id"])["id"],
        )
    target = partial / VECTORS
    about: Counts = {"features": _features(context, int(made.dimensions), stored)}
    if isinstance(made, PrecomputedVectors):
        about["num_unused_vectors"] = made.num_unused
        with context.progress.task("copy vectors", beginnings.num_documents, "documents") as advance:
            _write_vectors(target, (beginnings.num_documents, made.dimensions), made.blocks(), advance)
    else:
        _embed_documents(context, made, beginnings, target)
    # We count in the file, a block at a time, so that the vectors of an earlier run are included.
    vectors = np.load(target, mmap_mode="r")
    num_documents, dimensions = vectors.shape
    blocks = (vectors[start : start + _BLOCK_ROWS] for start in range(0, num_documents, _BLOCK_ROWS))
    num_zero_vectors = sum(int((~block.any(axis=1)).sum()) for block in blocks)
    return about | {"num_documents": num_documents, "dimensions": dimensions, "num_zero_vectors": num_zero_vectors}


def _take_learnt(reference: Any, config: EmbeddingConfig, stored: Path) -> None:
    """Copy the fitted state of the embedder of the dataset in `features_from`."""
    from jax_diversity.embedding.base import learns

    if (path := fitted_file(reference.stored)) is not None:
        copy_file(path, stored)
    elif learns(config.method, config.options):
        raise UserError(
            f"Expected the fitted state of embedding.method={config.method} in {reference.root}, found no "
            f"{EMBEDDINGS}/{FITTED}; let the embedder keep it in the file `stored`, and build that dataset again."
        )


def _features(context: Context, dimensions: int, stored: Path) -> str:
    """Return a fingerprint of everything that determines a text's vector; check it against `features_from`."""
    from jax_diversity.embedding.base import brings_vectors, files_at

    config, reference = context.config.embedding, context.reference
    options, files = dict(config.options), ""
    if brings_vectors(config.method):
        options = {}
    else:
        files = _hash_inputs(context)
        # The content of a model's files determines the vectors; their location does not.
        if options.get("path") and files_at(str(options["path"])):
            del options["path"]
    learnt = file_hash(stored) if stored.exists() else ""
    found = fingerprint(config.method, options, config.max_tokens, config.seed, dimensions, files, learnt)
    if reference is not None and (width := reference.counts("embed")["dimensions"]) != dimensions:
        raise UserError(
            f"Expected vectors of {width} dimensions, as in {reference.root}, found {dimensions}; use vectors of the "
            "same embedder."
        )
    if reference is not None and found != reference.counts("embed")["features"]:
        raise UserError(
            f"Expected the files with which embedding.method={config.method} made the vectors of {reference.root}, "
            "found others; restore them, or build that dataset again."
        )
    return found


def _input_fingerprint(context: Context) -> str:
    inputs = _hash_inputs(context)
    return inputs if context.reference is None else fingerprint(inputs, context.reference.counts("embed")["features"])


def _hash_inputs(context: Context) -> str:
    from jax_diversity.embedding.base import check_method

    config: EmbeddingConfig = context.config.embedding
    files = check_method(config.method, config.options)
    if not files:
        return ""
    memory = HashMemory(inside(context.root, CACHE, "embedding.json"))
    hashes = [[path.name, memory.hash(path)] for path in files]
    memory.save()
    return fingerprint(hashes)


def _embed_documents(context: Context, embedder: Embedder, beginnings: Any, target: Path) -> None:
    """Embed all documents, one file of vectors per stored file of documents; at the end, join the files of vectors."""
    parts = [target.with_name(f"part-{index:05d}.npy") for index in range(len(beginnings.paths))]
    with context.progress.task("embed documents", beginnings.num_documents, "documents") as advance:
        for path, part in zip(beginnings.paths, parts, strict=True):
            # A file of an earlier run is complete, because it got its name only when it was finished.
            if part.exists():
                advance(len(read_array(part, "embed", mmap=True)))
            else:
                write_array(part, _embed_file(context, embedder, beginnings, path, advance))

    def blocks() -> Iterator[tuple[slice, np.ndarray]]:
        for path, part in zip(beginnings.paths, parts, strict=True):
            first, rows = beginnings.first_document(path), read_array(part, "embed", mmap=True)
            yield slice(first, first + len(rows)), rows

    _write_vectors(target, (beginnings.num_documents, int(embedder.dimensions)), blocks())
    for part in parts:
        part.unlink()


def _embed_file(context: Context, embedder: Embedder, beginnings: Any, path: Path, advance: Advance) -> np.ndarray:
    from jax_diversity.embedding.base import check_embedded, own_code

    def name_document(row: int) -> str:
        index = first + row
        [document] = context.dataset.document_store.rows(np.array([index]), ["id"])
        return f"document {document['id']!r} (number {index})"

    vectors = []
    first = beginnings.first_document(path)
    for texts in beginnings.of_file(path):
        with own_code(context.config.embedding.method):
            vectors.append(embedder.embed(texts))
        check_embedded(vectors[-1], len(texts), int(embedder.dimensions), name_document)
        first += len(texts)
        advance(len(texts))
    return np.concatenate(vectors)


def _drawn_texts(beginnings: Any, config: EmbeddingConfig, advance: Advance) -> list[str]:
    """Draw the documents that the embedder is fitted on, and return their beginnings in stored order."""
    # We use a mask, not a list of indices, because files of documents are read in their order, and each needs its part.
    wanted = np.zeros(beginnings.num_documents, bool)
    count = min(FIT_DOCUMENTS, len(wanted))
    wanted[np.random.default_rng(config.seed).choice(len(wanted), count, replace=False)] = True
    drawn: list[str] = []
    for path in beginnings.paths:
        for texts in beginnings.of_file(path, wanted):
            drawn += texts
            advance(len(texts))
    return drawn


def _write_vectors(
    target: Path, shape: tuple[int, int], blocks: Iterable[tuple[Any, np.ndarray]], advance: Advance = ignore
) -> None:
    """Write blocks of vectors, each with the indices or slice of its documents; memory contains one block at a time."""
    with atomic_path(target) as temporary:
        vectors = np.lib.format.open_memmap(temporary, "w+", np.dtype(np.float32), shape)
        for documents, rows in blocks:
            vectors[documents] = rows
            advance(len(rows))
        vectors.flush()  # POSIX does not guarantee that the fsync of `atomic_path` writes the pages of a map


def summary(counts: Counts) -> str:
    """Summarize the counts in one line: the number of vectors and of their features."""
    return f"{counts['num_documents']:,} vectors of {counts['dimensions']}"


EMBED = Stage(
    "embed",
    help="Turn every document into a vector.",
    section="embedding",
    destination=EMBEDDINGS,
    run=embed,
    summary=summary,
    settings=lambda config: {"embedding": dataclasses.asdict(config.embedding)},
    inputs=lambda context: ("prepare", "tokenize"),
    outside=_input_fingerprint,
    adopt=lambda config, other: config.embedding.adopt(other),
    resumable=True,
    packages=("jax", "numpy", "scikit-learn", "scipy"),
    methods="embedding.base",
)

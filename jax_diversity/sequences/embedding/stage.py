"""The stage `embed`: makes vectors from the beginnings of documents, one stored file of documents at a time."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.foundation.artifacts import CACHE, HashMemory, atomic_path, copy_file, file_hash, fingerprint
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.jobs import Job
from jax_diversity.foundation.progress import Advance, ignore, reached
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.wording import counted
from jax_diversity.sequences.embedding.files import FIT_DOCUMENTS
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.embedding.stored import EMBEDDINGS, FITTED, vectors_name

if TYPE_CHECKING:
    from jax_diversity.sequences.embedding.precomputed import PrecomputedVectors


def embed(context: Context, partial: Path) -> Counts:
    """Make a vector for every document from its beginning; with `embedding.method=precomputed`, copy it from files."""
    from jax_diversity.sequences.embedding.base import CHARACTERS_PER_TOKEN, learns
    from jax_diversity.sequences.embedding.files import forget_embedder, make_once
    from jax_diversity.sequences.embedding.precomputed import PrecomputedVectors

    config, dataset = context.config.embedding, context.dataset
    beginnings = dataset.beginnings(config.max_tokens * CHARACTERS_PER_TOKEN)
    stored = partial / FITTED.name
    if context.reference is not None:
        _take_learnt(context.reference, config, stored)
    num_fitted = min(FIT_DOCUMENTS, beginnings.num_documents)
    fits = learns(config.method, config.options) and context.reference is None
    shown = context.progress.task("fit embedding", num_fitted, "document") if fits else nullcontext(ignore)
    try:
        with shown as advance:
            vectors = make_once(context.opened, dataclasses.asdict(config), str(stored), advance)
        about: Counts = {"features": _features(context, int(vectors.dimensions), stored)}
        copies = isinstance(vectors, PrecomputedVectors)
        name = "copy vectors" if copies else "embed documents"
        with context.progress.task(name, beginnings.num_documents, "document") as advance:
            if copies:
                about["num_unused_vectors"] = vectors.num_unused
                num_zero_vectors = _write_vectors(partial, beginnings, vectors, advance)
            else:
                num_zero_vectors = _embed_documents(context, beginnings, partial, stored, advance)
    finally:
        forget_embedder()
    counts = {"num_documents": beginnings.num_documents, "dimensions": int(vectors.dimensions)}
    return about | counts | {"num_zero_vectors": num_zero_vectors}


def _embed_documents(context: Context, beginnings: Any, partial: Path, stored: Path, advance: Advance) -> int:
    """Embed every file of documents; returns the number of vectors of zeros."""
    from jax_diversity.sequences.embedding.base import runs_alone
    from jax_diversity.sequences.embedding.files import embed_file, embed_file_alone

    settings = dataclasses.asdict(context.config.embedding)
    jobs: list[Job] = []
    for number, path in enumerate(beginnings.paths):
        arguments = (context.opened, number, beginnings.first_document(path), settings, str(stored))
        jobs.append((str(partial / vectors_name(number).removesuffix(".npy")), arguments))
    num_zero_vectors = num_documents = 0
    work = embed_file_alone if runs_alone(context.config.embedding.method) else embed_file
    for number, zeros in context.executor.map(work, jobs):
        num_documents += number
        num_zero_vectors += zeros
        reached(advance, num_documents)
    return num_zero_vectors


def _take_learnt(reference: Any, config: EmbeddingConfig, stored: Path) -> None:
    """Copy the fitted state of the embedder of the dataset in `features_from`."""
    from jax_diversity.sequences.embedding.base import learns

    if FITTED.is_stored(reference.stored):
        copy_file(FITTED.path(reference.stored), stored)
    elif learns(config.method, config.options):
        raise UserError(
            f"Expected the fitted state of embedding.method={config.method} in {reference.root}, found no "
            f"{FITTED.file}; let the embedder keep it in the file `stored`, and build that dataset again."
        )


def _features(context: Context, dimensions: int, stored: Path) -> str:
    """Return a fingerprint of everything that determines a text's vector; check it against `features_from`."""
    from jax_diversity.sequences.embedding.base import brings_vectors, files_at

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
    features = fingerprint(config.method, options, config.max_tokens, config.seed, dimensions, files, learnt)
    if reference is not None and (width := reference.counts("embed")["dimensions"]) != dimensions:
        raise UserError(
            f"Expected vectors of {width} dimensions, as in {reference.root}, found {dimensions}; use vectors of the "
            "same embedder."
        )
    if reference is not None and features != reference.counts("embed")["features"]:
        raise UserError(
            f"Expected the files with which embedding.method={config.method} made the vectors of {reference.root}, "
            "found others; restore them, or build that dataset again."
        )
    return features


def _input_fingerprint(context: Context) -> str:
    inputs = _hash_inputs(context)
    return inputs if context.reference is None else fingerprint(inputs, context.reference.counts("embed")["features"])


def _hash_inputs(context: Context) -> str:
    from jax_diversity.sequences.embedding.base import check_method

    config: EmbeddingConfig = context.config.embedding
    files = check_method(config.method, config.options)
    if not files:
        return ""
    memory = HashMemory(inside(context.root, CACHE, "embedding.json"))
    hashes = [[path.name, memory.hash(path)] for path in files]
    memory.save()
    return fingerprint(hashes)


def _write_vectors(partial: Path, beginnings: Any, vectors: PrecomputedVectors, advance: Advance) -> int:
    """Copy given vectors, which have any order, a block at a time; returns the number of vectors of zeros."""
    starts = [beginnings.first_document(path) for path in beginnings.paths] + [beginnings.num_documents]
    num_zero_vectors = 0
    with ExitStack() as files:
        arrays = []
        for number, (start, stop) in enumerate(pairwise(starts)):
            temporary = files.enter_context(atomic_path(partial / vectors_name(number)))
            shape = stop - start, int(vectors.dimensions)
            arrays.append(np.lib.format.open_memmap(temporary, "w+", np.dtype(np.float32), shape))
        for documents, rows in vectors.blocks():
            owners = np.searchsorted(starts, documents, "right") - 1
            for number in np.unique(owners):
                in_array = owners == number
                arrays[number][documents[in_array] - starts[number]] = rows[in_array]
            num_zero_vectors += int((~rows.any(axis=1)).sum())
            advance(len(rows))
        for array in arrays:
            array.flush()  # POSIX does not guarantee that the fsync of `atomic_path` writes the pages of a map
    return num_zero_vectors


def summary(counts: Counts) -> str:
    """Summarize the counts in one line: the number of vectors and of their features."""
    return f"{counted(counts['num_documents'], 'vector')} of {counts['dimensions']}"


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
    methods="sequences.embedding.base",
)

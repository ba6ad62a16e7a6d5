"""Stages up to the documents' topics: prepare, tokenize, embed, cluster.

A stage reads its predecessors' artifacts, calls the module that knows how, writes into a partial folder and returns
the counts that the manifest keeps. Modules are imported when their stage runs, so that light commands load none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jax_diversity.artifacts import atomic_path, file_hash, write_json
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.progress import Advance

if TYPE_CHECKING:
    from jax_diversity.tokenization import Tokenizer


_TITLE_CHARACTERS = 80


def prepare(context: Context, partial: Path) -> Counts:
    """Read the corpus and store its documents."""
    from jax_diversity import corpus

    config = context.config.corpus
    report = corpus.ReadReport()
    with context.progress.task("prepare documents", corpus.input_size(config), "bytes") as advance:
        stored = corpus.write_documents(corpus.read_documents(config, report, advance), partial, config.file_bytes)
    return dataclasses.asdict(report) | {"num_files": stored.num_files}


def corpus_fingerprint(context: Context) -> str:
    """A hash of the files (or packages) that `prepare` would read; content hashes are remembered."""
    from jax_diversity import corpus

    cache = context.root / ".cache" / "inputs.json"
    cache.parent.mkdir(parents=True, exist_ok=True)
    return corpus.input_fingerprint(context.config.corpus, cache)


def tokenize(context: Context, partial: Path) -> Counts:
    """Train or load the tokenizer and write every document's tokens, one file pair a document file."""
    from jax_diversity import corpus, tokenization
    from jax_diversity.token_store import TokenStore, TokenWriter

    prepared = context.counts("prepare")
    tokenizer = _tokenizer(context, partial, prepared["text_bytes"])
    dtype = tokenization.token_dtype(tokenizer.vocab_size)
    paths = corpus.document_paths(context.root / "documents")
    with context.progress.task("tokenize", prepared["num_documents"], "documents") as advance:
        for index, path in enumerate(paths):
            prefix = partial / f"tokens-{index:05d}"
            if prefix.with_suffix(".idx").exists() and prefix.with_suffix(".bin").exists():
                advance(TokenStore([prefix]).num_documents)
                continue
            with TokenWriter(prefix, dtype) as writer:
                for texts in corpus.read_texts(path):
                    writer.add_documents(tokenizer.encode_documents(texts))
                    advance(len(texts))
    store = TokenStore([partial / f"tokens-{index:05d}" for index in range(len(paths))])
    return {
        "num_documents": store.num_documents,
        "num_tokens": store.num_tokens,
        "vocab_size": tokenizer.vocab_size,
        "end_id": tokenizer.end_id,
        "token_dtype": str(np.dtype(dtype)),
    }


def tokenizer_fingerprint(context: Context) -> str:
    """A hash of the tokenizer file that the settings name."""
    config = context.config.tokenizer
    if config.kind != "file" or not config.path or not Path(config.path).is_file():
        return ""  # trained on the corpus, or reported as missing when it is loaded
    return file_hash(Path(config.path))


def _tokenizer(context: Context, partial: Path, text_bytes: int) -> Tokenizer:
    """The tokenizer that the settings ask for; its file is in the partial folder afterwards."""
    from jax_diversity import tokenization

    config = context.config.tokenizer
    stored = partial / "tokenizer.json"
    if stored.exists():
        return tokenization.load_tokenizer(stored, config.end_token)
    if config.kind == "bytes":
        tokenizer = tokenization.byte_tokenizer()
    elif config.kind == "file":
        tokenizer = tokenization.load_tokenizer(config.path or "", config.end_token)
    else:
        texts = tokenization.spread_texts(_all_texts(context), text_bytes, config.train_bytes)
        with context.progress.task("train tokenizer", None, "documents") as advance:
            tokenizer = tokenization.train_bpe(_counted(texts, advance), config.vocab_size)
    with atomic_path(stored) as temporary:
        tokenizer.save(temporary)
    return tokenizer


def _all_texts(context: Context, max_characters: int | None = None) -> Iterator[str]:
    from jax_diversity import corpus

    for path in corpus.document_paths(context.root / "documents"):
        for texts in corpus.read_texts(path, max_characters):
            yield from texts


def _counted(texts: Iterable[str], advance: Advance) -> Iterator[str]:
    for text in texts:
        advance(1)
        yield text


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
            _save_array(parts[-1], np.concatenate(vectors))
    _join_arrays(partial / "embeddings.npy", parts, num_documents)
    for part in parts:
        part.unlink()
    return {"num_documents": num_documents, "dimensions": config.dimensions}


def _drawn_texts(context: Context, num_documents: int) -> list[str]:
    """The beginnings of the documents that the embedding is fitted on, in corpus order."""
    config = context.config.embedding
    wanted = np.zeros(num_documents, bool)
    count = min(config.fit_documents, num_documents)
    wanted[np.random.default_rng(config.seed).choice(num_documents, count, replace=False)] = True
    texts = _all_texts(context, config.max_characters)
    return [text for text, chosen in zip(texts, wanted, strict=True) if chosen]


def _save_array(path: Path, values: np.ndarray) -> None:
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.save(file, values)


def _join_arrays(path: Path, parts: list[Path], num_rows: int) -> None:
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


def cluster(context: Context, partial: Path) -> Counts:
    """Cluster the documents' vectors and name the clusters."""
    from jax_diversity import clustering
    from jax_diversity.embedding import TfidfSvd

    config = context.config.cluster
    vectors = np.load(context.root / "embeddings" / "embeddings.npy", mmap_mode="r")
    total = clustering.num_rows_passed(len(vectors), config)
    with context.progress.task("cluster documents", total, "rows") as advance:
        result = clustering.kmeans(vectors, config, advance)
    _save_array(partial / "centroids.npy", result.centroids)
    _save_array(partial / "assignments.npy", result.assignments)
    model = TfidfSvd.load(context.root / "embeddings" / "embedding.npz")
    nearest = clustering.nearest_documents(vectors, result, num_nearest=3)
    titles = _titles(context, set(nearest.ravel().tolist()))
    sizes = np.bincount(result.assignments, minlength=len(result.centroids))
    terms = model.top_terms(result.centroids, num_terms=8)
    write_json(
        partial / "clusters.json",
        [
            {
                "num_documents": int(size),
                "top_terms": words,
                "titles": [titles[index] for index in row if index >= 0],
            }
            for size, words, row in zip(sizes, terms, nearest.tolist(), strict=True)
        ],
    )
    return {
        "num_clusters": len(result.centroids),
        "num_empty_clusters": int((sizes == 0).sum()),
        "num_iterations": result.num_iterations,
        "inertia": float(f"{result.inertia:.6g}"),
    }


def _titles(context: Context, wanted: set[int]) -> dict[int, str]:
    """What some documents are called: their titles, or their first words."""
    from jax_diversity import corpus

    titles = corpus.read_columns(context.root / "documents", ["title"])["title"].to_pylist()
    texts = enumerate(_all_texts(context, max_characters=_TITLE_CHARACTERS))
    return {index: titles[index] or " ".join(text.split()) for index, text in texts if index in wanted}

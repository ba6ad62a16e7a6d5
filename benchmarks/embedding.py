"""Measure embeddings: documents and megabytes per second, compared with scikit-learn alone, and purity of clusters.

    python benchmarks/embedding.py 'texts/*.jsonl.gz' [--label domain] [--out FOLDER] [--write]

Documents are prepared first (into FOLDER if it is given; a later run reuses it). Every method reads the first 1,024 of
its own tokens of each document. The bare calls get the same texts in the same process:

- tfidf_svd: `TfidfVectorizer` (the same terms, `sublinear_tf`, in at least two documents, 50,000 terms) and
  `TruncatedSVD`(128, two iterations), `fit` on the same documents, then `transform` of all;
- hashing: `HashingVectorizer` with the same settings, all texts in one call, times the same matrix of signs.

Purity is the share of documents whose label is the most frequent label of their cluster, after 25 iterations of the
package's k-means. Times are CPU seconds of the process, the better of two runs, with BLAS on one thread: other
processes change CPU seconds less than wall time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import results_file
from threadpoolctl import threadpool_limits

from jax_diversity.foundation.progress import Progress
from jax_diversity.foundation.text.terms import split_terms
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.preparation.settings import CorpusConfig
from jax_diversity.sequences.clustering.base import cluster
from jax_diversity.sequences.clustering.purity import purity
from jax_diversity.sequences.embedding import hashing as hashing_method
from jax_diversity.sequences.embedding import precomputed as precomputed_method
from jax_diversity.sequences.embedding import tfidf_svd as tfidf_svd_method
from jax_diversity.sequences.embedding.base import CHARACTERS_PER_TOKEN
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from jax_diversity.sequences.embedding.stage import FIT_DOCUMENTS
from jax_diversity.streaming.dataset import open_dataset

CLUSTERS = (100, 1000)
DIMENSIONS = 128
Embed = Callable[[], np.ndarray]


def read_beginnings(paths: list[str], label: str, out: str) -> tuple[list[str], list[str], list[str], float]:
    """Read the documents' beginnings, labels (or sources) and ids; also the seconds for the beginnings."""
    settings = CorpusConfig(paths=tuple(paths), duplicate_ids="rename")
    build = Build(BuildConfig(out=out, corpus=settings, orders=(OrderConfig(),)), Progress())
    for stage in ("prepare", "tokenize"):
        build.run_stage(stage)
    dataset = open_dataset(out)
    start = time.process_time()
    beginnings = dataset.beginnings(EmbeddingConfig().max_tokens * CHARACTERS_PER_TOKEN)
    texts = [text for path in beginnings.paths for part in beginnings.of_file(path) for text in part]
    seconds = time.process_time() - start
    table = dataset.document_store.columns(["id", "source", "metadata"])
    metadata = map(json.loads, table["metadata"].to_pylist())
    sources = table["source"].to_pylist()
    labels = [str(fields.get(label, source)) for fields, source in zip(metadata, sources, strict=True)]
    return texts, labels, table["id"].to_pylist(), seconds


def drawn(texts: list[str], config: EmbeddingConfig) -> list[str]:
    """Choose the documents that the stage would fit on."""
    count = min(FIT_DOCUMENTS, len(texts))
    chosen = np.random.default_rng(config.seed).choice(len(texts), count, replace=False)
    return [texts[index] for index in np.sort(chosen).tolist()]


def tfidf_svd(texts: list[str], config: EmbeddingConfig) -> tuple[Embed, Embed]:
    """Measure our method and the bare call: fitting and applying."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline

    part = drawn(texts, config)
    words = partial(split_terms, most=config.max_tokens)
    settings: dict[str, Any] = {"analyzer": words, "sublinear_tf": True, "min_df": 2, "dtype": np.float32}
    bare = make_pipeline(
        TfidfVectorizer(**settings, max_features=50_000),
        TruncatedSVD(DIMENSIONS, n_iter=5, random_state=config.seed),
    )

    def ours() -> np.ndarray:
        embedder = tfidf_svd_method.tfidf_svd(
            texts=lambda: part, seed=config.seed, max_tokens=config.max_tokens, dimensions=DIMENSIONS
        )
        return embedder.embed(texts)

    return ours, lambda: bare.fit(part).transform(texts)


def hashing(texts: list[str], config: EmbeddingConfig) -> tuple[Embed, Embed]:
    """Measure our method and the bare call."""
    embedder = hashing_method.hashing(seed=config.seed, max_tokens=config.max_tokens, dimensions=DIMENSIONS)
    embedder.embed(["signs are drawn at the first call"])
    signs = hashing_method.make_signs(DIMENSIONS, config.seed)
    bare = hashing_method.make_vectorizer(config.max_tokens)
    return lambda: embedder.embed(texts), lambda: bare.transform(texts) @ signs


def precomputed(vectors: np.ndarray, ids: list[str], folder: Path) -> tuple[Embed, Embed]:
    """Measure a checked copy of a .npy, and NumPy's reading of it."""
    path = folder / "vectors.npy"
    np.save(path, vectors)

    def copy() -> np.ndarray:
        found = precomputed_method.precomputed(document_ids=lambda: ids, path=str(path))
        copied = np.empty((len(ids), found.dimensions), np.float32)
        for documents, rows in found.blocks():
            copied[documents] = rows
        return copied

    return copy, lambda: np.load(path)


def timed(embed: Embed) -> tuple[np.ndarray, float]:
    """Return the result of a call, and the CPU seconds of the better of two runs."""
    seconds = []
    vectors = np.zeros((0, 0), np.float32)
    with threadpool_limits(1, user_api="blas"):
        for _ in range(2):
            start = time.process_time()
            vectors = embed()
            seconds.append(time.process_time() - start)
    return vectors, min(seconds)


def purities(vectors: np.ndarray, labels: list[str]) -> dict[str, float]:
    found = {}
    for num_clusters in CLUSTERS:
        if num_clusters <= len(vectors):
            assignments = cluster(vectors, num_clusters).assignments
            found[str(num_clusters)] = round(float(purity(assignments, labels)), 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="files or globs of documents")
    parser.add_argument("--label", default="domain", help="the metadata field that clusters are compared with")
    parser.add_argument("--out", help="folder of a dataset; it is made, or used again if it exists")
    parser.add_argument("--write", action="store_true", help="store the results in benchmarks/results/")
    arguments = parser.parse_args()
    config = EmbeddingConfig()
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or f"{folder}/out"
        texts, labels, ids, seconds = read_beginnings(arguments.paths, arguments.label, out)
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        print(f"{len(texts):,} documents, first {config.max_tokens:,} tokens: {megabytes:.1f} MB, {seconds:.1f} s")
        print(f"{'method':12} {'seconds':>8} {'documents/s':>12} {'MB/s':>6} {'bare':>8} {'speed / bare':>12}  purity")
        rows = {}
        vectors = np.zeros((0, 0), np.float32)
        for method in ("tfidf_svd", "hashing", "precomputed"):
            if method == "precomputed":
                ours, bare = precomputed(vectors, ids, Path(folder))
            else:
                ours, bare = (tfidf_svd if method == "tfidf_svd" else hashing)(texts, config)
            vectors, own_seconds = timed(ours)
            _, bare_seconds = timed(bare)
            rows[method] = {
                "seconds": round(own_seconds, 3),
                "documents_per_second": round(len(texts) / own_seconds),
                "megabytes_per_second": round(megabytes / own_seconds, 2),
                "bare_seconds": round(bare_seconds, 3),
                "speed_by_bare": round(bare_seconds / own_seconds, 3),
                "purity": {} if method == "precomputed" else purities(vectors, labels),
            }
            row = rows[method]
            print(
                f"{method:12} {own_seconds:8.2f} {row['documents_per_second']:12,} "
                f"{row['megabytes_per_second']:6.1f} {bare_seconds:8.2f} {row['speed_by_bare']:12.2f}  "
                f"{row['purity'] or ''}",
                flush=True,
            )
    if arguments.write:
        about = {"documents": len(texts), "megabytes": round(megabytes, 1), "beginnings_seconds": round(seconds, 2)}
        versions = results_file.environment("jax", "numpy", "scikit-learn", "scipy")
        results_file.write("embedding", {"environment": versions, **about, "methods": rows})


if __name__ == "__main__":
    main()

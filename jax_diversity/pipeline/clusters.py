"""The stage of the clusters: vectors -> topic clusters with names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jax_diversity.artifacts import write_json
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import all_texts
from jax_diversity.pipeline.embeddings import save_array

_TITLE_CHARACTERS = 80


def cluster(context: Context, partial: Path) -> Counts:
    """Cluster the documents' vectors and name the clusters."""
    from jax_diversity import clustering
    from jax_diversity.embedding import TfidfSvd

    config = context.config.cluster
    vectors = np.load(context.root / "embeddings" / "embeddings.npy", mmap_mode="r")
    total = clustering.num_rows_passed(len(vectors), config)
    with context.progress.task("cluster documents", total, "rows") as advance:
        result = clustering.kmeans(vectors, config, advance)
    save_array(partial / "centroids.npy", result.centroids)
    save_array(partial / "assignments.npy", result.assignments)
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
    texts = enumerate(all_texts(context, max_characters=_TITLE_CHARACTERS))
    return {index: titles[index] or " ".join(text.split()) for index, text in texts if index in wanted}

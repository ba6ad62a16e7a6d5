"""The stage `cluster`: vectors -> one or several clusterings, with names, a map and their purity."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.clustering.settings import ClusterConfig
from jax_diversity.clustering.stored import ending
from jax_diversity.foundation.artifacts import read_array, write_array, write_json
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.progress import Advance
from jax_diversity.foundation.stage import Context, Counts, Stage

if TYPE_CHECKING:
    from jax_diversity.clustering.kmeans import Clustering

_TITLE_CHARACTERS = 80
_NUM_TITLES = 3
_NAMING_TOKENS = 600
_NAMING_CHARACTERS = 3000


@dataclasses.dataclass(frozen=True, eq=False)
class _Labels:
    """What the documents' own label field says.

    Attributes:
        field: its name; `source` where no document has the field of the settings.
        codes: a document's label, -1 where it has none.
        names: the labels.
    """

    field: str
    codes: np.ndarray
    names: list[str]


def cluster_documents(context: Context, partial: Path) -> Counts:
    """Cluster the documents' vectors as often as asked, name the clusters and compare them with labels."""
    check_numbers(context)
    vectors = context.dataset.embeddings
    families = context.config.cluster.clusterings
    made: dict[str, Clustering] = {}
    nearest: dict[str, np.ndarray] = {}
    for family, settings in families.items():
        made[family], nearest[family] = _make_clustering(context, family, settings, vectors, partial)
    labels = _read_labels(context)
    described, titles = _read_texts(context, made, nearest)
    for family, clustering in made.items():
        entries = _entries(clustering, nearest[family], described[family], titles, labels)
        write_json(partial / f"clusters{ending(family)}.json", entries)
    (partial / _TRAINED).unlink(missing_ok=True)
    return _counts(made, labels)


def check_numbers(context: Context) -> None:
    """Whether there are documents enough for every clustering: known as soon as the documents are stored.

    Raises:
        UserError: more clusters than documents.
    """
    config, num_documents = context.config.cluster, context.counts("prepare")["num_documents"]
    for name, number in [("num_clusters", config.num_clusters), *(("also", number) for number in config.also)]:
        if number > num_documents:
            raise UserError(
                f"Expected cluster.{name} of at most the {num_documents} documents, found {number}; set it to "
                f"{num_documents} or fewer, or bring more documents."
            )


_TRAINED = "trained.json"
"""Passes that finished centroids took, by family: with it a build that was cut off keeps them."""


def _make_clustering(
    context: Context, family: str, config: ClusterConfig, vectors: np.ndarray, partial: Path
) -> tuple[Clustering, np.ndarray]:
    """Centroids and assignments, stored, and the documents nearest to every centroid."""
    from jax_diversity.clustering.kmeans import (
        Clustering,
        assign_with_distances,
        nearest_documents,
        num_rows_passed,
        train_centroids,
    )
    from jax_diversity.clustering.naming import documents_per_cluster

    path = partial / f"centroids{ending(family)}.npy"
    mesh = _all_devices()
    total = num_rows_passed(len(vectors), config)
    with context.progress.task(f"{family}: {config.num_clusters:,} groups", total, "rows") as advance:
        trained = _trained(partial)
        if path.exists() and family in trained:
            centroids = read_array(path, "cluster")
            advance(total - len(vectors))
        else:
            centroids, passes = train_centroids(vectors, config, advance, mesh=mesh)
            write_array(path, centroids)
            trained[family] = passes
            write_json(partial / _TRAINED, trained)
        assignments, distances = assign_with_distances(
            vectors, centroids, advance, spherical=config.spherical, mesh=mesh
        )
    write_array(partial / f"assignments{ending(family)}.npy", assignments)
    inertia = float(distances.sum(dtype=np.float64))
    count = documents_per_cluster(len(centroids))
    nearest = nearest_documents(assignments, distances, len(centroids), count)
    return Clustering(centroids, assignments, inertia, trained[family]), nearest


def _trained(partial: Path) -> dict[str, int]:
    path = partial / _TRAINED
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _all_devices() -> Any:
    """A mesh of this machine's devices where there are several."""
    import jax
    from jax.sharding import Mesh

    devices = jax.local_devices()
    return Mesh(np.array(devices), ("rows",)) if len(devices) > 1 else None


def _read_texts(
    context: Context, made: dict[str, Clustering], nearest: dict[str, np.ndarray]
) -> tuple[dict[str, Any], dict[int, str]]:
    """Every clustering's names, and titles of the documents nearest to centroids; texts are read once."""
    from jax_diversity.clustering.naming import TermCounts, name_clusters

    counted = {family: TermCounts() for family in made}
    wanted: dict[int, list[tuple[str, int]]] = {}
    titled: set[int] = set()
    for family, documents in nearest.items():
        titled.update(documents[:, :_NUM_TITLES].ravel().tolist())
        for number, row in enumerate(documents.tolist()):
            for document in row:
                if document >= 0:
                    wanted.setdefault(document, []).append((family, number))
    known = context.dataset.document_store.columns(["title"])["title"]
    titles: dict[int, str] = {}
    num_documents = context.counts("prepare")["num_documents"]
    with context.progress.task("name clusters", num_documents, "documents") as advance:
        for document, text in enumerate(_beginnings(context, advance)):
            for family, number in wanted.get(document, ()):
                counted[family].add(number, text)
            if document in titled:
                titles[document] = known[document].as_py() or " ".join(text[: 4 * _TITLE_CHARACTERS].split())
    names = {family: name_clusters(counted[family], one.centroids) for family, one in made.items()}
    return names, {document: title[:_TITLE_CHARACTERS] for document, title in titles.items()}


def _beginnings(context: Context, advance: Advance) -> Iterator[str]:
    """Every document's first page or so; decoded from its tokens where the corpus holds nothing else."""
    if context.counts("prepare").get("has_text", True):
        texts = context.dataset.document_store.texts(max_characters=_NAMING_CHARACTERS)
    else:
        beginnings = context.dataset.beginnings(_NAMING_TOKENS)
        texts = chain.from_iterable(map(beginnings.of_file, beginnings.paths))
    for text in chain.from_iterable(texts):
        advance(1)
        yield text


def _read_labels(context: Context) -> _Labels:
    from jax_diversity.clustering.purity import label_codes

    documents, field = context.dataset.document_store, context.config.cluster.label_field
    values = [value for group in documents.metadata([field]) for value in group[field]]
    if all(value is None for value in values):
        field, values = "source", documents.columns(["source"])["source"].to_pylist()
    texts = [json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value for value in values]
    codes, names = label_codes([None if text is None else str(text) for text in texts])
    if None in names:  # the documents without a label become -1
        absent = names.index(None)
        names.remove(None)
        codes = np.where(codes == absent, -1, codes - (codes > absent))
    return _Labels(field, codes, names)


def _entries(
    clustering: Clustering, nearest: np.ndarray, names: Any, titles: dict[int, str], labels: _Labels
) -> list[dict[str, Any]]:
    """What is known of every cluster."""
    from jax_diversity.clustering.maps import LARGEST_MAP, map_positions
    from jax_diversity.clustering.purity import majority_labels

    num_clusters = len(clustering.centroids)
    sizes = np.bincount(clustering.assignments, minlength=num_clusters)
    labelled = labels.codes >= 0
    majority = majority_labels(clustering.assignments[labelled], labels.codes[labelled], num_clusters)
    shown = np.sort(np.argsort(-sizes, kind="stable")[: min(LARGEST_MAP, int((sizes > 0).sum()))])
    positions = np.full((num_clusters, 2), np.nan)
    positions[shown] = map_positions(clustering.centroids[shown]).astype(np.float64).round(4)
    return [
        {
            "name": names.names[number],
            "num_documents": int(sizes[number]),
            "top_terms": names.top_terms[number],
            "titles": [titles[document] for document in nearest[number, :_NUM_TITLES].tolist() if document >= 0],
            "label": labels.names[majority[number]] if majority[number] >= 0 else None,
            "position": None if np.isnan(positions[number, 0]) else positions[number].tolist(),
        }
        for number in range(num_clusters)
    ]


def _counts(made: dict[str, Clustering], labels: _Labels) -> Counts:
    from jax_diversity.clustering.purity import purity

    main = made["cluster"]
    sizes = np.bincount(main.assignments, minlength=len(main.centroids))
    labelled = labels.codes >= 0
    codes = labels.codes[labelled]
    return {
        "num_clusters": len(main.centroids),
        "num_empty_clusters": int((sizes == 0).sum()),
        "num_iterations": main.num_iterations,
        "inertia": float(f"{main.inertia:.6g}"),
        "clusterings": {family: len(clustering.centroids) for family, clustering in made.items()},
        "label_field": labels.field,
        "num_labels": len(labels.names),
        "largest_label": round(float(np.bincount(codes).max() / len(codes)), 6) if len(codes) else 1.0,
        "purity": {
            family: round(purity(clustering.assignments[labelled], codes), 6) for family, clustering in made.items()
        },
    }


def summary(counts: Counts) -> str:
    """How many clusters, after how many passes."""
    return f"{counts['num_clusters']:,} clusters in {counts['num_iterations']} passes"


CLUSTER = Stage(
    "cluster",
    help="Group the documents' vectors into topic clusters.",
    section="cluster",
    destination="clusters",
    run=cluster_documents,
    summary=summary,
    settings=lambda config: {"cluster": dataclasses.asdict(config.cluster)},
    inputs=lambda context: ("prepare", "tokenize", "embed"),
    check=check_numbers,
    resumable=True,
    packages=("jax", "numpy", "scikit-learn"),
    version=3,
)

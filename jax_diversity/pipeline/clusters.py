"""The stage of the clusters: vectors -> one or several clusterings, with names, a map and their purity."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_diversity.artifacts import read_array, write_array, write_json
from jax_diversity.config import ClusterConfig
from jax_diversity.errors import UserError
from jax_diversity.pipeline.context import Context, Counts
from jax_diversity.pipeline.corpus import all_texts
from jax_diversity.pipeline.texts import document_beginnings
from jax_diversity.progress import Advance

if TYPE_CHECKING:
    from jax_diversity.clustering import Clustering

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


def cluster(context: Context, partial: Path) -> Counts:
    """Cluster the documents' vectors as often as asked, name the clusters and compare them with labels."""
    num_documents = context.counts("prepare")["num_documents"]
    check_numbers(context)
    vectors = _read_vectors(context.root / "embeddings" / "embeddings.npy", num_documents)
    families = clusterings(context.config.cluster)
    made: dict[str, Clustering] = {}
    nearest: dict[str, np.ndarray] = {}
    for family, settings in families.items():
        made[family], nearest[family] = _make_clustering(context, family, settings, vectors, partial)
    labels = _read_labels(context)
    described, titles = _read_texts(context, made, nearest)
    for family, clustering in made.items():
        entries = _entries(clustering, nearest[family], described[family], titles, labels)
        write_json(partial / f"clusters{_ending(family)}.json", entries)
    (partial / _TRAINED).unlink(missing_ok=True)
    return _counts(made, labels)


def clusterings(config: ClusterConfig) -> dict[str, ClusterConfig]:
    """Each clustering's family and settings: `cluster`, and `cluster_100` for 100 in `also`."""
    own = {"cluster": dataclasses.replace(config, also=())}
    levels = 1 if config.coarse_clusters == 1 else 0  # a number of coarse clusters suits the main clustering alone
    further = {
        f"cluster_{number}": dataclasses.replace(config, num_clusters=number, also=(), coarse_clusters=levels)
        for number in config.also
    }
    return own | further


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


def _read_vectors(path: Path, num_documents: int) -> np.ndarray:
    vectors = read_array(path, "embed", mmap=True)
    if vectors.ndim != 2 or len(vectors) != num_documents or vectors.dtype != np.float32:
        raise UserError(
            f"{path} is damaged: expected a float32 vector of each of {num_documents} documents, found "
            f"{vectors.dtype} of the shape {vectors.shape}; run `jax-diversity embed` again."
        )
    return vectors


def assignments_path(context: Context, family: str) -> Path:
    """Where a clustering's assignments are stored."""
    return context.root / "clusters" / f"assignments{_ending(family)}.npy"


def cluster_entries(context: Context, family: str) -> list[dict[str, Any]]:
    """What is known of every cluster of a clustering: name, terms, titles ...

    Raises:
        UserError: a damaged file.
    """
    path = context.root / "clusters" / f"clusters{_ending(family)}.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); run `jax-diversity cluster` again.") from None


def _ending(family: str) -> str:
    """What tells the files of a further clustering from the main one's."""
    return family.removeprefix("cluster")


_TRAINED = "trained.json"
"""Passes that finished centroids took, by family: with it a build that was cut off keeps them."""


def _make_clustering(
    context: Context, family: str, config: ClusterConfig, vectors: np.ndarray, partial: Path
) -> tuple[Clustering, np.ndarray]:
    """Centroids and assignments, stored, and the documents nearest to every centroid."""
    from jax_diversity import clustering

    path = partial / f"centroids{_ending(family)}.npy"
    mesh = _all_devices()
    total = clustering.num_rows_passed(len(vectors), config)
    with context.progress.task(f"{family}: {config.num_clusters:,} groups", total, "rows") as advance:
        trained = _trained(partial)
        if path.exists() and family in trained:
            centroids = read_array(path, "cluster")
            advance(total - len(vectors))
        else:
            centroids, passes = clustering.train_centroids(vectors, config, advance, mesh=mesh)
            write_array(path, centroids)
            trained[family] = passes
            write_json(partial / _TRAINED, trained)
        assignments, distances = clustering.assign_with_distances(
            vectors, centroids, advance, spherical=config.spherical, mesh=mesh
        )
    write_array(partial / f"assignments{_ending(family)}.npy", assignments)
    inertia = float(distances.sum(dtype=np.float64))
    count = clustering.documents_per_cluster(len(centroids))
    nearest = clustering.nearest_documents(assignments, distances, len(centroids), count)
    return clustering.Clustering(centroids, assignments, inertia, trained[family]), nearest


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
    from jax_diversity import clustering, corpus

    counted = {family: clustering.TermCounts() for family in made}
    wanted: dict[int, list[tuple[str, int]]] = {}
    titled: set[int] = set()
    for family, documents in nearest.items():
        titled.update(documents[:, :_NUM_TITLES].ravel().tolist())
        for number, row in enumerate(documents.tolist()):
            for document in row:
                if document >= 0:
                    wanted.setdefault(document, []).append((family, number))
    known = corpus.read_columns(context.root / "documents", ["title"])["title"]
    titles: dict[int, str] = {}
    num_documents = context.counts("prepare")["num_documents"]
    with context.progress.task("name clusters", num_documents, "documents") as advance:
        for document, text in enumerate(_beginnings(context, advance)):
            for family, number in wanted.get(document, ()):
                counted[family].add(number, text)
            if document in titled:
                titles[document] = known[document].as_py() or " ".join(text[: 4 * _TITLE_CHARACTERS].split())
    names = {family: clustering.name_clusters(counted[family], one.centroids) for family, one in made.items()}
    return names, {document: title[:_TITLE_CHARACTERS] for document, title in titles.items()}


def _beginnings(context: Context, advance: Advance) -> Iterator[str]:
    """Every document's first page or so; decoded from its tokens where the corpus holds nothing else."""
    if context.counts("prepare").get("has_text", True):
        texts = all_texts(context, _NAMING_CHARACTERS)
    else:
        texts = chain.from_iterable(document_beginnings(context, _NAMING_TOKENS))
    for text in texts:
        advance(1)
        yield text


def _read_labels(context: Context) -> _Labels:
    from jax_diversity import clustering, corpus

    folder, field = context.root / "documents", context.config.cluster.label_field
    values: list[Any] = []
    for path in corpus.document_paths(folder):
        stored = corpus.read_columns([path], ["metadata"])["metadata"].to_pylist()
        values += [json.loads(metadata or "{}").get(field) for metadata in stored]
    if all(value is None for value in values):
        field, values = "source", corpus.read_columns(folder, ["source"])["source"].to_pylist()
    texts = [json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value for value in values]
    codes, names = clustering.label_codes([None if text is None else str(text) for text in texts])
    if None in names:  # the documents without a label become -1
        absent = names.index(None)
        names.remove(None)
        codes = np.where(codes == absent, -1, codes - (codes > absent))
    return _Labels(field, codes, names)


def _entries(
    clustering: Clustering, nearest: np.ndarray, names: Any, titles: dict[int, str], labels: _Labels
) -> list[dict[str, Any]]:
    """What is known of every cluster."""
    from jax_diversity.clustering import LARGEST_MAP, majority_labels, map_positions

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
    from jax_diversity.clustering import purity

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

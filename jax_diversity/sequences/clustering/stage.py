"""The stage `cluster`: makes one or several clusterings of the vectors, with names, a map and their purity."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_diversity.foundation.artifacts import (
    copy_file,
    file_hash,
    fingerprint,
    read_array,
    read_json,
    write_array,
    write_json,
)
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.jobs import Job
from jax_diversity.foundation.progress import reached
from jax_diversity.foundation.settings import adopt_settings
from jax_diversity.foundation.stage import Context, Counts, Stage
from jax_diversity.foundation.wording import counted
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.clustering.stored import (
    CLUSTERS,
    assignments_name,
    centroids_file,
    centroids_name,
    clusters_name,
)

if TYPE_CHECKING:
    from jax_diversity.sequences.clustering.base import Clustering
    from jax_diversity.sequences.clustering.naming import TermCounts

_TITLE_CHARACTERS = 80
_NUM_TITLES = 3
_NAMING_CHARACTERS = 3000
_DESCRIBED = ("name", "top_terms", "position")
"""The values in `clusters.json` that depend only on the centroid."""
_TRAINED = "trained.json"
"""File with the number of passes of each family's finished centroids; an interrupted build finds its centroids by
it."""


_ASSIGNED = "assigned"
"""The folder of the jobs' files, each with the clusters of the documents of one file."""


class _Labels(NamedTuple):
    """The field that clusters are compared with, the label of every document (-1 without a label), and label names."""

    field: str
    codes: np.ndarray
    names: list[str]


def cluster_documents(context: Context, partial: Path) -> Counts:
    """Make all clusterings of the documents' vectors, name the clusters and compare them with labels."""
    check_numbers(context)
    if context.reference is not None:
        _take_centroids(context, partial)
    clusterings: dict[str, Clustering] = {}
    nearest: dict[str, np.ndarray] = {}
    for family, settings in context.config.cluster.clusterings.items():
        clusterings[family], nearest[family] = _make_clustering(context, family, settings, partial)
    labels = _read_labels(context)
    counted, titles = _read_nearest(context, nearest)
    for family, clustering in clusterings.items():
        described = _describe(context, family, clustering, counted[family])
        entries = _entries(clustering, nearest[family], described, titles, labels)
        write_json(partial / clusters_name(family), entries)
    # This comes last: a build that is interrupted before this line finds its centroids and assignments again.
    shutil.rmtree(partial / _ASSIGNED)
    (partial / _TRAINED).unlink(missing_ok=True)
    centroids = {family: file_hash(partial / centroids_name(family)) for family in clusterings}
    spherical = bool(context.config.cluster.options.get("spherical", False))
    return _counts(clusterings, labels) | {"features": fingerprint(centroids, spherical)}


def check_numbers(context: Context) -> None:
    """Check that there are enough documents for every clustering, as soon as the documents are stored."""
    if context.reference is not None:  # the centroids of that dataset are used, even with few documents
        return
    num_documents = context.counts("prepare")["num_documents"]
    for family, config in context.config.cluster.clusterings.items():
        number = config.resolve_num_clusters(num_documents)
        if number > num_documents:
            name = "num_clusters" if family == "cluster" else "also"
            raise UserError(
                f"Expected cluster.{name} of at most the {num_documents} documents, found {number}; set it to "
                f"{num_documents} or fewer, or add documents."
            )
        dataclasses.replace(config, num_clusters=number).check()  # with the number from `auto`


def _take_centroids(context: Context, partial: Path) -> None:
    """Copy the centroids of the dataset in `features_from`, as if they were trained here."""
    families = context.config.cluster.clusterings
    for family in families:
        copy_file(centroids_file(context.reference.stored, family), partial / centroids_name(family))
    write_json(partial / _TRAINED, dict.fromkeys(families, 0))


def _make_clustering(
    context: Context, family: str, config: ClusterConfig, partial: Path
) -> tuple[Clustering, np.ndarray]:
    """Make and store centroids and assignments; also return the documents nearest to every centroid."""
    from jax_diversity.sequences.clustering.assignment import assign_file, local_mesh, nearest_documents
    from jax_diversity.sequences.clustering.base import Clustering, num_rows_passed, train_centroids
    from jax_diversity.sequences.clustering.naming import documents_per_cluster

    vectors = context.dataset.embeddings
    options: Any = {"method": config.method, "train_documents": config.train_documents, **config.options}
    path, trained_path = partial / centroids_name(family), partial / _TRAINED
    trained = read_json(trained_path, "cluster") if trained_path.exists() else {}
    stored_clusters = read_array(path, "cluster") if path.exists() and family in trained else None
    num_clusters = config.resolve_num_clusters(len(vectors)) if stored_clusters is None else len(stored_clusters)
    total = num_rows_passed(len(vectors), num_clusters, **options)
    with context.progress.task(f"{family}: {num_clusters:,} groups", total, "row") as advance:
        if stored_clusters is not None:
            centroids = stored_clusters
        else:
            centroids, trained[family] = train_centroids(
                vectors, num_clusters, seed=config.seed, advance=advance, mesh=local_mesh(), **options
            )
            # The array is written first: an entry in the list means that the array is complete.
            write_array(path, centroids)
            write_json(trained_path, trained)
        # The rows of the finished training are reported as done, so that the progress bar ends at its total.
        num_done = total - len(vectors)
        reached(advance, num_done)
        spherical = bool(config.options.get("spherical", False))
        folder = partial / _ASSIGNED
        folder.mkdir(exist_ok=True)
        jobs: list[Job] = [
            (str(folder / f"{family}-{number:05d}"), (context.opened, number, str(path), spherical))
            for number in range(context.dataset.num_document_files)
        ]
        for number in context.executor.map(assign_file, jobs):
            num_done += number
            reached(advance, num_done)
    assignments, distances = (
        np.concatenate([read_array(Path(f"{name}.{kind}.npy"), "cluster") for name, _ in jobs])
        for kind in ("clusters", "distances")
    )
    write_array(partial / assignments_name(family), assignments)
    inertia = float(distances.sum(dtype=np.float64))
    num_nearest = documents_per_cluster(len(centroids)) if context.reference is None else _NUM_TITLES
    nearest = nearest_documents(assignments, distances, len(centroids), num_nearest)
    return Clustering(centroids, assignments, inertia, trained[family]), nearest


def _read_nearest(context: Context, nearest: dict[str, np.ndarray]) -> tuple[dict[str, TermCounts], dict[int, str]]:
    """Read terms and titles of the documents nearest to the centroids of every clustering; texts are read once."""
    from jax_diversity.sequences.clustering.naming import TermCounts

    counted = {family: TermCounts() for family in nearest}
    clusters_of: dict[int, list[tuple[str, int]]] = {}
    for family, documents in nearest.items():
        numbers, places = np.nonzero(documents >= 0)
        for number, document in zip(numbers.tolist(), documents[numbers, places].tolist(), strict=True):
            clusters_of.setdefault(document, []).append((family, number))
    titled = np.unique(np.concatenate([documents[:, :_NUM_TITLES].ravel() for documents in nearest.values()]))
    titled = titled[titled >= 0]
    stored = context.dataset.document_store.rows(titled, ["title"])
    titles = {document: row["title"] for document, row in zip(titled.tolist(), stored, strict=True)}
    # We use a mask and not a list of indices, because texts are read in the order of the corpus, file by file.
    is_wanted = np.zeros(context.counts("prepare")["num_documents"], bool)
    is_wanted[list(clusters_of)] = True
    with context.progress.task("name clusters", len(clusters_of), "document") as advance:
        for document, text in zip(np.flatnonzero(is_wanted).tolist(), _beginnings(context, is_wanted), strict=True):
            for family, number in clusters_of[document]:
                counted[family].add(number, text)
            if document in titles:
                title = titles[document] or " ".join(text[: 4 * _TITLE_CHARACTERS].split())
                titles[document] = title[:_TITLE_CHARACTERS]
            advance(1)
    return counted, titles


def _describe(context: Context, family: str, clustering: Clustering, counted: TermCounts) -> list[dict[str, Any]]:
    """Return each cluster's name, terms and position on the map; with `features_from`, the other dataset's."""
    from jax_diversity.sequences.clustering.maps import LARGEST_MAP, map_positions
    from jax_diversity.sequences.clustering.naming import name_clusters

    if context.reference is not None:
        return [{name: described[name] for name in _DESCRIBED} for described in context.reference.clusters(family)]
    names = name_clusters(counted, clustering.centroids)
    num_clusters = len(clustering.centroids)
    sizes = np.bincount(clustering.assignments, minlength=num_clusters)
    # The largest clusters, in the order of their numbers.
    shown = np.sort(np.argsort(-sizes, kind="stable")[: min(LARGEST_MAP, int((sizes > 0).sum()))])
    positions: list[list[float] | None] = [None] * num_clusters
    placed = map_positions(clustering.centroids[shown]).astype(np.float64).round(4).tolist()
    for number, position in zip(shown.tolist(), placed, strict=True):
        positions[number] = position
    described = zip(names.names, names.top_terms, positions, strict=True)
    return [{"name": name, "top_terms": terms, "position": place} for name, terms, place in described]


def _beginnings(context: Context, is_wanted: np.ndarray) -> Iterator[str]:
    """Yield about a page of each `wanted` document, from its beginning; decoded from tokens if there are no texts."""
    if not context.counts("prepare")["has_text"]:
        beginnings = context.dataset.beginnings(_NAMING_CHARACTERS)
        for path in beginnings.paths:
            for texts in beginnings.of_file(path, is_wanted):
                yield from texts
        return
    first = 0
    for texts in context.dataset.document_store.texts(max_characters=_NAMING_CHARACTERS):
        for place in np.flatnonzero(is_wanted[first : first + len(texts)]).tolist():
            yield texts[place]
        first += len(texts)


def _read_labels(context: Context) -> _Labels:
    store, field = context.dataset.document_store, context.config.cluster.label_field
    labels = _code_labels(field, (group[field] for group in store.metadata([field])))
    columns = (store.columns(["source"], path)["source"] for path in store.paths)
    sources = (chunk.to_pylist() for column in columns for chunk in column.chunks)
    return labels if labels.names else _code_labels("source", sources)


def _code_labels(field: str, groups: Iterable[list[Any]]) -> _Labels:
    """Replace labels by numbers, one block of documents at a time: only the number of a document's label is kept."""
    numbers: dict[str, int] = {}
    parts = [np.zeros(0, np.int32)]
    for values in groups:
        texts = [json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value for value in values]
        codes = [-1 if text is None else numbers.setdefault(str(text), len(numbers)) for text in texts]
        parts.append(np.array(codes, np.int32))
    return _Labels(field, np.concatenate(parts), list(numbers))


def _entries(
    clustering: Clustering,
    nearest: np.ndarray,
    described: list[dict[str, Any]],
    titles: dict[int, str],
    labels: _Labels,
) -> list[dict[str, Any]]:
    """Return the content of `clusters.json`, a description of every cluster."""
    from jax_diversity.sequences.clustering.purity import majority_labels

    num_clusters = len(clustering.centroids)
    sizes = np.bincount(clustering.assignments, minlength=num_clusters)
    labelled = labels.codes >= 0
    majority = majority_labels(clustering.assignments[labelled], labels.codes[labelled], num_clusters)
    return [
        {
            **described[number],
            "num_documents": int(sizes[number]),
            "titles": [titles[document] for document in nearest[number, :_NUM_TITLES].tolist() if document >= 0],
            "label": labels.names[majority[number]] if majority[number] >= 0 else None,
        }
        for number in range(num_clusters)
    ]


def _counts(clusterings: dict[str, Clustering], labels: _Labels) -> Counts:
    from jax_diversity.sequences.clustering.purity import purity

    main = clusterings["cluster"]
    sizes = np.bincount(main.assignments, minlength=len(main.centroids))
    labelled = labels.codes >= 0
    codes = labels.codes[labelled]
    return {
        "num_clusters": len(main.centroids),
        "num_empty_clusters": int((sizes == 0).sum()),
        "num_iterations": main.num_iterations,
        # We keep six digits, because further digits depend on the number of devices, which changes the order of the
        # sums.
        "inertia": float(f"{main.inertia:.6g}"),
        "clusterings": {family: len(clustering.centroids) for family, clustering in clusterings.items()},
        "label_field": labels.field,
        "num_labels": len(labels.names),
        "largest_label": round(float(np.bincount(codes).max() / len(codes)), 6) if len(codes) else 1.0,
        "purity": {
            family: round(purity(value.assignments[labelled], codes), 6) for family, value in clusterings.items()
        },
    }


def _taken(context: Context) -> str:
    """Return a fingerprint of the other dataset's centroids and their descriptions."""
    if (reference := context.reference) is None:
        return ""
    families = context.config.cluster.clusterings
    described = [
        [cluster[name] for name in _DESCRIBED] for family in families for cluster in reference.clusters(family)
    ]
    return fingerprint(reference.counts("cluster")["features"], described)


def summary(counts: Counts) -> str:
    """Summarize the counts in one line: clusters and passes, or clusters of another dataset."""
    where = f"in {counted(passes, 'pass')}" if (passes := counts["num_iterations"]) else "of another dataset"
    return f"{counted(counts['num_clusters'], 'cluster')} {where}"


CLUSTER = Stage(
    "cluster",
    help="Group the documents' vectors into topic clusters.",
    section="cluster",
    destination=CLUSTERS,
    run=cluster_documents,
    summary=summary,
    settings=lambda config: {"cluster": dataclasses.asdict(config.cluster)},
    inputs=lambda context: ("prepare", "tokenize", "embed"),
    outside=_taken,
    check=check_numbers,
    adopt=lambda config, other: adopt_settings("cluster", config.cluster, other, own=("label_field",)),
    resumable=True,
    packages=("jax", "numpy", "scikit-learn"),
    methods="sequences.clustering.base",
)

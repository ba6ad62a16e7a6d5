"""The stage of the clusters: its files, several clusterings, labels, and going on after a kill."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from jax_diversity import UserError, clustering
from jax_diversity.config import BuildConfig, ClusterConfig, check_settings
from jax_diversity.pipeline import Build
from tests.tiny_corpus import tiny_config, write_corpus


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """A dataset whose vectors are made."""
    folder = tmp_path_factory.mktemp("clusters")
    tiny = tiny_config(write_corpus(folder / "corpus"), folder / "out")
    for stage in ("prepare", "tokenize", "embed"):
        Build(tiny).run_stage(stage)
    return tiny


def clustered(config: BuildConfig, **values: object) -> tuple[Path, dict]:
    changed = dataclasses.replace(config, cluster=ClusterConfig(**{"num_clusters": 5, **values}))  # pyright: ignore
    result = Build(changed).run_stage("cluster")
    return Path(config.out) / "clusters", result.counts


def test_several_clusterings_at_once(config: BuildConfig) -> None:
    folder, counts = clustered(config, also=(2, 9))
    assert counts["clusterings"] == {"cluster": 5, "cluster_2": 2, "cluster_9": 9}
    for ending, number in (("", 5), ("_2", 2), ("_9", 9)):
        centroids = np.load(folder / f"centroids{ending}.npy")
        vectors = np.load(folder.parent / "embeddings" / "embeddings.npy")
        assignments = np.load(folder / f"assignments{ending}.npy")
        np.testing.assert_array_equal(assignments, clustering.assign(vectors, centroids))
        entries = json.loads((folder / f"clusters{ending}.json").read_text())
        assert [entry["num_documents"] for entry in entries] == np.bincount(assignments, minlength=number).tolist()
        assert all(entry["name"] and entry["top_terms"] and entry["titles"] for entry in entries)
        assert all(len(entry["position"]) == 2 for entry in entries)
    assert len(list(folder.iterdir())) == 9


def test_labels_are_the_field_of_the_settings_or_the_source(config: BuildConfig) -> None:
    folder, by_source = clustered(config)
    assert by_source["label_field"] == "source"
    labels = [entry["label"] for entry in json.loads((folder / "clusters.json").read_text())]
    assert 1 < len(set(labels)) <= by_source["num_labels"]
    assert by_source["largest_label"] < by_source["purity"]["cluster"] <= 1
    by_year = clustered(config, label_field="year")[1]
    assert by_year["label_field"] == "year"


def test_a_killed_stage_keeps_finished_centroids(config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"also": (3,), "seed": 4}
    folder, _ = clustered(config, **settings)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    clustered(config)
    trained: list[int] = []
    train, stop = clustering.train_centroids, [True]

    def watched(vectors: np.ndarray, cluster: ClusterConfig, *arguments: object, **options: object) -> object:
        if cluster.num_clusters == 3 and stop.pop():
            raise KeyboardInterrupt
        trained.append(cluster.num_clusters)
        return train(vectors, cluster, *arguments, **options)  # pyright: ignore

    monkeypatch.setattr(clustering, "train_centroids", watched)
    with pytest.raises(KeyboardInterrupt):
        clustered(config, **settings)
    stop.append(False)
    clustered(config, **settings)
    assert trained == [5, 3]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"also": (0,)}, "cluster.also from 1 to cluster.train_documents"),
        ({"also": (5,)}, "other numbers than cluster.num_clusters"),
        ({"also": (3, 3)}, "each once, found 3, 3"),
        ({"coarse_clusters": 5}, "coarse_clusters below cluster.num_clusters"),
        ({"coarse_clusters": -1}, "coarse_clusters >= 0"),
        ({"backend": "sklearn", "start": "k-means||"}, "only with cluster.backend=jax"),
        ({"train_documents": 4}, "cluster.num_clusters from 1 to"),
    ],
)
def test_settings_that_cannot_be(values: dict, sentence: str) -> None:
    base = tiny_config(Path("corpus"), Path("out"))
    with pytest.raises(UserError, match=sentence):
        check_settings(dataclasses.replace(base, cluster=ClusterConfig(**{"num_clusters": 5, **values})))

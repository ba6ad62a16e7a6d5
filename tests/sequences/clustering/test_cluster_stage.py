"""The stage of the clusters: its files, several clusterings, labels, and going on after a kill."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jax_diversity as jd
from jax_diversity import UserError
from jax_diversity.foundation.artifacts import read_array, write_array
from jax_diversity.pipeline.build import Build
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.sequences.clustering import base
from jax_diversity.sequences.clustering.assignment import assign
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.embedding.settings import EmbeddingConfig
from tests.support.tiny_corpus import tiny_config, write_corpus


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
        vectors = np.asarray(jd.open_dataset(folder.parent).embeddings)
        assignments = np.load(folder / f"assignments{ending}.npy")
        np.testing.assert_array_equal(assignments, assign(vectors, centroids)[0])
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
    values = {"also": (3,), "seed": 4}
    folder, _ = clustered(config, **values)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    clustered(config)
    trained: list[int] = []
    train, stop = base.train_centroids, [True]

    def watched(vectors: np.ndarray, num_clusters: int, **options: Any) -> object:
        if num_clusters == 3 and stop.pop():
            raise KeyboardInterrupt
        trained.append(num_clusters)
        return train(vectors, num_clusters, **options)

    monkeypatch.setattr(base, "train_centroids", watched)
    with pytest.raises(KeyboardInterrupt):
        clustered(config, **values)
    stop.append(False)
    clustered(config, **values)
    assert trained == [5, 3]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


@pytest.mark.parametrize(
    ("num_documents", "train_documents", "number"),
    [(1, 200_000, 1), (29, 200_000, 1), (31, 200_000, 2), (400, 200_000, 20), (10**9, 200_000, 1000), (10**9, 8, 8)],
)
def test_the_automatic_number_of_clusters(num_documents: int, train_documents: int, number: int) -> None:
    config = ClusterConfig(train_documents=train_documents)
    config.check()
    assert config.resolve_num_clusters(num_documents) == number
    given = ClusterConfig(num_clusters=7, also=(3,)).clusterings.values()
    assert [each.resolve_num_clusters(num_documents) for each in given] == [7, 3]


def test_the_number_that_was_taken_is_in_counts_and_summary(config: BuildConfig) -> None:
    changed = dataclasses.replace(config, cluster=ClusterConfig(also=(20, 3)))
    result = Build(changed).run_stage("cluster")
    # Another clustering of as many clusters is not an error: users do not choose the automatic number.
    assert result.counts["clusterings"] == {"cluster": 20, "cluster_20": 20, "cluster_3": 3}
    assert result.summary.startswith("20 clusters in ")


@pytest.mark.parametrize("texts", [["one document alone"], ["equal words"] * 45], ids=["one", "equal"])
def test_small_corpora_have_clusters_by_default(tmp_path: Path, texts: list[str]) -> None:
    lines = [json.dumps({"id": str(index), "text": text}) for index, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    tiny = tiny_config(tmp_path, tmp_path / "out")
    build = Build(dataclasses.replace(tiny, cluster=ClusterConfig(), embedding=EmbeddingConfig()))
    results = {result.stage: result for result in map(build.run_stage, ("prepare", "tokenize", "embed", "cluster"))}
    assert results["cluster"].counts["num_clusters"] == max(1, len(texts) // 20)


@pytest.mark.parametrize("coarse", [0, 1, 20])
def test_levels_of_further_clusterings(coarse: int) -> None:
    config = ClusterConfig(num_clusters=50, options={"coarse_clusters": coarse, "start": "random"}, also=(20_000, 10))
    levels = {
        family: base.num_coarse_clusters(
            settings.resolve_num_clusters(100), int(settings.options.get("coarse_clusters", 0))
        )
        for family, settings in config.clusterings.items()
    }
    expected = {"cluster": max(coarse, 1), "cluster_20000": 1 if coarse == 1 else 141, "cluster_10": 1}
    assert levels == expected
    assert not any(settings.also for settings in config.clusterings.values())
    assert all(settings.options["start"] == "random" for settings in config.clusterings.values())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"also": (401,)}, r"cluster\.also of at most the 400 documents, found 401; set it to 400 or fewer"),
        ({"num_clusters": 402}, r"cluster\.num_clusters of at most the 400 documents, found 402"),
        ({"num_clusters": "auto", "options": {"coarse_clusters": 21}}, "coarse_clusters from 0 to below the 20 clus"),
    ],
)
def test_too_many_clusters_are_refused_before_any_is_made(
    config: BuildConfig, monkeypatch: pytest.MonkeyPatch, values: dict, sentence: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a clustering was made")

    monkeypatch.setattr(base, "train_centroids", refuse)
    with pytest.raises(UserError, match=sentence):
        clustered(config, **values)


@pytest.mark.parametrize("damage", ["header", "magic", "shape", "type"])
def test_damaged_vectors_of_the_right_size(config: BuildConfig, damage: str) -> None:
    path = Path(config.out) / "embeddings" / "embeddings-00000.npy"
    whole = path.read_bytes()
    rows = len(np.load(path))
    shape = f"({rows}, ({rows + 1},"
    places = {"header": "descr desxr", "magic": "NUMPY NUMPZ", "type": "<f4 <i4", "shape": shape}
    former, broken = places[damage].encode().split()
    assert whole.count(former) == 1
    path.write_bytes(whole.replace(former, broken))
    try:
        with pytest.raises(UserError, match=r"embeddings-00000\.npy is damaged.*run `jax-diversity embed` again"):
            clustered(config, seed=77)
    finally:
        path.write_bytes(whole)


@given(place=st.integers(0, 127), value=st.integers(0, 255), mmap=st.booleans())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_damage_to_a_header_is_an_array_or_a_sentence(tmp_path: Path, place: int, value: int, mmap: bool) -> None:
    path = tmp_path / "values.npy"
    np.save(path, np.arange(12, dtype=np.int32).reshape(3, 4))
    content = bytearray(path.read_bytes())
    content[place] = value
    path.write_bytes(content)
    try:
        found = read_array(path, "cluster", mmap=mmap)
    except UserError as error:
        found = str(error)
    if isinstance(found, str):
        assert found.startswith(f"{path} is damaged (")
        assert found.endswith("run `jax-diversity cluster` again.")
        assert "\n" not in found
    else:
        assert isinstance(found, np.ndarray)


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04 no archive", b"PK\x05\x06" + bytes(18), b"text"])
@pytest.mark.parametrize("mmap", [False, True])
def test_other_files_are_no_arrays(tmp_path: Path, content: bytes, mmap: bool) -> None:
    path = tmp_path / "values.npy"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"values\.npy is damaged .*run `jax-diversity cluster` again"):
        read_array(path, "cluster", mmap=mmap)
    with pytest.raises(UserError, match="found no such file"):
        read_array(tmp_path / "absent.npy", "cluster", mmap=mmap)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (5,), (2, 3)])
@pytest.mark.parametrize("mmap", [False, True])
def test_arrays_are_read_as_written(tmp_path: Path, shape: tuple[int, ...], mmap: bool) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    write_array(tmp_path / "values.npy", values)
    np.testing.assert_array_equal(read_array(tmp_path / "values.npy", "cluster", mmap=mmap), values)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**70])
@pytest.mark.parametrize("section", ["cluster", "embedding"])
def test_seeds_that_no_library_takes(section: str, seed: int) -> None:
    base = tiny_config(Path("corpus"), Path("out"))
    changed = dataclasses.replace(base, **{section: dataclasses.replace(getattr(base, section), seed=seed)})
    with pytest.raises(UserError, match=rf"{section}\.seed from 0 to 2\^32 - 1, found {seed}"):
        changed.check()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"also": (0,)}, "cluster.also from 1 to cluster.train_documents"),
        ({"also": (5,)}, "numbers other than cluster.num_clusters"),
        ({"also": (3, 3)}, "each once, found 3, 3"),
        ({"options": {"coarse_clusters": 5}}, "coarse_clusters from 0 to below the 5 clusters, found 5"),
        ({"options": {"coarse_clusters": -1}}, "coarse_clusters from 0 to below the 5 clusters, found -1"),
        ({"options": {"max_iterations": 0}}, "max_iterations to be a whole number >= 1, found 0"),
        ({"options": {"spherical": "yes"}}, "'spherical' to be True or False, found 'yes'"),
        ({"options": {"rounds": 3}}, "Method 'kmeans' has no option 'rounds': expected one of coarse_clusters, "),
        ({"method": "k-means"}, "Unknown clustering method 'k-means': expected one of .*; did you mean 'kmeans'"),
        (
            {"method": "minibatch_kmeans", "options": {"start": "k-means||"}},
            r"'start' to be one of k-means\+\+, random, found",
        ),
        ({"method": "minibatch_kmeans", "options": {"coarse_clusters": 2}}, "has no option 'coarse_clusters'"),
        ({"train_documents": 4}, "cluster.num_clusters from 1 to"),
    ],
)
def test_settings_that_cannot_be(values: dict, sentence: str) -> None:
    base = tiny_config(Path("corpus"), Path("out"))
    with pytest.raises(UserError, match=sentence):
        dataclasses.replace(base, cluster=ClusterConfig(**{"num_clusters": 5, **values})).check()

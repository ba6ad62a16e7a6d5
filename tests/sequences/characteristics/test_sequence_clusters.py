"""The family `sequence_cluster`: clusters of sequences by their own tokens."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.pipeline.settings import BuildConfig
from jax_diversity.schema import Segments
from jax_diversity.sequences.characteristics.counts import count_own_tokens
from jax_diversity.sequences.characteristics.sequence_clusters import (
    count_sequence_clusters,
    fit_sequence_clusters,
    nearest_clusters,
)
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.packing.base import pack
from jax_diversity.sequences.packing.settings import PackingConfig
from jax_diversity.sequences.token_store.megatron import TokenStore, TokenWriter
from jax_diversity.streaming.run.inspection import Inspector

LENGTH, VOCAB_SIZE, NUM_TOPICS = 32, 200, 4
FAMILIES = ("cluster", "length", "tokens", "sequence_cluster")


def write_chapters(folder: Path, num_sequences: int = 480) -> tuple[TokenStore, np.ndarray]:
    """One document whose sequences change their topic; half of all tokens are common to the topics."""
    rng = np.random.default_rng(0)
    topics = rng.integers(0, NUM_TOPICS, num_sequences)
    rows = np.where(
        rng.random((num_sequences, LENGTH)) < 0.5,
        rng.integers(1, 20, (num_sequences, LENGTH)),
        20 + 40 * topics[:, None] + rng.integers(0, 40, (num_sequences, LENGTH)),
    )
    with TokenWriter(folder / "t", np.dtype(np.uint16)) as writer:
        writer.add_document(rows.ravel().astype(np.uint16))
    return TokenStore([folder / "t"]), topics


def counter(store: TokenStore):
    return lambda segments: count_own_tokens(segments, store, VOCAB_SIZE, end_id=0)


def slow_vectors(counts: np.ndarray) -> np.ndarray:
    """TF-IDF vectors of length one, entry by entry in float64."""
    number, found = len(counts), np.zeros(counts.shape)
    for row in range(number):
        for group in np.flatnonzero(counts[row]):
            inverse = np.log((1 + number) / (1 + (counts[:, group] > 0).sum()))
            found[row, group] = (1 + np.log(counts[row, group])) * inverse
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_clusters_find_topics_that_no_document_shows(tmp_path: Path) -> None:
    store, topics = write_chapters(tmp_path)
    segments = pack(store.document_lengths, LENGTH).segments
    centres = fit_sequence_clusters(segments, counter(store), 12)
    assert centres.shape == (12, VOCAB_SIZE)
    clusters = nearest_clusters(segments, counter(store), centres)
    pairs = np.zeros((12, NUM_TOPICS))
    np.add.at(pairs, (clusters, topics), 1)
    assert pairs.max(axis=1).sum() > 0.95 * len(topics)  # by chance: less than half


def test_every_sequence_is_in_the_nearest_cluster_and_centres_are_means(tmp_path: Path) -> None:
    store, _ = write_chapters(tmp_path)
    segments = pack(store.document_lengths, LENGTH).segments
    count = counter(store)
    centres = fit_sequence_clusters(segments, count, 8).astype(np.float64)  # computed from all sequences
    dense = count(segments).toarray()
    vectors = slow_vectors(dense)
    inverse = np.log((1 + len(dense)) / (1 + (dense > 0).sum(axis=0)))
    directions = np.divide(centres, inverse, out=np.zeros_like(centres), where=inverse > 0)
    expected = (vectors @ directions.T).argmax(axis=1)
    found = nearest_clusters(segments, count, centres.astype(np.float32))
    np.testing.assert_array_equal(found, expected)
    # No sequence changed its cluster in the last iteration, so the centres are the means of the clusters.
    for cluster in range(8):
        mean = vectors[expected == cluster].sum(axis=0)
        assert directions[cluster] @ mean / np.linalg.norm(mean) > 0.9999


def test_blocks_of_rows_do_not_change_the_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = write_chapters(tmp_path)
    segments = pack(store.document_lengths, LENGTH).segments
    centres = fit_sequence_clusters(segments, counter(store), 12)
    whole = nearest_clusters(segments, counter(store), centres)
    monkeypatch.setattr("jax_diversity.sequences.characteristics.sequence_clusters._BLOCK", 7)
    np.testing.assert_array_equal(fit_sequence_clusters(segments, counter(store), 12), centres)
    np.testing.assert_array_equal(nearest_clusters(segments, counter(store), centres), whole)


def test_all_tokens_of_a_sequence_belong_to_its_cluster(tmp_path: Path) -> None:
    store, _ = write_chapters(tmp_path)
    lengths = np.array([5, 40, 9])
    segments = pack(lengths, LENGTH, method="pad").segments
    clusters = np.arange(segments.num_sequences, dtype=np.int32) % 3
    counts = count_sequence_clusters(segments, clusters, 3).toarray()
    np.testing.assert_array_equal(counts.sum(axis=1), [5, 32, 9, 9])  # with an inserted end token
    np.testing.assert_array_equal(counts.argmax(axis=1), clusters)
    none = pack(lengths, LENGTH, document_order=np.zeros(0, np.int64)).segments
    centres = fit_sequence_clusters(none, counter(store), 3)
    assert len(nearest_clusters(none, counter(store), centres)) == 0


@pytest.mark.parametrize(("num_sequences", "expected"), [(480, 9), (100, 5), (10, 1)])
def test_a_small_corpus_has_fewer_clusters(num_sequences: int, expected: int, tmp_path: Path) -> None:
    store, _ = write_chapters(tmp_path, num_sequences)
    segments = pack(store.document_lengths, LENGTH).segments
    assert len(fit_sequence_clusters(segments, counter(store), 9)) == expected


@pytest.fixture(scope="module")
def config(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildConfig:
    """Settings of a built dataset that balances the family."""
    out = shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("clustered") / "out")
    families = CharacteristicsConfig(families=FAMILIES, length_bins=5, sequence_clusters=6)
    config = dataclasses.replace(recorded_config(out), characteristics=families)
    Build(config).run_all()
    return config


def slow_counts(dataset: jd.Dataset, segments: Segments) -> np.ndarray:
    centres = np.load(dataset.root / "characteristics" / "sequence_cluster_centres.npy").astype(np.float64)
    counts = np.zeros((segments.num_sequences, len(centres)))
    own = dataset.count_segments(segments).toarray()
    weights = np.where(own > 0, 1 + np.log(np.maximum(own, 1)), 0)
    counts[np.arange(len(counts)), (weights @ centres.T).argmax(axis=1)] = own.sum(axis=1)
    return counts


@pytest.mark.campaign
def test_a_build_balances_measures_and_names_the_family(config: BuildConfig, capsys: pytest.CaptureFixture) -> None:
    dataset = jd.open_dataset(config.out)
    chars = dataset.characteristics
    assert chars.families == FAMILIES
    assert chars.weights["sequence_cluster"] == 1
    assert dataset.verify() == []
    expected = slow_counts(dataset, dataset.segments)
    np.testing.assert_array_equal(chars.counts["sequence_cluster"].toarray(), expected)
    np.testing.assert_array_equal(dataset.group_tokens["sequence_cluster"], expected.sum(axis=0))
    assert "sequence_cluster 6" in OutputFolder(dataset.root).stages["characterize"]["summary"]
    held_out = dataset.validation
    np.testing.assert_array_equal(
        held_out.characteristics.counts["sequence_cluster"].toarray(), slow_counts(dataset, held_out.segments)
    )
    batch = Inspector(jd.make_run(dataset, "balance"), 8).batch(1)
    rows = dataset.orderings["balance"].indices[8:16]
    np.testing.assert_allclose(
        batch.families["sequence_cluster"].share, expected[rows].sum(axis=0) / expected[rows].sum()
    )
    out = ["--out", config.out]
    assert main(["measure", *out, "--families", "sequence_cluster"]) == 0
    assert "sequence_cluster" in capsys.readouterr().out
    assert main(["inspect", *out, "--step", "1", "--batch-size", "8"]) == 0
    assert "sequence_cluster" in capsys.readouterr().out
    assert "`sequence_cluster`" in json.loads((dataset.root / "report.json").read_text())["summary"]["sentences"][1]


@pytest.mark.campaign
def test_a_dataset_of_other_features_uses_its_centres(config: BuildConfig, tmp_path: Path) -> None:
    new = BuildConfig(
        out=str(tmp_path / "new"),
        features_from=config.out,
        corpus=config.corpus,
        packing=PackingConfig(sequence_length=24),
        orders=(),
    )
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack", "characterize"):
        Build(new).run_stage(stage)
    theirs, dataset = jd.open_dataset(config.out), jd.open_dataset(new.out)
    assert dataset.feature_space == theirs.feature_space
    counts = dataset.characteristics.counts["sequence_cluster"]
    np.testing.assert_array_equal(counts.toarray(), slow_counts(theirs, dataset.segments))
    assert dataset.counts("characterize")["num_groups"]["sequence_cluster"] == 6


def test_the_feature_space_depends_on_the_centres(config: BuildConfig, tmp_path: Path) -> None:
    out = shutil.copytree(config.out, tmp_path / "out")
    before = jd.open_dataset(out).feature_space
    characteristics = dataclasses.replace(config.characteristics, sequence_clusters=5)
    again = dataclasses.replace(config, out=str(out), characteristics=characteristics)
    Build(again).run_stage("characterize")
    assert jd.open_dataset(out).feature_space != before


def test_the_number_of_clusters_is_checked() -> None:
    with pytest.raises(jd.UserError, match=r"characteristics\.sequence_clusters"):
        CharacteristicsConfig(sequence_clusters=0).check()

"""Families of a whole build: further clusterings, hosts, copies, metadata fields; and fields that do not exist."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import jax_diversity as jd
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.sequences.characteristics.settings import CharacteristicsConfig
from jax_diversity.sequences.clustering.settings import ClusterConfig
from jax_diversity.sequences.packing.settings import PackingConfig
from tests.support.tiny_corpus import tiny_config, write_corpus

FAMILIES = ("cluster", "cluster_2", "length", "host", "duplicate", "quality", "kind")


def write_rich_corpus(folder: Path) -> Path:
    """The made-up corpus with addresses, scores, kinds and some copies."""
    write_corpus(folder, 200)
    for place, path in enumerate(sorted(folder.glob("*.jsonl"))):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for index, record in enumerate(records):
            record["url"] = f"https://www.site{index % 3}.example/{place}/{index}" if index % 5 else None
            record["quality"] = round(0.01 * index, 2) if index % 7 else None
            record["kind"] = ["news", "manual", "forum"][index % 3]
            if index % 20 == 1:
                record["text"] = f"the same text every time, in file {place}"
        path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module", autouse=True)
def few_bins() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jax_diversity.sequences.characteristics.stage.FIELD_BINS", 4)
        yield


def rich_config(corpus: Path, out: Path, families: tuple[str, ...] = FAMILIES):
    return dataclasses.replace(
        tiny_config(corpus, out),
        cluster=ClusterConfig(num_clusters=4, also=(2,), options={"max_iterations": 10}),
        characteristics=CharacteristicsConfig(families=families, length_bins=5),
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = write_rich_corpus(tmp_path_factory.mktemp("corpus"))
    out = tmp_path_factory.mktemp("built") / "out"
    Build(rich_config(corpus, out)).run_all()
    return out


def test_every_family_is_balanced_measured_and_reported(built: Path) -> None:
    dataset = jd.open_dataset(built)
    chars = dataset.characteristics
    assert chars.families == FAMILIES
    assert dataset.verify() == []
    measured = json.loads((built / "orderings" / "balance.json").read_text())["balance"]
    page = (built / "report.html").read_text()
    for family in FAMILIES:
        assert family in json.dumps(measured)
        assert family in page
        np.testing.assert_array_equal(np.asarray(chars.counts[family].sum(axis=1)).ravel(), chars.tokens)


def test_the_documents_table_holds_every_code(built: Path) -> None:
    table = pq.read_table(built / "characteristics" / "documents.parquet")
    groups = json.loads((built / "characteristics" / "groups.json").read_text())
    assert {"host", "kind", "quality", "cluster", "cluster_2", "duplicate_group"} <= set(table.column_names)
    assert set(table["host"].to_pylist()) == {"site0.example", "site1.example", "site2.example", "unknown"}
    assert set(table["kind"].to_pylist()) == {"news", "manual", "forum"}
    assert len(groups["quality"]) == 5  # four bins and unknown
    assert len(groups["cluster_2"]) == 2
    assert groups["duplicate"] == ["unique", "copies 1", "copies 2"]
    counts = OutputFolder(built).stages["characterize"]["counts"]
    assert counts["num_missing"]["host"] == 40
    # The counts are those of the table's codes, joined a segment at a time.
    dataset = jd.open_dataset(built)
    segments, kinds = dataset.segments, table["kind"].to_pylist()
    expected = np.zeros((dataset.num_sequences, 3), np.int64)
    for row in range(len(segments)):
        group = groups["kind"].index(kinds[segments.document_index[row]])
        expected[segments.sequence_index[row], group] += segments.length[row]
    np.testing.assert_array_equal(dataset.characteristics.counts["kind"].toarray(), expected)


@pytest.mark.parametrize(
    ("families", "sentence"),
    [
        (("cluster", "lenght"), "found 'lenght'"),
        (("cluster_7",), r"cluster, cluster_2, length.*kind, quality, url, year.*found 'cluster_7'.*cluster.also"),
        (("cluster", "cluster"), "without repeats"),
        (("a/b",), "found 'a/b'"),
    ],
)
def test_a_family_that_cannot_be_is_refused_as_soon_as_documents_are_stored(
    tmp_path: Path, families: tuple[str, ...], sentence: str
) -> None:
    corpus = write_rich_corpus(tmp_path / "corpus")
    with pytest.raises(jd.UserError, match=sentence):
        Build(rich_config(corpus, tmp_path / "out", families)).run_all()
    assert set(OutputFolder(tmp_path / "out").stages) <= {"prepare"}


def test_a_field_that_is_an_id_is_refused_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = write_rich_corpus(tmp_path / "corpus")
    config = rich_config(corpus, tmp_path / "out", ("cluster", "url"))
    monkeypatch.setattr("jax_diversity.sequences.characteristics.stage.MAX_GROUPS", 10)
    with pytest.raises(jd.UserError, match="'url' to put documents into groups, found 160 different values"):
        Build(config).run_all()


def test_fields_that_make_no_groups_are_refused_before_anything_else_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_rich_corpus(tmp_path / "corpus")
    config = rich_config(corpus, tmp_path / "out", ("cluster", "url"))
    monkeypatch.setattr("jax_diversity.sequences.characteristics.stage.MAX_GROUPS", 10)
    with pytest.raises(jd.UserError, match="'url' to put documents into groups"):
        Build(config).run_all()
    assert set(OutputFolder(tmp_path / "out").stages) == {"prepare"}


def test_a_field_with_a_familys_name_can_be_asked_for(tmp_path: Path) -> None:
    corpus = write_rich_corpus(tmp_path / "corpus")
    for path in corpus.glob("*.jsonl"):
        records = [json.loads(line) | {"length": index % 3} for index, line in enumerate(path.open())]
        path.write_text("\n".join(map(json.dumps, records)) + "\n")
    build = Build(rich_config(corpus, tmp_path / "out", ("cluster", "length", "field:length")))
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack", "characterize"):
        counts = build.run_stage(stage).counts
    assert counts["num_groups"]["length"] == 5
    assert counts["num_groups"]["field:length"] == 3
    assert jd.open_dataset(tmp_path / "out").characteristics.families == ("cluster", "length", "field:length")


def test_a_stage_alone_does_not_take_other_stages_settings(built: Path) -> None:
    """Codes of one clustering with the group count of another would be nonsense."""
    config = dataclasses.replace(
        recorded_config(built), cluster=ClusterConfig(num_clusters=3, also=(2,), options={"max_iterations": 10})
    )
    before = (built / "manifest.json").read_bytes()
    with pytest.raises(jd.UserError, match=r"cluster\.num_clusters=3, but stage 'cluster' was made with 4; run"):
        Build(config).run_stage("characterize")
    assert (built / "manifest.json").read_bytes() == before
    also = dataclasses.replace(
        recorded_config(built), cluster=dataclasses.replace(config.cluster, num_clusters=4, also=())
    )
    with pytest.raises(jd.UserError, match=r"cluster\.also"):
        Build(also).run_stage("characterize")
    assert Build(recorded_config(built)).run_stage("characterize").kept


@pytest.mark.parametrize(
    ("name", "stage"), [("clusters/assignments.npy", "cluster"), ("clusters/assignments_2.npy", "cluster")]
)
def test_damaged_assignments_are_named(built: Path, tmp_path: Path, name: str, stage: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    content = bytearray((copy / name).read_bytes())
    config = dataclasses.replace(
        recorded_config(copy), characteristics=CharacteristicsConfig(families=("cluster",), length_bins=7)
    )
    for damage in (slice(0, 6), slice(-40, None)):
        broken = bytearray(content)
        broken[damage] = b"\xff" * len(broken[damage])
        (copy / name).write_bytes(broken)
        with pytest.raises(jd.UserError, match=rf"{name} is damaged.*run `jax-diversity {stage}` again"):
            Build(config).run_stage("characterize")


def test_the_validation_part_of_rows_is_not_lost(tmp_path: Path) -> None:
    config = rich_config(write_rich_corpus(tmp_path / "corpus"), tmp_path / "out", ("length",))
    packing = PackingConfig("partial_shuffle", {"num_rows": 200}, sequence_length=16, validation_fraction=0.1)
    build = Build(dataclasses.replace(config, packing=packing))
    for stage in ("prepare", "tokenize", "embed", "cluster", "pack"):
        counts = build.run_stage(stage).counts
    assert counts["num_validation_documents"] > 0
    assert counts["num_validation_sequences"] > 10

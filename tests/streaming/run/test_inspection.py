"""Looking into batches and for documents, against the segments, the loader and plain counting."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.ordering.measures.documents import document_spread
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.streaming.records.settings import RecordsConfig
from jax_diversity.streaming.run.inspection import Inspector


@pytest.fixture(scope="module")
def packed(tiny_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("inspected") / "out")


@pytest.fixture(scope="module", params=["packed", "ordered"])
def built(request: pytest.FixtureRequest, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "packed":
        return packed
    out = shutil.copytree(packed, tmp_path_factory.mktemp("ordered") / "out")
    Build(dataclasses.replace(recorded_config(out), records=RecordsConfig(layout="ordered"))).run_stage("write")
    return out


@pytest.mark.parametrize("step", [0, 3, 11, 40])
@pytest.mark.parametrize("ordering", ["balance", "uniform_shuffle"])
def test_a_batch_holds_what_the_loader_gives(built: Path, step: int, ordering: str) -> None:
    dataset = jd.open_dataset(built)
    batch = Inspector(jd.make_run(dataset, ordering), 8).batch(step)
    epochs = step * 8 // dataset.num_sequences + 2
    loader = jd.make_loader(built, ordering=ordering, global_batch_size=8, num_epochs=epochs, start_position=8 * step)
    rows = next(iter(loader))
    segments, table = dataset.segments, dataset.documents.to_table(columns=["id"])["id"].to_pylist()
    assert batch.position == 8 * step
    positions = range(8 * step, 8 * step + 8)
    assert [row.epoch for row in batch.sequences] == [position // dataset.num_sequences for position in positions]
    for row, sequence in enumerate(batch.sequences):
        assert sequence.row == row
        mine = np.flatnonzero(segments.sequence_index == sequence.sequence_index)
        assert [segment.document_index for segment in sequence.segments] == segments.document_index[mine].tolist()
        assert [segment.num_tokens for segment in sequence.segments] == segments.length[mine].tolist()
        assert [segment.about["id"] for segment in sequence.segments] == [
            table[document] for document in segments.document_index[mine]
        ]
        tokens = dataset.tokens.gather(
            segments.document_index[mine], segments.document_offset[mine], segments.length[mine]
        )
        np.testing.assert_array_equal(rows["inputs"][row], tokens)


def test_the_families_of_a_batch_are_those_of_its_counts(built: Path) -> None:
    dataset = jd.open_dataset(built)
    chars = dataset.characteristics
    batch = Inspector(jd.make_run(dataset, "balance"), 16).batch(2)
    indices = dataset.orderings["balance"].indices[32:48]
    for family in chars.families:
        counts = np.asarray(chars.counts[family][indices].sum(axis=0)).ravel()
        np.testing.assert_allclose(batch.families[family].share, counts / counts.sum())
        np.testing.assert_allclose(batch.families[family].target, chars.target_share(family))
    measured = jd.measure(chars, dataset.orderings["balance"], windows=(16,))
    assert batch.families["cluster"].total_variation == pytest.approx(measured.window_tv["cluster"][16][2])
    assert measured.documents is not None
    # The corpus has no copies: pairs of sequences are called copies of each other.
    assert measured.copies is None
    dataset.__dict__["sequence_copies"] = copies = np.arange(chars.num_sequences)[:, None] // 2
    spread = document_spread(copies, dataset.orderings["balance"].indices, (16,))
    for step, num_repeats in enumerate(measured.documents.repeats[16].tolist()):
        seen = Inspector(jd.make_run(dataset, "balance"), 16).batch(step)
        assert (seen.num_repeats, seen.num_copies) == (num_repeats, spread.repeats[16][step])


def test_hosts_see_their_rows(built: Path) -> None:
    inspector = Inspector(jd.make_run(built, "balance"), 8)
    whole = inspector.batch(5).sequences
    parts = [inspector.batch(5, host_index=host, num_hosts=4).sequences for host in range(4)]
    assert tuple(row for part in parts for row in part) == whole


def test_a_document_is_found_wherever_it_is_used(built: Path) -> None:
    dataset = jd.open_dataset(built)
    inspector = Inspector(jd.make_run(dataset, "balance"), 8)
    segments, order = dataset.segments, dataset.orderings["balance"].indices
    ids = dataset.documents.to_table(columns=["id"])["id"].to_pylist()
    unused = set(range(len(ids))) - set(segments.document_index.tolist())
    assert unused
    assert inspector.uses(ids[min(unused)]) == []
    for document in (int(segments.document_index[0]), int(segments.document_index[-1])):
        uses = inspector.uses(ids[document])
        mine = segments.document_index == document
        assert sorted((use.sequence_index, use.document_offset, use.num_tokens) for use in uses) == sorted(
            zip(
                segments.sequence_index[mine].tolist(),
                segments.document_offset[mine].tolist(),
                segments.length[mine].tolist(),
                strict=True,
            )
        )
        for use in uses:
            assert order[use.position] == use.sequence_index
            batch = inspector.batch(use.step)
            assert document in [segment.document_index for segment in batch.sequences[use.row].segments]


def test_the_verb_prints_tables_and_json(built: Path, capsys: pytest.CaptureFixture) -> None:
    common = ["inspect", "--out", str(built), "--batch-size", "8"]
    assert main([*common, "--step", "2", "--rows", "3"]) == 0
    shown = capsys.readouterr().out
    assert "step 2 of 'balance'" in shown
    assert "and 5 rows more" in shown
    assert re.search(r"^tokens +\d.*'.+': ", shown, re.MULTILINE), "a token's text, not its number"
    assert max(map(len, shown.splitlines())) <= 80
    assert main([*common, "--step", "2", "--json"]) == 0
    batch = json.loads(capsys.readouterr().out)
    assert len(batch["sequences"]) == 8
    document = batch["sequences"][1]["segments"][0]["about"]["id"]
    assert main([*common, "--document", document]) == 0
    assert document in capsys.readouterr().out
    assert main([*common, "--rank", "1", "--num-hosts", "2", "--json"]) == 0
    assert [row["row"] for row in json.loads(capsys.readouterr().out)["sequences"]] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--step", "-1"], "step to be a whole number >= 0 and <= 72057594037927936, found -1"),
        (["--ordering", "nothing"], "Unknown ordering 'nothing'"),
        (["--batch-size", "0"], "global batch size in 1 .."),
        (["--rank", "2", "--num-hosts", "2"], "host 2 of 2"),
        (["--num-hosts", "2"], "say which host"),
        (["--rank", "0", "--num-hosts", "3"], "divides the global batch of 64"),
        (["--document", "no such"], "found 'no such'"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    built: Path, capsys: pytest.CaptureFixture, options: list[str], sentence: str
) -> None:
    assert main(["inspect", "--out", str(built), *options]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1

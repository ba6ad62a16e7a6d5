"""What takes a stored run over several datasets: inspect and measure, against direct reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.progress import Progress
from jax_diversity.ordering.measures.balance import own_shares
from jax_diversity.streaming.run.inspection import Inspector
from jax_diversity.streaming.run.joining import joined_characteristics
from jax_diversity.streaming.run.measuring import choose, measure_orderings
from tests.support.runs import epochs_of, refused, store_run, store_run_of_one, whole, write_web_and_code
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


@pytest.fixture(scope="module")
def tinies(tmp_path_factory: pytest.TempPathFactory) -> tuple[TinyDataset, TinyDataset]:
    return write_web_and_code(tmp_path_factory.mktemp("uses"))


@pytest.fixture(scope="module")
def run(tinies: tuple[TinyDataset, TinyDataset]) -> Any:
    return store_run(tinies[0].root.parent)


@pytest.fixture(scope="module")
def one(tinies: tuple[TinyDataset, TinyDataset]) -> Any:
    return store_run_of_one(tinies[0].root.parent)


def documents_in(dataset: jd.Dataset, sequence: int) -> list[str]:
    segments, ids = dataset.segments, list(dataset.document_store.ids())
    return [ids[index] for index in segments.document_index[segments.sequence_index == sequence].tolist()]


def test_a_batch_of_a_run_holds_what_its_segments_say(run: Any) -> None:
    assert len({each.part for each in run.content.versions[-1].slices}) == 3
    inspector, epochs = Inspector(run, 8), epochs_of(run)
    assert epochs.max() > 0
    for step in range(len(run) // 8):
        batch = inspector.batch(step, compare=False)
        dataset, sequence = run.places(np.arange(8 * step, 8 * step + 8))
        assert [row.position for row in batch.sequences] == list(range(8 * step, 8 * step + 8))
        assert [row.dataset for row in batch.sequences] == dataset.tolist()
        assert [row.epoch for row in batch.sequences] == epochs[8 * step : 8 * step + 8].tolist()
        for row, index, number in zip(batch.sequences, dataset, sequence, strict=True):
            assert row.sequence_index == number
            found = [segment.about["id"] for segment in row.segments]
            assert found == documents_in(run.datasets[index], number)
    parts = [inspector.batch(5, host_index=host, num_hosts=2).sequences for host in range(2)]
    assert (*parts[0], *parts[1]) == inspector.batch(5).sequences


def test_the_families_of_a_batch_are_those_of_the_joined_counts(run: Any, one: Any) -> None:
    for each, targets in ((run, own_shares(joined_characteristics(run.datasets), run)), (one, None)):
        chars = joined_characteristics(each.datasets)
        measured = jd.measure(chars, each, windows=(8,), targets=targets)
        inspector = Inspector(each, 8)
        deviations = inspector.deviations()
        for family, tv in measured.window_tv.items():
            np.testing.assert_allclose(deviations[family], tv[8])
            view = inspector.batch(6).families[family]
            assert view.total_variation == pytest.approx(tv[8][6])
            assert len(view.names) == len(view.share) == chars.counts[family].shape[1]
        assert measured.documents is not None
        assert [inspector.batch(step).num_repeats for step in range(len(each) // 8)] == measured.documents.repeats[
            8
        ].tolist()
        repeats = inspector.steps_with_repeats()
        assert repeats is not None
        assert repeats.tolist() == np.flatnonzero(measured.documents.repeats[8]).tolist()


def test_a_document_is_found_in_all_epochs_and_datasets(run: Any) -> None:
    epochs, (dataset, sequence) = epochs_of(run), run.places(np.arange(len(run)))
    uses = Inspector(run, 8).uses("document-7")  # both datasets have one
    expected = []
    for position in range(len(run)):
        segments = run.datasets[dataset[position]].segments
        held = (segments.sequence_index == sequence[position]) & (segments.document_index == 7)
        for offset, length in zip(segments.document_offset[held], segments.length[held], strict=True):
            expected.append(
                (dataset[position], epochs[position], position, position // 8, position % 8, offset, length)
            )
    assert {index for index, *_ in expected} == {0, 1}
    fields = ("dataset", "epoch", "position", "step", "row", "document_offset", "num_tokens")
    assert [tuple(getattr(use, name) for name in fields) for use in uses] == expected
    assert Inspector(run, 8).uses("document-62") == []  # kept for validation in the first


def test_inspect_prints_steps_and_documents(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["inspect", "--out", str(run.root), "--batch-size", "8"]
    assert main([*common, "--step", "9", "--rows", "5"]) == 0
    shown = capsys.readouterr().out
    assert "step 9 of 'run', version 4: position 72, 8 rows" in shown
    assert "and 3 rows more" in shown
    assert "../code" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert main([*common, "--step", "9", "--json"]) == 0
    batch = json.loads(capsys.readouterr().out)
    assert len(batch["sequences"]) == 8
    assert batch["families"]["length"]["all_batches"]["number"] == len(run) // 8
    assert main([*common, "--document", "document-7", "--json"]) == 0
    uses = json.loads(capsys.readouterr().out)["uses"]
    assert main([*common, "--document", "document-7"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(uses) + 2
    # An earlier version knows the first dataset only.
    assert main([*common, "--version", "1", "--document", "document-7", "--json"]) == 0
    assert {use["dataset"] for use in json.loads(capsys.readouterr().out)["uses"]} == {0}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--document", "nobody"], "found 'nobody'"),
        (["--version", "9"], "version to be a whole number >= 1 and <= 4"),
        (["--ordering", "balance"], "no ordering, because the run in"),
        (["--step", "9999"], "step to be a whole number"),
        (["--batch-size", "9999"], "global batch size in 1 .."),
        (["--rank", "2", "--num-hosts", "2"], "host 2 of 2"),
    ],
)
def test_inspect_refuses_in_one_sentence(
    run: Any, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    common = () if "--batch-size" in options else ("--batch-size", "8")
    assert sentence in refused(capsys, "inspect", "--out", str(run.root), *common, *options)


def test_what_is_neither_a_dataset_nor_a_run_is_named(
    tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in (["inspect", "--batch-size", "8"], ["measure"]):
        assert "Expected a dataset" in refused(capsys, *verb, "--out", str(tmp_path / "none"))
        assert "with --version 1, found a dataset" in refused(
            capsys, *verb, "--version", "1", "--out", str(tinies[0].root)
        )


# Measure


def test_a_run_is_measured_by_joined_characteristics_and_its_own_shares(
    run: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chars = joined_characteristics(run.datasets)
    shares = {}
    for family, counts in chars.counts.items():
        tokens = counts[whole(run)].sum(axis=0)
        shares[family] = tokens / tokens.sum()
    expected = jd.measure(chars, run, windows=(8, 32), targets=shares).summary()
    command = ["measure", "--out", str(run.root), "--windows", "8", "32", "--quiet"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["run"]
    for family, about in expected["families"].items():
        for size, values in about["windows"].items():
            for name, value in values.items():
                assert found["families"][family]["windows"][size][name] == pytest.approx(value), name
            # The shuffle is one of the same positions: to close its gap is no matter of the mixture.
            assert found["families"][family]["windows"][size]["gap_closed"] is not None
    assert found["documents"] == expected["documents"]
    # The whole run is its own mixture.
    assert jd.measure(chars, run, windows=(len(run),), targets=shares).window_tv["length"][len(run)] == pytest.approx(0)
    assert main([*command, "--profile", "--families", "length"]) == 0
    shown = capsys.readouterr().out
    assert "cluster" not in shown
    assert "uniform_shuffle" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_clusters_of_other_feature_spaces_are_left_out(
    tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny_dataset(tmp_path / "other", num_documents=25, seed=2, features="other").root
    run = jd.create_schedule(tmp_path / "run", [tinies[0].root, other], num_positions=40)
    assert main(["measure", "--out", str(run.root), "--windows", "8", "--json", "--quiet"]) == 0
    assert [*json.loads(capsys.readouterr().out)["run"]["families"]] == ["length"]
    assert [*Inspector(run, 8).batch(0).families] == ["length"]
    command = ["measure", "--out", str(run.root), "--windows", "8"]
    assert "every family to be one of length, found" in refused(capsys, *command, "--families", "cluster")


def test_a_run_of_one_dataset_is_measured_as_its_positions(one: Any, capsys: pytest.CaptureFixture[str]) -> None:
    positions = jd.make_run(one.datasets, positions=one.indices)
    chosen = choose({"one": positions}, (8, 32))
    expected = measure_orderings(chosen, Progress(quiet=True), profile=True)
    options = ["--windows", "8", "32", "--json", "--quiet", "--profile"]
    assert main(["measure", "--out", str(one.root), *options]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--orderings", "balance"], "no --orderings with the run in"),
        (["--order", "a.npy"], "no --order with the run in"),
        (["--targets", "balance"], "no --targets with the run in"),
        (["--families", "nothing"], "every family to be one of cluster, length"),
        (["--windows", "99999"], "every window size to be a whole number"),
    ],
)
def test_measure_refuses_in_one_sentence(
    run: Any, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    windows = () if "--windows" in options else ("--windows", "8")
    assert sentence in refused(capsys, "measure", "--out", str(run.root), *windows, *options)

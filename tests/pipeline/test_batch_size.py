"""The batch size of training, one setting: what is ordered, measured, reported and inspected by it."""

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
from jax_diversity.ordering.measures.windows import usable_windows
from jax_diversity.ordering.settings import OrderConfig
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.streaming.run.measuring import choose_orderings
from tests.conftest import MakeFolder

SIZE = 12


@pytest.fixture(scope="module")
def built(tiny_dataset: Path, make_once: MakeFolder) -> Path:
    """The small dataset, built again for batches of 12."""

    def fill(folder: Path) -> None:
        shutil.copytree(tiny_dataset, folder)
        orders = (
            OrderConfig("uniform_shuffle"),
            OrderConfig("balance"),
            OrderConfig("greedy", name="own", objective=jd.Objective(windows=(8,))),
            OrderConfig("greedy", name="published", objective=jd.Objective.f3()),
            OrderConfig("greedy_block_shuffle", name="blocks", objective=jd.Objective.f3()),
            OrderConfig("greedy_block_shuffle", name="own_blocks", options={"block_size": 7}),
        )
        Build(dataclasses.replace(recorded_config(folder), batch_size=SIZE, orders=orders)).run_all()

    return make_once("batches", fill)


@pytest.mark.campaign
def test_orders_balance_windows_of_the_batch_size(built: Path) -> None:
    dataset = jd.open_dataset(built)
    info = {name: order.info for name, order in dataset.orderings.items()}
    assert "objective" not in info.pop("uniform_shuffle")
    assert {name: list(each["objective"]["windows"]) for name, each in info.items()} == {
        "balance": [SIZE],
        "own": [8],
        "published": [],  # exactly as published
        "blocks": [],
        "own_blocks": [SIZE],
    }
    assert [info[name]["options"]["block_size"] for name in ("blocks", "own_blocks")] == [SIZE, 7]
    asked = jd.order(dataset.characteristics, objective=jd.Objective(windows=(SIZE,)))
    assert asked.fingerprint == dataset.orderings["balance"].fingerprint


@pytest.mark.campaign
def test_what_is_made_of_the_dataset_takes_its_batch_size(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = jd.open_dataset(built)
    chars, balance = dataset.characteristics, dataset.orderings["balance"]
    made = jd.order(chars)
    assert made.fingerprint == balance.fingerprint
    assert list(made.info["objective"]["windows"]) == [SIZE]
    assert jd.order(chars, objective=jd.Objective()).fingerprint != balance.fingerprint
    blocks = jd.order(chars, "greedy_block_shuffle", objective=jd.Objective.f3())
    assert blocks.fingerprint == dataset.orderings["blocks"].fingerprint
    assert chars.take(np.arange(SIZE - 1)).batch_size == SIZE  # fewer sequences than a batch: no window
    assert not jd.order(chars.take(np.arange(SIZE - 1))).info["objective"]["windows"]
    assert set(jd.measure(chars, balance).window_tv["cluster"]) == {SIZE, 256}
    run = jd.create_schedule(tmp_path / "run", dataset)
    assert np.array_equal(run.indices, balance.indices)
    assert run.content.versions[0].change.endswith(f"balance, seed 0, windows of {SIZE}")
    assert main(["schedule", "--path", str(tmp_path / "same"), "--datasets", str(built), "--quiet"]) == 0
    assert f"windows of {SIZE}" in " ".join(capsys.readouterr().out.split())
    assert np.array_equal(jd.open_schedule(tmp_path / "same").indices, balance.indices)


def test_measures_report_and_inspect_are_at_the_batch_size(built: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = json.loads((built / "orderings" / "balance.json").read_text())["balance"]
    assert set(measured["families"]["cluster"]["windows"]) == {"8", str(SIZE), "32"}
    assert choose_orderings(built).windows == (8, SIZE, 32)
    report = json.loads((built / "report.json").read_text())
    assert report["ordering"]["batches"]["batch_size"] == SIZE
    assert report["summary"]["main_window"] == SIZE
    assert main(["inspect", "--out", str(built), "--step", "2", "--no-compare"]) == 0
    assert f"step 2 of 'balance': epoch 0, position {2 * SIZE}, {SIZE} rows" in capsys.readouterr().out
    assert main(["inspect", "--out", str(built), "--batch-size", "7", "--no-compare"]) == 0
    assert "7 rows" in capsys.readouterr().out


def test_a_batch_size_alone_makes_orders_again_and_nothing_before(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(built, copy)
    build = Build(dataclasses.replace(recorded_config(copy), batch_size=None))
    made = {result.stage for result in build.run_all() if not result.kept}
    orders = {"balance", "blocks", "own_blocks"}  # the others do not depend on the batch size
    measured = {f"measure/{order.file_name}" for order in build.config.orders}
    assert made == {"report", *measured, *(f"order/{name}" for name in orders)}


def test_a_batch_above_the_corpus_is_refused_and_nothing_is_lost(tiny_dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_dataset, copy)
    num_sequences = jd.open_dataset(copy).num_sequences
    config = dataclasses.replace(recorded_config(copy), batch_size=num_sequences + 1)
    before = (copy / "manifest.json").read_bytes()
    sentence = f"batch_size of at most the {num_sequences} training sequences, found {num_sequences + 1}; set it"
    with pytest.raises(jd.UserError, match=sentence):
        Build(config).run_all()
    with pytest.raises(jd.UserError, match=sentence):
        Build(config).run_stage("report")
    assert (copy / "manifest.json").read_bytes() == before
    # Sequences of half the length are more: the number that counts is that of these settings.
    packing = dataclasses.replace(config.packing, sequence_length=16)
    other = Build(dataclasses.replace(config, packing=packing, batch_size=num_sequences + 1))
    assert other.run_stage("pack").counts["num_sequences"] > num_sequences
    assert not other.run_stage("characterize").kept


def test_it_is_refused_as_soon_as_sequences_are_packed(tiny_dataset: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_dataset, copy)
    config = recorded_config(copy)
    packing = dataclasses.replace(config.packing, sequence_length=64)
    with pytest.raises(jd.UserError, match="training sequences, found 100000"):
        Build(dataclasses.replace(config, packing=packing, batch_size=100_000)).run_all()
    assert set(OutputFolder(copy).stages) == {"prepare", "tokenize", "embed", "cluster", "pack"}
    assert jd.open_dataset(copy).sequence_length == 64


def test_usable_windows_take_the_batch_size() -> None:
    assert usable_windows((8, 32), 64) == (8, 32)
    assert usable_windows((8, 32), 64, 32) == (8, 32)
    assert usable_windows((8, 32), 64, 16) == (8, 16, 32)
    assert usable_windows((8, 32), 10, 6) == (5,)


def test_an_order_again_is_kept_and_the_report_follows_new_ones(
    tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_dataset, copy)
    order = ["order", "--out", str(copy), "--quiet"]
    assert main(["report", "--out", str(copy), "--quiet"]) == 0  # it names the folder
    before = (copy / "report.json").read_bytes()
    capsys.readouterr()
    assert main([*order, "--name", "balance"]) == 0
    table = capsys.readouterr().out.splitlines()[1:4]
    assert [(line.split()[0], line.split()[-1]) for line in table] == [
        *(("order/balance", "kept"), ("measure/balance", "kept"), ("report", "kept"))
    ]
    assert (copy / "report.json").read_bytes() == before
    assert main([*order, "--method", "stratified"]) == 0
    names = [each["name"] for each in json.loads((copy / "report.json").read_text())["ordering"]["orders"]]
    assert names == ["uniform_shuffle", "balance", "stratified"]
    assert main([*order, "--seed", "3"]) == 0
    assert "report.html" in capsys.readouterr().out
    assert (copy / "report.html").exists()


def test_an_order_has_no_name_of_another_method(
    tiny_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_dataset, copy)
    before = (copy / "manifest.json").read_bytes()
    assert main(["order", "--out", str(copy), "--name", "uniform_shuffle", "--quiet"]) == 2
    assert "not the name of another method for an ordering by 'balance', found 'uniform_shuffle'" in (
        capsys.readouterr().err
    )
    assert (copy / "manifest.json").read_bytes() == before

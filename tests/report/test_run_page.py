"""The page of a stored run: its values against plain counting, and what the verb writes."""

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
from jax_diversity.report.page import render
from jax_diversity.report.run import run_values
from jax_diversity.streaming.run.joining import joined_characteristics
from tests.support.runs import epochs_of, refused, store_run, store_run_of_one, write_web_and_code
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


def test_the_values_of_a_run_are_those_of_plain_counting(run: Any) -> None:
    values = run_values(run, Progress(quiet=True), windows=(8, 32))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    about = values["run"]
    epochs, (dataset, _) = epochs_of(run), run.places(np.arange(len(run)))
    assert [each["positions"] for each in about["datasets"]] == np.bincount(dataset).tolist()
    assert [each["start"] for each in about["stretches"][1:]] == [each["stop"] for each in about["stretches"][:-1]]
    assert (about["stretches"][0]["start"], about["stretches"][-1]["stop"]) == (0, len(run))
    for each in about["stretches"]:
        own = slice(each["start"], each["stop"])
        for part in each["parts"]:
            share = np.mean((dataset[own] == part["dataset"]) & (epochs[own] == part["epoch"]))
            assert part["share"] == pytest.approx(share, abs=1e-5)
        assert sum(part["share"] for part in each["parts"]) == pytest.approx(1, abs=1e-5)
    chars = joined_characteristics(run.datasets)
    measured = jd.measure(chars, run, windows=(8, 32), targets=own_shares(chars, run))
    order = values["ordering"]["orders"][1]
    assert (order["name"], len(order["windows"])) == ("run", 2 * len(chars.families))
    for row in order["windows"]:
        tv = measured.window_tv[row["family"]][row["window_size"]]
        assert (row["mean"], row["worst"]) == pytest.approx((tv.mean(), tv.max()), abs=1e-5)
    # Version 2 was changed at 40, version 4 skips from 48 on, where version 3's change at 130 is 16 earlier.
    assert about["changes"] == [{"version": 2, "position": 40}, {"version": 4, "position": 48}]


def test_a_run_with_windows_larger_than_its_dataset_and_one_of_moving_weights(
    tinies: tuple[TinyDataset, TinyDataset], tmp_path: Path
) -> None:
    write_tiny_dataset(tmp_path / "web", num_documents=40)
    number = jd.open_dataset(tmp_path / "web").num_sequences
    assert number < 64 < 1.4 * number  # windows of 64 are between the measured sizes, and larger than the dataset
    long = jd.create_schedule(tmp_path / "long", tmp_path / "web", num_epochs=4, method="uniform_shuffle")
    section = run_values(long, Progress(quiet=True), windows=(8, number - 1))["ordering"]
    sizes = section["orders"][1]["profile"]["cluster"]["0"]["sizes"]
    assert 64 in sizes
    assert 64 not in section["profile_references"]["cluster"]["sizes"]
    pair = [tiny.root for tiny in tinies]
    weights = jd.Targets.linear({"dataset": [1, 0]}, {"dataset": [0, 1]}, 80, 4)
    moving = jd.create_schedule(tmp_path / "moving", pair, weights=weights, num_positions=80)
    values = run_values(moving, Progress(quiet=True), windows=(8,))
    assert (values["verdicts"], values["summary"]["gaps_closed"]) == ([], [])
    assert "`moving` follows targets or weights of its own" in values["summary"]["verdict"]
    assert values["summary"]["next"][0] == 'Train on this run: `jd.make_loader("moving")`.'


def test_the_training_on_a_run_is_drawn_if_its_log_is_of_the_run(one: Any, tmp_path: Path) -> None:
    assert run_values(one, Progress(quiet=True), windows=(8,))["training"] == []
    with jd.TrainingLog(one) as log:
        for step in range(4):
            log(step, {"loss": 3.0 - step / 10})
    (drawn,) = run_values(one, Progress(quiet=True), windows=(8,))["training"]
    assert (drawn["ordering"], drawn["num_steps"], drawn["loss"]["last"]) == (one.name, 4, 2.7)
    log_file = one.root / "training" / "log.jsonl"
    log_file.write_text(log_file.read_text().replace(one.fingerprint, "0" * 64))
    assert run_values(one, Progress(quiet=True), windows=(8,))["training"] == []
    log_file.unlink()


def test_names_on_the_page_of_a_run_are_data(run: Any) -> None:
    values = run_values(run, Progress(quiet=True), windows=(8,))
    values["run"]["datasets"][0]["path"] = '../</script><script>alert("&amp;")</script>'
    page = render(values)
    assert page == render(values)
    assert "<script>alert" not in page
    assert "default-src 'none'" in page


def test_report_draws_a_run(run: Any, one: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in (run, one):
        target = tmp_path / each.root.name
        command = ["report", "--out", str(each.root), "--windows", "8", "--quiet"]
        assert main([*command, "--target", str(target)]) == 0
        assert "report.html" in capsys.readouterr().out
        values = json.loads((target / "report.json").read_text(encoding="utf-8"))
        assert values["run"]["num_positions"] == len(each)
        assert render(values) == (target / "report.html").read_text(encoding="utf-8")
    command = ["report", "--out", str(run.root), "--windows", "8", "--quiet"]
    assert "except windows for the report of the run" in refused(capsys, *command, "--corpus.paths", "elsewhere")
    assert "version to be a whole number" in refused(capsys, *command, "--version", "5")
    assert "Expected a dataset" in refused(capsys, "report", "--out", str(tmp_path / "none"))
    assert not (run.root / "report.html").exists()

"""The public functions of token counts, called with a dataset or its folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.pipeline.tables import orderings_verdict
from tests.support.tiny_dataset import write_tiny_dataset


def test_a_dataset_or_its_folder_can_be_ordered_measured_and_compared(tiny_dataset: Path) -> None:
    dataset = jd.open_dataset(tiny_dataset)
    chars, balance = dataset.characteristics, dataset.orderings["balance"]
    for given in (tiny_dataset, str(tiny_dataset), dataset):
        assert jd.order(given, "stratified", seed=1).fingerprint == jd.order(chars, "stratified", seed=1).fingerprint
        measured = jd.measure(given, windows=(8,))
        expected = jd.measure(chars, balance, windows=(8,))
        np.testing.assert_array_equal(measured.window_tv["cluster"][8], expected.window_tv["cluster"][8])
    shuffle = dataset.orderings["uniform_shuffle"]
    expected = jd.compare(chars, {"balance": balance, "uniform_shuffle": shuffle}, (8,))
    assert jd.compare(tiny_dataset, windows=(8,)).rows == expected.rows
    assert jd.compare(dataset, ["balance", "uniform_shuffle"], windows=(8,)).rows == expected.rows
    assert jd.compare(dataset, "balance", windows=(8,)).orderings == ("balance",)
    assert "add jd.order(..., 'uniform_shuffle') to the orders" in str(jd.compare(dataset, "balance"))
    own = jd.compare(dataset, {"balance": "balance", "uniform_shuffle": shuffle}, windows=(8,))
    assert own.rows == expected.rows
    # The windows and the batch size of the build: what `measure` and the report compare.
    assert {row.window for row in jd.compare(dataset).rows} - {None} == {8, 32}
    assert str(jd.compare(dataset)).split("\n\n")[0] == orderings_verdict(dataset).split("\n\n")[0]
    with pytest.raises(jd.UserError, match="Unknown ordering 'no'; the dataset has balance, uniform_shuffle"):
        jd.measure(dataset, "no")
    with pytest.raises(jd.UserError, match="the dataset has balance, uniform_shuffle; did you mean 'balance'"):
        jd.make_loader(dataset, ordering="balanse", global_batch_size=4)
    with pytest.raises(jd.UserError, match="Expected a dataset at absent, found no such folder; make one with"):
        jd.order("absent")


def test_a_folder_with_a_wrong_name_is_answered_with_the_dataset_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("nanods", "other"):
        write_tiny_dataset(tmp_path / name)
    with pytest.raises(jd.UserError, match=f"found no such folder; did you mean {tmp_path / 'nanods'}\\?"):
        jd.open_dataset(tmp_path / "nanosd")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(jd.UserError, match=r"found no such folder; did you mean nanods\?"):
        jd.make_loader("nanosd", global_batch_size=4)
    assert main(["verify", "--out", "nanosd"]) == 2
    assert "did you mean --out nanods?" in capsys.readouterr().err


def test_a_dataset_whose_build_failed_before_its_orderings_names_the_next_step(tmp_path: Path) -> None:
    root = write_tiny_dataset(tmp_path / "data").root
    folder = OutputFolder(root)
    for stage in [name for name in folder.stages if name.partition("/")[0] in ("order", "measure")]:
        folder.withdraw(stage)
    with pytest.raises(jd.UserError, match="has none yet; repeat the command that built it, or make one with"):
        jd.make_loader(root, global_batch_size=4)


def test_names_of_orderings_need_a_dataset(tiny_dataset: Path) -> None:
    chars = jd.open_dataset(tiny_dataset).characteristics
    with pytest.raises(jd.UserError, match="found the name 'balance', which only a dataset has"):
        jd.measure(chars, windows=(8,))
    with pytest.raises(jd.UserError, match="at least one order to compare"):
        jd.compare(chars)

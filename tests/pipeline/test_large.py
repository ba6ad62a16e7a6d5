"""Builds of large datasets: orders, measures and the report without all counts in memory."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.counts import token_counts
from jax_diversity.ordering import chunks
from jax_diversity.ordering.settings import AfterConfig, OrderConfig, TargetsConfig
from jax_diversity.pipeline.build import Build, recorded_config
from jax_diversity.streaming.dataset import Dataset
from tests.support.summaries import check_among
from tests.support.tiny_corpus import tiny_config

pytestmark = pytest.mark.campaign

BALANCE = OrderConfig("balance", options={"part_size": 64, "pool_size": 16})
ORDERS = (OrderConfig("uniform_shuffle"), BALANCE, OrderConfig("corpus_order", reverse=True))


@pytest.fixture(scope="module")
def as_large() -> Iterator[None]:
    """A chunk has about 300 sequences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_counts, "MOST_ROWS", 300)
        yield


def refuse(*arguments: Any) -> None:
    raise AssertionError("all counts, or all segments, were read")


@pytest.fixture(scope="module")
def built(tiny_dataset: Path, as_large: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny dataset, with orders, measures and a report like those of a large one."""
    out = shutil.copytree(tiny_dataset, tmp_path_factory.mktemp("large") / "out")
    config = dataclasses.replace(tiny_config(tiny_dataset.parent / "corpus", out), orders=ORDERS, batch_size=8)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("characteristics", "segments"):
            patch.setattr(Dataset, name, property(refuse))
        Build(config).run_all()
    return out


def stored(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "orderings").iterdir()}


def test_orders_are_made_and_measured_in_blocks(built: Path) -> None:
    dataset = jd.open_dataset(built)
    assert dataset.num_sequences > 1200
    for order in ORDERS:
        ordering = dataset.orderings[order.file_name]
        assert sorted(ordering) == list(range(dataset.num_sequences))
        measured = jd.measure(dataset, ordering, (8, 32)).summary()
        check_among(ordering.info["balance"], measured)
        check_among(measured, ordering.info["balance"])
        assert {"documents", "copies"} & set(measured) == {"documents", "copies"} & set(ordering.info["balance"])
    again = jd.order(dataset, objective=jd.Objective(windows=(8,)), **BALANCE.options)
    np.testing.assert_array_equal(again.indices, dataset.orderings["balance"].indices)
    assert dataset.orderings["corpus_order"].indices[0] == dataset.num_sequences - 1
    shuffled = jd.order(dataset, "uniform_shuffle").indices
    np.testing.assert_array_equal(dataset.orderings["uniform_shuffle"].indices, shuffled)
    assert not [path for path in (built / "orderings").iterdir() if path.is_dir()]
    assert not dataset.verify()


def test_the_report_has_the_verdict_and_the_tables(built: Path) -> None:
    report = json.loads((built / "report.json").read_text())
    dataset, ordering = jd.open_dataset(built), report["ordering"]
    assert "`balance` is better than a shuffle" in report["summary"]["verdict"]
    assert set(ordering["batches"]["orders"]) == {order.file_name for order in ORDERS}
    assert [order["name"] for order in ordering["orders"]] == [order.file_name for order in ORDERS]
    for order in ordering["orders"]:
        assert set(order["profile"]) == set(order["heat_map"]) == set(ordering["families"])
        balance = jd.measure(dataset, order["name"], (8, 32))
        for window in order["windows"]:
            tv = balance.window_tv[window["family"]][window["window_size"]]
            assert (window["num_windows"], window["worst_position"]) == (len(tv), tv.argmax() * window["window_size"])
            assert max(window["curve"]["max"]) == pytest.approx(tv.max(), rel=1e-5)
        for prefix in order["prefix"]:
            values = balance.prefix_l2[prefix["family"]]
            assert prefix["max"] == pytest.approx(values.max(), rel=1e-5)
            assert max(prefix["curve"]["max"]) == pytest.approx(values.max(), rel=1e-5)
    assert len(report["verdicts"]) == 2 * len(ordering["families"]) * len(ordering["window_sizes"])


def test_the_command_line_measures_in_blocks(
    built: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dataset, "characteristics", property(refuse))
    for arguments in (["--all"], ["--relative-to", "uniform_shuffle", "--families", "length"]):
        assert main(["measure", "--out", str(built), *arguments]) == 0
        assert "balance" in capsys.readouterr().out
    assert main(["measure", "--out", str(built), "--json", "--windows", "16", "64"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["balance"]["families"]["cluster"]["windows"]["16"]["gap_closed"] > 0
    curves = found["balance"]["families"]["cluster"]["curves"]
    assert curves["prefix_l2"]["mean"]
    ends = [64 * (window + 1) for window in range(jd.open_dataset(built).num_sequences // 64)]
    assert curves["window_tv"]["64"]["position"] == ends
    assert main(["measure", "--out", str(built), "--profile"]) == 0
    assert "cluster: mean TV of windows" in capsys.readouterr().out


def test_stored_measures_are_compared_without_the_counts(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["uniform_shuffle", "balance"]
    expected = jd.compare(built, {name: jd.open_dataset(built).orderings[name] for name in names})
    monkeypatch.setattr("jax_diversity.streaming.dataset.counts.DatasetCounts.rows", refuse)
    stored_rows = jd.compare(built, names).rows
    assert [row.key for row in stored_rows] == [row.key for row in expected.rows]
    for ours, theirs in zip(stored_rows, expected.rows, strict=True):
        assert ours.value == pytest.approx(theirs.value)


class Killed(BaseException):
    """As if the process ended."""


@pytest.mark.parametrize("calls", [2, 6, 12])
def test_a_killed_order_continues_with_the_same_bytes(
    calls: int, built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    config = recorded_config(out)
    first = dataclasses.replace(BALANCE, name="again")
    counted, save = itertools.count(1), chunks.Checkpoint.save

    def kill(*arguments: Any) -> None:
        save(*arguments)
        if next(counted) == calls:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(chunks.Checkpoint, "save", kill)
        with pytest.raises(Killed):
            Build(config).run_orders([first])
    Build(config).run_orders([first])
    assert stored(out)["again.npy"] == stored(out)["balance.npy"]


def test_targets_after_another_ordering(built: Path, tmp_path: Path) -> None:
    out = shutil.copytree(built, tmp_path / "out")
    name = jd.open_dataset(out).group_names["source"][0]
    changed = dataclasses.replace(
        BALANCE,
        name="changed",
        targets=TargetsConfig({"source": ({name: 0.9},)}),
        after=AfterConfig("balance", 100),
    )
    with pytest.warns(UserWarning, match="Ordering 'changed': The targets ask for"):
        Build(recorded_config(out)).run_orders([changed])
    dataset = jd.open_dataset(out)
    ordering, before = dataset.orderings["changed"], dataset.orderings["balance"]
    np.testing.assert_array_equal(ordering.indices[:100], before.indices[:100])
    assert (ordering.info["replanned_at"], ordering.info["of"]["name"]) == (100, "balance")
    tokens = dataset.characteristics.counts["source"][ordering.indices[100:300]].sum(axis=0)
    assert tokens[0] > 0.7 * tokens.sum()

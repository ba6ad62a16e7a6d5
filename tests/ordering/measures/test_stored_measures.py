"""The stored measures of an ordering: what was measured, and files that hold something else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from jax_diversity.ordering.measures.balance import measure
from jax_diversity.ordering.measures.stored import read_curves, read_figures
from tests.support.hostile import sign_manifest


@pytest.fixture
def dataset_copy(tiny_dataset: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_dataset, tmp_path / "out")


def test_a_build_stores_the_measures_and_the_curves(tiny_dataset: Path) -> None:
    dataset = jd.open_dataset(tiny_dataset)
    balance = measure(dataset.characteristics, dataset.orderings["balance"], (8, 32))
    found = read_figures(dataset.stored, "balance", dataset.families)
    assert found["balance"] == json.loads(json.dumps(balance.summary()))
    assert tuple(found["balance"]["families"]) == dataset.families
    assert read_curves(dataset.stored, "balance") == json.loads(json.dumps(balance.curves()))


def _without_families(values: dict[str, Any]) -> Any:
    del values["balance"]["families"]
    return values


def _with_text(values: dict[str, Any]) -> Any:
    next(iter(values["balance"]["families"].values()))["windows"]["8"]["tv_mean"] = "<b>much</b>"
    return values


@pytest.mark.parametrize("change", [lambda values: [1], _without_families, _with_text, lambda values: {"balance": 3}])
def test_other_values_are_one_sentence(
    dataset_copy: Path, change: Callable[[Any], Any], capsys: pytest.CaptureFixture
) -> None:
    name = "orderings/balance.json"
    _replace(dataset_copy, name, change(json.loads((dataset_copy / name).read_text())))
    assert main(["report", "--out", str(dataset_copy), "--quiet"]) == 2
    assert "Expected the measures of an ordering in" in capsys.readouterr().err


@pytest.mark.parametrize("curves", [[], {"prefix": 3}, {"prefix": {}, "windows": {}, "norm_drift": {"mean": ["a"]}}])
def test_other_curves_are_one_sentence(dataset_copy: Path, curves: Any, capsys: pytest.CaptureFixture) -> None:
    _replace(dataset_copy, "orderings/balance.curves.json", curves)
    assert main(["report", "--out", str(dataset_copy), "--quiet"]) == 2
    assert "Expected the measures of an ordering in" in capsys.readouterr().err


def _replace(root: Path, name: str, values: Any) -> None:
    """As a stranger can: with the right hash in the manifest."""
    from jax_diversity.foundation.artifacts import describe_file

    (root / name).write_text(json.dumps(values))

    def sign(content: Any) -> None:
        for stage in content["stages"].values():
            if name in stage["files"]:
                stage["files"][name] = describe_file(root / name)

    sign_manifest(root, sign)

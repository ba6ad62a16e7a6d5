"""Stored runs, and all positions and batches of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from tests.support.tiny_dataset import TinyDataset, write_tiny_dataset


def whole(run: jd.Run) -> np.ndarray:
    return run.at(np.arange(len(run)))


def batches(run: Any, size: int = 8, **settings: Any) -> list[dict[str, np.ndarray]]:
    return list(jd.make_loader(run, global_batch_size=size, **settings))


def assert_equal_batches(found: list[dict], expected: list[dict]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, rows in one.items():
            np.testing.assert_array_equal(rows, other[name])


def write_web_and_code(root: Path) -> tuple[TinyDataset, TinyDataset]:
    """Two datasets of one feature space."""
    return (
        write_tiny_dataset(root / "web", num_documents=60, features="common"),
        write_tiny_dataset(root / "code", num_documents=25, seed=1, layout="ordered", features="common"),
    )


def store_run(root: Path) -> jd.Run:
    """Three parts: an epoch of the first dataset, both from position 40 on, an epoch more; with a skip within."""
    made = jd.create_schedule(root / "run", root / "web", num_epochs=1.5)
    made = jd.extend_schedule(made, position=40, datasets=[root / "code"], weights=[1, 2], num_positions=120)
    made = jd.extend_schedule(made, position=130, weights=[2, 1], num_positions=100)
    return jd.skip_positions(made, 48, 64)


def store_run_of_one(root: Path) -> jd.Run:
    """Two epochs of the first dataset, the second cut by a skip."""
    made = jd.create_schedule(root / "one", root / "web", num_epochs=2)
    return jd.skip_positions(made, 100, 108)


def epochs_of(run: Any) -> np.ndarray:
    """The epoch of every position of a stored run by plain counting, what was skipped included."""
    epochs, given = [], [0] * len(run.members)
    at = iter(whole(run).tolist())
    slices = run.content.versions[run.version - 1].slices
    parts = [np.load(run.root / part.file) for part in run.content.parts]
    for each in slices:
        for number in parts[each.part][each.start : each.stop].tolist():
            index = int(number >= run.offsets[1]) if len(run.members) > 1 else 0
            if not each.skipped:
                assert next(at) == number
                epochs.append(given[index] // run.members[index].num_sequences)
            given[index] += 1
    return np.array(epochs)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence with which the command line refuses some arguments."""
    capsys.readouterr()
    assert main([*arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error

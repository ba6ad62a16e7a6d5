"""Schedules that were changed and signed again: one sentence, before any wrong sequence is read."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import jax_diversity as jd
from jax_diversity.cli.main import main
from tests.support.hostile import SCHEDULES, sign_schedule
from tests.support.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("schedules")
    write_tiny_dataset(root / "web", num_documents=20)
    jd.create_schedule(root / "run", root / "web", num_epochs=2)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def read_all(folder: Path) -> None:
    run = jd.open_schedule(folder)
    for _ in jd.make_loader(run, global_batch_size=4):
        pass


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_changed_schedule_is_refused(name: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = SCHEDULES[name]
    sign_schedule(root / "run", change)
    with pytest.raises(jd.UserError, match=sentence):
        read_all(root / "run")
    assert main(["inspect", "--out", str(root / "run"), "--batch-size", "4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(sentence, line)


@pytest.mark.parametrize("value", [-1, 10**9])
def test_a_part_holds_sequences_of_the_run(value: int, root: Path) -> None:
    path = root / "run" / "part-000000.npy"
    numbers = np.load(path)
    numbers[3] = value
    np.save(path, numbers)
    mark = hashlib.sha256(numbers.tobytes()).hexdigest()
    sign_schedule(root / "run", lambda plain: plain["parts"][0].update(fingerprint=mark))
    with pytest.raises(jd.UserError, match=r"Expected sequences in 0 \.\. \d+ in .*part-000000.npy, found"):
        read_all(root / "run")

"""The quick part of the campaign of `benchmarks/reliability`: nothing is lost under attack, and nothing silent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability.__main__ import COUNTS
from benchmarks.reliability.tally import FAULTS, num_faults
from tests.conftest import MakeFolder
from tests.support.programs import ROOT

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def results(make_once: MakeFolder) -> dict[str, Any]:
    """All counts, of one run in a process that has no threads: it forks for every attack."""

    def fill(folder: Path) -> None:
        folder.mkdir()
        command = [sys.executable, "-m", "benchmarks.reliability", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.stdout, done.stderr
        (folder / "results.json").write_text(done.stdout, encoding="utf-8")

    path = make_once("campaign", fill) / "results.json"
    return json.loads(path.read_text(encoding="utf-8").splitlines()[-1])


@pytest.mark.parametrize("name", COUNTS)
def test_nothing_is_lost_and_nothing_silent(name: str, results: dict[str, Any]) -> None:
    result = results[name]
    assert result["attacks"] > 0
    assert set(FAULTS) <= result.keys()
    assert num_faults(result) == 0, json.dumps(result["failures"], indent=2)

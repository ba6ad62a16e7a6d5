"""The notebook that trains runs; a file of its own, so that it runs beside the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.notebooks import check_that_it_runs


@pytest.mark.slow
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_that_it_runs("train_two_models", tmp_path, monkeypatch)

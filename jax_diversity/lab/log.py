"""A training run's log: one header, then one record a step, each a line of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.errors import UserError


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the steps of a run, be it done, still running or cut off.

    The header says what the run is of: `dataset` and `ordering` (fingerprints) and `settings`. A step has `step`
    (from 1), `loss` and what else was measured. The line at which a run was cut off is left out.

    Returns:
        An empty header where there is none; no steps where none is done, or no such file.

    Example:
        >>> header, steps = read_log(Path("out/training/balance/log.jsonl"))
        >>> header["dataset"] == open_dataset("out").fingerprint
        True
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    header, steps = {}, []
    for index, line in enumerate(lines):
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        if "step" in record:
            steps.append(record)
        elif index == 0:
            header = record
    return header, steps


def begin_log(path: Path, header: Mapping[str, Any], last_step: int) -> list[dict[str, Any]]:
    """Begin a log, or go on with one: the header, and those of its steps that are not done again."""
    steps = [step for step in read_log(path)[1] if step["step"] <= last_step]
    write_text(path, "".join(json.dumps(record) + "\n" for record in (header, *steps)))
    return steps


def make_folder(folder: Path) -> None:
    """Make a folder that is going to be written to.

    Raises:
        UserError: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"Expected a folder that can be written, found {folder} ({error.strerror}); choose another one."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"Expected a folder that can be written, found that {folder} cannot; choose another one.")

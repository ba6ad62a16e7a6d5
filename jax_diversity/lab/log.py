"""The log of a training run: a header, then one record for each step, each a line of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import write_text
from jax_diversity.foundation.errors import UserError


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the steps of a run that is finished, still running or was interrupted.

    The header says what was trained on: `dataset` and `ordering` (fingerprints) and `settings`. A step has `step`
    (from 0), `loss` and the other values measured. A line that was not written to its end is left out.

    Returns:
        The header, empty where there is none; the steps, none where no step is done or no file is there.

    Example:
        >>> header, steps = read_log(Path("out/training/balance/log.jsonl"))
        >>> header["dataset"] == open_dataset("out").fingerprint
        True
    """
    # A killed run may leave half a line, even half a UTF-8 sequence, at the end: reading stops there.
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


def begin_log(path: Path, header: Mapping[str, Any], first_step: int) -> list[dict[str, Any]]:
    """Begin or continue a log: writes the header and the steps before `first_step`, which are returned."""
    steps = [step for step in read_log(path)[1] if step["step"] < first_step]
    write_text(path, "".join(json.dumps(record) + "\n" for record in (header, *steps)))
    return steps


def make_folder(folder: Path) -> None:
    """Make a folder for files that will be written.

    Raises:
        UserError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"Expected a folder that can be written, found {folder} ({error.strerror}); choose another one."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"Expected a folder that can be written, found that {folder} cannot; choose another one.")

"""Write the values of a training run: to a log with one line of JSON for each step, and to TensorBoard."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import remove_leftovers, write_text
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside, make_folder
from jax_diversity.foundation.libraries import optional

LOG_FILE = "log.jsonl"
"""The name of a training run's log in the folder of the run."""


def logs_of_runs(root: Path) -> dict[str, Path]:
    """Return name -> log, for the training runs in a dataset's folder; the name is that of the ordering."""
    names = sorted(path.parent.name for path in (root / "training").glob(f"*/{LOG_FILE}"))
    return {name: inside(root, "training", name, LOG_FILE) for name in names}


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the steps in the log of a training run, which may be finished, running or interrupted.

    The header contains the fingerprints `dataset` and `ordering`, how that `order` was made, and the `settings`. A step
    has `step` (from 0), `loss` and the other measured values. If several lines have values of one step, they become one
    record; of values with the same name the last one counts. Other lines are skipped: a killed run may leave half a
    line, even half a UTF-8 sequence. A null is a number that is not finite, and is read as NaN.

    Returns:
        The header, empty if there is none; the steps in ascending order, empty if no step was done or there is no file.

    Raises:
        UserError: the file cannot be read.

    Example:
        >>> header, steps = read_log(Path("out/training/balance/log.jsonl"))
        >>> header["dataset"] == open_dataset("out").fingerprint
        True
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise UserError(f"Expected a run's log at {path}, found: {error.strerror}; move the file away.") from None
    header: dict[str, Any] = {}
    steps: dict[int, dict[str, Any]] = {}
    for index, line in enumerate(lines):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(record, dict):
            continue
        if "step" not in record:
            header = record if index == 0 else header
        elif type(record["step"]) is int and 0 <= record["step"] < 2**53:
            # Only numbers can be drawn; in Python `True` is also a number.
            values = {name: math.nan if value is None else value for name, value in record.items()}
            numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
            steps.setdefault(record["step"], {}).update(numbers)
    return header, [steps[step] for step in sorted(steps)]


class JsonLinesWriter:
    """Append values to a file, one line of JSON for each step, such as `{"step": 0, "loss": 9.7}`; see `read_log`.

    A `TrainingLog` writes such a file for the report, with the right place and header.

    Args:
        path: the file; its folder is made if necessary.
        header: the first line, which says what the run is of. The steps in the file before `first_step` are kept,
            all others are removed. None means to append to the file without changing it.
        first_step: the step with which the run begins or continues.

    Attributes:
        steps: the records that are kept.

    Raises:
        UserError: the folder or the file cannot be written.

    Example:
        >>> with closing(JsonLinesWriter("metrics.jsonl")) as write:
        ...     write(0, {"loss": 9.7})
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any] | None = None, first_step: int = 0) -> None:
        path = Path(path)
        make_folder(path.parent)
        self.steps: list[dict[str, Any]] = []
        if header is not None:
            remove_leftovers(path.parent, path.name)
            # If a checkpoint is older than the end of the log, the steps after it are done and logged again.
            self.steps = [step for step in read_log(path)[1] if step["step"] < first_step]
            write_text(path, "".join(map(_line, (header, *self.steps))))
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise UserError(f"Expected a log that can be written, found {path} ({error.strerror}).") from None
        # A killed run may leave half a line. Without a line end, the next record would become a part of it and be lost.
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's values."""
        self._file.write(_line({"step": step, **values}).encode())
        self._file.flush()  # written to the operating system: a kill loses no step, a power failure may lose some

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __repr__(self) -> str:
        return "JsonLinesWriter"


def _line(record: Mapping[str, Any]) -> str:
    """Return a record as a line of strict JSON: numbers that are not finite become null."""
    return json.dumps(_finite(record), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoardWriter:
    """Write values as TensorBoard's scalars; this needs the extra `tensorboard`.

    Values are stored when the call returns, even if the process is killed later. A run that continues with step s
    begins another file, which makes readers drop the steps from s on in earlier files: TensorBoard shows each step
    once, with its last values.

    Args:
        folder: a folder that only this run uses; pass it, or a parent folder, to `tensorboard --logdir`.
        first_step: the step with which the run begins or continues.

    Raises:
        UserError: the extra is not installed, or the folder cannot be written.

    Example:
        >>> with closing(TensorBoardWriter("out/tensorboard")) as write:
        ...     write(0, {"loss": 9.7})
    """

    def __init__(self, folder: str | Path, first_step: int = 0) -> None:
        require_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2  # type: ignore[import-not-found]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-not-found]

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        folder = Path(folder)
        make_folder(folder)
        self.is_first = not any(folder.glob("events.out.tfevents.*"))
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)  # readers sort files by name
        name = f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.from-step-{first_step}"
        # "x": two runs that begin at the same moment never write to one file.
        self._records = RecordWriter((folder / name).open("xb"))
        self._add(0, file_version="brain.Event:2")
        if not self.is_first:  # readers drop the steps of earlier files from this step on
            self._add(first_step, session_log=self._event.SessionLog(status=self._event.SessionLog.START))

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's values."""
        scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=self._summary.Summary(value=scalars))

    def _add(self, step: int, **values: Any) -> None:
        event = self._event.Event(wall_time=time.time(), step=step, **values)
        self._records.write(event.SerializeToString())
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()

    def __repr__(self) -> str:
        return "TensorBoardWriter"


def require_tensorboard() -> None:
    """Check that the extra `tensorboard` is installed."""
    optional("tensorboard.summary.writer.record_writer", "tensorboard")

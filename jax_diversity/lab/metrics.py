"""A run's values while it runs: its log, one line of JSON for each step, and TensorBoard."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import remove_leftovers, write_text
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import make_folder
from jax_diversity.foundation.libraries import optional


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the steps of a run that is finished, still running or was interrupted.

    The header says what was trained on: `dataset` and `ordering` (fingerprints) and `settings`. A step has `step`
    (from 0), `loss` and the other values measured. Lines that are no such records are left out: a killed run may leave
    half a line, even half a UTF-8 sequence.

    Returns:
        The header, empty where there is none; the steps, none where no step is done or no file is there.

    Raises:
        UserError: a file that cannot be read.

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
        raise UserError(f"Expected a run's log at {path}, found: {error.strerror}; move it away.") from None
    header, steps = {}, []
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
            # A value that is no number cannot be drawn; `True` is one to Python alone.
            steps.append({name: value for name, value in record.items() if type(value) in (int, float)})
    return header, steps


class JsonLinesWriter:
    """Appends values to a file, a line of JSON for each step: `{"step": 0, "loss": 9.7}`, as `read_log` reads them.

    The report of a dataset shows your own training loop beside the lab's runs when it writes to
    `out/training/ORDERING/log.jsonl` with the fingerprints of dataset and ordering as its header.

    Args:
        path: the file; its folder is made.
        header: the first line, which says what is trained on. The steps in the file before `first_step` are kept,
            all others removed. None leaves the file as it is, and appends.
        first_step: the step with which the run begins or continues.

    Attributes:
        steps: the records that were kept.

    Raises:
        UserError: the folder or the file cannot be written.

    Example:
        >>> header = {"dataset": dataset.fingerprint, "ordering": dataset.orderings["balance"].fingerprint}
        >>> with closing(JsonLinesWriter("out/training/balance/log.jsonl", header)) as write:
        ...     write(0, {"loss": 9.7})
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any] | None = None, first_step: int = 0) -> None:
        path = Path(path)
        make_folder(path.parent)
        self.steps: list[dict[str, Any]] = []
        if header is not None:
            remove_leftovers(path.parent, path.name)
            # A checkpoint is older than the log's end by the steps since: they are done again, and logged again.
            self.steps = [step for step in read_log(path)[1] if step["step"] < first_step]
            write_text(path, "".join(json.dumps(record) + "\n" for record in (header, *self.steps)))
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise UserError(f"Expected a log that can be written, found {path} ({error.strerror}).") from None
        # Where a killed run left half a line, the next step would become a part of it and be lost.
        if self._file.seek(0, os.SEEK_END):
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's values."""
        self._file.write(json.dumps({"step": step, **values}).encode() + b"\n")
        self._file.flush()  # to the system: a killed process loses no step, a power cut may

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __repr__(self) -> str:
        return "JsonLinesWriter"


class TensorBoardWriter:
    """Writes values as scalars that TensorBoard shows; needs the extra `tensorboard`.

    Values can be read when the call returns, also when the process is killed later. A run that continues with step s
    begins another file, which tells readers to forget the steps from s on in earlier files: TensorBoard shows each
    step once, as it was last done.

    Args:
        folder: of this run alone; `tensorboard --logdir` takes it or any folder above.
        first_step: the step with which the run begins or continues.

    Raises:
        UserError: the extra is not installed, or the folder cannot be written.

    Example:
        >>> with closing(TensorBoardWriter("out/tensorboard")) as write:
        ...     write(0, {"loss": 9.7})
    """

    def __init__(self, folder: str | Path, first_step: int = 0) -> None:
        require_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        folder = Path(folder)
        make_folder(folder)
        self.is_first = not any(folder.glob("events.out.tfevents.*"))
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)  # readers take files in the order of their names
        name = f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.from-step-{first_step}"
        # "x": two runs that begin in the same instant never write into one file.
        self._records = RecordWriter((folder / name).open("xb"))
        self._add(0, file_version="brain.Event:2")
        if not self.is_first:  # readers drop what earlier files hold from this step on
            self._add(first_step, session_log=self._event.SessionLog(status=self._event.SessionLog.START))

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's values."""
        scalars = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=self._summary.Summary(value=scalars))

    def _add(self, step: int, **what: Any) -> None:
        event = self._event.Event(wall_time=time.time(), step=step, **what)
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

"""Where a run's values go while it runs: TensorBoard, JSON lines, or anything that takes a step and values."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from jax_diversity.foundation.errors import UserError
from jax_diversity.lab.log import begin_log, make_folder


class TensorBoardWriter:
    """Writes values as scalars that TensorBoard shows; needs the extra `tensorboard`.

    What is written can be read when the call returns, and outlives the process. A run that goes on after step s
    begins another file, which tells readers to forget what the earlier ones hold of the steps after s: TensorBoard
    shows each step once, as it was last done.

    Args:
        folder: of this run alone; `tensorboard --logdir` takes it or any folder above.
        last_step: the step after which the run goes on.

    Raises:
        UserError: the extra is not installed, or the folder cannot be written.

    Example:
        >>> with closing(TensorBoardWriter("out/tensorboard")) as write:
        ...     write(1, {"loss": 9.7})
    """

    def __init__(self, folder: str | Path, last_step: int = 0) -> None:
        require_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        folder = Path(folder)
        make_folder(folder)
        goes_on = has_events(folder)
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)  # readers take the files by their names
        name = f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.after-step-{last_step}"
        self._records = RecordWriter((folder / name).open("xb"))
        self._add(0, file_version="brain.Event:2")
        if goes_on:
            self._add(last_step + 1, session_log=self._event.SessionLog(status=self._event.SessionLog.START))

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
    """Refuse to go on without the extra `tensorboard`.

    Raises:
        UserError: it is not installed.
    """
    try:
        import_module("tensorboard.summary.writer.record_writer")
    except ModuleNotFoundError as error:
        raise UserError(
            f"Expected the extra tensorboard, found no {error.name}; install it with "
            "`pip install 'jax-diversity[tensorboard]'`."
        ) from None


def has_events(folder: Path) -> bool:
    """Whether a run wrote TensorBoard's files there before."""
    return any(folder.glob("events.out.tfevents.*"))


class JsonLinesWriter:
    """Appends values to a file, a line of JSON each: `{"step": 1, "loss": 9.7}`, as `read_log` reads them.

    A loop of one's own stands in the dataset's report beside the lab's runs when it writes to
    `out/training/ORDERING/log.jsonl` with the fingerprints of dataset and ordering as its header.

    Args:
        path: the file; its folder is made.
        header: begins the file: what the run is of. The steps that the file holds up to `last_step` stay, all
            others go. None leaves the file as it is, and appends.
        last_step: the step after which the run goes on; 0 begins anew.

    Raises:
        UserError: the folder cannot be written.

    Example:
        >>> header = {"dataset": dataset.fingerprint, "ordering": dataset.orderings["balance"].fingerprint}
        >>> with closing(JsonLinesWriter("out/training/balance/log.jsonl", header)) as write:
        ...     write(1, {"loss": 9.7})
    """

    def __init__(self, path: str | Path, header: Mapping[str, Any] | None = None, last_step: int = 0) -> None:
        path = Path(path)
        make_folder(path.parent)
        if header is not None:
            begin_log(path, header, last_step)
        self._file = path.open("a", encoding="utf-8")

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        """Write a step's values."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __repr__(self) -> str:
        return "JsonLinesWriter"

"""The log of a training run, in the folder of its dataset or stored run, where the report reads it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

from jax_diversity.foundation.checks import as_whole_number, check_mapping
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside
from jax_diversity.foundation.locks import is_held, locked
from jax_diversity.lab.metrics import LOG_FILE, JsonLinesWriter, read_log
from jax_diversity.streaming.dataset.orderings import is_file_name
from jax_diversity.streaming.run.run import Datasets, Run, as_run
from jax_diversity.streaming.run.stored import StoredRun


def training_folder(run: Run) -> Path:
    """Return the folder for the training on a run: its log, its checkpoints, its files for TensorBoard.

    For a dataset's ordering it is `out/training/ORDERING`. For a .npy file its name is the name of the file and the
    first digits of the ordering's fingerprint. For a stored run it is `training` in the folder of the run.

    Raises:
        UserError: the run has no folder on this machine, or a part of the path is a link.
    """
    if isinstance(run, StoredRun):
        return inside(run.root, "training")
    if not run.datasets:
        raise UserError("Expected a run of a dataset, found a run of token counts, which has no folder; give a folder.")
    if (dataset := run.datasets[0]).remote is not None:
        raise UserError(
            f"Expected a dataset in a folder to train in, found the address {dataset.address}; copy it to this machine."
        )
    name = f"{Path(run.name).stem}-{run.fingerprint[:8]}" if is_file_name(run.name) else run.name
    return inside(dataset.root, "training", name)


class TrainingLog:
    """Write the values of your own training loop to a log that the report draws.

    The log is `log.jsonl` in `training_folder(run)`: `out/training/ORDERING`, or `RUN/training` for a stored run. Its
    first line has the fingerprints of the dataset and of the ordering, and how the ordering was made; every other line
    has values of one step. A step may be written several times: `read_log` joins its values. A log can be the writer of
    `watch_batches`.

    Opening a log changes no step. The first step that is written says where training begins or continues: the records
    of this step and of later steps are removed, because they are of a run that ended after its last checkpoint. A
    process that is killed while it writes loses no earlier step. If JAX runs several processes, only the first one
    writes.

    Args:
        run: a run, such as a stored run; or a built dataset or its folder, which is read in `ordering`.
        ordering: the ordering of the dataset, see `make_loader`.
        folder: another folder for the log; the report does not find it there.
        settings: settings to note in the first line, such as the learning rate; for information only.

    Attributes:
        steps: the records of the steps that were in the log when it was opened.

    Raises:
        UserError: the log is of another dataset or ordering; the folder cannot be written, or another program writes
            there; the dataset is on an object store and there is no `folder`.

    Example:
        >>> with TrainingLog("out", "balance") as log:
        ...     for step, batch in enumerate(watch_batches(loader, log)):
        ...         log(step, {"loss": train_step(model, batch)})
    """

    def __init__(
        self,
        run: Datasets | Run,
        ordering: Any = None,
        *,
        folder: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        run = as_run(run, ordering)
        self._header = {"dataset": run.identity, "ordering": run.fingerprint, "order": dict(run.info)}
        self._header |= {} if settings is None else {"settings": dict(settings)}
        self._write: JsonLinesWriter | None = None
        self._folder = training_folder(run) if folder is None else Path(folder)
        self._path = inside(self._folder, LOG_FILE)
        self._is_closed, self._writes = False, jax.process_index() == 0
        with ExitStack() as stack:
            if self._writes and not is_held(self._folder):
                # Not `hold`: a notebook may close the log in another context than the one that opened it.
                stack.enter_context(locked(self._folder))
            header, self.steps = read_log(self._path)
            self._check(header, run)
            if self._writes and not self._path.exists():  # a run without further steps has a header, too
                JsonLinesWriter(self._path, self._header).close()
            self._stack = stack.pop_all()

    def _check(self, header: Mapping[str, Any], run: Run) -> None:
        fits = {
            "dataset": header.get("dataset", run.identity) == run.identity,
            # A stored run that was changed continues its earlier versions.
            "ordering": "ordering" not in header or run.continues(0, header["ordering"]),
        }
        for name, is_same in fits.items():
            if not is_same:
                order = header.get("order")
                how = ", ".join(f"{key} {value}" for key, value in order.items()) if isinstance(order, dict) else ""
                raise UserError(
                    f"Expected the log of a run on the {name} of fingerprint {self._header[name][:16]}, found "
                    f"{self._path} of the {name} {str(header[name])[:16]}{how and f' ({how})'}; to continue that run, "
                    f"open its {name} (a build of the same documents with the same settings into a new folder makes "
                    f"the same one again); to start a new run, move {self._folder} away."
                )

    def __call__(self, step: int, values: Mapping[str, Any]) -> None:
        """Write values of a step, counted from 0. A value is a number, or a JAX array of one number.

        Raises:
            UserError: the log is closed; the step is not a whole number; a value is not a number.
        """
        step = as_whole_number("step", step)
        check_mapping("values", values, "of names to numbers")
        if self._is_closed:
            raise UserError(f"Expected an open log, found {self._path}, which was closed; make another TrainingLog.")
        if not self._writes:
            return
        numbers = {name: _as_number(name, value) for name, value in values.items()}
        if self._write is None:
            self._write = JsonLinesWriter(self._path, self._header, step)
            self._stack.callback(self._write.close)
        self._write(step, numbers)

    def close(self) -> None:
        """Close the file; other programs may write to its folder then."""
        self._is_closed = True
        self._stack.close()

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TrainingLog({str(self._path)!r})"


def _as_number(name: str, value: Any) -> float:
    try:
        return value if type(value) in (int, float) else float(value)
    except (TypeError, ValueError):
        raise UserError(f"Expected the value {name!r} to be a number, found {value!r}.") from None

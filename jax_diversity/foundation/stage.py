"""Declare stages, and the services that a stage may use while it runs.

The folder of a stage contains everything about it: its settings, its functions, and the names and readers of its
artifacts (`stored.py`). The folder's `stage.py` declares one `Stage`; the engine (`jax_diversity.pipeline`) and the
command line use only these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import OutputFolder
from jax_diversity.foundation.executors import Executor
from jax_diversity.foundation.jobs import Opened
from jax_diversity.foundation.progress import Progress

Counts = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """Services for a running stage.

    Attributes:
        config: the settings of all stages.
        folder: the dataset's folder and its manifest.
        progress: shows the progress of the work.
        open_dataset: opens the dataset in a folder; it is an argument because `dataset` imports the foundation.
        executor: runs the jobs of the stage, in this process or elsewhere.
        reference: the open dataset of `features_from`; None if that setting is empty.
    """

    config: Any
    folder: OutputFolder
    progress: Progress
    open_dataset: Callable[[Path], Any]
    executor: Executor
    reference: Any = None

    @property
    def root(self) -> Path:
        """The dataset's folder."""
        return self.folder.root

    @property
    def dataset(self) -> Any:
        """The finished stages, as a `streaming.dataset.Dataset`: the only way to other stages' artifacts."""
        return self.open_dataset(self.root)

    @property
    def opened(self) -> Opened:
        """The argument of jobs that read the finished stages, see `jax_diversity.foundation.jobs.opened`."""
        return [f"{self.open_dataset.__module__}:{self.open_dataset.__qualname__}", str(self.root)]

    def counts(self, stage: str) -> Counts:
        """The counts of a finished stage."""
        return self.folder.stages[stage]["counts"]


@dataclass(frozen=True)
class Stage:
    """One step from a corpus to an ordered dataset.

    Attributes:
        name: its name in the manifest; the command (verb) is the name up to a slash (`order/balance` -> `order`).
        help: the sentence about the command in the command line's help; empty if only builds run the stage.
        section: the field of `BuildConfig` with its settings; if it is a dataclass, it has a method `check`.
        destination: the folder for its files, below the dataset's folder.
        run: writes the files into a temporary folder and returns the counts, which must be valid JSON.
        summary: makes one line about the result from the counts.
        settings: returns the part of the settings that its result depends on, as plain values.
        inputs: the stages whose artifacts it reads.
        outside: a fingerprint of the other files that it reads.
        check: raises if the stored documents cannot satisfy the settings; called as soon as the documents are known.
        adopt: makes the section's settings with `features_from`, from all given settings and the settings of the other
            dataset's stage; None if the stage uses nothing from other datasets. The counts of a stage whose artifacts
            other datasets use contain `features`, a fingerprint of these artifacts.
        resumable: whether a later run may keep the finished files of an interrupted run.
        owns_folder: whether the folders of its files contain no files of other stages.
        also: other sections of settings that it reads.
        remembered: one of its files, which can stay in the folder when the stage is made again, see
            `OutputFolder.remember`; empty for most stages.
        must_remember: whether this file stays when the stage runs again with the current settings, from the stage's
            entry in the manifest; when its inputs change, None is given.
        packages: libraries whose version may change the files' bytes.
        methods: the module, below this package, whose `METHODS` lists the stage's methods; empty without methods.
        version: a number that developers increase when the same settings give another result.
    """

    name: str
    help: str
    section: str
    destination: str
    run: Callable[[Context, Path], Counts]
    summary: Callable[[Counts], str]
    settings: Callable[[Any], dict[str, Any]]
    inputs: Callable[[Context], tuple[str, ...]] = lambda context: ()
    outside: Callable[[Context], str] = lambda context: ""
    check: Callable[[Context], None] = lambda context: None
    adopt: Callable[[Any, Any], Any] | None = None
    resumable: bool = False
    owns_folder: bool = True
    also: tuple[str, ...] = ()
    remembered: str = ""
    must_remember: Callable[[Context, Mapping[str, Any] | None], bool] = lambda context, entry: False
    packages: tuple[str, ...] = ()
    methods: str = ""
    version: int = 1

    @property
    def verb(self) -> str:
        """The command of the command line that runs this stage."""
        return self.name.split("/")[0]

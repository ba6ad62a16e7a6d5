"""What a stage is, and what it may use while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_diversity.artifacts import OutputFolder
from jax_diversity.config import BuildConfig
from jax_diversity.progress import Progress

if TYPE_CHECKING:
    from jax_diversity.dataset import Dataset

Counts = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What a running stage may use."""

    config: BuildConfig
    folder: OutputFolder
    progress: Progress

    @property
    def root(self) -> Path:
        """The dataset's folder."""
        return self.folder.root

    @property
    def dataset(self) -> Dataset:
        """What is finished so far."""
        from jax_diversity.dataset import Dataset

        return Dataset(self.root)

    def counts(self, stage: str) -> Counts:
        """What a finished stage counted."""
        return self.folder.stages[stage]["counts"]


@dataclass(frozen=True)
class Stage:
    """One step of the chain.

    Attributes:
        name: its name in the manifest.
        destination: the folder that takes its files.
        run: writes the files into a partial folder, returns counts.
        settings: the settings that its result depends on.
        inputs: the stages whose artifacts it reads.
        outside: a fingerprint of what it reads besides them.
        resumable: whether finished files of a cut-off try may be kept.
        owns_folder: whether the destination holds this stage's files alone.
        packages: the libraries whose version may change the files' bytes.
        version: raised when the same settings make another result.
    """

    name: str
    destination: str
    run: Callable[[Context, Path], Counts]
    settings: Callable[[BuildConfig], dict[str, Any]]
    inputs: Callable[[Context], tuple[str, ...]] = lambda context: ()
    outside: Callable[[Context], str] = lambda context: ""
    resumable: bool = False
    owns_folder: bool = True
    packages: tuple[str, ...] = ()
    version: int = 1

"""The finished stages of a dataset's folder, and the artifacts that stages declare.

The class of a stage in its module `stored` lists the attributes that a dataset has from the stage. `Dataset` inherits
these classes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from jax_diversity.foundation.artifacts import Fault, OutputFolder, is_as_written
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside

Part = Literal["train", "validation"]
Value = TypeVar("Value")


class StoredStages:
    """The finished stages of one folder.

    For a dataset on an object store, `remote` (a `RemoteFolder`) fetches a file when it is first needed.

    Attributes:
        part: the sequences that artifacts describe.
        number_of_file: the number of the file of documents that artifacts describe; None for all documents.
    """

    part: Part = "train"
    number_of_file: int | None = None

    def __init__(self, root: Path, remote: Any = None) -> None:
        self.root, self._remote = root, remote
        self._folder = OutputFolder(root)

    def of(self, part: Part = "train", number_of_file: int | None = None) -> StoredStages:
        """The same stages; artifacts are read for other sequences, or for one file of documents."""
        view = copy(self)
        view.part, view.number_of_file = part, number_of_file
        return view

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The content of `manifest.json`: format version, settings and finished stages."""
        return self._folder.manifest

    @property
    def stages(self) -> Mapping[str, Any]:
        """The finished stages: name -> fingerprint, counts, summary and files."""
        return self._folder.stages

    def stage(self, name: str) -> Mapping[str, Any]:
        """The entry of a finished stage in the manifest; raises a `UserError` if the stage has not run."""
        try:
            return self.stages[name]
        except KeyError:
            raise UserError(
                f"{self.root} has no stage {name!r} yet; make it with `jax-diversity {_verb(name)}` (or `build`)."
            ) from None

    def counts(self, stage: str) -> Mapping[str, Any]:
        """The counts of a finished stage."""
        return self.stage(stage)["counts"]

    def number(self, stage: str, name: str) -> int:
        """A count of a finished stage, as a whole number."""
        return as_whole_number(f"{name!r} in {self.root / 'manifest.json'}", self.counts(stage)[name])

    def file(self, stage: str, name: str, *, checked: bool = True) -> Path:
        """The path of a stage's file; for a dataset on an object store the file is fetched first.

        The content is compared with the SHA-256 in the manifest, once per process. `checked=False` compares only the
        size. This is enough if the reader checks the content itself: records have checksums, orderings have
        fingerprints.

        Raises:
            UserError: the stage has not run, or the file is absent or differs from the manifest.
        """
        description = self.stage(stage)["files"].get(name)
        if description is None:
            raise UserError(f"Expected {name} among the files of stage {stage!r} in {self.root}, found no such entry.")
        if self._remote is not None:
            return self._remote.fetch(name, checked=checked)
        path = inside(self.root, name)
        num_bytes = path.stat().st_size if path.is_file() else None
        if num_bytes != description["bytes"]:
            raise UserError(
                f"Expected {description['bytes']} bytes in {path}, found "
                f"{'no such file' if num_bytes is None else num_bytes}; "
                f"restore the file or run `jax-diversity {_verb(stage)}` again."
            )
        if checked and not is_as_written(path, description):
            raise UserError(
                f"{path} is damaged: its SHA-256 differs from the manifest; restore it, or delete it and run "
                f"`jax-diversity {_verb(stage)}` again."
            )
        return path

    def fetch(self, name: str) -> None:
        """Fetch a file, if the dataset is on an object store."""
        if self._remote is not None:
            self._remote.fetch(name)

    def files(self, stage: str, start: str, suffix: str = "") -> list[Path]:
        """The paths of a stage's files with this start and suffix, checked, in the order of their numbers."""
        return self._paths(stage, self.names(stage, start, suffix))

    def _paths(self, stage: str, names: list[str]) -> list[Path]:
        # Hashing releases the interpreter's lock. Fetching from an object store uses its own threads.
        num_threads = 1 if self._remote else min(len(os.sched_getaffinity(0)), max(len(names), 1))
        with ThreadPoolExecutor(num_threads) as threads:
            return list(threads.map(partial(self.file, stage), names))

    def files_to_fetch(
        self, stage: str, start: str, suffix: str = ""
    ) -> tuple[list[Path], Callable[[Path], None] | None]:
        """The paths of these files, and a function that fetches one before its first read; None for local files.

        Only their sizes are compared: use this for files that contain checksums.
        """
        names = self.names(stage, start, suffix)
        if self._remote is not None:
            return [self.root / name for name in names], self._remote.fetch_path
        return [self.file(stage, name, checked=False) for name in names], None

    def names(self, stage: str, start: str, suffix: str = "") -> list[str]:
        """The names of a stage's files with this start and suffix, relative to the dataset's folder."""
        # The names are sorted by length first, because 100,000 has one more digit than 99,999.
        names = sorted(self.stage(stage)["files"], key=lambda name: (len(name), name))
        return [name for name in names if name.startswith(start) and name.endswith(suffix)]

    def document_files(self, stage: str, start: str, suffix: str = "") -> list[Path]:
        """The paths of the files with these names, checked."""
        return self._paths(stage, self.document_names(stage, start, suffix))

    def document_names(self, stage: str, start: str, suffix: str = "") -> list[str]:
        """Like `names`, of a stage that has one file for each file of documents; only that of `number_of_file`."""
        names = self.names(stage, start, suffix)
        return names if self.number_of_file is None else [names[self.number_of_file]]

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare every file's size and SHA-256 with the manifest; `advance` is called with the bytes read."""
        return (self._folder if self._remote is None else self._remote).verify(advance)


class StoredValue(cached_property[Value]):
    """An attribute of a dataset that is read from its stages at the first use, and kept.

    Attributes:
        read: returns the value of some stages.
    """

    def __init__(self, read: Callable[[StoredStages], Value]) -> None:
        super().__init__(lambda dataset: self.read(dataset.stored))
        self.read = read


class Count(StoredValue[int]):
    """A whole number among the counts of a stage; `validation` is its name for the validation sequences."""

    def __init__(self, stage: str, name: str, *, validation: str | None = None) -> None:
        names = {"train": name, "validation": validation or name}
        super().__init__(lambda stored: stored.number(stage, names[stored.part]))


class Artifact(StoredValue[Value]):
    """A file of a stage.

    Args:
        stage: the name of the stage.
        file: the name of the file in the dataset's folder.
        load: returns the value, from the path of the file and the name of the stage, which errors mention.
    """

    def __init__(self, stage: str, file: str, load: Callable[[Path, str], Value]) -> None:
        super().__init__(lambda stored: load(self.path(stored), stage))
        self.stage, self.file = stage, file

    @property
    def name(self) -> str:
        """The name of the file in the folder of the stage."""
        return self.file.partition("/")[2]

    def path(self, stored: StoredStages) -> Path:
        """The path of the file, see `StoredStages.file`."""
        return stored.file(self.stage, self.file)

    def is_stored(self, stored: StoredStages) -> bool:
        """Whether the stage has made the file."""
        return self.file in stored.stage(self.stage)["files"]


class OptionalArtifact(Artifact[Value | None]):
    """A file about the training sequences that a stage may leave out; the value is then None."""

    def __init__(self, stage: str, file: str, load: Callable[[Path, str], Value]) -> None:
        super().__init__(stage, file, load)
        self.read = lambda stored: load(self.path(stored), stage) if self.is_stored(stored) else None

    def is_stored(self, stored: StoredStages) -> bool:
        """Whether the stage has made the file; False for the validation sequences."""
        return stored.part == "train" and super().is_stored(stored)


def path_of(path: Path, stage: str) -> Path:
    """The `read` of an artifact whose readers need only its path."""
    return path


def _verb(stage: str) -> str:
    return stage.split("/")[0]

"""The finished stages of a dataset's folder: their counts and their files, which the `stored` modules read."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jax_diversity.foundation.artifacts import Fault, OutputFolder, is_as_written
from jax_diversity.foundation.checks import as_whole_number
from jax_diversity.foundation.errors import UserError
from jax_diversity.foundation.folders import inside


class StoredStages:
    """The finished stages of one folder.

    For a dataset on an object store, `remote` (a `RemoteFolder`) fetches a file when it is first needed.
    """

    def __init__(self, root: Path, remote: Any = None) -> None:
        self.root, self._remote = root, remote
        self._folder = OutputFolder(root)

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
        about = self.stage(stage)["files"].get(name)
        if about is None:
            raise UserError(f"Expected {name} among the files of stage {stage!r} in {self.root}, found no such entry.")
        if self._remote is not None:
            return self._remote.fetch(name, checked=checked)
        path = inside(self.root, name)
        found = path.stat().st_size if path.is_file() else None
        if found != about["bytes"]:
            raise UserError(
                f"Expected {about['bytes']} bytes in {path}, found {'no such file' if found is None else found}; "
                f"restore the file or run `jax-diversity {_verb(stage)}` again."
            )
        if checked and not is_as_written(path, about):
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
        names = self.names(stage, start, suffix)
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

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare every file's size and SHA-256 with the manifest; `advance` is called with the bytes read."""
        return (self._folder if self._remote is None else self._remote).verify(advance)


def _verb(stage: str) -> str:
    return stage.split("/")[0]

"""A built dataset's folder: atomic artifacts, their fingerprints and hashes, one writer at a time.

An artifact is written into a *partial* folder, flushed to disk, then renamed into place, and only then entered
in `manifest.json`. Whatever the moment of a kill, the next build finds either the whole artifact or a partial one
whose finished files (named by the fingerprint of what makes them) it can go on from. Nothing in an artifact or in
the manifest depends on time, so a build that was cut off ends byte for byte like one that was not.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_diversity.errors import UserError

FORMAT_VERSION = 1
_PARTIAL = ".partial"
_TEMPORARY = ".tmp"


def fingerprint(*parts: Any) -> str:
    """SHA-256 of JSON-serialisable parts, in hexadecimal."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def file_hash(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file's bytes, read in pieces; `advance` is told the bytes read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            if advance is not None:
                advance(len(piece))
    return digest.hexdigest()


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder that becomes `path` when the block ends well, and vanishes otherwise."""
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys sorted."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a stored file: which file, what was expected, what was found."""

    file: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.file}: expected {self.expected}, found {self.found}"


class OutputFolder:
    """The folder of one dataset and its manifest.

    Raises:
        UserError: the path is a file, the manifest does not parse or comes from a newer version.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if self.root.exists() and not self.root.is_dir():
            raise UserError(f"Expected a folder for the dataset, found a file at {self.root}; name another folder.")
        self.manifest = self._read_manifest()

    def _read_manifest(self) -> dict[str, Any]:
        path = self.root / "manifest.json"
        if not path.exists():
            return {"format_version": FORMAT_VERSION, "stages": {}}
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            version = manifest["format_version"]
            manifest["stages"].items()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is not a dataset's manifest ({error!r}); restore it or build anew.") from None
        if version > FORMAT_VERSION:
            raise UserError(
                f"{path} was written in format {version}, this version reads up to {FORMAT_VERSION}; "
                "upgrade jax-diversity."
            )
        return manifest

    @property
    def stages(self) -> Mapping[str, Any]:
        """Finished stages: name -> fingerprint, settings, counts and files."""
        return self.manifest["stages"]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for writing; the lock ends with the process, however it ends.

        Raises:
            UserError: another process holds it.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                holder = file.read().strip() or "unknown"
                raise UserError(
                    f"{self.root} is being written by another process (id {holder}); wait for it or choose another "
                    "output folder."
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            self.manifest = self._read_manifest()
            yield

    def is_current(self, stage: str, stage_fingerprint: str) -> bool:
        """Whether the stage is finished for this fingerprint and its files are there with their sizes."""
        entry = self.stages.get(stage)
        return (
            entry is not None
            and entry["fingerprint"] == stage_fingerprint
            and not any(True for _ in self._missing_files(entry))
        )

    def _missing_files(self, entry: Mapping[str, Any]) -> Iterator[Fault]:
        for name, about in entry["files"].items():
            path = self.root / name
            if not path.is_file():
                yield Fault(name, f"{about['bytes']} bytes", "no such file")
            elif path.stat().st_size != about["bytes"]:
                yield Fault(name, f"{about['bytes']} bytes", f"{path.stat().st_size} bytes")

    def verify(self, advance: Callable[[int], None] | None = None) -> list[Fault]:
        """Compare every stored file with the manifest: present, size, SHA-256."""
        faults = []
        for entry in self.stages.values():
            missing = {fault.file: fault for fault in self._missing_files(entry)}
            faults.extend(missing.values())
            for name, about in entry["files"].items():
                if name not in missing:
                    found = file_hash(self.root / name, advance)
                    if found != about["sha256"]:
                        faults.append(Fault(name, f"sha256 {about['sha256']}", f"sha256 {found}"))
        return faults

    def partial(self, stage: str, stage_fingerprint: str, *, resume: bool) -> Path:
        """The folder to write a stage's files into; with `resume`, finished files of a cut-off try are kept."""
        folder = self.root / _PARTIAL / f"{stage.replace('/', '-')}-{stage_fingerprint[:16]}"
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.rglob(f"*{_TEMPORARY}"):
            leftover.unlink()
        return folder

    def publish(self, stage: str, partial: Path, destination: str, entry: Mapping[str, Any]) -> None:
        """Put a finished partial folder in place and enter it in the manifest.

        Args:
            stage: the stage's name in the manifest.
            partial: the folder that `partial` gave, complete.
            destination: the folder below the root that takes the files. The files that the stage's former entry
                names are removed; files of other stages in the same folder stay.
            entry: what the manifest keeps besides the files: fingerprint, settings, counts.
        """
        names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())
        files = {}
        for name in names:
            path = partial / name
            _flush(path)
            files[str(Path(destination) / name)] = {"bytes": path.stat().st_size, "sha256": file_hash(path)}
        former = self.withdraw(stage)
        target = self.root / destination
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(partial / name, target / name)
        for name in former.keys() - files.keys():
            (self.root / name).unlink(missing_ok=True)
        if destination == stage:  # the stage's own folder: what a cut-off replacement left behind goes too
            for path in [path for path in target.rglob("*") if path.is_file()]:
                if str(path.relative_to(self.root)) not in files:
                    path.unlink()
        _flush(target)
        self.manifest["stages"][stage] = {**entry, "files": files}
        write_json(self.root / "manifest.json", self.manifest)
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):
            (self.root / _PARTIAL).rmdir()

    def withdraw(self, stage: str) -> Mapping[str, Any]:
        """Take a stage out of the manifest (its files stay until replaced); returns its former files."""
        former = self.manifest["stages"].pop(stage, None)
        if former is None:
            return {}
        write_json(self.root / "manifest.json", self.manifest)
        return former["files"]
